"""reshape, slice, pad, cat and triu: nodes, axes, errors, and what they mean, against torch."""

from __future__ import annotations

import pytest
import torch
from graphs import Graph

from weft.dtypes import DataType
from weft.expr import const, evaluate_int
from weft.ir.graph_ops import Along, CatOp, LookupOp, ReshapeOp
from weft.ir.structure import structural_key
from weft.ir.values import BroadcastOp, FullOp, LoadStoreOp, Merge, Split, SqueezeOp, TensorView
from weft.ops.reshape import recipe
from weft.reference.interpreter import evaluate

D = DataType


def axes(tensor: TensorView) -> list[str]:
    """Axes as text: kind and extent."""
    return [f"{a.iter_type.value}{a.sym}" + (f" ex {a.expanded_extent}" if a.expanded_extent is not None else "") for a in tensor.get_logical_domain()]


def chain(tensor: TensorView) -> list[str]:
    """The kinds of the expressions from the input to `tensor`."""
    out: list[str] = []
    while (definition := tensor.definition()) is not None:
        out.insert(0, type(definition).__name__)
        tensor = definition.inputs[0]  # type: ignore[assignment]
    return out


# ---------------------------------------------------------------- reshape
@pytest.mark.parametrize(
    ("old", "new", "groups"),
    [
        ([4, 6], [24], [(2, (24,))]),
        ([24], [4, 6], [(1, (4, 6))]),
        ([4, 6], [6, 4], [(2, (6, 4))]),
        ([2, 3, 8], [2, 24], [(1, (2,)), (2, (24,))]),
        ([2, 12, 5], [2, 3, 4, 5], [(1, (2,)), (1, (3, 4)), (1, (5,))]),
        ([8, 4, 6, 5], [8, 6, 4, 5], [(1, (8,)), (2, (6, 4)), (1, (5,))]),
    ],
    ids=str,
)
def test_a_recipe_regroups_as_little_as_possible(old: list[int], new: list[int], groups: list[tuple[int, tuple[int, ...]]]) -> None:
    assert list(recipe(old, new).groups) == groups


def test_ones_are_squeezed_and_broadcast_around_the_regrouping() -> None:
    g = Graph()
    out = g.reshape(g.tensor([2, 1, 3, 1]), [1, 6, 1])
    assert chain(out) == ["SqueezeOp", "ReshapeOp", "BroadcastOp"]
    assert axes(out) == ["b1", "i6", "b1"]


def test_ones_on_both_sides_stay_what_they_are() -> None:
    g = Graph()
    out = g.reshape(g.tensor([1, 4, 6]), [1, 24])
    assert chain(out) == ["ReshapeOp"]
    assert axes(out) == ["b1", "i24"]


def test_a_reshape_that_only_adds_and_drops_ones_has_no_reshape() -> None:
    g = Graph()
    out = g.reshape(g.tensor([4, 1, 6]), [4, 6, 1])
    assert chain(out) == ["SqueezeOp", "BroadcastOp"]
    assert type(out.definition()) is BroadcastOp


def test_the_root_of_a_static_reshape_splits_and_merges_into_its_logical_axes() -> None:
    g = Graph()
    out = g.reshape(g.tensor([4, 6]), [3, 8])
    assert type(out.definition()) is ReshapeOp
    assert [str(a.sym) for a in out.get_root_domain()] == ["4", "6"]
    outer, inner = out.get_logical_domain()
    split = outer.definition()
    assert type(split) is Split and inner.definition() is split
    assert type(split.source().definition()) is Merge
    assert axes(out) == ["i3", "i8"]


def test_an_equal_shape_is_the_tensor_itself() -> None:
    g = Graph()
    x = g.tensor([4, 1, 6])
    assert g.reshape(x, [4, 1, -1]) is x


def test_an_expanded_axis_stays_expanded_unless_it_is_regrouped() -> None:
    g = Graph()
    x = g.tensor([4, 6, 5], expanded={0: 4})
    assert axes(g.reshape(x, [4, 30])) == ["b1 ex 4", "i30"]
    assert axes(g.reshape(x, [2, 2, 30])) == ["i2", "i2", "i30"]
    assert axes(g.reshape(x, [24, 5])) == ["i24", "i5"]


