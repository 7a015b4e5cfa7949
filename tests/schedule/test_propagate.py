from __future__ import annotations

import pytest

from weft.analysis.axes import AxisMaps
from weft.errors import WeftError
from weft.ir.enums import ParallelType
from weft.ir.fusion import Fusion
from weft.ops.reductions import welford
from weft.ops.shapes import permute
from weft.schedule.inline import inline_at
from weft.schedule.primitives import merge, reorder, rfactor, split
from weft.schedule.propagate import bounded_transform_backward, parallelize_like, replay, transform_like

from schedule_scenarios import F32, add_sum, check_schedule, computed, fold, loops, message, op, reductions, softmax, spread, tensor


def flatten(t, width=4) -> None:
    """[all axes merged, split into blocks of 128 vectors]"""
    while len(t.get_loop_domain()) > 1:
        merge(t, 0, 1)
    split(split(t, 0, width), 0, 128)


# ---------------------------------------------------------------- transform_like
def test_pointwise_tensors_get_the_same_loops():
    fusion = Fusion()
    x = tensor(fusion, "n", "m")
    y = op("exp", op("neg", x))
    fusion.add_output(y)
    flatten(y)
    transform_like(y)
    assert {loops(t) for t in fusion.tensors()} == {loops(y)}


def test_an_axis_that_a_tensor_lacks_is_left_out_of_merges():
    fusion = Fusion()
    x, bias = tensor(fusion, "n", "m"), tensor(fusion, "m")
    wide = spread(bias, True, False)
    y = op("add", x, wide)
    fusion.add_output(y)
    flatten(y)
    transform_like(y)
    assert loops(bias) == loops(wide) == "i[ceildiv(ceildiv(m, 4), 128)] i[128] i[4]"
    assert loops(x) == loops(y)
    maps = AxisMaps(fusion)
    for t in (bias, wide, x):
        assert [maps.are_permissive(a, b) for a, b in zip(t.get_loop_domain(), y.get_loop_domain())] == [True] * 3
    assert not maps.are_exact(bias.axis(0), y.axis(0))


def test_a_broadcast_axis_is_transformed_as_broadcast():
    fusion = Fusion()
    x, row = tensor(fusion, "n", "m"), tensor(fusion, "n", 1)
    y = op("add", x, row)
    fusion.add_output(y)
    split(split(y, 1, 4), 1, 128)
    transform_like(y)
    assert loops(row) == "i[n] b[1] b[128] b[4]"


def test_the_order_of_a_permute_is_followed():
    fusion = Fusion()
    x = tensor(fusion, 8, 6)
    y = permute(fusion, op("neg", x), [1, 0])
    fusion.add_output(y)
    split(y, 1, 4)
    transform_like(y)
    assert loops(y) == loops(x) == "i[6] i[2] i[4]"
    flatten(y, 2)
    transform_like(y)
    assert loops(x) == loops(y)
    assert [a.name for a in x.get_loop_domain()[0].definition().inputs] != []


def test_reordered_loops_are_followed():
    fusion, x, t, s, y = add_sum()
    split(split(s, 1, 8), 0, 2)
    reorder(s, {2: 0})
    transform_like(s)
    assert loops(t) == loops(x) == "i[ceildiv(m, 8)] i[ceildiv(n, 2)] i[2] i[8]"
    assert loops(y) == "i[ceildiv(n, 2)] i[2]"


def test_axes_that_the_reference_lacks_stand_last():
    _, _, t, s, y = add_sum()
    split(y, 0, 16)
    transform_like(y)
    assert loops(t) == "i[ceildiv(n, 16)] i[16] i[m]" and loops(s) == "i[ceildiv(n, 16)] i[16] r[m]"


def test_a_tensor_is_reached_around_a_reduction():
    """x -> sum -> broadcast -> y <- x: the broadcast is reached from y, which has all axes of x, and not from the sum."""
    fusion = Fusion()
    x = tensor(fusion, "n", "m")
    wide = spread(fold("sum", x, 1), False, True)
    y = op("sub", x, wide)
    fusion.add_output(y)
    split(x, 1, 4)
    transform_like(x)
    assert loops(wide) == "i[n] b[1] b[4]" and loops(y) == "i[n] i[ceildiv(m, 4)] i[4]"


def test_a_tensor_in_which_paths_join_gets_the_axes_of_both():
    """n comes to y from the sum, m from w, which the sum's path does not pass. The copies of w share no broadcast, so no path to y keeps both."""
    fusion = Fusion()
    x, w = tensor(fusion, "n", "m"), tensor(fusion, "m")
    product = op("mul", x, spread(w, True, False))
    total, wide = fold("sum", x, 1), spread(w, True, False)
    y = op("mul", spread(total, False, True), wide)
    fusion.add_output(product)
    fusion.add_output(y)
    split(total, 1, 4)
    transform_like(total)
    assert loops(y) == loops(product) == "i[n] i[ceildiv(m, 4)] i[4]" and loops(wide) == "b[1] i[ceildiv(m, 4)] i[4]"
    check_schedule(fusion)


