"""Loaded kernels: unloaded when nothing refers to them, and when there are more than the settings allow."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from row_kernels import aligned

from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel, launch
from weft.options import options

MAPS = Path("/proc/self/maps")
pytestmark = pytest.mark.skipif(not MAPS.exists(), reason="reads /proc")


def made(number: int) -> EmulatedKernel:
    text = f'extern "C" __global__ void k{number}(float* T0) {{ weft::store_global(T0 + threadIdx.x, {number}.f); }}\nWEFT_ENTRY(k{number})'
    return EmulatedKernel(translation_unit(text, []), f"k{number}")


def runs(kernel: EmulatedKernel, number: int) -> None:
    out = aligned((32,), np.float32, 0)
    kernel.launch((1, 1, 1), (32, 1, 1), 0, [Buffer.of(out, "T0", written=True, initialised=False)])
    assert (out == number).all()


def loaded() -> int:
    return len({line.split()[-2] for line in MAPS.read_text().splitlines() if "memfd:kernel-" in line})


def test_a_kernel_that_nothing_refers_to_is_unloaded() -> None:
    runs(made(9), 9)  # loads the runtime, whose stacks stay
    gc.collect()
    before, lines = loaded(), len(MAPS.read_text().splitlines())
    kernels = [made(number) for number in range(5)]
    for number, kernel in enumerate(kernels):
        runs(kernel, number)
    assert loaded() == before + 5
    del kernel, kernels
    gc.collect()
    assert loaded() == before and len(MAPS.read_text().splitlines()) <= lines + 3


def test_kernels_beyond_the_limit_are_unloaded_and_come_back() -> None:
    launch._recent.clear()
    gc.collect()
    before = loaded()
    with options(kept_kernels=2):
        kernels = [made(number) for number in range(5)]
        assert loaded() == before + 2
        for number, kernel in [*enumerate(kernels)] * 2:
            runs(kernel, number)
            assert loaded() <= before + 2
    with options(kept_kernels=0):
        for number, kernel in enumerate(kernels):
            runs(kernel, number)
        assert loaded() == before + 5
