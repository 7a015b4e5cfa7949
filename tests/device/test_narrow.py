"""Floats of 8 and 4 bits: every code, every float of 16 bits, and floats around each threshold, in one launch per kind."""

from __future__ import annotations

import functools

import narrow_values
import numpy as np
import pytest
import torch

from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel, Scalar

KINDS = ("e4m3", "e5m2", "e8m0", "e2m1")
WIDE = {"float": ("float", torch.float32), "double": ("double", torch.float64), "f16": ("weft::f16", torch.float16), "bf16": ("weft::bf16", torch.bfloat16)}
LANES = 16
ENCODE = """
extern "C" __global__ void encode_{wide}_{kind}(const {wide_c}* T0, unsigned char* T1, unsigned char* T2, int n) {{
  weft::Array<{wide_c}, 16> a;
  weft::Array<weft::{kind}, 16> c;
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * 16; i < n; i += gridDim.x * blockDim.x * 16) {{
    for (int j = 0; j < 16; j++) a[j] = weft::load_global(T0 + i + j);
    weft::convert_narrow_vector<16>(c, 0, a, 0);
    for (int j = 0; j < 16; j++) weft::store_global(T1 + i + j, c.get(j).bits);
    for (int j = 0; j < 16; j++) weft::store_global(T2 + i + j, weft::convert_narrow<weft::{kind}>(a.get(j)).bits);
  }}
}}"""
DECODE = """
extern "C" __global__ void decode_{kind}_{wide}(const unsigned char* T0, {wide_c}* T1, {wide_c}* T2, int n) {{
  weft::Array<weft::{kind}, 16> a;
  weft::Array<{wide_c}, 16> c;
  for (int i = threadIdx.x * 16; i < n; i += blockDim.x * 16) {{
    for (int j = 0; j < 16; j++) a[j] = weft::{kind}{{weft::load_global(T0 + i + j)}};
    weft::convert_narrow_vector<16>(c, 0, a, 0);
    for (int j = 0; j < 16; j++) weft::store_global(T1 + i + j, c.get(j));
    for (int j = 0; j < 16; j++) weft::store_global(T2 + i + j, weft::convert_narrow<{wide_c}>(a.get(j)));
  }}
}}"""

SCALED = """
extern "C" __global__ void scale_{wide}(const {wide_c}* T0, unsigned char* T1, unsigned char* T2, int n) {{
  weft::Array<{wide_c}, 16> a;
  weft::Array<weft::e2m1, 16> c;
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * 16; i < n; i += gridDim.x * blockDim.x * 16) {{
    for (int j = 0; j < 16; j++) a[j] = weft::load_global(T0 + i + j);
    const float factor = weft::convert<float>(a.get(15));
    weft::convert_scaled_vector<16>(c, 0, a, 0, factor);
    for (int j = 0; j < 16; j++) weft::store_global(T1 + i + j, c.get(j).bits);
    for (int j = 0; j < 16; j++) weft::store_global(T2 + i + j, weft::convert_narrow<weft::e2m1>(weft::convert<float>(a.get(j)) * factor).bits);
  }}
}}"""


@functools.lru_cache(maxsize=None)
def unit() -> str:
    kernels = [text.format(kind=k, wide=w, wide_c=c) for k in KINDS for w, (c, _) in WIDE.items() for text in (ENCODE, DECODE)]
    scaled = [SCALED.format(wide=w, wide_c=WIDE[w][0]) for w in ("float", "bf16")]
    return translation_unit("\n".join([*kernels, *scaled]), ["narrow"])


