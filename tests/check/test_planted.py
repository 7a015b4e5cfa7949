"""Every planted mistake is found with the right line in at most 8 orders, and the same kernels without it run clean in 8."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.check.explore import SEEDS
from weft.check.kernels import KERNELS
from weft.check.planted import MISTAKES, PIPELINE, Mistake, NothingToChange, changed, run, table


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.kernel}: {m.claim}")
def test_a_planted_mistake_is_found(mistake: Mistake) -> None:
    verdict = run(mistake)
    assert verdict.is_found, "\n".join(f.text() for f in verdict.exploration.found) or "nothing was found"
    assert verdict.line


@pytest.mark.parametrize("kernel", [*KERNELS, PIPELINE])
def test_the_kernel_without_a_mistake_is_clean(kernel: str) -> None:
    verdict = run(Mistake(kernel, "no mistake", "$^", "", "", ""))
    assert verdict.exploration.is_clean, "\n".join(f.text() for f in verdict.exploration.found)
    assert len(verdict.exploration.reports) == SEEDS


@pytest.mark.parametrize("kernel", [*KERNELS, PIPELINE])
def test_the_kernel_is_clean_in_an_order_of_this_run(kernel: str) -> None:
    """Each run of the suite tries an order that no run tried before; pytest's first lines say which."""
    seed = int(os.environ["TEST_SEED"])
    verdict = run(Mistake(kernel, "no mistake", "$^", "", "", ""), [seed])
    assert verdict.exploration.is_clean, f"TEST_SEED={seed}\n" + "\n".join(f.text() for f in verdict.exploration.found)


def test_there_are_enough_of_them_in_generated_kernels() -> None:
    assert sum(m.kernel != PIPELINE for m in MISTAKES) >= 25


def test_a_pattern_that_no_longer_fits_is_an_error() -> None:
    with pytest.raises(NothingToChange, match="has 0 places like 'no such text', not 1"):
        changed("some text", Mistake("pointwise", "claim", "no such text", "", "", ""))


def test_the_table_says_which_are_missed() -> None:
    verdict = run(Mistake("pointwise", "no mistake at all", "$^", "", "data-race", "x"), range(2))
    assert table([verdict]).endswith("| pointwise | no mistake at all | **missed** |  | 0 of 2 |")


def test_the_page_lists_them_all() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "planted.md").read_text(encoding="utf-8")
    absent = [m.claim for m in MISTAKES if f"| {m.kernel} | {m.claim} |" not in page]
    assert not absent and "missed" not in page.partition("\n|")[2], f"run: python docs/make_planted.py ({absent})"
