from __future__ import annotations

import pytest

from weft.errors import WeftError
from weft.expr import ceildiv, mul, var
from weft.ir.enums import IterType, MemoryType, ParallelType
from weft.ir.fusion import Fusion
from weft import FusionDefinition
from weft.ir.values import AxisOutOfRange, SharedSwizzle, Swizzle
from weft.schedule import primitives
from weft.schedule.inline import inline_at
from weft.schedule.primitives import (
    BadSharedSwizzle, merge, parallelize, reorder, set_allocation_domain, set_memory_type, split, swizzle, swizzle_shared,
)  # fmt: skip

from schedule_scenarios import add_sum, fold, local, loops, message, op, tensor


# ---------------------------------------------------------------- split
def test_split_makes_outer_and_inner_with_the_factor_inside():
    t = local("n", 7)
    assert split(t, 0, 4) is t
    assert loops(t) == "i[ceildiv(n, 4)] i[4] i[7]"


def test_split_with_the_factor_outside():
    assert loops(split(local("n", 7), -1, 2, inner_split=False)) == "i[n] i[2] i[4]"


def test_split_into_parts_of_a_multiple():
    assert loops(split(local("n", 7), 0, 4, inner_split=False, multiple=32)) == "i[4] i[(ceildiv(ceildiv(n, 4), 32) * 32)] i[7]"
    assert loops(split(local(1, 8), 0, 4, inner_split=False, multiple=32)) == "b[4] b[1] i[8]"


def test_split_by_a_symbolic_factor():
    t = split(local("n"), 0, var("k", lower=1))
    assert t.axis(0).sym is ceildiv(var("n", lower=1), var("k", lower=1))


def test_split_of_a_broadcast_axis_makes_broadcast_axes_with_the_factor_as_extent():
    assert loops(split(local(1, 8), 0, 4)) == "b[1] b[4] i[8]"


def test_split_of_an_expanded_axis_splits_what_it_is_expanded_to():
    fusion = Fusion()
    t = fusion.new_tensor([fusion.new_axis(1, IterType.broadcast, expanded_extent=var("n", lower=1))], local(1).dtype())
    split(t, 0, 4)
    assert [str(a.logical_extent) for a in t.get_loop_domain()] == ["ceildiv(n, 4)", "4"]


def test_split_leaves_the_logical_domain():
    t = local("n")
    before = list(t.get_logical_domain())
    split(t, 0, 4)
    assert t.get_logical_domain() == before


@pytest.mark.parametrize("factor", [0, -3])
def test_a_factor_below_one_is_refused(factor):
    with pytest.raises(WeftError) as error:
        split(local("n"), 0, factor)
    assert message(error.value) == (
        f"W614: cannot split axis 0 of T0_l_float[iS0{{n}}] by {factor}: the factor must be at least 1\n  fix: use a positive factor"
    )


def test_an_axis_that_is_not_there():
    with pytest.raises(AxisOutOfRange) as error:
        split(local("n"), 1, 4)
    assert message(error.value).startswith("W110: Tried to access out of boundary index 1: there is no axis 1 in T0_l_float[iS0{n}], which has 1")


@pytest.mark.parametrize("kind", [ParallelType.block_x, ParallelType.vectorize, ParallelType.unroll])
def test_a_bound_axis_is_neither_split_nor_merged(kind):
    t = local(4, 8)
    t.axis(1).parallelize(kind)
    with pytest.raises(WeftError) as error:
        split(t, 1, 2)
    assert message(error.value) == (
        f"W610: cannot split axis 1 of {t}: {t.axis(1)} is bound to {kind.name}\n  fix: split the axis first and bind the result afterwards"
    )
    with pytest.raises(primitives.AxisBound):
        merge(t, 0, 1)


def test_an_inlined_axis_stays():
    _, _, t, s, _ = add_sum()
    inline_at(s, 1, selected_tensors=[t])
    with pytest.raises(WeftError) as error:
        split(t, 0, 4)
    assert message(error.value) == (
        "W611: cannot split axis 0 of T1_l_float[iS2{n}, iS3{m}] ca_pos( 1 ): it is shared with the consumers (computed at 1)\n"
        "  fix: transform the tensors first and inline them afterwards"
    )
    with pytest.raises(WeftError) as error:
        split(s, 0, 4)
    assert "cannot split axis 0 of T2_l_float[iS4{n}, rS5{m}]: T1 is inlined into it" in str(error.value)
    split(t, 1, 4)
    split(s, 1, 4)


