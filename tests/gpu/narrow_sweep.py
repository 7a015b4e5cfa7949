"""Every float32 to every narrow type, every float of 16 bits, and every code back, on the GPU: codes against the reference of `weft.reference.narrow`.

    PYTHONPATH=. python tests/gpu/narrow_sweep.py [--kinds e2m1,e4m3] [--step 1]

Each kernel converts in vectors and one by one. Then casts to 4 bits with a factor, against those of the products, and scales of blocks, which have formulas
of their own, against divisions. Prints how many codes differ per type; exits with 1 when any does. --step: take every so many chunks of 2^24.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "device"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "ops"))

from test_narrow import KINDS, WIDE, scaled_products, scaled_samples, unit  # noqa: E402

from weft import DataType, FusionDefinition  # noqa: E402
from weft.arch import arch_of_device  # noqa: E402
from weft.ops import blocks  # noqa: E402
from weft.ops.build import cast, pointwise  # noqa: E402
from weft.reference import narrow  # noqa: E402
from weft.runtime.driver import load_kernel  # noqa: E402
from weft.runtime.nvrtc import compile_cubin  # noqa: E402

TYPES = {"e4m3": DataType.Float8_e4m3fn, "e5m2": DataType.Float8_e5m2, "e8m0": DataType.Float8_e8m0fnu, "e2m1": DataType.Float4_e2m1fn}
CHUNK = 1 << 24
SCALED_VECTORS = 1 << 18
LARGEST = torch.finfo(torch.float32).max


class Kernels:
    """The kernels of tests/device/test_narrow.py, compiled once."""

    def __init__(self) -> None:
        self.cubin = compile_cubin(unit(), f"encode_float_{KINDS[0]}", arch_of_device(0).nvrtc_target).cubin

    def run(self, name: str, values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the kernel wrote in vectors and one by one; both are poisoned before."""
        one, two = (torch.empty(values.numel(), dtype=dtype, device="cuda") for _ in range(2))
        for out in (one, two):
            out.view(torch.uint8).fill_(0xA5)
        blocks = 1 if name.startswith("decode") else 1024
        kernel = load_kernel(self.cubin, name, 0)
        record = kernel.record((blocks,), (128,), 0, [*(("pointer", n) for n in range(3)), ("scalar", "int", values.numel())])
        record.launch([t.data_ptr() for t in (values, one, two)], torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        return one, two


def encoded(kernels: Kernels, kind: str, wide: str, values: torch.Tensor) -> int:
    """Return how many codes of `values` differ from the reference, in vectors or one by one."""
    expected = narrow.codes_of(values, TYPES[kind])
    found = kernels.run(f"encode_{wide}_{kind}", values, torch.uint8)
    wrong = sum(int((f != expected).sum()) for f in found)
    if wrong:
        for f in found:
            place = int((f != expected).nonzero()[0]) if bool((f != expected).any()) else -1
            if place >= 0:
                print(f"  {wide} {values[place].item()!r} gives {int(f[place])}, not {int(expected[place])}", flush=True)
    return wrong


def decoded(kernels: Kernels, kind: str, wide: str) -> int:
    """Return how many values of codes differ from the reference; NaN equals NaN."""
    codes = torch.arange(16 if kind == "e2m1" else 256, dtype=torch.uint8, device="cuda")
    expected = narrow.values_of_codes(codes, TYPES[kind]).to(WIDE[wide][1]).to(torch.float64)
    found = kernels.run(f"decode_{kind}_{wide}", codes, WIDE[wide][1])
    same = [(f.double() == expected) & (torch.signbit(f) == torch.signbit(expected)) | f.isnan() & expected.isnan() for f in found]
    return sum(int((~s).sum()) for s in same)


def scaled(kernels: Kernels, vectors: int) -> int:
    """Return how many codes of products with a factor that a vector shares differ."""
    wrong = 0
    for wide in ("float", "bf16"):
        values = scaled_samples(vectors, WIDE[wide][1]).cuda()
        expected = narrow.codes_of(scaled_products(values), TYPES["e2m1"])
        wrong += sum(int((f != expected).sum()) for f in kernels.run(f"scale_{wide}", values, torch.uint8))
    return wrong


def with_factor_1(values: torch.Tensor) -> torch.Tensor:
    """Return vectors of 16, each 15 of the floats, the last ones with zeros behind, and the factor 1."""
    rows = torch.nn.functional.pad(values, (0, -values.numel() % 15)).view(-1, 15)
    return torch.nn.functional.pad(rows, (0, 1), value=1.0).view(-1)


def scales(step: int) -> int:
    """Return how many scales of 4-bit floats differ from a sixth of the largest magnitude, and inverses of scales from the quotient, of all that there are."""
    with FusionDefinition() as fd:
        amax = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        for wanted in (pointwise(fd.fusion, "e2m1_scale", amax), fd.ops.div(amax, 6.0)):
            fd.add_output(cast(fd.fusion, wanted, DataType.Float8_e4m3fn))
    with FusionDefinition() as inverses:
        scale = inverses.define_tensor([-1], contiguity=True, dtype=DataType.Float8_e4m3fn)
        inverses.add_output(blocks.e4m3_inverse(inverses.fusion, scale))
        inverses.add_output(inverses.ops.div(1.0, inverses.ops.cast(scale, DataType.Float)))
    found, quotient = inverses.execute([torch.arange(128, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)])
    wrong = int((found != quotient.nan_to_num(nan=LARGEST).clamp(max=LARGEST)).sum())
    offsets = torch.arange(CHUNK, dtype=torch.int32, device="cuda")
    for first in range(0, 0x7F800001, CHUNK * step):
        made, divided = fd.execute([(offsets + first).clamp(max=0x7F800000).view(torch.float32)])
        wrong += int((made.view(torch.uint8) != divided.view(torch.uint8)).sum())
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--step", type=int, default=1)
    given = parser.parse_args()
    kernels, total = Kernels(), 0
    offsets = torch.arange(CHUNK, dtype=torch.int64, device="cuda")
    for kind in given.kinds.split(","):
        wrong = count = 0
        for first in range(0, 1 << 32, CHUNK * given.step):
            bits = offsets + first
            values = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
            wrong += encoded(kernels, kind, "float", values)
            if kind == "e2m1":
                values = with_factor_1(values)
                wrong += int((kernels.run("scale_float", values, torch.uint8)[0] != narrow.codes_of(values, TYPES[kind])).sum())
            count += CHUNK
        print(f"{kind}: {wrong} of {count} floats differ", flush=True)
        total += wrong
        for wide in ("f16", "bf16"):
            values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32, device="cuda").to(torch.int16).view(WIDE[wide][1])
            wrong = encoded(kernels, kind, wide, values)
            print(f"{kind}: {wrong} of 65536 {wide} differ", flush=True)
            total += wrong
        wrong = sum(decoded(kernels, kind, wide) for wide in WIDE)
        print(f"{kind}: {wrong} values of codes differ", flush=True)
        total += wrong
    wrong = scaled(kernels, SCALED_VECTORS)
    print(f"products with a factor: {wrong} of {2 * 16 * SCALED_VECTORS} differ", flush=True)
    total += wrong
    wrong = scales(given.step)
    print(f"scales: {wrong} differ", flush=True)
    return 1 if total + wrong else 0


if __name__ == "__main__":
    sys.exit(main())
