"""How long the torch functions of `model_functions.py` take to compile, forward and backward, stage by stage. Needs no GPU.

    PYTHONPATH=. python bench/function_compile_time.py [OUT.json] [--only TEXT] [--names A,B] [--share 0/2] [--nvrtc] [--chip H200] [--hashes]

Seconds of processor time, with no cache; each function in a process of its own. A call is prepared as in a first call, but nothing is launched, and no C++
compiler runs, unless `--nvrtc` asks for it: then each kernel is compiled for the chip. trace: Dynamo, AOTAutograd, the partitioner, rewrites of the graph.
regions: definitions made of regions. normalize: the normal form. cut: the plan, the compared cuts included (`cuts` counts them); asked: of it, the schedulers.
choose: the schedulers' parameters. schedule, lower, text: each kernel. ours: all but the trace. Read first: `STAGES`, `measured`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import moved
import torch
from compile_cliffs import CLIFFS, case_of
from measure import table
from model_functions import CASES
from own_work import Clock

from weft import compiler
from weft.arch import arch_by_name
from weft.frontend import compiling
from weft.frontend.record import GRAPHS
from weft.lower.program import KernelProgram
from weft.options import current, options
from weft.runtime import nvrtc as compiler_of_text, runtimes, steps
from weft.runtime.engines import machine_code
from weft.segment import partition

STAGES: dict[str, tuple[tuple[Any, str], ...]] = {
    "regions": ((compiling, "translate"),),
    "normalize": ((runtimes, "normalize_in_place"), (runtimes, "keep_memory_formats")),
    "cut": ((steps, "make_plan"),),
    "asked": ((compiler, "declines"),),
    "choose": ((compiler, "propose"),),
    "schedule": ((compiler, "schedule_clone"),),
    "lower": ((compiler, "lower"),),
    "text": ((compiler, "generate"),),
    "rest": ((compiling.RegionCall, "prepare"),),
}
"""Stage -> the functions whose own time it is: without that of other stages that they call."""
LONGEST_S = 180.0


def _watched() -> Clock:
    """Return a clock of the stages, which also counts the cuts."""
    clock = Clock()
    for stage, functions in STAGES.items():
        for owner, name in functions:
            clock.watch(owner, name, stage)
    plain, make_plan = compiler_of_text.command_line, partition._make_plan
    compiler_of_text.command_line = lambda *given, **more: [*plain(*given, **more), "--no-cache"]  # NVRTC's own

    @functools.wraps(make_plan)
    def counted(*arguments: Any, **keywords: Any) -> Any:
        clock.times["cuts"] += 1
        return make_plan(*arguments, **keywords)

    partition._make_plan = counted
    return clock


def _compiled(name: str, scale: float = 1.0) -> None:
    """Compile a function, forward and backward, and prepare the calls of its regions; nothing runs."""
    one = case_of(name, scale) if name in CLIFFS else CASES[name]
    given = [torch.empty(i.shape, dtype=i.dtype) for i in one.inputs]
    for n in one.with_gradient:
        given[n].requires_grad_()
    out = torch.compile(one.function, backend="weft", options={"emulate": True, "cache": False})(*given)
    out = out if isinstance(out, tuple) else (out,)
    if one.with_gradient:
        torch.autograd.backward([o for o in out if o.requires_grad], [torch.empty_like(o) for o in out if o.requires_grad])


def _prepared() -> list[str]:
    """Prepare the calls of all graphs; return what could not be."""
    failed = []
    with torch.no_grad():
        for call in [call for graph in GRAPHS for call in graph.calls]:
            try:
                call.prepare([like.value() if hasattr(like, "value") else like for like in call.plan.inputs])
            except Exception as error:  # noqa: BLE001  (torch runs such a region)
                failed.append(f"{call.plan.name}: {error}"[:200])
    return failed


def measured(name: str, *, nvrtc: bool, chip: str, scale: float = 1.0) -> dict[str, Any]:
    """Return a row of a function."""
    import moved_models

    clock, kernels = _watched(), list[KernelProgram]()
    arch = arch_by_name(chip)

    def stub(program: KernelProgram, counted: list[tuple[str, int]]) -> moved.Stub:
        kernels.append(program)
        if nvrtc:
            clock.timed("nvrtc", functools.partial(machine_code, arch))(program, current())
        clock.times["builds"] += 1
        return moved.Stub(program.name, counted)

    torch._dynamo.reset()
    with options(chip=chip, cache=False), moved.counting(stub), torch._functorch.config.patch(enable_autograd_cache=False):
        start = time.process_time()
        with moved_models.only_planned():
            _compiled(name, scale)
        graphs = sum(len(graph.calls) for graph in GRAPHS)
        trace = time.process_time() - start - clock.seconds["regions"]
        failed = _prepared()
    seconds = {stage: round(clock.seconds[stage], 2) for stage in (*STAGES, "nvrtc")}
    ours = sum(clock.seconds[stage] for stage in STAGES)
    kept = [f"{program.name} {hashlib.sha256(program.text.encode()).hexdigest()[:12]}" for program in kernels]
    counts = {"regions_": graphs, "cuts": clock.times["cuts"], "asks": clock.times["asked"], "builds": clock.times["builds"], "kernels": len(set(kept))}
    lines = max((program.text.count("\n") for program in kernels), default=0)
    return {"case": name, "ours": round(ours, 2), "trace": round(trace, 2), **seconds, **counts, "lines": lines, "texts": kept, "failed": failed}


def _in_a_process(name: str, **given: Any) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            row = measured(name, **given)
        except BaseException as error:  # noqa: BLE001  (the next function is to run, too)
            row = {"case": name, "error": f"{type(error).__name__}: {error}"[:300]}
        with os.fdopen(write, "w") as file:
            json.dump(row, file)
        os._exit(0)
    os.close(write)
    end = time.monotonic() + LONGEST_S
    timer = threading.Timer(end - time.monotonic(), os.kill, (child, signal.SIGKILL))
    timer.start()
    with os.fdopen(read) as file:
        text = file.read()
    timer.cancel()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"case": name, "error": f"took longer than {LONGEST_S} s"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--names", default="", help="these, with commas between")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--chip", default="H200")
    parser.add_argument("--cliffs", action="store_true", help="functions of many ops instead: `compile_cliffs.py`")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of their ops")
    parser.add_argument("--nvrtc", action="store_true", help="compile the kernels for the chip, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    share, shares = map(int, given.share.split("/"))
    names = given.names.split(",") if given.names else [name for name in (CLIFFS if given.cliffs else CASES) if given.only in name][share::shares]
    _compile_something()
    rows: list[dict[str, Any]] = []
    for name in names:
        rows.append(_in_a_process(name, nvrtc=given.nvrtc, chip=given.chip, scale=given.scale))
        print({key: value for key, value in rows[-1].items() if key != "texts"}, flush=True)
        if given.out:
            Path(given.out).write_text(json.dumps(rows, indent=0), encoding="utf-8")
    done = sorted((row for row in rows if "ours" in row), key=lambda row: -row["ours"])
    shown = ["case", "ours", "trace", *STAGES, "nvrtc", "cuts", "asks", "kernels", "lines"]
    print(table(shown, [[row[key] for key in shown] for row in done]))
    above = ", ".join(f"{sum(row['ours'] > seconds for row in done)} above {seconds} s" for seconds in (1, 3))
    print(f"ours: {sum(row['ours'] for row in done):.1f} s in all; {above}")


def _compile_something() -> None:
    """Import what the first compilation of a process imports."""
    import moved_models

    with options(chip="H200", cache=False), moved.counting(), torch._functorch.config.patch(enable_autograd_cache=False), moved_models.only_planned():
        x = torch.zeros(64, 64, requires_grad=True)
        torch.compile(lambda x: x.softmax(-1).exp(), backend="weft", options={"emulate": True, "cache": False})(x).sum().backward()
        _prepared()


if __name__ == "__main__":
    main()
