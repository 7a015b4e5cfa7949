from __future__ import annotations

import pytest

from weft.analysis.axes import AxisMaps
from weft.errors import WeftError
from weft.ir.enums import ParallelType
from weft.ir.fusion import Fusion
from weft.schedule.caching import cache_and_fork_outputs, cache_inputs
from weft.schedule.inline import BadInlinePosition, InlineTooDeep, consumer_axis, inline_at, inline_most, legal_positions
from weft.schedule.primitives import merge, reorder, rfactor, split
from weft.schedule.propagate import transform_like

from schedule_scenarios import add_sum, check_schedule, computed, fold, message, op, spread, tensor


def positions(*tensors) -> list[int]:
    return [t.compute_at for t in tensors]


def test_a_chain_is_inlined_completely_and_inputs_are_not():
    fusion = Fusion()
    x = tensor(fusion, "n", "m")
    a = op("neg", x)
    b = op("exp", a)
    fusion.add_output(b)
    inline_most(fusion=fusion)
    assert positions(x, a, b) == [0, 2, 0]
    check_schedule(fusion)


def test_a_reduction_is_inlined_up_to_its_own_axis_and_its_operand_past_it():
    fusion, _, t, s, _ = add_sum()
    inline_most(fusion=fusion)
    assert positions(t, s) == [2, 1]
    assert legal_positions(fusion)[s] == (1, "rS5{m} is a reduction axis: the result is complete only after its loop")
    check_schedule(fusion)


def test_a_tensor_needed_after_a_reduction_of_it_stays_outside_the_loop():
    fusion = Fusion()
    x = op("neg", tensor(fusion, "n", "m"))
    total = fold("sum", x, 1, keepdim=True)
    y = op("sub", x, total)
    fusion.add_output(y)
    inline_most(fusion=fusion)
    assert positions(x, total) == [1, 2]
    assert legal_positions(fusion)[x][1] == "T3 needs all of T2, which is complete only after that loop"
    check_schedule(fusion)


def test_the_rule_holds_over_several_tensors():
    """x -> a -> sum -> y and x -> b -> y: x is kept, and b is computed where y is."""
    fusion = Fusion()
    x = op("neg", tensor(fusion, "n", "m"))
    a, b = op("exp", x), op("sin", x)
    y = op("sub", b, fold("sum", a, 1, keepdim=True))
    fusion.add_output(y)
    inline_most(fusion=fusion)
    assert positions(x, a, b) == [1, 2, 2]
    check_schedule(fusion)


def test_what_does_not_feed_the_reduction_is_inlined_after_it():
    fusion = Fusion()
    x, w = tensor(fusion, "n", "m"), op("neg", tensor(fusion, "n", "m"))
    y = op("mul", w, fold("sum", x, 1, keepdim=True))
    fusion.add_output(y)
    inline_most(fusion=fusion)
    assert positions(w) == [2]
    check_schedule(fusion)


def test_two_reductions_of_one_operand_share_its_loop():
    fusion = Fusion()
    x = op("neg", tensor(fusion, "n", "m"))
    y = op("add", fold("sum", x, 1), fold("max", x, 1))
    fusion.add_output(y)
    inline_most(fusion=fusion)
    assert positions(x) == [2]
    check_schedule(fusion)


def test_a_reduction_of_another_reductions_result_is_a_loop_of_its_own():
    fusion = Fusion()
    x = op("neg", tensor(fusion, "n", "m"))
    top = fold("max", x, 1, keepdim=True)
    e = op("exp", op("sub", x, top))
    fusion.add_output(fold("sum", e, 1))
    inline_most(fusion=fusion)
    assert positions(x, e) == [1, 2]
    check_schedule(fusion)


def test_an_outer_reduction_is_inlined_by_the_order_of_its_loops():
    fusion = Fusion()
    x = op("neg", tensor(fusion, "n", "m"))
    s = fold("sum", x, 0)
    y = op("mul", s, 2.0)
    fusion.add_output(y)
    inline_most(fusion=fusion)
    assert positions(x, s) == [2, 0]
    x.compute_at = 0
    reorder(s, {0: 1})
    transform_like(s)
    inline_most(fusion=fusion)
    assert positions(x, s) == [2, 1]
    check_schedule(fusion)


def test_a_tensor_with_fewer_axes_is_drawn_into_the_loops_of_its_consumer():
    fusion = Fusion()
    x, bias = tensor(fusion, "n", "m"), op("neg", tensor(fusion, "m"))
    wide = spread(bias, True, False)
    y = op("add", x, wide)
    fusion.add_output(y)
    inline_most(fusion=fusion)
    assert positions(bias, wide) == [1, 2]
    maps = AxisMaps(fusion)
    assert consumer_axis(maps, bias, 0, wide) is wide.axis(1)
    assert consumer_axis(maps, wide, 0, y) is y.axis(0)
    check_schedule(fusion)


