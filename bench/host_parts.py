"""What a warm call costs the host, measured on any machine: the driver and its memory are replaced by stubs, all of Python's part runs as on a GPU.

    python bench/host_parts.py [--rounds N] [--only WORD,...]
    valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file=FOLDER/calls python bench/host_parts.py --count FOLDER [--only WORD,...]

The first form prints microseconds of the thread's own time, the smallest of many short runs, all rows in turn. The second prints instructions of the
processor per call, which do not depend on what else runs: use it to compare two versions (PYTHONPATH=OTHER runs another one). It needs valgrind with its
headers and a C compiler.

--only: rows of functions, or of definitions, whose names hold one of the words.

Rows: calls of `weft.nn.functional` without gradients, forwards that save, both ways (alone, and each of 32 in a row), a definition with three outputs,
chains of kernels; beside them eager torch, a Function that does nothing, and the same without a Function: a node of torch's own with a hook, and Python
functions in the place of an op's kernels.
Owns the stubs and the table. Read first: `stubs`, `rows`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import weft
from weft.arch import H200
from weft.nn import functional as W
from weft.runtime import engines, warm_path, work_memory
from weft.runtime.launch import LaunchRecord, make_config

CHAIN = 32
KERNELS = (1, 5, 20)
ROWS_COLUMNS = (32, 1024)

COUNTER = """
#include <Python.h>
#include <valgrind/callgrind.h>
static PyObject *count(PyObject *self, PyObject *args) {
  PyObject *f; int n; const char *name;
  if (!PyArg_ParseTuple(args, "Ois", &f, &n, &name)) return NULL;
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  for (int i = 0; i < n; i++) { PyObject *r = PyObject_CallNoArgs(f); if (!r) return NULL; Py_DECREF(r); }
  CALLGRIND_DUMP_STATS_AT(name);
  CALLGRIND_STOP_INSTRUMENTATION;
  Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"count", count, METH_VARARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "counter", 0, -1, methods};
PyMODINIT_FUNC PyInit_counter(void) { return PyModule_Create(&module); }
"""


class StubEngine:
    """An H200 whose kernels do nothing and whose memory is the host's."""

    key, arch, device = ("stub",), H200, 0

    def build(self, program: Any, options: Any, **keywords: Any) -> Any:
        return StubKernel(program)


class StubKernel:
    """A kernel whose launch calls a function of C that returns 0 at once."""

    kept, report = "", engines.BuildReport()
    CALL = ctypes.CDLL("libm.so.6")["fegetround"]

    def __init__(self, program: Any) -> None:
        self.name = program.name

    def check_residency(self, launch: Any, program: Any) -> None:
        """All fits."""

    def launcher(self, plan: Any) -> Any:
        config = make_config(plan.grid, plan.block, plan.shared_bytes, cooperative=plan.cooperative, overlap_previous=plan.overlaps_previous)
        return LaunchRecord(self.name, self.CALL, ctypes.c_void_p(1), config, plan.slots, _failed, _replaced, None).launch


def _failed(status: int, again: Any) -> None:
    raise SystemExit(f"the stub returned {status}")


def _replaced(*arguments: Any) -> int:
    return 0


def stubs() -> None:
    """Let every call take the way of a GPU without one."""
    from weft.runtime import driver

    engine, names, allocator, no_map = StubEngine(), work_memory.names, warm_path.allocator, bytes(128)
    engines.choose = lambda options, **asked: engine  # type: ignore[assignment]
    engines.stream_reader = lambda device: abs  # type: ignore[assignment]
    work_memory.names = lambda device: names(None)
    warm_path.allocator = lambda device: allocator(None)
    driver.encode_tensor_map = lambda *arguments: no_map