def test_axes_from_several_paths_are_merged_like_those_of_the_reference():
    """No tensor on a path to the table b + d, or to its product with the sum, has both of its axes: only the reference says how they merge."""
    fusion = Fusion()
    x, b, d = tensor(fusion, "n", "b", "d"), tensor(fusion, "b"), tensor(fusion, "d")
    scaled = op("mul", op("add", x, spread(b, True, False, True)), spread(d, True, True, False))
    total = fold("sum", scaled, 1, 2)
    table = op("add", spread(b, True, False, True), spread(d, True, True, False))
    y = op("mul", spread(total, False, True, True), table)
    fusion.add_output(y)
    merge(total, 1, 2)
    split(total, 1, 4)
    transform_like(total)
    assert loops(y) == loops(scaled) == "i[n] i[ceildiv((b * d), 4)] i[4]" and loops(table) == "b[1] i[ceildiv((b * d), 4)] i[4]"
    check_schedule(fusion)


def test_after_rfactor_a_tensor_in_which_paths_join_follows():
    """Once more, with the reference cut in two and a second sum, over the joined tensor."""
    fusion = Fusion()
    x, w = tensor(fusion, "n", "m"), tensor(fusion, "m")
    total = fold("sum", op("mul", x, spread(w, True, False)), 1)
    y = op("mul", spread(total, False, True), spread(w, True, False))
    second = fold("sum", y, 1)
    fusion.add_output(second)
    split(total, 1, 4)
    partial = rfactor(total, [2])
    transform_like(partial)
    assert loops(y) == "i[n] i[ceildiv(m, 4)] i[4]" and loops(second) == "i[n] r[ceildiv(m, 4)] r[4]"
    rfactor(second, [2])
    check_schedule(fusion)


def test_a_transform_that_is_there_already_is_recognized():
    fusion, _, t, s, _ = add_sum()
    split(s, 1, 8)
    transform_like(s)
    before = list(t.get_loop_domain())
    transform_like(s)
    assert t.get_loop_domain() == before
    split(s, 1, 4)
    transform_like(s)
    assert loops(t) == "i[n] i[ceildiv(ceildiv(m, 8), 4)] i[4] i[8]" and before[2] in t.get_loop_domain()


def test_after_rfactor_other_reductions_follow():
    fusion = softmax()
    first, second = reductions(fusion)
    split(split(first, 1, 8), 1, 4, inner_split=False)
    transform_like(first)
    parts = [rfactor(t, [1, 3]) for t in (first, second)]
    transform_like(parts[0])
    assert loops(parts[0]) == loops(parts[1]) == "i[n] r[4] i[ceildiv(ceildiv(m, 8), 4)] r[8]"
    assert {loops(t).count("[") for t in computed(fusion) if t not in (first, second)} == {4}


def test_selected_tensors_bound_the_walk():
    fusion = Fusion()
    x = tensor(fusion, "n")
    a = op("neg", x)
    b = op("exp", a)
    c = op("sin", b)
    fusion.add_output(c)
    split(c, 0, 4)
    transform_like(c, [b])
    assert [loops(t) for t in (x, a, b)] == ["i[n]", "i[n]", loops(c)]
    transform_like(c, [x])  # x is no neighbour of c, and its neighbours are not selected
    assert loops(x) == "i[n]"


def test_outputs_of_one_expression_go_together():
    fusion = Fusion()
    mean, squares, count = welford(fusion, tensor(fusion, "n", "m", dtype=F32), [1])
    for out in (mean, squares, count):
        fusion.add_output(out)
    split(mean, 1, 4)
    transform_like(mean)
    assert loops(mean) == loops(squares) == loops(count)


def test_what_is_transformed_otherwise_is_left_alone():
    fusion, x, t, s, _ = add_sum()
    split(t, 1, 3)
    split(s, 1, 8)
    assert replay(s, t, 3) == 1
    assert loops(t) == "i[n] i[ceildiv(m, 3)] i[3]"


def test_inlined_axes_are_not_transformed():
    _, _, t, s, _ = add_sum()
    inline_at(s, 1, selected_tensors=[t])
    split(s, 1, 8)
    assert replay(s, t, 3) == 3
    copy = loops(t)
    s.domain().loop.reverse()
    replay(s, t, 3)
    assert loops(t) == copy


# ---------------------------------------------------------------- bounded_transform_backward
def test_backward_stops_at_its_bounds():
    fusion = Fusion()
    x = tensor(fusion, "n", "m")
    a = op("neg", x)
    b = op("exp", a)
    side = op("sin", b)
    c = op("cos", b)
    fusion.add_output(c)
    fusion.add_output(side)
    split(split(c, 1, 4), 0, 2)
    c.axis(0).parallelize(ParallelType.grid_x)
    bounded_transform_backward(c, -1, [a], propagate_parallel_type=True)
    assert loops(a) == loops(b) == loops(c) == "i:grid_x[ceildiv(n, 2)] i[2] i[ceildiv(m, 4)] i[4]"
    assert loops(x) == loops(side) == "i[n] i[m]"


