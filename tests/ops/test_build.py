"""Axes of results, nodes, scalars and errors of the functions that add ops to a fusion."""

from __future__ import annotations

import pytest
from graphs import Graph

from weft.dtypes import DataType
from weft.errors import Unsupported
from weft.expr import const
from weft.ir.values import BroadcastOp, ExpandOp, LoadStoreOp, PointwiseOp, RandomOp, ReductionOp, SqueezeOp, TensorView, WelfordOp
from weft.ops.build import ExtentMismatch, ForeignValue, IllegalCast
from weft.ops.functions import FUNCTIONS, UNSUPPORTED, lookup
from weft.ops.registry import UnknownOp
from weft.ops.registry import lookup as lookup_op
from weft.ops.shapes import CannotExpand, CannotSqueeze, NotAPermutation, WrongDim, WrongRank

D = DataType
NAMES = """abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfcinv erfinv exp exp2 expm1 floor frac imag isfinite isinf isnan isneginf
isposinf isreal lgamma log log10 log1p log2 logical_not neg rand_like randn_like real reciprocal relu round rsqrt segment_set set sigmoid sign signbit silu sin
sinh sqrt tan tanh trunc add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor div eq fmod gcd ge gt le logical_and logical_or
logical_right_shift lt maximum minimum mod mul ne nextafter pow remainder sub truediv complex lerp where clamp threshold addcmul max min prod sum var var_mean
welford cumsum cumprod cummin cummax cast triu matmul linear grouped_mm scaled_mm cutlass_nvfp4_grouped_mm broadcast broadcast_in_dim reshape permute expand
squeeze slice size shape stride_order index_select select scatter gather take_along_axis pad cat embedding_fwd preprocess_grouped_matmul_input_sf iota full
normal uniform topk argsort sdpfa_fwd sdpfa_bwd nv_block_quantize nv_grouped_block_quantize""".split()


def axes(tensor: TensorView) -> list[str]:
    """Axes as text: kind and extent."""
    return [f"{a.iter_type.value}{a.sym}" + (f" ex {a.expanded_extent}" if a.expanded_extent is not None else "") for a in tensor.get_logical_domain()]


def test_the_front_end_has_exactly_the_134_names() -> None:
    assert len(NAMES) == 134
    assert sorted(FUNCTIONS) == sorted(NAMES)


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UnknownOp, match="no op named 'rsqr'; the nearest names are rsqrt, sqrt"):
        lookup_op("rsqr")
    with pytest.raises(UnknownOp, match="brodcast_in_dim.*broadcast_in_dim"):
        lookup("brodcast_in_dim")


# ---------------------------------------------------------------- axes of pointwise results
def test_two_iteration_axes_map_and_a_constant_extent_wins() -> None:
    g = Graph()
    assert axes(g.add(g.tensor([-1, 4]), g.tensor([3, -1]))) == ["i3", "i4"]


def test_the_first_symbolic_extent_is_kept() -> None:
    g = Graph()
    assert axes(g.add(g.tensor([-1]), g.tensor([-1]))) == ["iT0.size[0]"]


def test_a_broadcast_axis_beside_an_iteration_axis_is_concretized() -> None:
    g = Graph()
    assert axes(g.add(g.tensor([1, 4]), g.tensor([3, 1]))) == ["i3", "i4"]
    assert axes(g.add(g.tensor([1]), g.tensor([5], expanded={0: 5}))) == ["b1 ex 5"]
    assert axes(g.add(g.tensor([1]), g.tensor([1]))) == ["b1"]
    assert axes(g.add(g.tensor([7]), g.tensor([7], expanded={0: 7}))) == ["i7"]


def test_ranks_are_padded_with_leading_broadcasts() -> None:
    g = Graph()
    out = g.mul(g.tensor([2, 3, 4]), g.tensor([4]))
    assert axes(out) == ["i2", "i3", "i4"]
    padded = out.definition().inputs[1].definition()
    assert type(padded) is BroadcastOp
    assert padded.attributes["flags"] == (True, True, False)


def test_extents_that_differ_are_an_error_that_names_tensors_axis_and_values() -> None:
    g = Graph()
    with pytest.raises(ExtentMismatch, match=r"add: axis 1 has extent 4 in T0_g_float\[.*\] and 5 in T1_g_float\[.*\]"):
        g.add(g.tensor([3, 4]), g.tensor([3, 5]))
    with pytest.raises(ExtentMismatch, match="axis 0 has extent 3"):
        g.add(g.tensor([3]), g.tensor([4], expanded={0: 4}))


def test_reduction_axes_are_not_seen_by_consumers() -> None:
    g = Graph()
    total = g.sum(g.tensor([3, 4]), [0])
    assert axes(total) == ["r3", "i4"]
    assert axes(g.add(total, 1.0)) == ["i4"]


def test_a_value_of_another_fusion_is_an_error() -> None:
    with pytest.raises(ForeignValue, match="belongs to another fusion"):
        Graph().add(Graph().tensor([3]), 1.0)


