"""Bits moved on each side of a break position, and where a power-of-rank score goes wrong."""

from __future__ import annotations

import math

import example_fusions as ex
from weft.analysis.broadcast_bits import BroadcastBits, broadcast_bits
from weft.analysis.loop_axes import LoopAxes
from weft.ir.fusion import Fusion


def sums_of(fusion: Fusion) -> tuple[BroadcastBits, ...]:
    axes = LoopAxes(fusion)
    return broadcast_bits(axes, axes.logical_order(fusion.outputs()[0]), [*fusion.inputs(), *fusion.outputs()])


def test_a_bias_moves_once_for_each_column():
    flat, split = sums_of(ex.bias_gelu())
    assert split == BroadcastBits(both_bits=32, left_only_bits=0, right_only_bits=16, neither_bits=0)
    assert flat.transferred_bits(1, 6 * 10) == 6 * 10 * 48
    assert split.transferred_bits(6, 10) == 6 * 10 * 32 + 10 * 16


def test_a_scale_of_rows_moves_once_for_each_row():
    split = sums_of(ex.scale_rows())[1]
    assert split == BroadcastBits(both_bits=32, left_only_bits=32, right_only_bits=0, neither_bits=0)
    assert split.transferred_bits(6, 10) == 6 * 10 * 32 + 6 * 32


def test_the_cost_is_in_bits_for_any_number_of_axes():
    """Splitting an axis of all tensors in two changes no figure at the same place."""
    two = Fusion()
    ex.output(ex.op("add", ex.tensor(two, ["a", "c"]), ex.tensor(two, ["c"])))
    three = Fusion()
    ex.output(ex.op("add", ex.tensor(three, ["a", "b", "c"]), ex.tensor(three, ["c"])))
    assert sums_of(two)[1] == sums_of(three)[2]
    assert sums_of(two)[1].transferred_bits(6 * 5, 10) == sums_of(three)[2].transferred_bits(6 * 5, 10)


def power_of_rank_score(fusion: Fusion, extents: tuple[int, ...], position: int) -> int:
    """The score with one multiple per side in every extent, as published for nvFuser."""
    axes = LoopAxes(fusion)
    order = axes.logical_order(fusion.outputs()[0])
    left = set(order[:position])
    tensors = [*fusion.inputs(), *fusion.outputs()]
    left_bits = sum(t.dtype().bits for t in tensors if axes.stored(t) & left)
    right_bits = sum(t.dtype().bits for t in tensors if axes.stored(t) - left)
    return math.prod(e * left_bits for e in extents[:position]) * math.prod(e * right_bits for e in extents[position:])


def test_bits_choose_another_break_than_the_power_of_rank():
    """x[a, b, c] + y[a, b, 1] + z[1, b, c]: exact bits split after a, where z is fetched once; the score cannot see that and splits elsewhere or not at all."""
    fusion = Fusion()
    x = ex.tensor(fusion, ["a", "b", "c"], ex.BF16)
    y = ex.tensor(fusion, ["a", "b", 1], ex.F32)
    z = ex.tensor(fusion, [1, "b", "c"], ex.F32)
    ex.output(ex.op("add", ex.op("add", ex.up(x), y), z), ex.BF16)
    extents = (64, 2, 4096)
    sums = sums_of(fusion)
    exact = [sums[p].transferred_bits(math.prod(extents[:p]), math.prod(extents[p:])) for p in range(3)]
    score = [power_of_rank_score(fusion, extents, p) for p in range(3)]
    elems = math.prod(extents)
    assert exact == [elems * 96, elems * 64 + 2 * 4096 * 32, elems * 64 + 64 * 2 * 32]
    assert min(range(3), key=exact.__getitem__) == 2
    assert min(range(3), key=score.__getitem__) == 1
    # and the saving it claims for a place depends on how many axes are left of it
    assert [s / score[0] for s in score[1:]] == [64 / 96, (96 / 96) ** 2 * 64 / 96] or score[1] != score[2]


def test_between_two_uses_of_a_bias_lies_one_row():
    split = sums_of(ex.bias_gelu())[1]
    assert split.left_step_bits(10) == (32 + 16) * 10
