"""The normal form: what becomes of axes, and that the interpreter computes the same from it."""

from __future__ import annotations

import pytest
import torch
from graphs import Graph
from view_cases import CASES, DIVIDED, SHIFTED, Case

from weft.dtypes import DataType
from weft.graph.normalize import normalize
from weft.ir.graph_ops import CatOp, LookupOp, ReshapeOp
from weft.ir.values import PointwiseOp, TensorView
from weft.reference.interpreter import evaluate

ALL = {**CASES, **SHIFTED, **DIVIDED}


def kinds(fusion) -> list[str]:
    return [type(e).__name__ for e in fusion.tensor_exprs()]


def sizes(tensor: TensorView) -> list[str]:
    return [str(a.logical_extent) for a in tensor.get_logical_domain()]


@pytest.mark.parametrize("name", ALL)
def test_the_normal_form_computes_the_same(name: str) -> None:
    case: Case = ALL[name]
    fusion, inputs = case.define().fusion, case.inputs()
    normal = normalize(fusion)
    for out, own, expected in zip(evaluate(fusion, inputs), evaluate(normal, inputs), case.expected(inputs), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*CASES, *SHIFTED])
def test_no_reshape_and_no_cat_is_left(name: str) -> None:
    exprs = normalize(ALL[name].define().fusion).tensor_exprs()
    assert not [e for e in exprs if isinstance(e, (ReshapeOp, CatOp))]


def test_inputs_and_outputs_keep_their_names_and_what_the_user_sees() -> None:
    g = Graph()
    x = g.tensor([4, 24])
    out = g.reshape(g.exp(g.reshape(x, [4, 3, 8])), [12, 8])
    normal = normalize(g.out(out))
    source, result = normal.inputs()[0], normal.outputs()[0]
    assert (source.name, result.name) == (x.name, out.name)
    assert sizes(source) == ["4", "3", "8"] and source.domain().user.counts == (1, 2)
    assert sizes(result) == ["4", "3", "8"] and result.domain().user.counts == (2, 1)
    assert [str(n) for n in result.domain().user.extents] == ["12", "8"]


def test_the_strides_of_parts_are_those_of_the_user_s_axis() -> None:
    g = Graph()
    x = g.tensor([4, 24])
    x.domain().contiguity = [False, False]
    normal = normalize(g.out(g.exp(g.reshape(x, [2, 2, 3, 8]))))
    strides = list(normal.inputs()[0].strides().values())[::-1]
    assert [str(s) for s in strides] == ["(T0.stride[0] * 2)", "T0.stride[0]", "(T0.stride[1] * 8)", "T0.stride[1]"]


def test_a_definition_without_views_is_left_alone() -> None:
    g = Graph()
    fusion = g.out(g.exp(g.tensor([4, -1])))
    assert str(normalize(fusion)) == str(fusion)


def test_a_reshape_there_and_back_is_nothing() -> None:
    g = Graph()
    x = g.tensor([4, 6])
    normal = normalize(g.out(g.add(g.reshape(g.reshape(x, [24]), [4, 6]), x)))
    assert kinds(normal) == ["PointwiseOp"]
    assert normal.inputs()[0].domain().user is None


def test_a_reshape_without_a_common_factorization_stays() -> None:
    g = Graph()
    summed = g.sum(g.reshape(g.exp(g.sum(g.tensor([5, 4, 6]), [0])), [6, 4]), [1])
    assert kinds(normalize(g.out(summed))) == ["ReductionOp", "PointwiseOp", "ReshapeOp", "ReductionOp"]


def test_such_a_reshape_moves_through_pointwise_ops_to_a_result_or_an_input() -> None:
    g = Graph()
    assert kinds(normalize(g.out(g.exp(g.reshape(g.relu(g.tensor([4, 6])), [6, 4]))))) == ["PointwiseOp", "PointwiseOp", "ReshapeOp"]
    g = Graph()
    assert kinds(normalize(g.out(g.sum(g.exp(g.reshape(g.relu(g.tensor([4, 6])), [6, 4])), [1])))) == ["ReshapeOp", "PointwiseOp", "PointwiseOp", "ReductionOp"]


def test_of_two_splits_that_have_nothing_in_common_the_second_stays() -> None:
    g = Graph()
    x = g.exp(g.tensor([24]))
    normal = normalize(g.out(g.relu(g.reshape(x, [4, 6])), g.relu(g.reshape(x, [6, 4])), g.relu(g.reshape(x, [2, 12]))))
    assert kinds(normal).count("ReshapeOp") == 1
    assert sizes(normal.inputs()[0]) == ["2", "2", "6"]


