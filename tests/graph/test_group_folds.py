"""Which reductions over groups become folds that keep the shape, and that a fusion stays as it is where they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.graph.group_folds import fold_groups, has_groups
from weft.ir.block_ops import GroupFoldOp, GroupResultOp
from weft.ir.fusion import Fusion
from weft.ir.values import ReductionOp
from weft.reference.bounds import evaluate_with_bounds
from weft.reference.interpreter import evaluate

Scales = Callable[[Any, Any, Any], tuple[list[Any], Any]]
"""(ops, normalized rows, largest magnitudes of groups [r, g, 1]) -> further outputs, and what divides the rows."""


def definition(scales: Scales, group: int = 128, axis: int = 2, has_norm: bool = True) -> Fusion:
    """Rows [r, g, group], normalized or not, divided by what their groups give."""
    with FusionDefinition() as fd:
        ops = fd.ops
        shape = [-1, -1, -1]
        shape[axis] = group
        x = fd.define_tensor(shape, contiguity=True, dtype=DataType.Float)
        y = ops.mul(x, ops.rsqrt(ops.add(ops.mean(ops.mul(x, x), [1, 2], keepdim=True), 1e-5))) if has_norm else x
        outputs, divisor = scales(ops, y, ops.max(ops.abs(y), [axis], True))
        for out in (ops.div(y, divisor), *outputs):
            fd.add_output(out)
    fusion, _ = fd.fusion.clone()
    return fusion


def plain(ops: Any, y: Any, amax: Any) -> tuple[list[Any], Any]:
    scale = ops.div(ops.maximum(amax, 1e-10), 448.0)
    return [scale, ops.squeeze(scale, [2])], scale


def kept(ops: Any, y: Any, amax: Any) -> tuple[list[Any], Any]:
    return [amax], amax


def rows_of_scales(ops: Any, y: Any, amax: Any) -> tuple[list[Any], Any]:
    top = ops.max(ops.squeeze(amax, [2]), [1])
    return [top], ops.mul(amax, ops.broadcast_in_dim(top, y.shape(), [0]))


def sums_of_scales(ops: Any, y: Any, amax: Any) -> tuple[list[Any], Any]:
    return [], ops.mul(amax, ops.sum(amax, [1, 2], True))


def sliced_scales(ops: Any, y: Any, amax: Any) -> tuple[list[Any], Any]:
    return [ops.slice(ops.squeeze(amax, [2]), [0, 0], [1, 1])], amax


def unused(ops: Any, y: Any, amax: Any) -> tuple[list[Any], Any]:
    return [amax], 2.0


def transposed(ops: Any, y: Any, amax: Any) -> tuple[list[Any], Any]:
    return [ops.permute(ops.squeeze(amax, [2]), [1, 0])], amax


def beside_transposed(ops: Any, y: Any, amax: Any) -> tuple[list[Any], Any]:
    turned = ops.permute(ops.squeeze(amax, [2]), [1, 0])
    return [ops.sub(ops.permute(ops.select(y, 0, 2), [1, 0]), ops.mul(turned, 0.5)), ops.mul(turned, 2.0)], amax


def kinds(fusion: Fusion) -> list[str]:
    return [type(e).__name__ for e in fusion.tensor_exprs() if isinstance(e, (GroupFoldOp, GroupResultOp, ReductionOp))]


@pytest.mark.parametrize("group", [2, 96, 128, 1024])
def test_a_reduction_over_groups_of_normalized_rows_keeps_their_shape(group: int) -> None:
    fusion = definition(plain, group)
    names = [v.name for v in fusion.outputs()]
    assert has_groups(fusion) and fold_groups(fusion) == 1
    assert sorted(kinds(fusion)) == ["GroupFoldOp", "GroupResultOp", "GroupResultOp", "ReductionOp"]
    assert [v.name for v in fusion.outputs()] == names
    assert [len(t.get_logical_domain()) for t in fusion.tensor_outputs()] == [3, 3, 2] and not has_groups(fusion)
    (fold,) = (e for e in fusion.tensor_exprs() if isinstance(e, GroupFoldOp))
    assert (fold.block, fold.kind) == (group, "max")


def test_the_largest_of_groups_of_normalized_rows_need_not_return_to_the_rows() -> None:
    fusion = definition(unused)
    assert fold_groups(fusion) == 1 and kinds(fusion).count("GroupResultOp") == 1


def test_sums_of_groups_that_do_not_return_to_the_rows_stay() -> None:
    """`nested_sums` has them."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = fd.define_tensor([-1, -1, 16], contiguity=True, dtype=DataType.Float)
        y = ops.mul(x, ops.rsqrt(ops.mean(ops.mul(x, x), [1, 2], keepdim=True)))
        for out in (y, ops.sum(y, [2])):
            fd.add_output(out)
    fusion, _ = fd.fusion.clone()
    assert not has_groups(fusion) and fold_groups(fusion) == 0


