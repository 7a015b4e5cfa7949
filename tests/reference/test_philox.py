"""Philox: the published vectors, the device text in the emulator against NumPy, and the distributions."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel, Scalar
from weft.reference import philox
from weft.runtime.nvrtc import compile_cubin

# Known answers of Philox4x32-10 that Random123 publishes: (counter, key, result).
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_published_vectors(counter: str, key: str, result: str) -> None:
    got = philox.philox_words(np.array([words(counter)], np.uint64), tuple(words(key)))
    assert got[0].tolist() == words(result)


def test_the_counter_is_offset_then_subsequence() -> None:
    seed, subsequence, offset = (words("a4093822 299f31d0"), words("13198a2e 03707344"), words("243f6a88 85a308d3"))
    join = lambda pair: pair[0] | pair[1] << 32  # noqa: E731
    got = philox.philox(join(seed), np.array([join(subsequence)], np.uint64), join(offset))
    assert got[0].tolist() == words(VECTORS[2][2])


PARAMETERS = "unsigned long long seed, unsigned long long offset, {T} a, {T} b, {T}* out, int count"
ONE = """extern "C" __global__ void {name}({parameters}) {{
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = weft::{name}(seed, offset, i, a, b);
}}
"""
MANY = """extern "C" __global__ void {name}({parameters}) {{
  for (int i = {n} * threadIdx.x; i < count; i += {n} * blockDim.x) {{
    weft::Array<{T}, {n} + 1> r;
    weft::{name}(r, 1, seed, offset, i, a, b);
    for (int j = 0; j < {n}; j++) if (i + j < count) out[i + j] = r[j + 1];
  }}
}}
"""


@functools.lru_cache(maxsize=None)
def unit() -> str:
    text = ""
    for kind, n in (("float", 4), ("double", 2)):
        for distribution in ("uniform", "normal"):
            parameters = PARAMETERS.format(T=kind)
            text += ONE.format(name=f"{distribution}_{kind}", parameters=parameters)
            text += MANY.format(name=f"{distribution}_{kind}{n}", parameters=parameters, T=kind, n=n)
    return translation_unit(text, ["philox"])


def run(name: str, count: int, seed: int, offset: int, a: float, b: float, check: str = "bounds") -> np.ndarray:
    kind = "double" if "double" in name else "float"
    out = np.zeros(count, kind.replace("float", "float32"))
    arguments = [
        Scalar("unsigned long long", seed),
        Scalar("unsigned long long", offset),
        Scalar(kind, a),
        Scalar(kind, b),
        Buffer.of(out, "out", written=True),
        Scalar("int", count),
    ]
    EmulatedKernel(unit(), name, check=check).launch((1, 1, 1), (64, 1, 1), 0, arguments)
    return out


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (1234567890123456789, 7), ((1 << 64) - 1, (1 << 40) + 3)])
def test_uniform_numbers_are_those_of_the_reference(kind: str, many: bool, seed: int, offset: int) -> None:
    name = f"uniform_{kind}" + ("4" if kind == "float" else "2") * many
    expected = philox.uniform(1001, seed, offset, -2.0, 3.0, double=kind == "double")
    got = run(name, 1001, seed, offset, -2.0, 3.0)
    step = 3 * 2.0 ** (-22 if kind == "float" else -51)  # one multiply-add more or less
    assert np.abs(got - expected).max() <= step
    assert got.min() >= -2.0
    assert got.max() < 3.0


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_normal_numbers_are_those_of_the_reference(kind: str, many: bool) -> None:
    name = f"normal_{kind}" + ("4" if kind == "float" else "2") * many
    expected = philox.normal(1001, 42, 9, 0.5, 2.0, double=kind == "double")
    got = run(name, 1001, 42, 9, 0.5, 2.0)
    # The angle, below 2 pi, has the rounding of its type; the radius is below 7.
    assert np.abs(got - expected).max() <= 2 * 7 * 8 * (2.0**-23 if kind == "float" else 2.0**-50)


def test_registers_are_written_before_they_are_read() -> None:
    assert run("uniform_float4", 512, 1, 2, 0.0, 1.0, check="races").max() < 1
    assert run("normal_double2", 512, 1, 2, 0.0, 1.0, check="races").std() > 0.8


def test_distributions_have_their_moments() -> None:
    """Standard errors for n = 10^6: mean of uniform 2.9e-4, of normal 1e-3, variance of normal 1.4e-3; five of each are allowed."""
    uniform, normal = philox.uniform(10**6, 5, 1), philox.normal(10**6, 5, 2)
    assert abs(uniform.mean() - 0.5) < 15e-4
    assert abs(normal.mean()) < 5e-3
    assert abs(normal.var() - 1) < 7e-3
    assert uniform.min() >= 0
    assert uniform.max() < 1


def test_the_range_never_holds_its_upper_end() -> None:
    assert (philox.uniform(10**5, 3, 0, 1.0, np.nextafter(np.float32(1), np.float32(2))) == 1).all()
    assert (run("uniform_float4", 4096, 3, 0, 1.0, float(np.nextafter(np.float32(1), np.float32(2)))) == 1).all()


def test_the_text_compiles_for_the_gpu() -> None:
    compiled = compile_cubin(unit(), "uniform_float4", "sm_90a")
    assert compiled.resources.registers <= 40
    assert compiled.resources.stack_bytes == 0
