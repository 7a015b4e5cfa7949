"""Pointwise params: break point, vector, unroll, blocks."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from weft.analysis.index_work import IndexWork
from weft.arch import A100, B200, H100, H200
from weft.schedulers.facts import PointwiseFacts
from weft.schedulers.pointwise_heuristic import Candidates, breaks, choose, choose_with_trace

CHIPS = (A100, H100, H200, B200)


def facts(extents=(4096, 4096), *, bits=16, left_only=0, right_only=0, inputs=1, vectors=None, instructions=3, narrowest=None, outputs=1) -> PointwiseFacts:
    """`inputs` full tensors and one output of `bits`, and broadcast operands with the given sums of bits at every position but 0."""
    right_bits = tuple(bits * (inputs + outputs) + right_only + left_only * (p == 0) for p in range(len(extents)))
    narrowest = narrowest or bits
    count, rank = inputs + outputs, len(extents)
    spread = tuple((size, frozenset(places)) for size, places in ((left_only, [0]), (right_only, [rank - 1])) if size and rank > 1)
    flat = IndexWork(count + (right_only > 0), left_only > 0, 0, right_only > 0, left_only > 0, (left_only or right_only) > 0, 0)
    work = (flat, *(IndexWork(count + (right_only > 0), 0, left_only > 0, 0, 0, 0, 0) for _ in extents[1:]))
    return PointwiseFacts(
        extents_elems=extents, vector_limit_elems=vectors or tuple(128 // bits for _ in extents), right_bits=right_bits, max_dtype_bits=bits, min_dtype_bits=narrowest,
        vectorizable_inputs=inputs, vectorizable_outputs=outputs, full_inputs=inputs, instructions=instructions, mufu=0, has_exp=False, has_rng=False,
        min_vector_elems=max(1, 8 // narrowest), read_bits=bits * inputs, written_bits=bits * outputs, index_work=work, phased_index_work=work, spread=spread,
    )  # fmt: skip


@pytest.mark.parametrize("arch", CHIPS, ids=lambda a: a.name)
def test_a_plain_kernel_has_one_dimension_and_the_widest_vectors(arch):
    params = choose(facts(), arch)
    assert (params.break_point, params.vector_elems, params.bdimx, params.bdimy, params.unroll_outer) == (0, 8, 128, 1, 1) and params.unroll_inner <= 2


@pytest.mark.parametrize("elems", [4, 2, 1])
def test_narrow_accesses_are_unrolled(elems):
    """Source: x -> -x of bf16 on one H200: with 2-byte accesses one per thread 0.21 of the roof, four 0.78, eight 0.87."""
    assert choose(facts((16384, 4096), vectors=(elems, elems)), H200).unroll_inner >= 4 // elems * 2


def test_dear_arithmetic_takes_two_vectors_along_the_row():
    """Source: generated tanh(x + bias) of bf16 16384x4096 on one H200: two vectors along the row 1.00 of a copy, four 0.95, one 0.88; eight rows 0.86."""
    for right_only in (0, 16):
        params = choose(facts((16384, 4096), instructions=40, right_only=right_only), H200)
        assert (params.unroll_inner, params.unroll_outer) == (2, 1)
    assert choose(facts((16384, 4096), instructions=20, inputs=2), H200).unroll_inner == 1  # silu(x) * y


def test_few_blocks_are_not_made_fewer():
    """Two vectors of a thread would leave multiprocessors without work."""
    assert choose(facts((64, 256), vectors=(1, 1)), H200).unroll_inner == 1


def test_a_column_makes_two_dimensions():
    """With one, each element of a vector would be divided for its row."""
    params = choose(facts((4096, 4096), left_only=16), H200)
    assert (params.break_point, params.vector_elems) == (1, 8)


def test_nothing_is_gained_by_two_dimensions_where_all_tensors_are_whole():
    assert [at.position for at in breaks(facts((64, 128, 4096)))] == [0]
    assert choose(facts((65536, 128), right_only=16), H200).break_point in (0, 1)


def test_rows_that_do_not_fit_l2_are_walked_left_first():
    """Else a row of blocks would push the bias out of L2 before the next row reads it."""
    assert not choose(facts((64, 1 << 20), right_only=16), H200).is_left_fastest
    params = choose(facts((64, 1 << 24), right_only=16), H200)
    assert params.break_point == 1 and params.is_left_fastest


def test_small_tensors_have_vectors_where_that_is_as_fast():
    """Threads of a small tensor wait for memory whatever they load; narrower vectors only need more of them."""
    assert choose(facts((2048, 64)), H200).vector_elems >= 4
    assert choose(facts((10, 10), bits=4), H200).vector_elems >= 2  # whole bytes


def test_a_four_bit_operand_keeps_a_vector_of_two_where_it_is_legal():
    assert choose(facts(bits=16, narrowest=4, vectors=(8, 1), right_only=16), H200).break_point == 0


def test_blocks_have_a_row_of_their_own_where_that_fills_warps():
    params = choose(facts((16384, 128 * 8), left_only=16), H200)
    assert (params.bdimx, params.bdimy) == (128, 1)
    narrow = choose(facts((65536, 16 * 8), left_only=16), H200)
    assert narrow.bdimx <= 16 and narrow.bdimx * narrow.bdimy >= 64


@pytest.mark.parametrize("columns", [128, 256, 384, 1152, 4096])
@pytest.mark.parametrize("block_elems", [16, 32, 128])
def test_threads_along_a_row_have_whole_blocks_of_elements(block_elems, columns):
    rows = Candidates(replace(facts((37, columns)), block_elems=block_elems), H200).rows
    vector, bdimx = rows[:, 1], rows[:, 4]
    assert len(rows) and not (bdimx * vector % block_elems).any()


def test_many_rows_get_a_loop_around_the_grid():
    found = [choose(facts((rows, 1024), left_only=16), H200) for rows in (1 << 20, 1 << 15)]
    assert [p.split_grid_y for p in found] == [p.break_point == 1 and rows // (p.bdimy * p.unroll_outer) > 65535 for p, rows in zip(found, (1 << 20, 1 << 15))]
    assert not found[1].split_grid_y


def test_similar_shapes_have_equal_params():
    params = {choose(facts((m, 4096), right_only=16), H200) for m in (8192, 8200, 16384, 10001)}
    assert len(params) == 1


def test_the_trace_says_what_each_candidate_takes():
    _, trace = choose_with_trace(facts((64, 2, 4096), right_only=16), H200)
    assert "break 0 vector 8" in str(trace) and "us" in str(trace) and "chosen: PointwiseParams" in str(trace)


def test_predictions_of_more_elements_are_longer():
    times = [Candidates(facts((m, 4096)), H200).ranked(1)[0].time_ns - H200.latencies.launch_ns for m in (256, 4096, 65536)]
    assert times[0] < times[1] < times[2] and times[2] == pytest.approx(16 * times[1], rel=0.15)


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
        assert 64 <= threads <= 256 and threads % 32 == 0
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