def test_values_of_groups_that_are_repeated_otherwise() -> None:
    """Found by random graphs: a value per group repeated twice, where a group has three elements."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = fd.define_tensor([-1, -1, 3], contiguity=True, dtype=DataType.Float)
        twice = ops.expand(ops.var(x, [-1], 2, True), [-1, -1, 2])
        fd.add_output(ops.sub(twice, ops.max(twice, [0], True)))
    given = torch.randn(5, 7, 3)
    want = given.double().var(-1, correction=2, keepdim=True).expand(-1, -1, 2)
    torch.testing.assert_close(fd.execute([given])[0].double(), want - want.amax(0, keepdim=True), rtol=1e-5, atol=1e-6)


def test_a_permuted_result_is_one_element_of_each_group() -> None:
    fusion = definition(transposed)
    assert fold_groups(fusion) == 1 and kinds(fusion).count("GroupResultOp") == 1
    out = fusion.tensor_outputs()[1]
    root, logical = out.get_root_domain(), out.get_logical_domain()
    assert [root.index(axis) for axis in logical] == [1, 0]


def test_the_largest_of_groups_is_that_of_the_row() -> None:
    """With a norm, and without: then only the second reduction is over rows."""
    for has_norm in (True, False):
        fusion = definition(rows_of_scales, has_norm=has_norm)
        assert fold_groups(fusion) == 1
        reductions = [e for e in fusion.tensor_exprs() if isinstance(e, ReductionOp)]
        assert all(sum(a.is_reduction() for a in e.tensor_outputs[0].get_logical_domain()) == 2 for e in reductions)


@pytest.mark.parametrize(("scales", "fields"), [
    (sums_of_scales, {}),  # 128 times the sum
    (sliced_scales, {}),  # read at another place
    (beside_transposed, {}),  # the other operand has its axes in another order than the rows
    (unused, dict(has_norm=False)),  # nothing of the row is known before
    (plain, dict(has_norm=False)),  # no row is reduced
    (kept, dict(axis=1)),  # neighbours in a group are apart
    (plain, dict(group=2048)),
    (plain, dict(group=-1)),
])  # fmt: skip
def test_what_is_left_as_it_is(scales: Scales, fields: dict[str, Any]) -> None:
    fusion = definition(scales, **fields)
    before = str(fusion)
    assert fold_groups(fusion) == 0 and str(fusion) == before
    assert all(use in fusion.tensor_exprs() for t in fusion.tensors() for use in t.uses())  # nothing unfinished reads them


@pytest.mark.parametrize("scales", [plain, rows_of_scales, transposed, sliced_scales, beside_transposed], ids=lambda f: f.__name__)
def test_results_are_the_same(scales: Scales) -> None:
    """By the interpreter, in float64, and with bounds of errors."""
    fusion = definition(scales, 16)
    x = [torch.randn(3, 3, 16)] if scales is beside_transposed else [torch.randn(5, 3, 16)]
    want = evaluate(fusion, x)
    fold_groups(fusion)
    for got, bounded, expected in zip(evaluate(fusion, x), evaluate_with_bounds(fusion, x), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-14, atol=0)
        assert torch.equal(got, bounded.value) and (bounded.bound is None or torch.isfinite(bounded.bound).all())
