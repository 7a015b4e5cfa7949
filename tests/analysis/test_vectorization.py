"""Contiguous runs and the widest legal vector."""

from __future__ import annotations

import random

import example_fusions as ex
import pytest
from weft.analysis.contiguity import inner_run, strided_positions
from weft.analysis.loop_axes import LoopAxes
from weft.analysis.vectorization import VectorLimits, largest_power_of_two_divisor
from weft.ir.fusion import Fusion


def limits_of(fusion: Fusion, tensors=None) -> VectorLimits:
    axes = LoopAxes(fusion)
    out = fusion.outputs()[0]
    return VectorLimits(axes, axes.logical_order(out), tensors or [*fusion.inputs(), *fusion.outputs()])


@pytest.mark.parametrize("n, elems", [(4096, 8), (4100, 4), (4098, 2), (4097, 1), (0, 8)])
def test_the_vector_divides_the_row_when_rows_are_apart(n, elems):
    assert limits_of(ex.bias_gelu()).limit_elems(1, ex.sizes(m=3, n=n), {}) == elems


def test_merged_rows_may_vectorize_where_one_row_may_not():
    limits = limits_of(ex.scale_rows())
    assert limits.limit_elems(1, ex.sizes(m=16, n=1001), {}) == 1
    assert limits.limit_elems(0, ex.sizes(m=16, n=1001), {}) == 8


def test_a_row_broadcast_stops_the_run_at_its_own_axis():
    assert limits_of(ex.bias_gelu()).limit_elems(0, ex.sizes(m=16, n=1001), {}) == 1


@pytest.mark.parametrize("bits, elems", [(128, 8), (64, 4), (32, 2), (16, 1), (8, 1), (384, 8)])
def test_the_first_element_of_an_input_limits_the_vector(bits, elems):
    fusion = ex.bias_gelu()
    assert limits_of(fusion).limit_elems(1, ex.sizes(m=3, n=64), {fusion.inputs()[0].name: bits}) == elems


@pytest.mark.parametrize("stride, elems", [(128, 8), (100, 4), (99, 1)])
def test_the_stride_of_a_slice_limits_the_vector(stride, elems):
    fusion = Fusion()
    x = ex.tensor(fusion, ["m", "n"], ex.BF16, contiguity=[False, True])
    ex.output(ex.op("neg", x), ex.BF16)
    env = ex.sizes(m=3, n=64) | {x.stride_var(0): stride}
    assert strided_positions(x) == (0,)
    assert limits_of(fusion).limit_elems(1, env, {}) == elems
    assert limits_of(fusion).limit_elems(1, ex.sizes(m=1, n=64), {}) == 8  # one row: its stride is never used


def test_an_input_strided_in_its_innermost_axis_is_read_element_by_element():
    fusion = Fusion()
    x, y = ex.tensor(fusion, ["m", "n"], ex.F32, contiguity=[True, False]), ex.tensor(fusion, ["m", "n"], ex.F32)
    ex.output(ex.op("add", x, y))
    limits = limits_of(fusion)
    assert [t.name for t in limits.vectorizable] == [y.name, fusion.outputs()[0].name]
    assert limits.limit_elems(0, ex.sizes(m=4, n=4), {}) == 4


def test_a_permuted_input_is_read_element_by_element():
    fusion = Fusion()
    x = ex.tensor(fusion, ["m", "n"], ex.F32, order=[1, 0])
    ex.output(ex.op("neg", x))
    axes = LoopAxes(fusion)
    assert inner_run(x, axes.logical_order(x), axes) == ()


def test_the_widest_type_limits_the_vector():
    fusion = Fusion()
    ex.output(ex.up(ex.tensor(fusion, ["n"], ex.BF16)))
    assert limits_of(fusion).limit_elems(0, ex.sizes(n=64), {}) == 4


def test_four_bit_elements_fill_an_access_with_32():
    fusion = Fusion()
    x = ex.tensor(fusion, ["n"], ex.F4)
    ex.output(ex.op("neg", ex.tensor(fusion, ["n"], ex.F32)))
    axes = LoopAxes(fusion)
    limits = VectorLimits(axes, axes.memory_order(x), [x])
    assert limits.limit_elems(0, ex.sizes(n=64), {}) == 32
    assert limits.limit_elems(0, ex.sizes(n=64), {x.name: 8}) == 2
    assert limits.limit_elems(0, ex.sizes(n=65), {}) == 1


def test_nothing_right_of_the_break_leaves_no_vector():
    assert limits_of(ex.bias_gelu()).limit_elems(2, ex.sizes(m=8, n=8), {}) == 1


def test_random_limits_are_legal_for_every_tensor():
    rng = random.Random(0)
    for _ in range(300):
        dtypes = [rng.choice([ex.BF16, ex.F32]) for _ in range(2)]
        fusion = Fusion()
        x, y = ex.up(ex.tensor(fusion, ["a", "b", "c"], dtypes[0])), ex.up(ex.tensor(fusion, ["c"], dtypes[1]))
        ex.output(ex.op("add", x, y), dtypes[0])
        extents = {k: rng.randint(1, 70) for k in "abc"}
        alignment = {v.name: 1 << rng.randint(3, 9) for v in fusion.inputs()}
        limits = limits_of(fusion)
        for position in range(3):
            elems = limits.limit_elems(position, ex.sizes(**extents), alignment)
            assert elems & (elems - 1) == 0
            if elems > 1:
                assert extents["c"] % elems == 0  # y lacks a and b
                for tensor in limits.vectorizable:
                    assert elems * tensor.dtype().bits <= 128
                    assert alignment.get(tensor.name, 128) % (elems * tensor.dtype().bits) == 0


def test_zero_is_divided_by_every_power_of_two():
    assert [largest_power_of_two_divisor(n) for n in (1, 6, 96)] == [1, 2, 32]
    assert largest_power_of_two_divisor(0) > 1 << 40