def test_cuts_reach_what_is_far_away() -> None:
    """The bias, the sum and the sibling of a tensor that is split somewhere have its parts, too."""
    g = Graph()
    x, b = g.tensor([4, 24]), g.tensor([24])
    y = g.add(x, g.broadcast(b, [True, False]))
    normal = normalize(g.out(g.sum(y, [1]), g.reshape(g.exp(y), [4, 3, 8])))
    assert sizes(normal.inputs()[1]) == ["3", "8"]
    assert sizes(normal.outputs()[0]) == ["4", "3", "8"]


def test_a_slice_at_a_multiple_is_a_slice_of_the_outer_part() -> None:
    g = Graph()
    normal = normalize(g.out(g.reshape(g.slice(g.tensor([4, 24]), [0, 8], [4, 24]), [4, 2, 8])))
    (lookup,) = [e for e in normal.tensor_exprs() if isinstance(e, LookupOp)]
    assert [(p.axis, str(p.offset)) for p in lookup.positions] == [(0, "0"), (1, "1"), (2, "0")]
    assert sizes(normal.inputs()[0]) == ["4", "3", "8"]


def test_a_slice_in_the_middle_of_a_part_keeps_the_reshape_away() -> None:
    g = Graph()
    normal = normalize(g.out(g.reshape(g.slice(g.tensor([4, 24]), [0, 3], [4, 19]), [4, 2, 8])))
    assert "ReshapeOp" in kinds(normal)
    assert sizes(normal.inputs()[0]) == ["4", "24"]


def test_cat_is_a_lookup_of_each_part() -> None:
    """Each reads its part where it is, and the next one's result elsewhere."""
    g = Graph()
    normal = normalize(g.out(g.cat([g.tensor([4, 3]), g.tensor([4, 5]), g.tensor([4, 1])], 1)))
    lookups = [e for e in normal.tensor_exprs() if isinstance(e, LookupOp)]
    assert [str(e.positions[1].offset) for e in lookups] == ["-8", "-3", "0"]
    assert [e.inputs[-1] is before.outputs[0] for before, e in zip(lookups, lookups[1:])] == [True, True]
    assert not any(isinstance(e, PointwiseOp) for e in normal.tensor_exprs())


def test_a_part_of_an_axis_without_that_axis_is_one_lookup() -> None:
    """Heads out of one product: what is taken at one place of an axis is read where it is, and the axis stands behind no vector's lanes."""
    g = Graph()
    x = g.tensor([4, 3, 8])
    fusion = g.out(g.exp(g.squeeze(g.slice(x, [0, 2, 0], [4, 3, 8]), [1])))
    normal = normalize(fusion)
    assert kinds(normal) == ["LookupOp", "PointwiseOp"]
    a = torch.randn(4, 3, 8)
    torch.testing.assert_close(evaluate(normal, [a])[0], a[:, 2].double().exp())


def test_two_equal_cats_share_what_they_read() -> None:
    g = Graph()
    x = g.tensor([3, 5])
    turned = g.permute(x, [1, 0])
    copied = g.set(turned)
    fusion = g.out(g.cat([copied, turned], 0), g.cat([copied, turned], 0))
    a = torch.randn(3, 5)
    for out in evaluate(normalize(fusion), [a]):
        torch.testing.assert_close(out, torch.cat([a.T, a.T]).double())


def test_dead_code_is_gone() -> None:
    g = Graph()
    x = g.tensor([4, 6])
    g.reshape(x, [3, 8])
    assert kinds(normalize(g.out(g.exp(g.reshape(x, [24]))))) == ["PointwiseOp"]


def test_an_index_keeps_the_axis_that_it_reads_whole() -> None:
    g = Graph()
    x, index = g.tensor([6, 24]), g.tensor([5])
    index._dtype = DataType.Int
    taken = g.index_select(x, index, 0)
    normal = normalize(g.out(g.reshape(taken, [5, 3, 8]), g.reshape(g.exp(x), [2, 3, 24])))
    assert sizes(normal.inputs()[0]) == ["6", "3", "8"]
    assert kinds(normal).count("ReshapeOp") == 1


def test_an_axis_that_is_dropped_and_put_back_stays() -> None:
    g = Graph()
    x = g.tensor([1, 24])
    normal = normalize(g.out(g.exp(g.broadcast(g.squeeze(x, [0]), [True, False]))))
    assert kinds(normal) == ["LoadStoreOp", "PointwiseOp"]