# ---------------------------------------------------------------- what is measured
class Nothing(torch.autograd.Function):
    """The least that a Function of one input can be: it saves its result and takes memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (made,) = ctx.saved_tensors
        return torch.empty_like(made)


def least_function() -> Callable[..., Any]:
    """`Nothing` as weft calls its own: without what `apply` does for torch.func, the backward in the place of what torch puts around it."""
    made = type("Least", (Nothing,), {})
    made._backward_cls.apply = Nothing.backward
    apply: Callable[..., Any] = super(torch.autograd.Function, made).apply  # type: ignore[misc]
    return apply


class Hook:
    """What a hook on a node of torch's own has to do at the least: keep what was saved, look at its version, let it go unless the graph is kept."""

    __slots__ = ("saved", "version")
    KEEPS_GRAPH = torch._C._autograd._get_current_graph_task_keep_graph

    def __init__(self, saved: torch.Tensor) -> None:
        self.saved, self.version = saved, saved._version

    def __call__(self, grads: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if self.saved._version != self.version:
            raise RuntimeError("changed")
        made = torch.empty_like(self.saved)
        if not self.KEEPS_GRAPH():
            del self.saved
        return (made,)


def with_torchs_node(x: torch.Tensor) -> torch.Tensor:
    """`Nothing` without a Function: a node that torch makes in C++, and a hook in front of it. The result is detached for the hook, or it would keep itself."""
    made = torch.empty_like(x)
    y = torch.ops.aten._unsafe_view.default(x, x.shape)
    y.data = made
    y.grad_fn.register_prehook(Hook(made.detach()))
    return y


def with_torchs_kernels() -> Callable[..., Any]:
    """`Nothing` recorded in C++: Python functions as torch's kernels of an op, and of what torch's own gradient of that op calls."""
    LIBRARY.impl("_log_softmax", lambda x, dim, half_to_float: torch.empty_like(x), "CPU")
    LIBRARY.impl("_log_softmax_backward_data", lambda grad, made, dim, dtype: torch.empty_like(made), "CPU")
    return lambda x: torch._log_softmax(x, -1, False)


LIBRARY = torch.library.Library("aten", "IMPL")
"""What is registered in it holds as long as it lives."""


def functions() -> dict[str, tuple[Callable[..., Any], int]]:
    """Return functions by name, with how many weights they take."""
    n = ROWS_COLUMNS[1]
    return {
        "softmax": (lambda x: W.softmax(x, -1), 0),
        "rms_norm": (lambda x, w: W.rms_norm(x, (n,), w, 1e-6), 1),
        "layer_norm": (lambda x, w, b: W.layer_norm(x, (n,), w, b), 2),
        "eager softmax": (lambda x: F.softmax(x, -1), 0),
        "nothing": (Nothing.apply, 0),
        "nothing, the least Function": (least_function(), 0),
        "nothing, a node of torch's with a hook": (with_torchs_node, 0),
        "nothing, as torch's kernels of log_softmax": (with_torchs_kernels(), 0),
    }


def rows(only: list[str]) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return what is measured: name -> (call, how many of what is told it makes)."""
    x = torch.randn(ROWS_COLUMNS).bfloat16()
    grad, weights = torch.randn_like(x), [torch.rand(ROWS_COLUMNS[1]).bfloat16() for _ in range(2)]
    out: dict[str, tuple[Callable[[], Any], int]] = {}
    for name, (f, count) in functions().items():
        if only and not any(word in name for word in only if word):
            continue
        plain = [x, *weights[:count]]
        leaves = [t.clone().requires_grad_() for t in plain]
        if "hook" not in name:
            out[f"{name}, no gradient"] = (lambda f=f, plain=plain: f(*plain), 1)
        out[f"{name}, forward that saves"] = (lambda f=f, leaves=leaves: f(*leaves), 1)
        out[f"{name}, both ways"] = (lambda f=f, leaves=leaves: torch.autograd.grad(f(*leaves), leaves, grad), 1)
        out[f"{name}, both ways, each of {CHAIN}"] = (chained(f, leaves, grad), CHAIN)
    more = three_outputs() | chains()
    return out | {name: row for name, row in more.items() if not only or any(word in name for word in only)}


def chained(f: Callable[..., Any], leaves: list[torch.Tensor], grad: torch.Tensor) -> Callable[[], Any]:
    def call() -> Any:
        y = leaves[0]
        for _ in range(CHAIN):
            y = f(y, *leaves[1:])
        return torch.autograd.grad(y, leaves, grad)

    return call


def three_outputs() -> dict[str, tuple[Callable[[], Any], int]]:
    """The backward of a layer norm by itself."""
    with weft.FusionDefinition() as fd:
        a, w, b = (fd.define_tensor([-1] * rank, contiguity=True, dtype=weft.DataType.BFloat16) for rank in (2, 1, 1))
        fd.add_output(fd.ops.layer_norm(a, [-1], w, b))
    plan = fd.autograd().plan((True, True, True))
    n, k = ROWS_COLUMNS
    made = plan.executor.execute([torch.randn(n, k).bfloat16(), *(torch.rand(k).bfloat16() for _ in range(2))])
    saved = [
        made[o] if i is None else torch.randn(n, k).bfloat16() if i == 0 else torch.rand(k).bfloat16() for i, o in zip(plan.saved_inputs, plan.saved_outputs)
    ]
    step = plan.plain
    given = [*(saved[i] for i in step.used), *(plan.read_scalar(s, saved, None) for s in step.scalars), torch.randn(n, k).bfloat16()]
    return {"three outputs (layer norm backward)": (lambda: step.executor.execute(given), 1)}


def chains() -> dict[str, tuple[Callable[[], Any], int]]:
    """Definitions of several kernels, each of which adds the same bias."""
    out: dict[str, tuple[Callable[[], Any], int]] = {}
    for kernels in KERNELS:
        with weft.FusionDefinition() as fd:
            x, bias = fd.define_tensor(shape=[-1, -1], contiguity=True), fd.define_tensor(shape=[-1], contiguity=True)
            for _ in range(kernels):
                x = fd.ops.segment_set(fd.ops.relu(fd.ops.add(x, fd.ops.broadcast(bias, [True, False]))))
            fd.add_output(x)
        given = [torch.randn(ROWS_COLUMNS), torch.randn(ROWS_COLUMNS[1])]
        out[f"{kernels} kernels"] = (lambda fd=fd, given=given: fd.execute(given), 1)
    return out


# ---------------------------------------------------------------- measuring
def microseconds(measured: dict[str, tuple[Callable[[], Any], int]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(measured, float("inf"))
    for _ in range(rounds):
        for name, (call, count) in measured.items():
            calls = max(1, 24 // count)
            start = time.thread_time()
            for _ in range(calls):
                call()
            best[name] = min(best[name], (time.thread_time() - start) / calls / count * 1e6)
    return best


def instructions(measured: dict[str, tuple[Callable[[], Any], int]], folder: Path, calls: int = 10) -> dict[str, float]:
    """Count under callgrind, whose files lie in `folder`."""
    with tempfile.TemporaryDirectory() as build:
        source, path = Path(build) / "counter.c", Path(build) / "counter.so"
        source.write_text(COUNTER)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "-o", str(path), str(source)], check=True)
        sys.path.insert(0, build)
        from counter import count  # type: ignore[import-not-found]
    gc.disable()
    found: dict[str, float] = {}
    for call, _ in measured.values():
        call(), call(), call()
    for name, (call, many) in measured.items():
        count(call, calls, name)
        for file in folder.glob("calls.*"):
            text = file.read_text(errors="replace")
            if f"Client Request: {name}\n" in text:
                found[name] = int(re.search(r"^totals: (\d+)", text, re.MULTILINE)[1]) / calls / many  # type: ignore[index]
                file.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--only", default="", help="words of names, with commas between")
    parser.add_argument("--count", type=Path, help="the folder in which callgrind, under which this runs, leaves its counts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    stubs()
    measured = rows([word for word in given.only.split(",") if word])
    for call, _ in measured.values():
        for _ in range(4):
            call()
    found = instructions(measured, given.count) if given.count else microseconds(measured, given.rounds)
    print("instructions" if given.count else "microseconds")
    for name, value in found.items():
        print(f"{name:<44} {value:10.0f}" if given.count else f"{name:<44} {value:8.2f}")
    one, many = (found.get(f"{n} kernels") for n in (KERNELS[0], KERNELS[-1]))
    if one and many:
        print(f"{'each further kernel':<44} {(many - one) / (KERNELS[-1] - 1):8.2f}")


if __name__ == "__main__":
    main()
