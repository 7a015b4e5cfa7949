"""Correct kernels are reported by no order: a part of what corpus.py runs over the whole suite."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch
from part_of_chip import part_of_the_chip, rows_of_part

from weft import FusionDefinition
from weft.check.script import KernelWatch
from weft.options import options

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / name) for name in ("gpu", "random_fusions", "circular")]

RANDOM_FUSIONS = 12


def assert_clean(watch: KernelWatch, kernels: int) -> None:
    found = [kernel.text() for kernel in watch.kernels.values() if not kernel.exploration.is_clean]
    assert not found, "\n".join(found)
    assert len(watch.kernels) >= kernels
    assert all(len(kernel.exploration.reports) == 8 for kernel in watch.kernels.values())


def on_a_part(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Rows (of column sums: columns) for the part of the chip, where there are waves of them: the same kernel, an eighth of the work of each of its orders."""
    x = inputs[0]
    dim = 1 if name.endswith("over [0]") else 0
    if x.dim() != 2 or x.shape[0] <= 132 or x.shape[1] < 1000:
        return inputs
    few = rows_of_part(x.shape[dim])
    return [t.narrow(dim, 0, few).contiguous() if t.dim() == 2 else t for t in inputs]


def test_a_case_per_scheduler_and_heuristic_is_clean() -> None:
    import sanitizer_cases

    if not sanitizer_cases.CASES:
        sanitizer_cases.collect()
    watch = KernelWatch()
    with watch.watching(), options(check=""):
        for name, define, inputs, _, rows, _ in sanitizer_cases.CASES:
            with FusionDefinition() as fd:
                define(fd)
            is_cut = on_a_part(name, inputs)[0].shape != inputs[0].shape
            with part_of_the_chip() if is_cut else contextlib.nullcontext(), options(rows=rows):
                fd.execute(on_a_part(name, inputs))
    assert_clean(watch, 15)


def test_random_fusions_are_clean() -> None:
    from fusion_check import check
    from fusion_generator import random_case

    watch = KernelWatch()
    with watch.watching():
        for seed in range(900, 900 + RANDOM_FUSIONS):
            check(random_case(seed))
    assert_clean(watch, RANDOM_FUSIONS // 2)


@pytest.mark.parametrize("name", ["two roles with different stages", "chain of two beside another role", "own stages, one role, store", "registers, store"])
def test_pipelines_are_clean(name: str) -> None:
    from scheduled import rows_for, run
    from test_roles import CASES

    case, cols, block = CASES[name]
    xs, _ = case.data(rows_for(case), cols)
    watch = KernelWatch()
    with watch.watching():
        run(case.define(), xs, block)
    assert_clean(watch, 1)