def test_a_symbolic_reshape_leaves_its_axes_open() -> None:
    g = Graph()
    x = g.tensor([-1, 6])
    out = g.reshape(x, [g.size(x, 0), 3, -1, 1])
    assert not out.has_root()
    assert [a.iter_type.value for a in out.get_logical_domain()] == ["?", "i", "i", "b"]  # the sizes that are left divide without a remainder
    assert axes(g.reshape(x, [-1]))[0] == "?(T0.size[0] * 6)"


def test_open_axes_meet_others_by_kind() -> None:
    g = Graph()
    x = g.tensor([-1])
    opened = g.reshape(x, [-1, 1])
    assert axes(g.add(opened, g.tensor([1, 1])))[0].startswith("?")
    assert axes(g.add(opened, g.tensor([7, 1])))[0] == "i7"
    assert axes(g.squeeze(opened, [0])) == ["b1"]
    assert axes(g.expand(opened, [9, 4])) == ["?9", "b1 ex 4"]


def test_a_reshape_of_nothing_is_a_tensor_of_zeros() -> None:
    g = Graph()
    out = g.reshape(g.tensor([0, 4], D.Int), [2, 0])
    assert type(out.definition()) is FullOp
    assert axes(out) == ["i2", "i0"]
    assert axes(g.reshape(g.tensor([0, 4]), [4, -1])) == ["i4", "i0"]