@pytest.mark.parametrize("operand", ["x", None, [1], object()], ids=["str", "None", "list", "object"])
def test_an_operand_of_another_kind_is_a_type_error(operand: object) -> None:
    g = Graph()
    with pytest.raises(TypeError, match="argument 2 must be a TensorView, a scalar or a number"):
        g.add(g.tensor([3]), operand)


def test_unary_and_binary_ops_are_positional_only() -> None:
    g = Graph()
    with pytest.raises(TypeError):
        g.exp(x=g.tensor([3]))


# ---------------------------------------------------------------- scalars
def test_ops_on_scalars_make_scalars_with_symbolic_values() -> None:
    g = Graph()
    n = g.size(g.tensor([-1, 8]), 0)
    twice = g.mul(n, 2)
    assert twice.sym is const(2) * n.sym
    assert type(twice.definition()) is PointwiseOp
    assert g.div(twice, 2).sym is n.sym
    assert g.add(2, 3).sym is const(5)
    assert g.div(-7, 2).sym.value == -3
    assert g.truediv(1, 4).sym.value == 0.25


def test_scalars_keep_their_width_among_themselves() -> None:
    g = Graph()
    assert g.add(g.scalar(D.Double), 1).dtype() is D.Double
    assert g.add(g.scalar(D.Int), True).dtype() is D.Int
    assert g.lt(g.scalar(D.Int), 4).dtype() is D.Bool
    assert g.sqrt(g.scalar(D.Int)).dtype() is D.Float


def test_functions_of_constants_are_folded_with_ieee_results() -> None:
    g = Graph()
    assert g.log(0.0).sym.value == -float("inf")
    assert g.sqrt(-1.0).sym.value != g.sqrt(-1.0).sym.value
    assert g.reciprocal(0.0).sym.value == float("inf")
    assert g.maximum(2.0, 3.0).sym.value == 3.0


# ---------------------------------------------------------------- shapes
def test_broadcast_in_dim_is_a_broadcast_and_an_expand() -> None:
    g = Graph()
    out = g.broadcast_in_dim(g.tensor([4]), [3, 4], [1])
    assert axes(out) == ["b1 ex 3", "i4"]
    assert type(out.definition()) is ExpandOp
    assert type(out.definition().inputs[0].definition()) is BroadcastOp


def test_broadcast_in_dim_without_a_broadcast_is_the_tensor_itself() -> None:
    g = Graph()
    x = g.tensor([3, 4])
    assert g.broadcast_in_dim(x, [3, 4], [0, 1]) is x
    assert axes(g.broadcast_in_dim(g.tensor([4]), [1, 4], [-1])) == ["b1", "i4"]


def test_broadcast_in_dim_takes_scalars_in_its_shape() -> None:
    g = Graph()
    x = g.tensor([-1, 4])
    out = g.broadcast_in_dim(g.tensor([4]), (g.size(x, 0), 4), [1])
    assert axes(out) == ["b1 ex T0.size[0]", "i4"]
    assert axes(g.add(x, out)) == ["iT0.size[0]", "i4"]


def test_expand_checks_extents_and_rank() -> None:
    g = Graph()
    assert axes(g.expand(g.tensor([1, 4]), [3, -1])) == ["b1 ex 3", "i4"]
    with pytest.raises(CannotExpand, match="axis 1 of T.* has extent 4 and cannot become 5"):
        g.expand(g.tensor([1, 4]), [3, 5])
    with pytest.raises(WrongRank, match="the shape has 1 entries; 2 are needed"):
        g.expand(g.tensor([1, 4]), [3])


def test_squeeze_drops_axes_of_extent_one_only() -> None:
    g = Graph()
    out = g.squeeze(g.tensor([1, 4, 1]), [0, -1])
    assert axes(out) == ["i4"]
    assert type(out.definition()) is SqueezeOp
    with pytest.raises(CannotSqueeze, match="axis 1 of .* has extent 4, which is not 1"):
        g.squeeze(g.tensor([1, 4]), [1])
    with pytest.raises(CannotSqueeze, match="an expanded broadcast"):
        g.squeeze(g.tensor([5], expanded={0: 5}), [0])
    assert axes(g.squeeze(g.tensor([5], expanded={0: 5}), [0], True)) == []


def test_permute_keeps_the_input_order_as_root() -> None:
    g = Graph()
    out = g.permute(g.tensor([2, 3, 4]), [2, 0, -2])
    assert axes(out) == ["i4", "i2", "i3"]
    assert [str(a.sym) for a in out.get_root_domain()] == ["2", "3", "4"]
    with pytest.raises(NotAPermutation):
        g.permute(g.tensor([2, 3]), [0, 0])
    with pytest.raises(TypeError, match="(?s)dims must be a list or tuple of ints.*fix: pass a list: .1."):
        g.permute(g.tensor([2, 3]), 1)


def test_stride_order_sets_the_allocation_domain() -> None:
    g = Graph()
    out = g.stride_order(g.tensor([2, 3, 4]), [0, 2, 1])
    assert [str(a.sym) for a in out.get_allocation_domain()] == ["3", "4", "2"]
    assert axes(out) == ["i2", "i3", "i4"]