# ---------------------------------------------------------------- merge
def test_merge_of_neighbours():
    t = local("n", "m")
    merge(t, 0, 1)
    assert t.axis(0).sym is mul(var("n", lower=1), var("m", lower=1))


def test_merge_of_distant_axes_stands_at_the_first_place():
    assert loops(merge(local(2, 3, 5), 0, 2)) == "i[10] i[3]"
    t = merge(local(2, 3, 5), 2, 0)
    assert loops(t) == "i[10] i[3]"
    assert [a.name for a in t.axis(0).definition().inputs] == [2, 0]


def test_kinds_of_merges():
    assert loops(merge(local(1, 1), 0, 1)) == "b[1]"
    assert loops(merge(local(1, 5), 0, 1)) == "i[5]"
    _, _, _, s, _ = add_sum()
    with pytest.raises(WeftError) as error:
        merge(s, 0, 1)
    assert message(error.value) == (
        "W612: cannot merge axes 0 and 1 of T2_l_float[iS4{n}, rS5{m}]: of iS4{n} and rS5{m}, one is a reduction axis and the other is not\n"
        "  fix: merge reduction axes only with reduction axes"
    )


def test_merge_of_reduction_axes_reduces():
    fusion = Fusion()
    assert loops(merge(fold("sum", tensor(fusion, 2, 3, 5), 0, 2), 0, 2)) == "r[10] i[3]"


def test_an_axis_is_not_merged_with_itself():
    with pytest.raises(WeftError) as error:
        merge(local("n", "m"), 1, -1)
    assert message(error.value) == "W613: cannot merge axis 1 of T0_l_float[iS0{n}, iS1{m}] with itself\n  fix: name two different axes"


# ---------------------------------------------------------------- reorder
def test_reorder_moves_and_fills_the_gaps_in_order():
    assert loops(reorder(local(2, 3, 5, 7), {3: 0})) == "i[7] i[2] i[3] i[5]"
    assert loops(reorder(local(2, 3, 5, 7), {0: -1, 1: 0})) == "i[3] i[5] i[7] i[2]"
    assert loops(reorder(local(2, 3, 5), {0: 2, 2: 0})) == "i[5] i[3] i[2]"


def test_reorder_names_each_position_once():
    with pytest.raises(WeftError) as error:
        reorder(local(2, 3, 5), {0: 1, 2: 1})
    assert message(error.value) == (
        "W615: cannot reorder T0_l_float[iS0{2}, iS1{3}, iS2{5}] by {0: 1, 2: 1}: position 2 or 1 is named twice\n"
        "  fix: name each old position at most once, each with a different new position"
    )


def test_reorder_keeps_shared_axes_in_place():
    _, _, t, s, _ = add_sum()
    inline_at(s, 1, selected_tensors=[t])
    with pytest.raises(primitives.AxisShared):
        reorder(t, {0: 1})


# ---------------------------------------------------------------- binding and memory
def test_parallelize_binds_a_type_once():
    t = local("n", "m", 4)
    parallelize(t, 0, ParallelType.grid_x)
    parallelize(parallelize(t, 1, ParallelType.block_x), 1, ParallelType.block_x)
    assert loops(t) == "i:grid_x[n] i:block_x[m] i[4]"
    with pytest.raises(WeftError) as error:
        parallelize(t, 2, ParallelType.block_x)
    assert message(error.value) == (
        f"W616: cannot bind axis 2 of {t} to block_x: axis 1 is bound to it already\n"
        "  fix: merge the two axes, or choose another parallel type for one of them"
    )


def test_a_vector_has_a_known_width():
    with pytest.raises(WeftError) as error:
        parallelize(local("n"), 0, ParallelType.vectorize)
    assert message(error.value) == (
        "W617: cannot vectorize axis 0 of T0_l_float[iS0{n}]: its extent n is not known when the kernel is compiled\n"
        "  fix: split the axis by the vector's width and vectorize the inner part"
    )


