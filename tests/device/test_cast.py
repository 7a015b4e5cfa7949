"""Conversions between every pair of types, against torch and numpy; all 65536 values for 16-bit sources."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel, Scalar

TYPES = {
    "bool": ("bool", torch.bool), "int8": ("signed char", torch.int8), "uint8": ("unsigned char", torch.uint8),
    "int16": ("short", torch.int16), "uint16": ("unsigned short", torch.uint16), "int32": ("int", torch.int32),
    "uint32": ("unsigned", torch.uint32), "int64": ("long long", torch.int64), "uint64": ("unsigned long long", torch.uint64),
    "f16": ("weft::f16", torch.float16), "bf16": ("weft::bf16", torch.bfloat16), "float": ("float", torch.float32),
    "double": ("double", torch.float64),
}  # fmt: skip
FLOATS = {"f16", "bf16", "float", "double"}
KERNEL = """
extern "C" __global__ void cast_{source}_{target}(const {source_c}* __restrict__ T0, {target_c}* T1, int n) {{
  weft::Array<{source_c}, 8> a;
  weft::Array<{target_c}, 8> c;
  for (int i = threadIdx.x * 8; i < n; i += 32 * 8) {{
    for (int j = 0; j < 8; j++) a[j] = weft::load_global(T0 + i + j);
    weft::convert_vector<8>(c, 0, a, 0);
    for (int j = 0; j < 8; j++) weft::store_global(T1 + i + j, c[j]);
  }}
}}"""


@functools.lru_cache(maxsize=None)
def source_of_casts_from(source: str) -> str:
    kernels = [KERNEL.format(source=source, target=t, source_c=TYPES[source][0], target_c=c) for t, (c, _) in TYPES.items()]
    return translation_unit("\n".join(kernels), ["cast"])


def emulated(values: torch.Tensor, source: str, target: str) -> torch.Tensor:
    result = torch.zeros(values.shape, dtype=TYPES[target][1])
    args = [Buffer.of(values, "T0"), Buffer.of(result, "T1", written=True, initialised=False), Scalar("int", values.numel())]
    EmulatedKernel(source_of_casts_from(source), f"cast_{source}_{target}").launch((1, 1, 1), (32, 1, 1), 0, args)
    return result


def samples(source: str) -> torch.Tensor:
    """All values of types up to 16 bits; else edges and random ones. A multiple of 8."""
    dtype = TYPES[source][1]
    if dtype.itemsize == 1:
        return torch.tensor([0, 1] * 4, dtype=torch.bool) if source == "bool" else torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)
    rng = np.random.default_rng(1)
    if source in ("float", "double"):
        return float_samples(rng).to(dtype)
    info = np.iinfo(np.dtype(source))
    edges = [v for k in range(64) for d in (-1, 0, 1) for v in (2**k + d, -(2**k) + d) if info.min <= v <= info.max]
    values = np.concatenate([np.array(edges, source), rng.integers(info.min, info.max, 4096, dtype=source)])
    return torch.from_numpy(values[: len(values) // 8 * 8].copy())


def float_samples(rng: np.random.Generator) -> torch.Tensor:
    """Values of f16 and their neighbours, values halfway between two bf16, powers of two and their neighbours, random ones."""
    with np.errstate(all="ignore"):
        halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
        beside = [np.nextafter(halves, np.inf), np.nextafter(halves, -np.inf)]
        halfway = (np.arange(1 << 17, dtype=np.uint32) << 15).view(np.float32).astype(np.float64)
        powers = np.concatenate([[2.0**k + d for d in (-1, 0, 1)] for k in range(64)])
        drawn = rng.normal(size=8192) * 10.0 ** rng.uniform(-42, 39, 8192)
        values = np.concatenate([halves, *beside, halfway, powers, -powers, drawn])
    return torch.from_numpy(values[: len(values) // 8 * 8].copy())


def in_range(values: torch.Tensor, target: str) -> torch.Tensor:
    """Floats that the integer type holds after truncation: for these C++, torch and numpy agree."""
    x = values.to(torch.float64).numpy()
    info = np.iinfo(np.dtype(target))
    keep = (x > info.min - 1.0) & (x < info.max + 1.0) & ~np.isnan(x)
    if info.bits == 64:
        keep &= np.abs(x) < 2.0**63 if info.min else x < 2.0**64
    kept = values[torch.from_numpy(keep)]
    return kept[: len(kept) // 8 * 8]


def expected(values: torch.Tensor, source: str, target: str) -> np.ndarray:
    if target in ("f16", "bf16") and source not in FLOATS:
        values = torch.from_numpy(values.numpy().astype(np.float32))  # by way of float
    if target in ("f16", "bf16"):
        return values.to(torch.float32).to(TYPES[target][1]).to(torch.float64).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        plain = values.to(torch.float64).numpy() if source in ("f16", "bf16") else values.numpy()
        return plain.astype({"float": np.float32, "double": np.float64}.get(target, target))


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_conversion_agrees_with_torch_and_numpy(source: str, target: str) -> None:
    values = samples(source)
    if source in FLOATS and target not in FLOATS and target != "bool":
        values = in_range(values, target)
    got = emulated(values.contiguous(), source, target)
    numbers = got.to(torch.float64).numpy() if target in ("f16", "bf16") else got.numpy()
    np.testing.assert_array_equal(numbers, expected(values, source, target))


def test_out_of_range_floats_saturate_and_nan_is_zero() -> None:
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e9, -3e9, 5e9, 1e30, -1.0])
    int32, uint32 = emulated(values, "float", "int32").tolist(), emulated(values, "float", "uint32").tolist()
    top, bottom = 2**31 - 1, -(2**31)
    assert int32 == [0, top, bottom, top, bottom, top, top, -1]
    assert uint32 == [0, 2**32 - 1, 0, 3000000000, 0, 2**32 - 1, 2**32 - 1, 0]
    assert emulated(values, "float", "int64").tolist()[1:4] == [2**63 - 1, -(2**63), 3000000000]
    assert emulated(values, "float", "uint8").tolist() == [0, 255, 0, 255, 0, 255, 255, 255]  # low bits of the saturated int


def test_nan_becomes_the_canonical_nan() -> None:
    nan = torch.full((8,), float("nan"))
    assert (emulated(nan, "float", "bf16").view(torch.int16) == 0x7FFF).all()
    assert (emulated(nan, "float", "f16").view(torch.int16) == 0x7FFF).all()


@pytest.mark.parametrize("source", TYPES)
def test_casts_compile_for_the_gpu(source: str) -> None:
    core = pytest.importorskip("cuda.core")
    core.Program(source_of_casts_from(source), "c++", core.ProgramOptions(arch="sm_90a", std="c++17")).compile("cubin")
