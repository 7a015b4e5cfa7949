"""Folds over lanes and warps: the text that a GPU runs, with its shuffles, and the one meeting of the lanes that stands for it where only bounds are checked."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel

KERNEL = """extern "C" __global__ void fold(const {t}* __restrict__ T0, {t}* T1) {{
  const int i = threadIdx.x + blockDim.x * threadIdx.y, at = blockIdx.x * blockDim.x * blockDim.y + i;
  {t} value[1] = {{weft::load_global(T0 + at)}};
  {body}
  weft::store_global(T1 + at, value[0]);
}}"""
LANES = "value[0] = weft::reduce_lanes<weft::{op}, {width}>(value[0]);"
ROWS = "weft::reduce_rows<weft::{op}, 1, false>(value, ({t}){identity}, reinterpret_cast<{t}*>(weft::dynamic_shared()), {run});"
TYPES = {"float": np.float32, "double": np.float64, "long long": np.int64}


@functools.lru_cache(maxsize=None)
def kernel(type_: str, body: str, check: str) -> EmulatedKernel:
    return EmulatedKernel(translation_unit(KERNEL.format(t=type_, body=body), ["cast", "math", "reduce"]), "fold", check=check)


def run(type_: str, body: str, x: np.ndarray, block: tuple[int, int], check: str) -> np.ndarray:
    y = np.full_like(x, -7)
    kernel(type_, body, check).launch((2, 1, 1), (*block, 1), 4096, [Buffer.of(x, "T0"), Buffer.of(y, "T1", written=True, initialised=False)], seed=1)
    return y


def halved(x: np.ndarray, fold: np.ufunc) -> np.ndarray:
    """Fold the last axis, a power of two, as a butterfly does: halves onto each other."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = fold(x[..., :half], x[..., half:])
    return x[..., 0]


def folded_rows(x: np.ndarray, identity: float, fold: np.ufunc) -> np.ndarray:
    """Fold rows of whole warps: each warp, then the warps' results with the identity up to a power of two."""
    warps = halved(x.reshape(len(x), -1, 32), fold)
    count = 1 << (warps.shape[1] - 1).bit_length()
    return halved(np.concatenate([warps, np.full((len(x), count - warps.shape[1]), identity, x.dtype)], axis=1), fold)


def values(type_: str, count: int) -> np.ndarray:
    """Numbers whose sum depends on the order in which floats are added."""
    rng = np.random.default_rng(count)
    return (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(TYPES[type_]) if type_ != "long long" else rng.integers(-(2**40), 2**40, count)


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_groups_of_lanes(width: int, type_: str) -> None:
    x = values(type_, 128)
    for op, fold in (("Sum", np.add), ("Max", np.maximum)):
        expected = np.repeat(halved(x.reshape(-1, width), fold), width)
        for check in ("races", "bounds"):
            assert run(type_, LANES.format(op=op, width=width), x, (64, 1), check).tobytes() == expected.tobytes()


@pytest.mark.parametrize("warps", [1, 2, 3, 4, 5, 8, 9, 16, 17, 32])
def test_rows_of_any_number_of_warps(warps: int) -> None:
    x = values("float", 2 * 32 * warps)
    for op, identity, fold in (("Sum", "0", np.add), ("Max", "-INFINITY", np.maximum)):
        expected = np.repeat(folded_rows(x.reshape(2, -1), 0.0 if op == "Sum" else -np.inf, fold), 32 * warps)
        body = ROWS.format(t="float", op=op, identity=identity.replace("INFINITY", "__builtin_inff()"), run="blockDim.x")
        for check in ("races", "bounds"):
            assert run("float", body, x, (32 * warps, 1), check).tobytes() == expected.tobytes()


@pytest.mark.parametrize("warps", [1, 3, 4])
def test_several_rows_in_a_block(warps: int) -> None:
    x = values("double", 2 * 2 * 32 * warps)
    expected = np.repeat(folded_rows(x.reshape(4, -1), 0.0, np.add), 32 * warps)
    for check in ("races", "bounds"):
        assert run("double", ROWS.format(t="double", op="Sum", identity=0, run="blockDim.x"), x, (32 * warps, 2), check).tobytes() == expected.tobytes()


@pytest.mark.parametrize(("op", "sign"), [("Max", False), ("Min", True)])
def test_of_two_zeros_the_chips_one_is_taken(op: str, sign: bool) -> None:
    """max and min of the chip take -0 for less than +0, whichever comes first; a fold does, too."""
    x = np.array([0.0, -0.0, -0.0, 0.0, 0.0, 0.0, -0.0, -0.0] * 16, np.float32)
    either = {True: [True, True, False, True], False: [False, False, False, True]}[sign]
    expected = np.repeat(either, 2).tolist() * 16
    names = {"Max": "maximum", "Min": "minimum"}
    both = f"value[0] = weft::{names[op]}(value[0], weft::shuffle_xor(value[0], 1));"
    for check in ("races", "bounds"):
        assert np.signbit(run("float", LANES.format(op=op, width=2), x, (64, 1), check)).tolist() == expected
        assert np.signbit(run("float", both, x, (64, 1), check)).tolist() == expected
