"""Kernels with async warps: every variant in the emulator with races checked, each stage used more than twice, ragged tails; all compile without spills."""

from __future__ import annotations

import pytest
from scheduled import P, Rows, check, compiles, rows_for

from weft import DataType
from weft.arch import CHIPS, Arch
from weft.lower.roles import CHIP

CASES = {
    "one role": (Rows(warps=(0, 0)), 1024, (128,)),
    "two roles": (Rows(), 1024, (128,)),
    "two roles with different stages": (Rows(stages=(2, 5)), 1024, (128,)),
    "three roles": (Rows(inputs=3, stages=(2, 3, 4), warps=(0, 1, 2)), 1000, (128,)),
    "four roles": (Rows(inputs=4, stages=(2, 2, 2, 2), warps=(0, 1, 2, 3)), 512, (128,)),
    "chain of two": (Rows(inputs=1, stages=(3, 2), warps=(0, 1), chained=1), 1024, (128,)),
    "chain of two beside another role": (Rows(inputs=2, stages=(3, 4, 2), warps=(0, 1, 2), chained=1), 1024, (128,)),
    "chain of three": (Rows(inputs=1, stages=(3, 2, 4), warps=(0, 1, 2), chained=2), 512, (128,)),
    "own stages": (Rows(own=True), 1000, (128,)),
    "own stages, one role, store": (Rows(own=True, warps=(0, 0), store=True), 1000, (128,)),
    "own stages, four groups": (Rows(own=True, groups=4, dtype=DataType.Float, vector=4, batches=2), 512, (64,)),
    "own stages, chain": (Rows(inputs=1, stages=(2, 3), warps=(0, 1), chained=1, own=True), 512, (128,)),
    "registers": (Rows(own=True, registers=(40, 232), batches=2), 2048, (128,)),
    "registers, store": (Rows(registers=(40, 232), batches=2, store=True), 2000, (128,)),
    "maximum": (Rows(fold="max"), 1016, (128,)),
    "grouped rows": (Rows(grouped=2), 1024, (128,)),
    "grouped rows, own stages": (Rows(grouped=2, own=True, registers=(40, 232)), 1000, (128,)),
    "along x": (Rows(axis=P.block_x, groups=1), 2048, (256,)),
    "along x, store": (Rows(axis=P.block_x, groups=1, store=True), 2000, (256,)),
    "along z": (Rows(axis=P.block_z), 1024, (128,)),
    "unswitched around": (Rows(unswitch="around"), 1000, (128,)),
    "unswitched inside": (Rows(unswitch="inside", batches=2), 2048, (128,)),
    "unswitched around, own stages, store": (Rows(unswitch="around", own=True, warps=(0, 0), store=True), 1000, (128,)),
    "unswitched around, chain of three": (Rows(unswitch="around", inputs=1, stages=(3, 2, 4), warps=(0, 1, 2), chained=2), 512, (128,)),
    "unswitched inside, registers": (Rows(unswitch="inside", own=True, registers=(40, 232), batches=4), 4000, (128,)),
    "float": (Rows(dtype=DataType.Float, vector=4, batches=2), 1000, (128,)),
    "half": (Rows(dtype=DataType.Half), 1024, (128,)),
}


@pytest.mark.parametrize("name", CASES)
def test_variant_is_right_and_free_of_races(name: str) -> None:
    case, cols, block = CASES[name]
    fd = case.define()
    for rows in (rows_for(case), 1):
        xs, expected = case.data(rows, cols)
        check(fd, xs, expected, block)


@pytest.mark.parametrize("name", CASES)
def test_variant_compiles_for_sm_90a_without_spills(name: str) -> None:
    case, _, block = CASES[name]
    compiles(case.define(), block)


@pytest.mark.parametrize("stages", range(2, 11))
def test_any_number_of_stages(stages: int) -> None:
    case = Rows(stages=(stages, 2), own=stages % 2 == 0)
    xs, expected = case.data(rows_for(case), 512)
    check(case.define(), xs, expected, (64,))


@pytest.mark.parametrize("shape", [(32, 1), (32, 2), (64, 1), (64, 2), (128, 1), (128, 3), (128, 4), (128, 7), (32, 16), (16, 8)])
def test_any_shape_of_the_compute_block(shape: tuple[int, int]) -> None:
    threads, groups = shape
    case = Rows(groups=groups, stages=(2, 2), batches=256 // threads // 2 if threads < 128 else 1)
    xs, expected = case.data(rows_for(case), threads * 8 * case.batches - 8)
    check(case.define(), xs, expected, (threads,))


def test_sizes_may_change_from_run_to_run() -> None:
    case = Rows(own=True)
    fd = case.define()
    for rows, cols in ((17, 1024), (1, 8), (40, 504), (2, 1016), (3, 16)):
        xs, expected = case.data(rows, cols)
        check(fd, xs, expected, (128,))


@pytest.mark.parametrize("chip", [c for c in CHIPS.values() if c.has_tma], ids=lambda c: c.name)
def test_what_is_checked_of_one_chip_holds_for_all_that_specialize(chip: Arch) -> None:
    assert chip.max_threads_per_block == CHIP.max_threads_per_block
    assert [chip.registers_per_thread(n) for n in range(32, 1025, 32)] == [CHIP.registers_per_thread(n) for n in range(32, 1025, 32)]