def run(name: str, values: torch.Tensor, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Results of a kernel that computes everything twice, in vectors and one by one."""
    out = [torch.zeros(values.numel(), dtype=dtype) for _ in range(2)]
    buffers = [Buffer.of(values, "T0"), *(Buffer.of(x, f"T{n + 1}", written=True, initialised=False) for n, x in enumerate(out))]
    EmulatedKernel(unit(), name).launch((1, 1, 1), (32, 1, 1), 0, [*buffers, Scalar("int", values.numel())])
    return tuple(x.to(torch.float64).numpy() if dtype.is_floating_point else x.numpy() for x in out)  # type: ignore[return-value]


def float_samples(kind: str) -> torch.Tensor:
    """Floats at, just below and just above each value and each threshold, with both signs; zeros, subnormals, infinities, NaNs; random ones. Whole vectors."""
    finite = narrow_values.decoded(kind)
    finite = np.unique(np.abs(finite[np.isfinite(finite)]))
    points = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, finite[-1:] * [1.03, 1.07, 1.5, 100.0]]).astype(np.float32)
    near = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))])
    rng = np.random.default_rng(3)
    with np.errstate(over="ignore"):
        drawn = (rng.normal(size=4096) * 2.0 ** rng.uniform(-150, 128, 4096)).astype(np.float32)
    tiny = np.array([1e-45, 1e-40, 2.0**-127, 2.0**-126, 3e38, np.inf], np.float32)
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    values = np.concatenate([near, drawn, tiny])
    values = np.concatenate([values, -values, nans])
    return torch.from_numpy(np.resize(values, -(-len(values) // LANES) * LANES))


@pytest.mark.parametrize("kind", KINDS)
def test_floats_become_the_nearest_code(kind):
    values = float_samples(kind)
    expected = narrow_values.encoded(kind, values.to(torch.float64).numpy())
    for found in run(f"encode_float_{kind}", values, torch.uint8):
        np.testing.assert_array_equal(found, expected)


def scaled_samples(vectors: int, dtype: torch.dtype) -> torch.Tensor:
    """Vectors of 16 numbers, of which the last is the factor of all of them: inverses of scales, and what is hardly one. Most products are below 7."""
    rng = np.random.default_rng(5)
    scales = narrow_values.decoded("e4m3")[1:127]
    odd = [3.4028234663852886e38, 2.0**119, 2.0**120, 2.0**-120, 2.0**-149, np.inf, np.nan, 0.0, -3.0, 1.0]
    factors = np.resize(np.concatenate([1 / scales, odd]), vectors).astype(np.float32)
    wanted = rng.choice([0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0], (vectors, 15)) * rng.choice([-1.0, 1.0], (vectors, 15))
    wanted = np.where(rng.random((vectors, 15)) < 0.5, rng.uniform(-6.9, 6.9, (vectors, 15)), wanted)
    wanted[rng.random((vectors, 15)) < 0.001] = np.nan
    with np.errstate(all="ignore"):
        values = (wanted / factors[:, None].astype(np.float64)).astype(np.float32)
    return torch.from_numpy(np.concatenate([values, factors[:, None]], axis=1).reshape(-1)).to(dtype)


def scaled_products(values: torch.Tensor) -> torch.Tensor:
    """Return the products that `scale_...` casts, rounded to Float."""
    rows = values.float().view(-1, 16)
    return (rows * rows[:, 15:]).view(-1)


@pytest.mark.parametrize("wide", ["float", "bf16"])
def test_a_factor_is_part_of_a_cast_to_4_bits(wide):
    """The codes are those of the rounded products, also where the factor is the largest float, infinite, or no number."""
    values = scaled_samples(1500, WIDE[wide][1])
    expected = narrow_values.encoded("e2m1", scaled_products(values).double().numpy())
    for found in run(f"scale_{wide}", values, torch.uint8):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", ["f16", "bf16"])
def test_every_float_of_16_bits_becomes_the_nearest_code(kind, wide):
    values = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(WIDE[wide][1])
    expected = narrow_values.encoded(kind, values.to(torch.float64).numpy())
    for found in run(f"encode_{wide}_{kind}", values, torch.uint8):
        np.testing.assert_array_equal(found, expected)


def test_a_double_is_rounded_to_float_first():
    """As torch does: 1.0625 + 2^-40 is a tie then, and goes to the even code 0x38."""
    values = torch.full((LANES,), 1.0625 + 2.0**-40, dtype=torch.float64)
    assert set(run("encode_double_e4m3", values, torch.uint8)[0]) == {0x38}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", WIDE)
def test_every_code_has_its_value_and_comes_back(kind, wide):
    codes = torch.arange(16 if kind == "e2m1" else 256, dtype=torch.uint8)
    expected = narrow_values.decoded(kind)
    if wide == "f16":
        with np.errstate(over="ignore"):
            expected = expected.astype(np.float16).astype(np.float64)
    for found in run(f"decode_{kind}_{wide}", codes, WIDE[wide][1]):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found[expected == 0]), np.signbit(expected[expected == 0]))
    if wide != "f16" or kind != "e8m0":  # the exponents of e8m0 are beyond a half's
        again = run(f"encode_{wide}_{kind}", torch.from_numpy(expected).to(WIDE[wide][1]), torch.uint8)[0]
        infinite = narrow_values.LARGEST_CODE[kind] + (codes.numpy() & 0x80) if kind != "e8m0" else codes.numpy()
        wanted = np.where(np.isnan(expected), narrow_values.NAN_CODE[kind], np.where(np.isinf(expected), infinite, codes.numpy()))
        np.testing.assert_array_equal(again, wanted)


@pytest.mark.parametrize(
    "kind, value, code",
    [
        *(("e2m1", v, c) for v, c in zip((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5), (0, 2, 2, 4, 4, 6, 6))),
        *(("e2m1", v, 7) for v in (6, 7, 1e30, float("inf"), float("nan"))),
        ("e2m1", -0.0, 8), ("e2m1", -0.25, 8), ("e2m1", -0.26, 9), ("e2m1", 1e-40, 0),
        *(("e4m3", v, 0x7E) for v in (448, 463.9, 464, 464.1, float("inf"))),
        ("e4m3", float("nan"), 0x7F), ("e4m3", 17, 0x58), ("e4m3", 19, 0x5A), ("e4m3", 2.0**-9, 1), ("e4m3", 2.0**-10, 0), ("e4m3", 2.0**-10 * 1.0001, 1),
        ("e4m3", 1.5 * 2.0**-9, 2), ("e4m3", -(2.0**-10), 0x80), ("e4m3", 2.0**-6, 8),
        ("e5m2", 57344, 0x7B), ("e5m2", 61440, 0x7B), ("e5m2", 1.125, 0x3C), ("e5m2", 1.375, 0x3E),
        ("e8m0", 0, 0), ("e8m0", 2.0**-127, 0), ("e8m0", 2.0**-127 + 2.0**-149, 1), ("e8m0", 1, 127), ("e8m0", 1 + 2.0**-23, 128), ("e8m0", 2.0**127, 254),
        ("e8m0", 3e38, 254), ("e8m0", float("inf"), 254), ("e8m0", float("nan"), 255), ("e8m0", -1, 127),
    ],
)  # fmt: skip
def test_known_codes(kind, value, code):
    """The definition that the other tests compare with says what PTX says."""
    assert narrow_values.encoded(kind, np.array([np.float32(value)], np.float64)).tolist() == [code]
