"""The first call of a definition of many kernels: how long it takes with 1, 2, 4, ... threads that compile.

    python bench/first_call_kernels.py [OUT.json] [--shape 4096,1024]

The definition has 20 different pieces (norms, softmax, activations, sums down columns), cut after each by `segment_set`. Kernels are lowered one after the
other by the calling thread, while NVRTC compiles those before in threads. All caches are off, every kernel of the process is forgotten before each row, and
the first row warms the process up (chip, NVRTC, imports). planned and lowered: seconds of the calling thread; nvrtc: the sum over kernels. torch.compile: the
same pieces in one function, which Inductor may fuse as it likes; its caches are empty and its workers are started.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

FOLDER = tempfile.TemporaryDirectory()
os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{FOLDER.name}/inductor", "TRITON_CACHE_DIR": f"{FOLDER.name}/triton", "CUDA_CACHE_DISABLE": "1"}

import torch  # noqa: E402
from measure import device_of, parser, synchronize, table, write  # noqa: E402

from weft import DataType, FusionDefinition  # noqa: E402
from weft.options import options  # noqa: E402
from weft.runtime import calls  # noqa: E402
from weft.runtime.runtimes import forget_kernels  # noqa: E402

THREADS = (16, 1, 2, 4, 8, 16)
Value = Any


class Math:
    """The pieces, written once for a definition (`ops` is fd.ops) and once for torch."""

    def __init__(self, fd: FusionDefinition | None) -> None:
        self.fd = fd
        self.ops: Any = torch if fd is None else fd.ops

    def fold(self, kind: str, x: Value, axis: int) -> Value:
        """Return a fold over rows (1) or columns (0), with the axis kept."""
        if self.fd is None:
            return getattr(x, {"max": "amax", "min": "amin"}.get(kind, kind))(axis, keepdim=True)
        return self.ops.broadcast(getattr(self.ops, kind)(x, [axis]), [axis == 0, axis == 1])

    def rms(self, x: Value, columns: int) -> Value:
        o = self.ops
        return o.mul(x, o.rsqrt(o.add(o.mul(self.fold("sum", o.mul(x, x), 1), 1 / columns), 1e-6)))

    def layer_norm(self, x: Value, columns: int) -> Value:
        o = self.ops
        centered = o.sub(x, o.mul(self.fold("sum", x, 1), 1 / columns))
        return o.mul(centered, o.rsqrt(o.add(o.mul(self.fold("sum", o.mul(centered, centered), 1), 1 / columns), 1e-5)))

    def softmax(self, x: Value) -> Value:
        o = self.ops
        e = o.exp(o.sub(x, self.fold("max", x, 1)))
        return o.div(e, self.fold("sum", e, 1))

    def pieces(self, w: Value, b: Value, n: int) -> list[Callable[[Value], Value]]:
        o = self.ops
        return [
            lambda f: o.add(self.rms(f, n), w), lambda f: o.relu(o.add(f, b)), self.softmax, lambda f: o.tanh(o.mul(f, w)),
            lambda f: o.mul(self.layer_norm(f, n), w), lambda f: o.sub(f, self.fold("sum", f, 0)), lambda f: o.mul(self.rms(o.tanh(f), n), b),
            lambda f: self.softmax(o.mul(f, b)), lambda f: o.mul(o.sigmoid(f), f), lambda f: o.add(self.layer_norm(o.add(f, b), n), w),
            lambda f: o.exp(o.neg(o.abs(f))), lambda f: o.add(f, self.fold("max", f, 1)), lambda f: o.mul(f, self.fold("max", f, 0)),
            lambda f: o.div(f, o.add(o.abs(f), 1.5)), lambda f: self.rms(o.mul(f, o.sigmoid(f)), n), lambda f: o.mul(o.relu(f), w),
            lambda f: self.softmax(o.sub(f, w)), lambda f: self.layer_norm(o.cos(f), n), lambda f: o.sin(o.add(f, w)),
            lambda f: o.sub(f, self.fold("min", f, 1)),
        ]  # fmt: skip


def definition(columns: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, columns], contiguity=True, dtype=DataType.BFloat16)
        w, b = (fd.define_tensor(shape=[columns], contiguity=True, dtype=DataType.BFloat16) for _ in range(2))
        rows = [fd.ops.broadcast(fd.ops.cast(t, DataType.Float), [True, False]) for t in (w, b)]
        for piece in Math(fd).pieces(*rows, columns):
            x = fd.ops.segment_set(fd.ops.cast(piece(fd.ops.cast(x, DataType.Float)), DataType.BFloat16))
        fd.add_output(x)
    return fd


def in_torch(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    for piece in Math(None).pieces(w.float(), b.float(), x.shape[1]):
        x = piece(x.float()).to(x.dtype)
    return x


def first_call(inputs: list[torch.Tensor], device: str, threads: int) -> dict[str, Any]:
    """Return the seconds of a first call, and its stages."""
    forget_kernels()
    calls.MOST_COMPILERS = threads
    fd = definition(inputs[0].shape[1])
    start = time.perf_counter()
    outputs = fd.execute(inputs)
    synchronize(device)
    first_s = time.perf_counter() - start
    timings = fd.fec.timings
    seconds = {"first": first_s, "planned": timings.binding_s, "lowered": timings.schedule_s + timings.lowering_s, "nvrtc": timings.nvrtc_s}
    del outputs
    return {"threads": threads, "kernels": len(fd.fec.kernel_runtimes), **{f"{name}_s": round(s, 3) for name, s in seconds.items()}}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--shape", default="4096,1024", help="rows,columns")
    a = arguments.parse_args()
    device = device_of(a)
    rows, columns = (8, 64) if a.cpu_smoke else map(int, a.shape.split(","))
    inputs = [torch.randn(rows, columns, device=device).bfloat16(), *(torch.randn(columns, device=device).bfloat16() for _ in range(2))]
    with options(cache=False):
        found = [first_call(inputs, device, threads) for threads in (THREADS[:1] if a.cpu_smoke else THREADS)]
    print(table(list(found[0]), [list(row.values()) for row in found]))
    more: dict[str, Any] = {"cores": os.cpu_count()}
    if not a.cpu_smoke:
        torch.compile(lambda x: x.sin() + 1)(inputs[1])  # starts its workers
        start = time.perf_counter()
        torch.compile(in_torch, dynamic=False)(*inputs)
        synchronize(device)
        more["compile_first_s"] = round(time.perf_counter() - start, 3)
        print("torch.compile", more["compile_first_s"])
    write(a, __file__, device, found, shape=[rows, columns], **more)


if __name__ == "__main__":
    main()