def test_backward_up_to_a_position():
    _, _, t, s, y = add_sum()
    split(split(s, 1, 4), 0, 2)
    bounded_transform_backward(s, 2, [t])
    assert loops(t) == "i[ceildiv(n, 2)] i[2] i[m]"
    assert loops(y) == "i[n]"


def test_backward_needs_a_producer():
    _, x, _, s, y = add_sum()
    with pytest.raises(WeftError) as error:
        bounded_transform_backward(s, -1, [y])
    assert message(error.value) == (
        "W660: cannot transform T3_g_float[iS6{n}] like T2_l_float[iS4{n}, rS5{m}]: T2_l_float[iS4{n}, rS5{m}] is not computed from T3_g_float[iS6{n}]\n"
        "  fix: name tensors that T2_l_float[iS4{n}, rS5{m}] is computed from"
    )


# ---------------------------------------------------------------- parallelize_like
def test_bindings_follow_the_loops():
    fusion, x, t, s, y = add_sum()
    split(s, 1, 32)
    transform_like(s)
    s.axis(0).parallelize(ParallelType.grid_x)
    s.axis(2).parallelize(ParallelType.block_x)
    s.axis(2).pad_to_multiple_of_warp()
    parallelize_like(s)
    assert loops(t) == "i:grid_x[n] i[ceildiv(m, 32)] i:block_x[32]" and t.axis(2).padded_to_warp
    assert loops(y) == "i:grid_x[n]"
    assert loops(x) == "i[n] i[ceildiv(m, 32)] i[32]"


def test_bindings_of_some_tensors_types_and_axes():
    fusion, _, t, s, y = add_sum()
    split(s, 1, 4)
    transform_like(s)
    s.axis(0).parallelize(ParallelType.grid_x)
    s.axis(2).parallelize(ParallelType.vectorize)
    parallelize_like(s, selected_parallel_types={ParallelType.vectorize})
    assert (loops(t), loops(y)) == ("i[n] i[ceildiv(m, 4)] i:vectorize[4]", "i[n]")
    parallelize_like(s, 1, [y])
    assert loops(y) == "i:grid_x[n]" and t.axis(0).parallel is ParallelType.serial


def test_serial_is_passed_on_only_when_asked():
    _, _, t, s, _ = add_sum()
    t.axis(0).parallelize(ParallelType.grid_x)
    parallelize_like(s)
    assert t.axis(0).parallel is ParallelType.grid_x
    parallelize_like(s, selected_parallel_types={ParallelType.serial})
    assert t.axis(0).parallel is ParallelType.serial


def test_padding_can_be_left_out():
    _, _, t, s, _ = add_sum()
    s.axis(1).parallelize(ParallelType.block_x)
    s.axis(1).pad_to_multiple_of_warp()
    parallelize_like(s, propagate_padding=False)
    assert t.axis(1).parallel is ParallelType.block_x and not t.axis(1).padded_to_warp


def test_bindings_reach_a_tensor_with_fewer_axes():
    fusion = Fusion()
    x, bias = tensor(fusion, "n", "m"), tensor(fusion, "m")
    scaled = op("neg", bias)
    y = op("add", x, spread(scaled, True, False))
    fusion.add_output(y)
    flatten(y)
    transform_like(y)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(1).parallelize(ParallelType.block_x)
    parallelize_like(y)
    assert loops(scaled) == "i:grid_x[ceildiv(ceildiv(m, 4), 128)] i:block_x[128] i[4]"
    check_schedule(fusion)


# ---------------------------------------------------------------- maps
def test_merged_axes_do_not_collapse_onto_their_parts():
    """[n, 1] and [1, m] meet in [n, m]: neither axis of the result is taken for the other, nor for their merge."""
    fusion = Fusion()
    a, b = tensor(fusion, "n"), tensor(fusion, "m")
    y = op("mul", spread(a, False, True), spread(b, True, False))
    z = op("neg", y)
    fusion.add_output(z)
    n, m = z.get_logical_domain()
    flatten(z)
    transform_like(z)
    maps = AxisMaps(fusion)
    assert not maps.are_permissive(n, m) and not maps.are_permissive(*z.get_loop_domain()[:2])
    assert maps.are_permissive(y.axis(0), z.axis(0))


def test_what_a_transform_leaves_unchanged_is_almost_exact():
    fusion = Fusion()
    x, row = tensor(fusion, "n", "m"), tensor(fusion, 1, "m")
    y = op("add", x, row)
    fusion.add_output(y)
    merge(row, 0, 1)
    split(split(row, 0, 4), 0, 1)
    split(y, 1, 4)
    maps = AxisMaps(fusion)
    assert maps.almost_exact(row.axis(0)) is maps.almost_exact(y.axis(1)) and maps.almost_exact(row.axis(2)) is maps.almost_exact(y.axis(2))
    assert not maps.are_exact(row.axis(2), y.axis(2))
    assert maps.almost_exact(y.axis(1)) is not maps.almost_exact(y.axis(2))
