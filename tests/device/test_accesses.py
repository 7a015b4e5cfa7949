"""How many bytes each primitive moves: the GPU's library and the emulator's take the same sizes, and refuse the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.device.library import translation_unit
from weft.emulator.build import TextDoesNotCompile, build_kernel
from weft.options import options
from weft.runtime.nvrtc import CompilationFailed, compile_cubin

WORDS, VECTORS = (1, 2, 4, 8), (1, 2, 4, 8, 16)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)

# A statement that moves one S between memory, shared memory (s) and a register (v or a); and the sizes of S that it takes.
ACCESSES = {
    "load_global": ("v = weft::load_global(T0);", VECTORS),
    "store_global": ("weft::store_global(T1, v);", VECTORS),
    "load_global_vector": ("weft::load_global_vector<1>(a, 0, T0);", VECTORS),
    "store_global_vector": ("weft::store_global_vector<1>(T1, a, 0);", VECTORS),
    "load_global_volatile": ("v = weft::load_global_volatile(T0);", VECTORS),
    "store_global_volatile": ("weft::store_global_volatile(T1, v);", WORDS),
    "load_acquire": ("v = weft::load_acquire(T0);", VECTORS),
    "store_release": ("weft::store_release(T1, v);", WORDS),
    "load_shared_vector": ("weft::load_shared_vector<1>(a, 0, s);", VECTORS),
    "store_shared_vector": ("weft::store_shared_vector<1>(s, a, 0);", VECTORS),
    "shuffle_xor": ("v = weft::shuffle_xor(v, 1);", (*VECTORS, 24, 32)),
    "load_shared_remote": ("v = weft::load_shared_remote(s, 1);", WORDS),
    "store_shared_remote": ("weft::store_shared_remote(s, 1, v);", (*WORDS, 12, 16, 20, 24, 32)),
    "store_async_remote": ("weft::store_async_remote(s, 1, v, (unsigned long long*)s + 8);", (4, 8)),
}
KERNEL = """struct alignas({align}) S {{ unsigned char bytes[{size}]; }};
extern "C" __global__ void moves(const S* __restrict__ T0, S* T1) {{
  S* const s = (S*)weft::dynamic_shared();
  S v = {{}};
  weft::Array<S, 1> a;
  a.fill(v);
  {statement}
  v = a.get(0);
  *T1 = v;
}}"""


def refusals(statement: str, size: int) -> list[bool]:
    """Whether NVRTC and the emulator's compiler refuse to move `size` bytes: the alignment is the largest power of two in it, up to 16."""
    unit = translation_unit(KERNEL.format(size=size, align=min(size & -size, 16), statement=statement), ["reduce"])
    found = []
    for build in (lambda: compile_cubin(unit, "moves", "sm_90a"), lambda: build_kernel(unit, check_races=True, is_foreign=True)):
        try:
            build()
            found.append(False)
        except (CompilationFailed, TextDoesNotCompile):
            found.append(True)
    return found


@pytest.mark.parametrize("name", ACCESSES)
def test_both_machines_take_the_same_sizes(name: str, tmp_path: Path) -> None:
    statement, sizes = ACCESSES[name]
    with options(dump_dir=tmp_path):
        found = {size: refusals(statement, size) for size in SIZES}
    assert found == {size: [size not in sizes] * 2 for size in SIZES}