@pytest.mark.parametrize(
    ("shape", "new", "text"),
    [
        ([4, 6], [-1, -1], "A maximum of one value of -1 can be provided to reshape."),
        ([4, 6], [5, 5], "Total element counts across view operation must match:"),
        ([4, 6], [5, -1], "Cannot infer the actual size of -1 output domain"),
        ([], [2], "Zero-dim tensors may only be reshaped to tensors with a single element"),
        ([4, 6], [-2, 12], r"was neither symbolic\(-1\), zero_element\(0\), broadcast\(1\), or static\(>1\)"),
        ([0, 6], [3, 2], "Output shape must have at least one 0"),
        ([0, 6], [0, -1], "Cannot infer the actual size of -1 output domain"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_errors(shape: list[int], new: list[int], text: str) -> None:
    g = Graph()
    with pytest.raises(RuntimeError, match=text):
        g.reshape(g.tensor(shape), new)


def test_a_shape_of_another_type_is_a_type_error() -> None:
    g = Graph()
    x = g.tensor([4])
    for shape in (4, "4", [2.0, 2], [True, 4]):
        with pytest.raises(TypeError):
            g.reshape(x, shape)
    assert axes(g.reshape(x, torch.Size([2, 2]))) == ["i2", "i2"]


SHAPES = [([4, 6], [24]), ([24], [2, 3, 4]), ([4, 6], [6, 4]), ([1, 4, 1, 6], [2, 2, 1, 6]), ([], [1, 1]), ([1, 1], []), ([2, 1, 3], [3, 1, 2, 1])]


@pytest.mark.parametrize(("shape", "new"), SHAPES, ids=str)
def test_reshape_is_torch_s(shape: list[int], new: list[int]) -> None:
    g = Graph()
    fusion = g.out(g.exp(g.reshape(g.tensor(shape), new)))
    a = torch.randn(shape)
    torch.testing.assert_close(evaluate(fusion, [a])[0], a.double().reshape(new).exp(), rtol=1e-14, atol=0)


def test_a_symbolic_reshape_is_torch_s() -> None:
    g = Graph()
    x, n = g.tensor([-1, -1]), g.scalar(D.Int)
    fusion = g.out(g.reshape(x, [n, -1]))
    for rows, columns, size in ((4, 6, 3), (4, 6, 8), (5, 1, 1), (1, 7, 7)):
        a = torch.randn(rows, columns)
        torch.testing.assert_close(evaluate(fusion, [a, size])[0], a.double().reshape(size, -1))


# ---------------------------------------------------------------- slice
def test_a_slice_is_a_lookup_whose_untouched_axes_stay() -> None:
    g = Graph()
    out = g.slice(g.tensor([-1, 8, 5, 4], expanded={2: 5}), [0, 2, 0, 1], [g.size(g.fusion.inputs()[0], 0), 7, 5, 2])
    node = out.definition()
    assert type(node) is LookupOp and node.op_name == "slice" and not node.is_masked
    assert node.positions == (Along(0), Along(1, const(2)), Along(2), Along(3, const(1)))
    assert axes(out) == ["iT0.size[0]", "i5", "b1 ex 5", "b1"]


def test_a_slice_of_an_expanded_axis_is_an_ordinary_axis() -> None:
    g = Graph()
    assert axes(g.slice(g.tensor([6, 4], expanded={0: 6}), [1, 0], [4, 4])) == ["i3", "i4"]


def test_a_slice_that_takes_everything_is_a_copy() -> None:
    g = Graph()
    assert type(g.slice(g.tensor([6, 4]), [0, 0], [9, 4]).definition()) is LoadStoreOp


def test_constant_bounds_are_clamped() -> None:
    g = Graph()
    x = g.tensor([6])
    assert axes(g.slice(x, [4], [100])) == ["i2"]
    assert axes(g.slice(x, [7], [100])) == ["i0"]
    assert axes(g.slice(x, [2], [2])) == ["i0"]
    assert axes(g.slice(x, [3], [9], manual_normalization=True)) == ["i6"]


@pytest.mark.parametrize(
    ("starts", "stops", "strides", "text"),
    [
        ([0, 0], [2, 2], [1], "Slice start_indices and strides don't match!"),
        ([0], [2], None, "Number of tensor dimensions does not match slice dimensions!"),
        ([0, 0], [2], None, "Slice indexing attribute dimensions don't match!"),
        ([-1, 0], [2, 2], None, "start_indices must be greater than or equal to 0"),
        ([3, 0], [2, 2], None, "end_indices must be greater than or equal to start_indices"),
        ([0, 0], [2, 2], [2, 1], "All slice operation strides must be of const size 1"),
    ],
    ids=str,
)
def test_wrong_slices_are_errors_in_this_order(starts: list[int], stops: list[int], strides: list[int] | None, text: str) -> None:
    g = Graph()
    with pytest.raises(RuntimeError, match=text):
        g.slice(g.tensor([4, 4]), starts, stops, strides)


@pytest.mark.parametrize("start", [-9, -2, 0, 1, 5, 9])
@pytest.mark.parametrize("stop", [-9, -1, 0, 3, 6, 9])
def test_run_time_bounds_follow_python(start: int, stop: int) -> None:
    g = Graph()
    x, a, b = g.tensor([-1]), g.scalar(D.Int), g.scalar(D.Int)
    out = g.slice(x, [a], [b])
    assert axes(out)[0].startswith("?")
    g.out(out)
    values = torch.arange(6.0)
    env = {x.get_logical_domain()[0].sym: 6, a.sym: start, b.sym: stop}
    (place,) = out.definition().positions
    size, first = evaluate_int(out.get_logical_domain()[0].sym, env), evaluate_int(place.offset, env)
    assert size == len(values[start:stop])
    assert not size or first == values[start:stop][0]


# ---------------------------------------------------------------- pad
def test_a_pad_is_a_masked_lookup_with_a_fill_of_the_tensor_s_type() -> None:
    g = Graph()
    out = g.pad(g.tensor([4, 1, 8], D.Half), [1, 2, 3, 0, -1, 0], 2.5)
    node = out.definition()
    assert type(node) is LookupOp and node.op_name == "pad" and node.is_masked
    assert node.positions == (Along(0, const(1)), Along(1, const(-3)), Along(2, const(-1)))
    assert axes(out) == ["i3", "i4", "i11"]
    fill = node.inputs[-1]
    assert fill.dtype() is D.Half and fill.sym.value == 2.5


def test_padding_kinds() -> None:
    g = Graph()
    x = g.tensor([-1])
    assert axes(g.pad(x, [1, 1]))[0].startswith("i")
    assert axes(g.pad(x, [1, 0]))[0].startswith("?")
    assert axes(g.pad(g.tensor([3]), [-1, -1])) == ["b1"]
    assert axes(g.pad(g.tensor([3]), [-2, -1])) == ["i0"]


def test_a_pad_of_nothing_is_a_copy() -> None:
    g = Graph()
    assert type(g.pad(g.tensor([4, 4]), [0, 0]).definition()) is LoadStoreOp


@pytest.mark.parametrize(
    ("widths", "value", "text"),
    [
        ([1, 1, 1, 1], None, "Number of pad widths must be at most twice the input dimension"),
        ([1], None, "Invalid number of padding widths"),
        ([-3, -2], None, "Invalid resized domain extent"),
        ([1, 1], 1, "Tensor arg and pad value must have the same dtype."),
        ([1, 1], True, "Tensor arg and pad value must have the same dtype."),
    ],
    ids=str,
)
def test_wrong_pads_are_errors(widths: list[int], value: object, text: str) -> None:
    g = Graph()
    with pytest.raises(RuntimeError, match=text):
        g.pad(g.tensor([4]), widths, value)


# ---------------------------------------------------------------- cat
def test_cat_joins_along_its_axis() -> None:
    g = Graph()
    out = g.cat([g.tensor([2, 3]), g.tensor([-1, 4]), g.tensor([2, 0])], -1)
    assert type(out.definition()) is CatOp
    assert len(out.definition().inputs) == 2
    assert axes(out) == ["i2", "i7"]


def test_cat_of_one_tensor_is_a_copy() -> None:
    g = Graph()
    assert type(g.cat([g.tensor([2])]).definition()) is LoadStoreOp
    assert type(g.cat([g.tensor([0]), g.tensor([2])]).definition()) is LoadStoreOp


def test_cat_of_pads_is_the_cat_of_what_they_pad() -> None:
    g = Graph()
    a, b = g.tensor([2, 3]), g.tensor([2, 4])
    out = g.cat([g.pad(a, [0, 4]), g.pad(b, [3, 0])], 1, manual_padding=True)
    assert type(out.definition()) is CatOp and out.definition().inputs == [a, b]
    x = torch.randn(2, 3)
    overlapping = Graph()
    y = overlapping.tensor([2, 3])
    fusion = overlapping.out(overlapping.cat([overlapping.pad(y, [0, 2]), overlapping.pad(y, [2, 0])], 1, manual_padding=True))
    assert type(fusion.outputs()[0].definition()).__name__ == "PointwiseOp"
    assert x.shape == (2, 3)


def test_wrong_cats_are_errors() -> None:
    g = Graph()
    x = g.tensor([2, 3])
    for tensors, dim, text in (
        ([], 0, "No input tensor given"),
        ([x, g.tensor([2, 3], D.Half)], 0, "Can't concatenate tensors with different data types"),
        ([x, g.tensor([2])], 0, "Unexpected number of dimensions"),
        ([x, x], 2, "Invalid dimension to cat"),
        ([x, g.tensor([3, 3])], 1, "axis 0 has size 2"),
    ):
        with pytest.raises(RuntimeError, match=text):
            g.cat(tensors, dim)
    with pytest.raises(RuntimeError, match="Expected all inputs to be padded when manual_padding is True."):
        g.cat([x, x], 0, manual_padding=True)
    with pytest.raises(TypeError):
        g.cat(x, 0)


def test_cat_keeps_every_bit() -> None:
    g = Graph()
    fusion = g.out(g.cat([g.tensor([2, 3]), g.tensor([2, 1]), g.tensor([2, -1])], 1))
    parts = [torch.tensor([[-0.0, float("nan"), 1.0], [0.0, -0.0, 2.0]]), torch.tensor([[-0.0], [3.0]]), torch.randn(2, 4)]
    (out,) = evaluate(fusion, parts, precision="native")
    assert torch.equal(out.view(torch.int32), torch.cat(parts, 1).view(torch.int32))


# ---------------------------------------------------------------- triu
@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 3), (1, 1), (2, 4, 1)], ids=str)
@pytest.mark.parametrize("diagonal", [-6, -1, 0, 2, 7])
def test_triu_is_torch_s(shape: tuple[int, ...], diagonal: int) -> None:
    g = Graph()
    fusion = g.out(g.triu(g.tensor(list(shape), D.Half), diagonal))
    a = torch.randn(shape).half()
    (out,) = evaluate(fusion, [a], precision="native")
    assert out.dtype == torch.float16 and torch.equal(out, a.triu(diagonal))


