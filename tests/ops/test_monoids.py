"""Monoids: the identity changes nothing, combining is torch's, in every type that can be folded."""

from __future__ import annotations

import functools

import pytest
import torch
from pointwise_kernels import STORAGE

from weft.device.library import translation_unit
from weft.dtypes import CUDA_NAMES, DataType
from weft.emulator import Buffer, EmulatedKernel
from weft.ops.monoids import MONOIDS
from weft.runtime.nvrtc import compile_cubin

D = DataType
TYPES = {
    "sum": [D.Float, D.Double, D.Int, D.Int32, D.Bool, D.ComplexFloat], "prod": [D.Float, D.Double, D.Int, D.Int32, D.Bool, D.ComplexFloat],
    "max": [D.Float, D.Double, D.Int, D.Int32, D.Bool], "min": [D.Float, D.Double, D.Int, D.Int32, D.Bool],
}  # fmt: skip
CASES = [(kind, dtype) for kind, types in TYPES.items() for dtype in types]


@functools.lru_cache(maxsize=None)
def unit() -> str:
    text = ""
    for kind, dtype in CASES:
        monoid, t = MONOIDS[kind], CUDA_NAMES[dtype]
        text += (
            f'extern "C" __global__ void {kind}_{dtype.name}(const {t}* a, {t}* same, {t}* pair) {{\n  const int i = threadIdx.x;\n'
            f"  const {t} identity = {monoid.identity(dtype)};\n  same[i] = {monoid.combine('identity', 'a[i]', dtype)};\n"
            f"  pair[i] = {monoid.combine('a[i]', 'a[i ^ 1]', dtype)};\n}}\n"
        )
    return translation_unit(text, ["math", "complex"])


def test_texts_compile_for_the_gpu() -> None:
    compile_cubin(unit(), "sum_Float", "sm_90a")


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=lambda v: getattr(v, "name", v))
def test_identity_and_combination(kind: str, dtype: DataType) -> None:
    if dtype.is_integer:
        limits = torch.iinfo(STORAGE[dtype])
        a = torch.tensor([0, 3, -7, 12, limits.min, limits.max, 1, 1], dtype=STORAGE[dtype])
    else:
        a = torch.tensor([0.0, 1.5, -2.5, float("inf"), -float("inf"), 4.0, 0.0, 1.0], dtype=torch.float64).to(STORAGE[dtype])
    same, pair = torch.zeros_like(a), torch.zeros_like(a)
    buffers = [Buffer.of(a, "a"), Buffer.of(same, "same", written=True), Buffer.of(pair, "pair", written=True)]
    EmulatedKernel(unit(), f"{kind}_{dtype.name}").launch((1, 1, 1), (len(a), 1, 1), 0, buffers)
    if not dtype.is_complex:  # torch's complex product of infinities differs from C's
        assert torch.equal(same, a)
        expected = MONOIDS[kind].reduce(torch.stack([a, a.view(-1, 2).flip(1).reshape(-1)]), [0], False).to(a.dtype)
        assert torch.equal(pair, expected)
    else:
        assert torch.equal(same[:3], a[:3])


def test_nan_wins_in_extrema() -> None:
    a = torch.tensor([float("nan"), 1.0, 1.0, float("nan")])
    for kind in ("max", "min"):
        same, pair = torch.zeros_like(a), torch.zeros_like(a)
        buffers = [Buffer.of(a, "a"), Buffer.of(same, "same", written=True), Buffer.of(pair, "pair", written=True)]
        EmulatedKernel(unit(), f"{kind}_Float").launch((1, 1, 1), (4, 1, 1), 0, buffers)
        assert pair.isnan().all()
