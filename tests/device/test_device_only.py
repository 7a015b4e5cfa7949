"""What the device library has for GPUs only: packed arrays, accesses in words, vectors that begin anywhere, positions that are out of range.

The same kernels run in the emulator where it has the primitive; what needs a GPU is marked so, and what only has to compile goes through NVRTC.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel
from weft.runtime.nvrtc import compile_cubin

ENGINES = ["emulator", pytest.param("gpu", marks=pytest.mark.gpu)]
TYPES = {"float": np.float32, "double": np.float64, "weft::bf16": np.uint16, "signed char": np.int8}
HEAD = 'extern "C" __global__ void moves(const {t}* __restrict__ T0, {t}* T1, int n) {{\n'


def run(engine: str, body: str, type_: str, x: np.ndarray, n: int, blocks: list[str], out: int, threads: int = 1) -> np.ndarray:
    """Run some threads; return what they wrote into `out` elements, which were 77 before."""
    source = translation_unit(HEAD.format(t=type_) + body + "\n}", blocks)
    y = aligned(np.full(out, 77, x.dtype))
    if engine == "emulator":
        from weft.emulator import Scalar

        arguments: list[Any] = [Buffer.of(x, "T0"), Buffer.of(y, "T1", written=True), Scalar("int", n)]
        EmulatedKernel(source, "moves", check="bounds").launch((1, 1, 1), (threads, 1, 1), 0, arguments)
        return y
    import torch
    from test_on_gpu import launch

    signed = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[x.itemsize]
    given, made = (torch.from_numpy(v.view(signed)).cuda() for v in (x, y))
    launch(source, "moves", 1, (threads, 1, 1), 0, [given, made, ("int", n)])
    return made.cpu().numpy().view(x.dtype)


def numbers(type_: str, count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(-100, 100, count).astype(TYPES[type_])


def aligned(x: np.ndarray, skip: int = 0) -> np.ndarray:
    """A copy whose first element lies `skip` elements behind a multiple of 64 bytes."""
    raw = np.zeros(x.nbytes + 128 + skip * x.itemsize, np.uint8)
    start = -raw.ctypes.data % 64 + skip * x.itemsize
    out = raw[start : start + x.nbytes].view(x.dtype)
    out[...] = x
    return out


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("type_", TYPES)
def test_vectors_of_every_width_move_their_elements_only(type_: str, engine: str) -> None:
    """An array of three vectors is filled last vector first, so that one that writes too much is seen, and the middle one is stored."""
    size = TYPES[type_]().itemsize
    for lanes in (n for n in (1, 2, 4, 8, 16) if n * size <= 16):
        for cache in ("unspecified", "streaming", "global"):
            loads = "".join(f"  weft::load_global_vector<{lanes}, weft::Cache::unspecified>(a, {k * lanes}, T0 + {k * lanes});\n" for k in (2, 1, 0))
            stores = "".join(f"  weft::store_global_vector<{lanes}, weft::Cache::{cache}>(T1 + {k * lanes}, a, {k * lanes});\n" for k in (0, 1, 2))
            x = aligned(numbers(type_, 3 * lanes))
            found = run(engine, f"  weft::Array<{type_}, {3 * lanes}> a;\n{loads}{stores}", type_, x, 0, ["cast"], 3 * lanes + 8)
            assert found.tolist() == [*x.tolist(), *[77] * 8]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("type_", ["weft::bf16", "float"])
def test_vectors_that_begin_anywhere(type_: str, engine: str) -> None:
    for lanes in (2, 4, 8):
        for is_odd in (0, 1):
            loads = "".join(f"  weft::load_global_shifted<{lanes}>(a, {k * lanes}, T0 + n + {k * lanes}, {'true' if is_odd else 'false'});\n" for k in (1, 0))
            stores = f"  for (int i = 0; i < {2 * lanes}; i++) weft::store_global(T1 + i, ({type_})a[i]);"
            x = aligned(numbers(type_, 2 * lanes + 2))
            found = run(engine, f"  weft::Array<{type_}, {2 * lanes}> a;\n{loads}{stores}", type_, x, is_odd, ["cast", "shifted"], 2 * lanes)
            assert found.tolist() == x[is_odd : is_odd + 2 * lanes].tolist()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("type_", TYPES)
def test_lanes_load_rows_that_begin_anywhere(type_: str, engine: str) -> None:
    """Rows of all lengths are loaded from any alignment, by 4 to 32 lanes."""
    size = TYPES[type_]().itemsize
    for lanes, bytes_ in ((4, 16), (16, 16), (32, 16), (8, 8), (16, 4)):
        n = bytes_ // size
        if n * size < 4:
            continue
        body = f"""
  weft::Array<{type_}, {n}> a;
  const int place = (int)threadIdx.x % {lanes};
  for (int first = 0; first < 3; first += {32 // lanes}) {{
    const int row = first + (int)threadIdx.x / {lanes}, left = row < 3 ? n - place * {n} : -{n};
    weft::load_row_vector<{n}, {lanes}>(a, 0, T0 + n % 5 + row * n + place * {n}, left);
    for (int i = 0; i < {n} && i < left; i++) weft::store_global(T1 + 3 + row * n + place * {n} + i, ({type_})a[i]);
  }}"""
        for length in sorted({1, max(1, n - 1), n, n + 1, 2 * n + 1, lanes * n - n - 1, lanes * n - 1, lanes * n} - {0}):
            x = aligned(numbers(type_, length % 5 + 3 * length))
            found = run(engine, body, type_, x, length, ["cast", "row_vectors"], 3 + 3 * length + n, 32)
            assert found.tolist() == [77, 77, 77, *x[length % 5 :].tolist(), *[77] * n]


@pytest.mark.gpu
def test_a_position_that_is_out_of_range_is_element_0() -> None:
    wanted = {"(int)-1": 0, "0": 0, "n - 1": 6, "n": 0, "n + 1": 0, "(long long)n << 32": 0}
    body = "".join(f"  T1[{k}] = (float)weft::position<int>({text}, n);\n" for k, text in enumerate(wanted))
    assert run("gpu", body, "float", np.zeros(1, np.float32), 7, ["cast", "lookup"], len(wanted)).tolist() == list(wanted.values())


@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies_of_every_size_compile(size: int) -> None:
    body = f"  weft::cp_async<{size}>(weft::dynamic_shared(), T0, n > 0);\n  weft::cp_async_commit();\n  weft::cp_async_wait<0>();"
    assert compile_cubin(translation_unit(HEAD.format(t="float") + body + "\n}", ["cast"]), "moves", "sm_90a").cubin
