"""Parts of a cat that are stored rather than computed for the elements of other parts, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import FusionDefinition
from weft.graph.concretize import concretize
from weft.graph.normalize import normalize
from weft.graph.parts_of_cats import is_stored_sooner, times_of_part
from weft.graph.questions import Questions
from weft.graph.selections import select_by_position
from weft.ir.graph_ops import CatOp, LookupOp
from weft.options import options


def formula(fd: FusionDefinition, x: Any, times: int) -> Any:
    for _ in range(times):
        x = fd.ops.tanh(fd.ops.add(fd.ops.exp(fd.ops.neg(x)), 0.5))
    return x


def _formula(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = ((-x).exp() + 0.5).tanh()
    return x


def side_by_side(sizes: tuple[int, int], widths: list[int], times: list[int], *, is_known: bool = True) -> FusionDefinition:
    """A cat of formulas of slices of rows. times: of each part, how long its formula is."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes) if is_known else [-1, -1], contiguity=True)
        y = fd.ops.mul(x, 1.5)
        begins = [sum(widths[:n]) for n in range(len(widths))]
        parts = [fd.ops.slice(y, start_indices=[0, b], end_indices=[sizes[0], b + w]) for b, w in zip(begins, widths)]
        fd.add_output(fd.ops.cat([formula(fd, part, n) for part, n in zip(parts, times)], dim=1))
    return fd


def stored(fd: FusionDefinition) -> int:
    """Return how many computed tensors lookups read."""
    return len({e.source for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, LookupOp) and e.source.definition() is not None})


HEAVY, MEDIUM, LIGHT = 8, 2, 0


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("widths, times, count", [
    ([10, 10, 10], [MEDIUM, HEAVY, HEAVY], 3), ([10, 10, 10], [LIGHT, HEAVY, HEAVY], 2), ([10, 10, 10], [MEDIUM, MEDIUM, MEDIUM], 0),
    ([300, 300], [MEDIUM, HEAVY], 1), ([4, 4], [MEDIUM, HEAVY], 1), ([1, 40], [MEDIUM, HEAVY], 2), ([9, 17, 33], [HEAVY, MEDIUM, HEAVY], 3),
], ids=str)  # fmt: skip
def test_a_part_is_stored_beside_stored_ones(rows: int, widths: list[int], times: list[int], count: int) -> None:
    """Alone, a part of medium cost is not worth the launch of a kernel that copies it; beside parts that are stored it is, where warps have several parts."""
    fd = side_by_side((rows, sum(widths)), widths, times)
    assert stored(fd) == count
    x = torch.randn(rows, sum(widths), generator=torch.Generator().manual_seed(rows))
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([x])
    want = torch.cat([_formula(part, n) for part, n in zip((x.double() * 1.5).split(widths, 1), times)], 1)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_many_elements_are_worth_a_launch() -> None:
    assert stored(side_by_side((1 << 20, 90), [30] * 3, [MEDIUM] * 3)) == 3


def test_sizes_that_are_not_known_decide_nothing() -> None:
    assert stored(side_by_side((7, 30), [10, 10, 10], [MEDIUM, HEAVY, HEAVY], is_known=False)) == 2


@pytest.mark.parametrize("rows, widths, times", [
    (50, [10, 30], [4.0, 4 / 3]), (50, [10, 300], [31.0, 1.0]), (50, [4, 12], [1.0, 1.0]), (50, [4, 13], [17 / 4, 17 / 13]),
], ids=str)  # fmt: skip
def test_how_often_a_part_is_computed(rows: int, widths: list[int], times: list[float]) -> None:
    """Rows of 16 elements may be those of a thread; 256 elements of one part side by side are those of warps with one part."""
    fusion, _ = side_by_side((rows, sum(widths)), widths, [HEAVY] * len(widths)).fusion.clone()
    concretize(fusion, Questions())
    select_by_position(fusion, next(e for e in fusion.tensor_exprs() if isinstance(e, CatOp)))
    assert [times_of_part(e) for e in fusion.tensor_exprs() if isinstance(e, LookupOp) and e.op_name == "pad"] == times


@pytest.mark.parametrize("slots, is_beside_stored, is_stored", [(43, False, False), (43, True, False), (80, True, True), (149, True, True), (80, False, False)])
def test_instructions_that_issue_while_bytes_move_cost_nothing(slots: int, is_beside_stored: bool, is_stored: bool) -> None:
    fusion, _ = side_by_side((2000, 256), [64] * 4, [HEAVY] * 4).fusion.clone()
    concretize(fusion, Questions())
    select_by_position(fusion, next(e for e in fusion.tensor_exprs() if isinstance(e, CatOp)))
    part = next(e for e in fusion.tensor_exprs() if isinstance(e, LookupOp) and e.op_name == "pad")
    assert times_of_part(part) == 4.0
    assert is_stored_sooner(part, slots, is_beside_stored=is_beside_stored) is is_stored