def test_triu_takes_a_run_time_diagonal_and_refuses_vectors() -> None:
    g = Graph()
    x, k = g.tensor([-1, -1], D.Int), g.scalar(D.Int)
    fusion = g.out(g.triu(x, k))
    a = torch.arange(12).reshape(3, 4)
    assert torch.equal(evaluate(fusion, [a, -1])[0], a.triu(-1))
    with pytest.raises(RuntimeError, match="input tensor for triu must have 2 or more dims, but got"):
        g.triu(g.tensor([4]))


# ---------------------------------------------------------------- corners of squeeze, expand, permute, broadcast
def test_errors_of_axes() -> None:
    g = Graph()
    x = g.tensor([1, 4])
    for call, text in (
        (lambda: g.squeeze(x, [0, 0, 0]), "The dims to squeeze must be <= the number of dims"),
        (lambda: g.squeeze(x, [2]), "Squeeze dim is outside of Tensor size!"),
        (lambda: g.squeeze(x, [1]), r"Can not squeeze non-broadcasting dimension\(s\)."),
        (lambda: g.squeeze(g.tensor([4], expanded={0: 4}), [0]), "Refusing to squeeze expanded IterDomain"),
        (lambda: g.expand(x, [1, 5]), "Invalid expand size,"),
        (lambda: g.permute(x, [0]), "argument to have the same length as input!"),
        (lambda: g.permute(x, [0, 2]), "New2Old axes are not within the number of dimensions"),
        (lambda: g.permute(x, [0, 0]), "Duplicate entries in transformation map."),
        (lambda: g.broadcast(x, [True, False]), "Invalid broadcast, number of false entries in is_broadcast_dim expected to be"),
        (lambda: g.broadcast_in_dim(x, [4, 4], [1, 1]), "is specified more than once."),
        (lambda: g.stride_order(x, [0, 0]), "Stride order is not valid:"),
        (lambda: g.sum(x, [3]), "Tried to access out of boundary index"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()


def test_expand_adds_leading_axes_and_squeeze_of_nothing_copies() -> None:
    g = Graph()
    x = g.tensor([1, 4])
    assert axes(g.expand(x, [3, 2, -1])) == ["b1 ex 3", "b1 ex 2", "i4"]
    assert type(g.squeeze(x, []).definition()) is LoadStoreOp
    assert type(g.squeeze(x, [0]).definition()) is SqueezeOp
    assert g.broadcast(x, [False, False]) is x
    assert axes(g.stride_order(x, [])) == ["b1", "i4"]


# ---------------------------------------------------------------- structure and copies
def test_definitions_that_differ_in_a_view_differ() -> None:
    def key(build) -> object:
        g = Graph()
        return structural_key(g.out(build(g, g.tensor([4, 6]))))

    builds = [
        lambda g, x: g.reshape(x, [6, 4]), lambda g, x: g.reshape(x, [24]), lambda g, x: g.slice(x, [0, 1], [4, 5]), lambda g, x: g.slice(x, [0, 2], [4, 6]),
        lambda g, x: g.pad(x, [1, 1]), lambda g, x: g.pad(x, [1, 1], 1.0), lambda g, x: g.cat([x, x], 0), lambda g, x: g.cat([x, x], 1), lambda g, x: g.triu(x, 1),
    ]  # fmt: skip
    keys = [key(build) for build in builds]
    assert len(set(keys)) == len(keys)
    assert [key(build) for build in builds] == keys


def test_a_clone_has_the_same_structure() -> None:
    g = Graph()
    x = g.tensor([4, 6])
    fusion = g.out(g.cat([g.slice(g.reshape(x, [3, 8]), [0, 2], [3, 6]), g.pad(g.reshape(x, [3, 8]), [-4, 0])], 1))
    copy, _ = fusion.clone()
    assert structural_key(copy) == structural_key(fusion)
    assert str(copy) == str(fusion)


# ---------------------------------------------------------------- types of iota and where
def test_iota_and_where_refuse_other_types() -> None:
    g = Graph()
    half, n = g.scalar(D.Double), g.scalar(D.Int)
    for call, text in (
        (lambda: g.iota(4, half, None, D.Int), "start dtype does not match specified dtype argument"),
        (lambda: g.iota(4, None, n, D.Float), "step dtype does not match specified dtype argument"),
        (lambda: g.iota(4, float("inf"), None, D.Float), "length, start, step must be finite numbers."),
        (lambda: g.iota(4, 0, 0), "step value must not equal zero."),
        (lambda: g.where(g.tensor([4]), 1.0, 2.0), "Condition should be of DataType Bool, not"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
    with pytest.raises(TypeError):
        g.iota(4.5)
    assert g.where(g.tensor([4], D.Bool), 1, 2).dtype() is D.Int
    assert axes(g.iota(n, 0, -2)) == [f"?{n.sym}"]
