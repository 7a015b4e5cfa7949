"""Classes of axes that run in one loop, the reference of a pointwise fusion, connectivity."""

from __future__ import annotations

import example_fusions as ex
from weft import FusionDefinition
from weft.analysis.connected import components, is_connected
from weft.analysis.loop_axes import LoopAxes, Obstacle, loop_order, pointwise_reference
from weft.ir.fusion import Fusion
from weft.ops.reductions import reduce
from weft.ops.shapes import permute


def test_a_broadcast_operand_shares_the_loop_that_concretizes_it():
    fusion = ex.bias_gelu()
    axes = LoopAxes(fusion)
    x, bias = fusion.inputs()
    assert axes.memory_order(x) == (0, 1)
    assert axes.memory_order(bias) == (1,)
    assert axes.extents_elems(ex.sizes(m=3, n=5)) == (3, 5)


def test_an_axis_of_one_iteration_everywhere_has_no_loop():
    fusion = Fusion()
    x = ex.tensor(fusion, ["m", 1], ex.F32)
    ex.output(ex.op("neg", x))
    assert len(LoopAxes(fusion)) == 1


def test_a_broadcast_used_with_two_extents_is_a_conflict():
    fusion = Fusion()
    s = ex.tensor(fusion, [1], ex.F32)
    ex.output(ex.op("add", s, ex.tensor(fusion, ["m"], ex.F32)))
    ex.output(ex.op("add", s, ex.tensor(fusion, ["n"], ex.F32)))
    assert "two extents" in LoopAxes(fusion).conflict


def test_a_matrix_added_to_its_transpose_is_a_conflict():
    fusion = Fusion()
    x = ex.tensor(fusion, [8, 8], ex.F32)
    ex.output(ex.op("add", x, permute(fusion, x, [1, 0])))
    assert "same loop" in LoopAxes(fusion).conflict
    assert isinstance(pointwise_reference(LoopAxes(fusion)), Obstacle)


def test_the_reference_is_the_output_with_every_axis():
    fusion = Fusion()
    x, bias = ex.tensor(fusion, ["m", "n"], ex.F32), ex.tensor(fusion, ["n"], ex.F32)
    ex.output(ex.op("neg", bias))
    full = ex.op("add", x, bias)
    ex.output(full)
    assert pointwise_reference(LoopAxes(fusion)) is full


def test_no_output_with_every_axis_is_an_obstacle():
    fusion = Fusion()
    ex.output(ex.op("neg", ex.tensor(fusion, ["n"], ex.F32)))
    ex.output(ex.op("neg", ex.tensor(fusion, ["m"], ex.F32)))
    assert isinstance(pointwise_reference(LoopAxes(fusion)), Obstacle)


def test_inputs_that_nothing_reads_ask_for_no_axis():
    fusion = Fusion()
    bias = ex.tensor(fusion, ["n"], ex.F32)
    ex.tensor(fusion, ["m", "n"], ex.F32)
    ex.output(ex.op("neg", bias))
    assert pointwise_reference(LoopAxes(fusion)) is fusion.outputs()[0]


def test_loops_follow_memory_where_a_tensor_says_how():
    fusion = Fusion()
    x = ex.tensor(fusion, ["n", "c", "h"], ex.F32, order=[0, 2, 1])
    out = ex.op("neg", x)
    ex.output(out)
    axes = LoopAxes(fusion)
    n, c, h = axes.logical_order(x)
    assert loop_order(axes, (n, c, h), [x]) == (n, h, c)


def test_loops_that_no_tensor_orders_keep_their_logical_place():
    fusion = Fusion()
    x = ex.tensor(fusion, ["c", "h"], ex.F32, order=[1, 0])
    y = ex.tensor(fusion, ["n", "c", "h"], ex.F32)
    ex.output(ex.op("add", x, y))
    axes = LoopAxes(fusion)
    n, c, h = axes.logical_order(y)
    assert loop_order(axes, (n, c, h), [x]) == (n, h, c)


def test_connected_means_one_component_with_outputs():
    fusion = Fusion()
    x, y = ex.tensor(fusion, ["m"], ex.F32), ex.tensor(fusion, ["n"], ex.F32)
    ex.output(ex.op("neg", x))
    assert is_connected(fusion)
    ex.output(reduce(fusion, "sum", y, [0]))
    assert not is_connected(fusion)
    assert len(components(fusion)) == 2


def test_an_input_that_is_returned_as_it_is_gives_no_loops() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.relu(x)
        fd.add_output(x)
        fd.add_output(y)
    found = pointwise_reference(LoopAxes(fd.fusion))
    assert found is y
