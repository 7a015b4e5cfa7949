"""Formulas for results that are seen in 16 bits at most: right within their bound on every bfloat16 and half, in the emulator and, where there is one, on the GPU."""

from __future__ import annotations

import functools

import pytest
import torch
from engines import first_entry

from weft.arch import arch_of_device
from weft.device.library import translation_unit
from weft.dtypes import DataType
from weft.emulator import Buffer, EmulatedKernel, Scalar
from weft.ops.registry import OPS
from weft.runtime.driver import load_kernel
from weft.runtime.nvrtc import compile_cubin

NAMES = [op.name for op in OPS.values() if "narrow" in op.text and op.arity == 1]
POWERS = [-7.5, -3.0, -1.7, 0.3, 1.7, 2.5, 5.0, 8.0]
FORMULAS: dict[str, tuple[str, float | None]] = {name: (name, None) for name in NAMES} | {f"pow_{n}": ("pow", p) for n, p in enumerate(POWERS)}
WITHIN_HALF, BEYOND = 1e-5, 3e-5
SMALLEST = 2.0**-126
"""Below it results and arguments of exponentials may be flushed to zero; the reciprocal of what lies above 2^126 is below it."""


def text_of(formula: str) -> str:
    name, power = FORMULAS[formula]
    operands = ["x[i]"] if power is None else ["x[i]", f"{power}f"]
    return (
        f'extern "C" __global__ void k_{formula}(const float* x, float* out, int count) {{\n'
        f"  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)\n"
        f"    out[i] = {OPS[name].cuda(operands, DataType.Float, is_narrow=True)};\n}}\n"
    )


@functools.lru_cache(maxsize=1)
def unit() -> str:
    return translation_unit("\n".join(map(text_of, FORMULAS)), {"math"})


def every_value(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()


def check(formula: str, x: torch.Tensor, got: torch.Tensor) -> None:
    name, power = FORMULAS[formula]
    expected = OPS[name].ref(x.double()) if power is None else torch.pow(x.double(), power)
    size = expected.abs()
    inside = (size <= 65504) & (size >= 2.0**-24) if name == "pow" else torch.full_like(size, fill_value=True, dtype=torch.bool)
    allowed = torch.where(inside, WITHIN_HALF, BEYOND) * size.nan_to_num(posinf=0.0) + SMALLEST
    if name == "silu":
        allowed = allowed + 2.0**-119  # x times a sigmoid that was flushed
    is_right = (got.double() - expected).abs() <= allowed
    is_right |= (got == expected.float()) | (got.isnan() & expected.isnan())
    is_right |= (size > 3.4e38 * (1 - BEYOND)) & (got.isinf() | (got.abs() > 3.4e38 * (1 - 2 * BEYOND)))  # the edge of infinity
    first = torch.nonzero(~is_right)[:5, 0]
    shown = [(x[i].item(), "->", got[i].item(), "not", expected[i].item()) for i in first]
    assert is_right.all(), f"{int((~is_right).sum())} values are wrong: {shown}"
    signs = is_right & (expected == 0) & (got == 0)
    assert torch.equal(got[signs].signbit(), expected[signs].signbit()) or name in ("sin", "log", "log2", "log10"), "a zero has the other sign"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "half"])
@pytest.mark.parametrize("formula", FORMULAS)
def test_in_the_emulator(formula: str, dtype: torch.dtype) -> None:
    x = every_value(dtype)
    out = torch.full_like(x, 777.0)
    kernel = EmulatedKernel(unit(), f"k_{formula}")
    kernel.launch((4, 1, 1), (128, 1, 1), 0, [Buffer.of(x, "x"), Buffer.of(out, "out", written=True), Scalar("int", x.numel())])
    check(formula, x, out)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "half"])
@pytest.mark.parametrize("formula", FORMULAS)
def test_on_the_gpu(formula: str, dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x = every_value(dtype).cuda()
    out = torch.full_like(x, 777.0)
    loaded = load_kernel(gpu_cubin(), f"k_{formula}", 0)
    record = loaded.record((64,), (128,), 0, [("pointer", 0), ("pointer", 1), ("scalar", "int", x.numel())])
    record.launch([x.data_ptr(), out.data_ptr()], torch.cuda.current_stream().cuda_stream)
    check(formula, x.cpu(), out.cpu())


@functools.lru_cache(maxsize=1)
def gpu_cubin() -> bytes:
    return compile_cubin(unit(), first_entry(unit()), arch_of_device(0).nvrtc_target).cubin


def test_texts_compile_for_the_gpu() -> None:
    log = compile_cubin(unit(), first_entry(unit()), "sm_90a").log
    assert not [line for line in log.splitlines() if "warning #" in line and "declared but never referenced" not in line]