def test_set_copies_and_cast_to_the_same_type_is_a_copy() -> None:
    g = Graph()
    x = g.tensor([3])
    assert type(g.set(x).definition()) is LoadStoreOp
    assert type(g.cast(x, D.Float).definition()) is LoadStoreOp
    assert g.segment_set(x).definition().op_name == "segment_set"
    assert g.cast(x, D.BFloat16).definition().op_name == "cast"


@pytest.mark.parametrize(("a", "b"), [(D.Int, D.Float8_e4m3fn), (D.Float8_e5m2, D.Bool), (D.Float, D.Null)])
def test_casts_that_no_conversion_does_are_refused(a: DataType, b: DataType) -> None:
    g = Graph()
    with pytest.raises(IllegalCast, match=f"Illegal Cast value from  DataType: {a.value} to DataType: {b.value}"):
        g.cast(g.tensor([3], a), b)


# ---------------------------------------------------------------- reductions
def test_keepdim_is_a_broadcast_on_top() -> None:
    g = Graph()
    out = g.sum(g.tensor([3, 4]), -1, True)
    assert axes(out) == ["i3", "b1"]
    assert type(out.definition().inputs[0].definition()) is ReductionOp


def test_reductions_take_all_forms_of_arguments() -> None:
    g = Graph()
    x = g.tensor([3, 4])
    assert axes(g.sum(x)) == ["r3", "r4"]
    assert axes(g.sum(x, D.Double)) == ["r3", "r4"]
    assert axes(g.sum(x, dims=(1,), keepdim=False, dtype=D.Null)) == ["i3", "r4"]
    assert axes(g.max(x, dim=0)) == ["r3", "i4"]
    with pytest.raises(WrongDim, match="there is no axis 2 in T0"):
        g.sum(x, 2)
    assert axes(g.sum(x, [1, -1])) == ["i3", "r4"]
    with pytest.raises(TypeError):
        g.sum(x, [0.5])
    with pytest.raises(TypeError, match="argument 'foo' is unknown"):
        g.sum(x, foo=1)


def test_a_reduced_broadcast_axis_is_squeezed() -> None:
    g = Graph()
    out = g.sum(g.tensor([1, 4]), [0])
    assert type(out.definition()) is SqueezeOp
    expanded = g.sum(g.tensor([5, 4], expanded={0: 5}), [0])
    assert expanded.definition().op_name == "mul"
    assert expanded.definition().inputs[1].sym is const(5)
    assert g.prod(g.tensor([5], expanded={0: 5}), [0]).definition().op_name == "pow"
    assert type(g.max(g.tensor([5], expanded={0: 5}), [0]).definition()) is SqueezeOp


def test_a_tensor_without_axes_is_copied() -> None:
    g = Graph()
    assert type(g.sum(g.tensor([])).definition()) is LoadStoreOp


def test_var_mean_is_one_welford_node() -> None:
    g = Graph()
    variance, mean = g.var_mean(g.tensor([3, -1]), [1], 0, True)
    assert axes(variance) == axes(mean) == ["i3", "b1"]
    nodes = [e for e in g.out(variance, mean).exprs() if type(e) is WelfordOp]
    assert len(nodes) == 1
    assert [axes(v) for v in nodes[0].outputs] == [["i3", "rT0.size[1]"]] * 3
    assert [v.dtype() for v in nodes[0].outputs] == [D.Float, D.Float, D.Int]
    for bad in (1.5, "x", None):
        with pytest.raises(TypeError):
            g.var_mean(g.tensor([3]), bad)


# ---------------------------------------------------------------- factories
def test_factories_make_their_axes() -> None:
    g = Graph()
    n = g.size(g.tensor([-1]), 0)
    assert axes(g.full([2, n, 1], 0.5, D.Half)) == ["i2", "?T0.size[0]", "b1"]
    assert axes(g.iota(n, 3, 2, D.Int32)) == ["?T0.size[0]"]
    first, second = g.uniform(0.0, 1.0, [4]), g.normal(0.0, 1.0, [4], rng_seed=3, rng_offset=5, dtype=D.Double)
    assert type(first.definition()) is RandomOp
    assert [v.definition().attributes["index"] for v in (first, second)] == [0, 1]
    assert len(second.definition().inputs) == 4
    assert g.rand_like(g.tensor([3, 1], D.BFloat16)).dtype() is D.BFloat16


# ---------------------------------------------------------------- what is not done
@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_ops_that_are_not_done_say_so_by_name(name: str) -> None:
    g = Graph()
    required = [a for a, default in UNSUPPORTED[name] if type(default) is object]
    arguments = {a: 0 if a == "dim" else g.tensor([4, 4]) for a in required}
    with pytest.raises(Unsupported, match=f"{name} is not supported yet"):
        getattr(g, name)(**arguments)


def test_wrong_arguments_of_an_op_that_is_not_done_are_type_errors() -> None:
    g = Graph()
    with pytest.raises(TypeError, match="dim must be an int"):
        g.cumsum(g.tensor([3]), "x")
    with pytest.raises(TypeError, match="missing mat1"):
        g.cutlass_nvfp4_grouped_mm()