def test_a_tensor_is_not_drawn_into_loops_that_one_of_its_consumers_is_outside_of():
    fusion = Fusion()
    x, bias = tensor(fusion, "n", "m"), op("neg", tensor(fusion, "m"))
    y = op("add", x, spread(bias, True, False))
    z = op("exp", bias)
    fusion.add_output(y)
    fusion.add_output(z)
    inline_most(fusion=fusion)
    assert positions(bias) == [0]
    assert "stands inside other loops in" in legal_positions(fusion)[bias][1]
    check_schedule(fusion)


@pytest.mark.parametrize("kind", [ParallelType.vectorize, ParallelType.tma, ParallelType.group])
def test_axes_handled_as_a_whole_are_not_shared(kind):
    fusion, x, t, s, y = add_sum("n", 8)
    (_, cache), = cache_inputs(fusion)
    cache.axis(1).parallelize(kind)
    inline_most(fusion=fusion)
    assert positions(cache, t) == [1, 2]
    check_schedule(fusion)


def test_a_producer_stops_at_the_vector_of_its_consumer():
    fusion = Fusion()
    y = op("neg", tensor(fusion, "n", 8))
    fusion.add_output(y)
    (inner, _), = cache_and_fork_outputs(fusion)
    y.axis(1).parallelize(ParallelType.vectorize)
    inline_most(fusion=fusion)
    assert positions(inner) == [1]
    assert legal_positions(fusion)[inner][1] == f"the consumer {y} takes all elements of {y.axis(1)} at once (vectorize)"


def test_unrolled_loops_are_shared_when_both_are_unrolled():
    fusion = Fusion()
    a = op("neg", tensor(fusion, "n", 8))
    b = op("exp", a)
    fusion.add_output(b)
    b.axis(1).parallelize(ParallelType.unroll)
    inline_most(fusion=fusion)
    assert positions(a) == [1]
    a.axis(1).parallelize(ParallelType.unroll)
    inline_most(fusion=fusion)
    assert positions(a) == [2]


def test_selected_and_excepted_tensors():
    fusion = Fusion()
    a = op("neg", tensor(fusion, "n"))
    b = op("exp", a)
    c = op("sin", b)
    fusion.add_output(c)
    inline_most([a])
    assert positions(a, b) == [1, 0]
    a.compute_at = 0
    inline_most(except_tensors=[a])
    assert positions(a, b) == [0, 1]


def test_inlining_only_goes_deeper():
    fusion, _, t, s, _ = add_sum()
    inline_at(s, 2, best_effort=True)
    inline_at(s, 1)
    assert positions(t, s) == [2, 1]


def test_inline_at_counts_positions_of_the_reference():
    fusion = Fusion()
    x, row = tensor(fusion, "n", "m", "k"), op("neg", tensor(fusion, "n"))
    wide = spread(row, False, True, True)
    y = op("add", x, wide)
    z = op("exp", y)
    fusion.add_output(z)
    inline_at(z, 2)
    assert positions(row, wide, y) == [1, 2, 2]
    inline_at(z)
    assert positions(row, wide, y) == [1, 3, 3]
    check_schedule(fusion)


def test_inline_at_says_why_a_position_is_too_deep():
    fusion, _, t, s, _ = add_sum()
    with pytest.raises(WeftError) as error:
        inline_at(s, 2)
    assert message(error.value) == (
        "W650: cannot inline T2_l_float[iS4{n}, rS5{m}] at position 2: only 1 of its loops can be shared, since rS5{m} is a reduction axis: "
        "the result is complete only after its loop\n"
        "  fix: inline at position 1 or less, pass best_effort=True, or give the tensor and its consumers the same transforms (transform_like)"
    )
    inline_at(s, 2, best_effort=True)
    assert positions(t, s) == [2, 1]


def test_inline_at_needs_the_same_transforms():
    _, _, t, s, _ = add_sum()
    split(t, 1, 4)
    with pytest.raises(InlineTooDeep) as error:
        inline_at(t, 2, selected_tensors=[t])
    assert error.value.values["reason"] == f"{t.axis(1)} corresponds to no loop axis of its consumer {s}"


