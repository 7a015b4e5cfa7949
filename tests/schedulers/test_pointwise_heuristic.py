"""Pointwise params: break point, vector, unroll, blocks."""

from __future__ import annotations

import math
import random

import pytest
from weft.analysis.broadcast_bits import BroadcastBits
from weft.arch import A100, B200, H100, H200
from weft.schedulers.facts import PointwiseFacts
from weft.schedulers.pointwise_heuristic import break_candidates, choose, choose_with_trace

CHIPS = (A100, H100, H200, B200)


def facts(extents=(4096, 4096), *, bits=16, left_only=0, right_only=0, inputs=1, vectors=None, instructions=3, narrowest=None, outputs=1) -> PointwiseFacts:
    """`inputs` full tensors and one output of `bits`, and broadcast operands with the given sums of bits at every position but 0."""
    both = bits * (inputs + outputs)
    sums = tuple(BroadcastBits(both, left_only, right_only, 0) if p else BroadcastBits(0, 0, both + left_only + right_only, 0) for p in range(len(extents)))
    narrowest = narrowest or bits
    return PointwiseFacts(
        extents_elems=extents, vector_limit_elems=vectors or tuple(128 // bits for _ in extents), broadcast=sums, max_dtype_bits=bits, min_dtype_bits=narrowest,
        vectorizable_inputs=inputs, vectorizable_outputs=outputs, full_inputs=inputs, instructions=instructions, mufu=0, has_exp=False, has_rng=False,
        min_vector_elems=max(1, 8 // narrowest),
    )  # fmt: skip


@pytest.mark.parametrize("arch, unroll", [(A100, 1), (H100, 1), (H200, 1), (B200, 2)])
def test_sixteen_bytes_per_thread_are_enough_but_on_the_quickest_memory(arch, unroll):
    params = choose(facts(), arch)
    assert (params.break_point, params.vector_elems, params.bdimx, params.unroll_inner, params.unroll_outer) == (0, 8, 128, unroll, 1)


@pytest.mark.parametrize("elems, unroll", [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_narrow_accesses_are_unrolled_to_the_same_bytes(elems, unroll):
    assert choose(facts(vectors=(elems, elems)), H200).unroll_inner == unroll


def test_dear_arithmetic_takes_two_vectors_along_the_row():
    """Source: generated tanh(x + bias) of bf16 16384x4096 on one H200: two vectors along the row 1.00 of a copy, four 0.95, one 0.88; eight rows 0.86."""
    for right_only in (0, 16):
        params = choose(facts((16384, 4096), instructions=40, right_only=right_only), H200)
        assert (params.unroll_inner, params.unroll_outer) == (2, 1)
    assert choose(facts((16384, 4096), instructions=20, inputs=2), H200).unroll_inner == 1  # silu(x) * y


@pytest.mark.parametrize("elems, unroll", [(4, 2), (2, 4), (1, 8)])
def test_narrow_accesses_keep_their_bytes_in_flight_when_arithmetic_is_dear(elems, unroll):
    assert choose(facts((16384, 4096), vectors=(elems, elems), instructions=40), H200).unroll_inner == unroll


def test_without_inputs_there_is_nothing_to_wait_for():
    assert choose(facts((16384, 4096), inputs=0, instructions=40), H200).unroll_inner == 1


def test_few_blocks_are_not_made_fewer():
    """Two rounds of blocks per multiprocessor come before unrolling."""
    assert choose(facts((1024, 512), vectors=(1, 1)), H200).unroll_inner == 1


def test_a_bias_makes_two_dimensions():
    params = choose(facts(right_only=16), H200)
    assert (params.break_point, params.bdimx, params.bdimy) == (1, 128, 1)


def test_a_broadcast_that_saves_little_does_not():
    assert choose(facts(bits=32, inputs=6, right_only=16), H200).break_point == 0


def test_a_short_right_side_does_not():
    assert choose(facts((65536, 128), right_only=16), H200).break_point == 0
    assert choose(facts((65536, 256), right_only=16), H200).break_point == 1


def test_rows_that_do_not_fit_l2_are_walked_left_first():
    assert not choose(facts((64, 1 << 20), right_only=16), H200).is_left_fastest
    assert choose(facts((64, 1 << 24), right_only=16), H200).is_left_fastest
    assert choose(facts((64, 1 << 23), right_only=16), A100).is_left_fastest


def test_few_elements_are_not_vectorized():
    assert choose(facts((10, 10)), H200).vector_elems == 1
    assert choose(facts((10, 10), bits=4), H200).vector_elems == 2  # whole bytes


def test_a_four_bit_operand_keeps_a_vector_of_two_where_it_is_legal():
    assert choose(facts(bits=16, narrowest=4, vectors=(8, 1), right_only=16), H200).break_point == 0


def test_blocks_are_warps_wide_on_narrow_sides():
    assert choose(facts((4096, 32 * 8), right_only=16), H200).bdimx == 32
    params = choose(facts((4096, 96 * 8), right_only=16), H200)
    assert params.bdimx == 96 and params.bdimy == 1  # a row of its own


def test_many_rows_get_a_loop_around_the_grid():
    assert choose(facts((1 << 20, 1024), right_only=16), H200).split_grid_y
    assert not choose(facts((1 << 15, 1024), right_only=16), H200).split_grid_y


def test_similar_shapes_have_equal_params():
    params = {choose(facts((m, 4096), right_only=16), H200) for m in (8192, 8200, 16384, 10001)}
    assert len(params) == 1


def test_the_trace_says_what_each_break_moves_and_why_it_is_out():
    _, trace = choose_with_trace(facts((64, 2, 4096), right_only=16), H200)
    text = str(trace)
    assert "break 0" in text and "break 2" in text and "chosen: PointwiseParams" in text
    short = break_candidates(facts((65536, 128), right_only=16), H200)[1]
    assert short.declined == "the right side does not fill a warp"


@pytest.mark.parametrize("arch", CHIPS, ids=lambda a: a.name)
def test_random_facts_give_legal_params(arch):
    rng = random.Random(1)
    for _ in range(500):
        extents = tuple(rng.choice([0, 1, 2, 3, 7, 64, 127, 1000, 4096, 100000]) for _ in range(rng.randint(0, 4)))
        bits = rng.choice([8, 16, 32, 64])
        width = rng.choice([1, 2, 4, 8])
        f = facts(
            extents, bits=bits, right_only=rng.choice([0, 16, 64]), left_only=rng.choice([0, 32]), inputs=rng.randint(0, 6),
            vectors=tuple(min(width, 128 // bits) for _ in extents) or (1,), instructions=rng.randint(0, 100),
        ) if extents else facts((1,), vectors=(1,))  # fmt: skip
        params = choose(f, arch)
        position = params.break_point
        threads = params.bdimx * params.bdimy
        assert threads in (64, 96, 128, 160, 192) and (threads == 128 or params.bdimy == 1)
        assert arch.blocks_per_sm(threads, params.max_registers) >= 1
        assert choose(f, arch) == params
        assert params.vector_elems <= max(1, f.vector_limit_elems[min(position, len(f.vector_limit_elems) - 1)])
        assert params.vector_elems * bits <= 128
        assert 1 <= params.unroll_inner * params.unroll_outer <= 8
        assert 0 <= position < max(1, len(f.extents_elems))
        left, right = math.prod(f.extents_elems[:position]), math.prod(f.extents_elems[position:])
        if position and not params.split_grid_y:
            y = -(-right // (params.bdimx * params.vector_elems * params.unroll_inner)) if params.is_left_fastest else -(-left // (params.bdimy * params.unroll_outer))
            assert y <= 65535
