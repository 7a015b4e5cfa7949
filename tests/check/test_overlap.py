"""Kernels that start before the one in front of them has ended: no false alarm, within a definition and from one call to the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from weft import FusionDefinition
from weft.check.overlap import PairWatch, behind_itself, explore_pair
from weft.check.planted import OVERLAPPED, Mistake, run, subject
from weft.check.script import checked_call
from weft.emulator import EmulatedKernel
from weft.emulator.overlapped import KernelCall
from weft.lower.program import Need
from weft.options import options
from weft.runtime import engines

TESTS = Path(__file__).resolve().parents[1]
sys.path.append(str(TESTS / "random_fusions"))


@contextmanager
def watched() -> Iterator[PairWatch]:
    watch = PairWatch(checked_call)
    engines.watchers.append(watch)
    try:
        with options(dependent_launch="on"):
            yield watch
    finally:
        engines.watchers.remove(watch)


def assert_clean(watch: PairWatch) -> None:
    assert not watch.found, "\n".join(f"{names}: {found.text()}" for names, found in watch.found)


@pytest.mark.parametrize("kernel, behind", sorted({(m.kernel, m.behind) for m in OVERLAPPED}))
def test_kernels_without_a_mistake_overlap_without_a_finding(kernel: str, behind: str) -> None:
    exploration = run(Mistake(kernel, "no mistake", "$^", "", "", "", behind=behind), range(3)).exploration
    assert exploration.is_clean, "\n".join(f.text() for f in exploration.found)


def test_letting_the_next_start_at_the_top_is_no_mistake_where_that_waits() -> None:
    """Only the wait orders memory, so it does not matter where the kernel before lets the next one start."""
    at = subject("pointwise")
    wait, launch = "weft::griddep_wait();", "weft::griddep_launch();"
    early = at.unit.replace(launch, ";").replace(wait, launch + wait)
    first, second = behind_itself(at.arguments, "reads")
    calls = [KernelCall(EmulatedKernel(unit, at.entry, check="races"), at.geometry, given) for unit, given in ((early, first), (at.unit, second))]
    assert explore_pair(*calls).is_clean
    calls[1] = KernelCall(EmulatedKernel(at.unit.replace(wait, ";"), at.entry, check="races"), at.geometry, second)
    assert {f.finding.kind for f in explore_pair(*calls).found} == {"overlaps-kernel-before", "no-griddep-wait"}


def two_kernels(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    fd.add_output(fd.ops.tanh(fd.ops.segment_set(fd.ops.sin(x))))


def test_kernels_of_a_definition_and_calls_one_after_another_are_pairs() -> None:
    with FusionDefinition() as fd:
        two_kernels(fd)
    x = torch.randn(40, 30)
    with watched() as watch:
        (y,) = fd.execute([x])
        kernels = [r.program for r in fd.fec.kernel_runtimes]
        assert len(kernels) > 1 and all(Need.dependent_launch in program.needs for program in kernels)
        assert watch.pairs == len(kernels) - 1
        (y,) = fd.execute([y])
        assert watch.pairs >= len(kernels), "the first kernel of a call behind the last one of the call before"
        fd.execute([torch.sin(y)])
    assert_clean(watch)


def test_what_something_else_wrote_in_between_makes_no_pair() -> None:
    with FusionDefinition() as fd:
        two_kernels(fd)
    with watched() as watch:
        (y,) = fd.execute([torch.randn(20, 30)])
        pairs = watch.pairs
        y.mul_(2)
        fd.execute([y])
    assert watch.others == 1 and watch.pairs < 2 * pairs + 2
    assert_clean(watch)


def test_kernels_of_random_graphs_overlap_without_a_finding() -> None:
    """A few of what `python -m tests.random_fusions --graphs --pairs` runs by the hundred."""
    from fusion_check import check
    from fusion_generator import GRAPHS, random_case

    with watched() as watch:
        for seed in range(570001, 570004):
            outcome = check(random_case(seed, 500, GRAPHS))
            assert not outcome.is_failure, outcome
    assert_clean(watch)
    assert watch.pairs >= 2
