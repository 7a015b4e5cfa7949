"""Passes over a row, what is kept between them, projection to inputs, sizes."""

from __future__ import annotations

import example_fusions as ex
import pytest
from weft.analysis.loop_axes import LoopAxes, Obstacle
from weft.analysis.persistent import persistent_buffers
from weft.analysis.reduction_shape import reduction_shapes
from weft.ir.fusion import Fusion


def buffers_of(fusion: Fusion):
    axes = LoopAxes(fusion)
    return persistent_buffers(fusion, axes, reduction_shapes(fusion, axes)[0]), axes


def kept_bits(fusion: Fusion, n: int, *, projected: bool) -> int:
    buffers, axes = buffers_of(fusion)
    return buffers.live_bits(axes.extents_elems(ex.sizes(m=3, n=n)), is_projected=projected)


def names(kept) -> list[tuple[str, int, int]]:
    return [(str(k.tensor).split("_")[0], k.first_pass, k.last_pass) for k in kept]


def test_a_normalization_keeps_its_input_before_the_cast():
    buffers, _ = buffers_of(ex.rms_norm())
    assert names(buffers.buffers) == [("T0", 0, 1)]
    assert buffers.passes == 2


def test_weights_are_not_kept_but_read_again():
    buffers, _ = buffers_of(ex.layer_norm())
    assert names(buffers.buffers) == [("T0", 0, 1)]


def test_softmax_keeps_the_input_and_then_the_exponential():
    buffers, _ = buffers_of(ex.softmax())
    assert [(first, last) for _, first, last in names(buffers.buffers)] == [(0, 1), (1, 2)]
    assert names(buffers.projected) == [("T0", 0, 2)]
    assert buffers.recomputed.has_exp


@pytest.mark.parametrize(
    "make, plain, projected",
    [(ex.rms_norm, 16, 16), (ex.add_rms_norm, 32, 32), (ex.softmax, 32, 16), (ex.layer_norm, 16, 16), (lambda d: ex.layer_norm(d, two_passes=True), 32, 16)],
)
def test_bits_kept_of_each_element(make, plain, projected):
    """One boundary between passes at a time: softmax holds x or exp(x), never both."""
    assert kept_bits(make(ex.BF16), 10, projected=False) == 10 * plain
    assert kept_bits(make(ex.BF16), 10, projected=True) == 10 * projected


def test_random_numbers_are_kept_and_never_drawn_again():
    buffers, _ = buffers_of(ex.dropout_rms_norm())
    assert buffers.projected is None
    assert "random" in buffers.projection_obstacle


def test_an_input_of_the_last_pass_alone_is_not_kept():
    fusion = ex.late_residual_norm()
    buffers, _ = buffers_of(fusion)
    assert names(buffers.buffers) == [("T0", 0, 1)]
    late = fusion.inputs()[1]
    assert buffers.first_pass[late] == 1


def test_a_reduction_alone_has_one_pass():
    assert buffers_of(ex.row_sum_only())[0].passes == 1
    assert buffers_of(ex.batch_statistics())[0].passes == 1


def test_results_per_row_do_not_make_a_pass():
    fusion = Fusion()
    x = ex.up(ex.tensor(fusion, ["m", "n"]))
    ex.output(ex.op("rsqrt", ex.row_sum(ex.op("mul", x, x))))
    assert buffers_of(fusion)[0].passes == 1


def test_a_result_spread_over_another_axis_is_an_obstacle():
    fusion = Fusion()
    x, y = ex.tensor(fusion, ["m", "n"], ex.F32), ex.tensor(fusion, ["m", "k"], ex.F32)
    ex.output(ex.op("add", y, ex.row_sum(x)))
    found, _ = buffers_of(fusion)
    assert isinstance(found, Obstacle)
    assert "did not have" in found.reason


def test_a_full_normalization_keeps_its_only_input():
    fusion = Fusion()
    x = ex.tensor(fusion, ["n"], ex.F32)
    ex.output(ex.op("div", x, ex.row_sum(x)))
    assert names(buffers_of(fusion)[0].buffers) == [("T0", 0, 1)]