def test_a_position_outside_the_loops():
    _, _, t, _, _ = add_sum()
    for position in (3, -4):
        with pytest.raises(BadInlinePosition):
            inline_at(t, position)
    with pytest.raises(WeftError) as error:
        inline_at(t, 3)
    assert message(error.value) == (
        "W651: there is no inline position 3 in T1_l_float[iS2{n}, iS3{m}], which has 2 loop axes\n"
        "  fix: use a position from 0 to 2, or a negative one that counts from the end: -1 is after the last axis"
    )


def test_loops_in_another_order_are_not_shared():
    fusion = Fusion()
    a = op("neg", tensor(fusion, "n", "m"))
    b = op("exp", a)
    fusion.add_output(b)
    reorder(b, {0: 1})
    inline_most(fusion=fusion)
    assert positions(a) == [0]
    assert legal_positions(fusion)[a][1] == f"{a.axis(0)} stands inside {b.axis(0)} in {b}, and outside of it in the tensor"
    check_schedule(fusion)


def test_with_rfactor_each_part_is_shared_up_to_its_reduction():
    fusion, _, t, s, y = add_sum()
    split(s, 1, 32)
    merge(s, 1, 2)
    split(s, 1, 32)
    part = rfactor(s, [1])
    transform_like(part)
    inline_most(fusion=fusion)
    assert positions(t, part, s) == [3, 1, 1]
    assert all(p.compute_at == 0 for p in (y,))
    assert len(computed(fusion)) == 4
    check_schedule(fusion)


def test_a_reduction_is_not_drawn_into_a_loop_over_what_it_reduces():
    """Its result is broadcast to [n, m], whose loops stand in the order m, n: inside m it would reduce over m once more for each m."""
    fusion = Fusion()
    x = op("neg", tensor(fusion, "n", "m"))
    s = fold("sum", x, 1)
    y = op("sub", x, spread(s, False, True))
    fusion.add_output(y)
    reorder(y, {1: 0})
    transform_like(y)
    inline_most(fusion=fusion)
    assert positions(s, x) == [0, 0]
    check_schedule(fusion)


@pytest.mark.parametrize("parallel, position", [(ParallelType.serial, 0), (ParallelType.grid_x, 0), (ParallelType.block_x, 1)])
def test_nor_into_threads_unless_they_reduce_it(parallel, position):
    fusion = Fusion()
    x = op("neg", tensor(fusion, "n", 32))
    s = fold("sum", x, 1)
    wide = spread(s, False, True)
    y = op("sub", x, wide)
    fusion.add_output(y)
    s.axis(1).parallelize(ParallelType.block_x)
    for t in (x, wide, y):
        reorder(t, {1: 0})
        t.axis(0).parallelize(parallel)
    inline_most(fusion=fusion)
    assert positions(s) == [position]


def test_loops_over_unrelated_axes_are_not_shared():
    """A broadcast scalar is read by [n] and by [m]: inlined into both it would make one loop of them."""
    fusion = Fusion()
    scalar = op("neg", tensor(fusion))
    wide = spread(scalar, True)
    a, b = op("add", wide, tensor(fusion, "n")), op("add", wide, tensor(fusion, "m"))
    fusion.add_output(a)
    fusion.add_output(b)
    inline_most(fusion=fusion)
    assert positions(wide) == [0]
    assert "would be one loop, and neither runs over all that the other does" in legal_positions(fusion)[wide][1]


def test_two_loops_that_need_each_other_are_not_made():
    """x is read on both sides of a chain through another loop: sharing it would need that loop to stand before and after."""
    fusion = Fusion()
    x, z = op("neg", tensor(fusion, "n")), op("exp", tensor(fusion, "n"))
    first, second = fold("sum", op("sin", x), 0), fold("sum", op("cos", z), 0)
    y = op("add", x, spread(second, True))
    w = op("add", z, spread(first, True))
    fusion.add_output(y)
    fusion.add_output(w)
    inline_most(fusion=fusion)
    assert sorted(positions(x, z)) == [0, 1]
    check_schedule(fusion)


def test_bound_axes_around_several_loops_are_no_loop():
    """A chain over columns is drawn into the loop over rows of blocks: its loop may stand beside others of the same blocks, which need its results."""
    fusion = Fusion()
    bias = op("neg", op("exp", tensor(fusion, "m")))
    total = fold("sum", op("add", op("neg", tensor(fusion, "n", "m")), spread(bias, True, False)), 1)
    fusion.add_output(op("neg", total))
    for t in computed(fusion):
        if t.get_loop_domain()[0].sym is not bias.axis(0).sym:
            t.axis(0).parallelize(ParallelType.grid_x)
    inline_most(fusion=fusion)
    chain = bias.definition().tensor_inputs[0]
    assert positions(chain, bias) == [1, 1]
    check_schedule(fusion)