def test_inputs_and_outputs_stay_in_global_memory():
    _, x, t, _, y = add_sum()
    set_memory_type(t, MemoryType.shared)
    assert t.memory_type is MemoryType.shared
    with pytest.raises(WeftError) as error:
        set_memory_type(x, MemoryType.shared)
    assert message(error.value) == (
        "W618: cannot put T0_g_float[iS0{n}, iS1{m}] into shared memory: it is an input of the fusion\n  fix: make a copy with cache_after and place that"
    )
    with pytest.raises(primitives.MustBeGlobal, match="make a copy with cache_before"):
        set_memory_type(y, MemoryType.local)


# ---------------------------------------------------------------- allocation
def test_allocation_in_another_order():
    t = local("n", "m", 1)
    n, m, b = t.get_logical_domain()
    set_allocation_domain(t, [m, b, n], True)
    assert (t.get_allocation_domain(), t.domain().contiguity) == ([m, b, n], [True, None, True])
    set_allocation_domain(t, [m, n], [False, True])
    assert t.domain().contiguity == [False, True]


def test_allocation_by_transformed_axes():
    t = local(8, 6)
    split(t, 0, 4)
    set_allocation_domain(t, [t.axis(1), t.axis(2), t.axis(0)], True)
    merge(t, 0, 1)  # the loops go on without the allocation
    assert [str(a.sym) for a in t.get_allocation_domain()] == ["4", "6", "2"]


def test_a_bad_allocation_domain_says_what_is_wrong():
    t = local(8, 6)
    a, b = t.get_logical_domain()
    split(t, 0, 4)

    def reason(*axes, contiguity=True) -> str:
        with pytest.raises(primitives.BadAllocationDomain) as error:
            set_allocation_domain(t, list(axes), contiguity)
        return error.value.values["reason"]

    assert reason(a) == "iS1{6} is missing"
    assert reason(a, b, b) == "an axis is named twice"
    assert reason(t.axis(0), b) == "iS2{2} is only a part of a logical axis, whose other part is missing"
    assert reason(a, b, local(4).axis(0)) == "iS0{4} is not an axis of this tensor"
    assert reason(a, b, contiguity=[True]) == "there are 2 axes and 1 contiguity flags"
    assert reason(a, b, contiguity=[True, None]) == "the contiguity of iS1{6} is None; None belongs to broadcast and reduction axes only"


# ---------------------------------------------------------------- swizzle
def test_swizzle_replaces_both_axes():
    t = local(32, 32)
    swizzle(t, 0, 1)
    assert isinstance(t.axis(0).definition(), Swizzle) and t.axis(0).definition() is t.axis(1).definition()
    assert loops(t) == "i[32] i[32]"


def test_swizzle_needs_a_power_of_two():
    with pytest.raises(WeftError) as error:
        swizzle(local(32, 24), 0, 1)
    assert message(error.value) == (
        "W620: cannot swizzle axes 0 and 1 of T0_l_float[iS0{32}, iS1{24}]: the extent of the second is 24\n"
        "  fix: swizzle two different axes, the second with a constant power of two as extent"
    )


def test_a_clone_has_the_schedule():
    fusion, _, t, s, _ = add_sum()
    split(t, 1, 4)
    parallelize(t, 2, ParallelType.block_x)
    inline_at(t, 1, selected_tensors=[t])
    copy, images = fusion.clone()
    assert loops(images[t]) == loops(t) and images[t].compute_at == t.compute_at
    split(images[t], 1, 2)
    assert len(t.get_loop_domain()) == 3
    assert op("neg", images[s]).fusion is copy


@pytest.mark.parametrize(("sizes", "is_right"), [((4, 8, 8), True), ((1, 1, 1), True), ((1, 2, 4), True), ((0, 8, 8), False), ((3, 8, 8), False), ((4, 8, 4), False)])
def test_a_swizzle_of_shared_memory_has_powers_of_two(sizes: tuple[int, int, int], is_right: bool) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.relu(x))
        copy = x.cache_after()
    copy.set_memory_type(MemoryType.shared)
    if is_right:
        assert swizzle_shared(copy, SharedSwizzle(*sizes)).shared_swizzle == SharedSwizzle(*sizes)
        return
    with pytest.raises(BadSharedSwizzle, match="not powers of two, or the period is not a multiple"):
        swizzle_shared(copy, SharedSwizzle(*sizes))
