"""Params of reductions: inner, outer, 3-D, shared among blocks."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from quick import LINES_OF_A_MILLISECOND, lines_run
from weft import DataType, FusionDefinition
from weft.arch import A100, B200, H100, H200
from weft.device.library import translation_unit
from weft.options import current
from weft.runtime.nvrtc import compile_cubin
from weft.schedulers.cost.passing import FEW_WAVES
from weft.schedulers.facts import ReductionFacts
from weft.schedulers.cost.reductions import work_of_reductions
from weft.schedulers.reduction_heuristic import Candidates, choose, choose_with_trace
from weft.schedulers.arithmetic import tree_workspace_bytes
from weft.schedulers.limits import MOST_LOOKED_UP

CHIPS = (A100, H100, H200, B200)


def facts(runs, *, bits=16, vector=8, inputs=1, accumulators=1, instructions=2) -> ReductionFacts:
    iteration = reduction = 1
    for is_reduced, extent in runs:
        reduction, iteration = (reduction * extent, iteration) if is_reduced else (reduction, iteration * extent)
    return ReductionFacts(
        iteration_elems=iteration, reduction_elems=reduction, runs=tuple(runs), vector_limit_elems=vector, max_dtype_bits=bits, min_dtype_bits=bits,
        vectorizable_inputs=inputs, input_bits=bits * inputs, output_bits=0, reductions=accumulators, accumulator_bits=32 * accumulators,
        instructions=instructions, mufu=0, has_exp=False, has_rng=False, min_vector_elems=1,
    )  # fmt: skip


def rows(m, n, **kwargs):
    return facts(((False, m), (True, n)), **kwargs)


def columns(m, n, **kwargs):
    return facts(((True, m), (False, n)), **kwargs)


@pytest.mark.parametrize("n", [1024, 2048, 4096, 8192, 16384])
def test_a_row_is_loaded_at_once_where_it_fits(n):
    """No loop over the row: every thread has its vectors in flight together."""
    params = choose(rows(1 << 26 >> n.bit_length() - 1, n), H200)
    assert params.kind == "inner" and params.grid_split == 1 and params.vector_elems == 8
    assert params.bdimx * params.unroll * 8 == n
    assert params.threads_per_block >= 128


@pytest.mark.parametrize("define", [rows, columns], ids=["rows", "columns"])
def test_a_thread_loads_many_inputs_for_one_vector_at_once(define):
    """98 neighbours of a pixel have no registers for those of a second pixel, and its text would be as long again."""
    for m, n in ((1, 393216), (3000, 1000), (128, 130), (50000, 3)):
        assert choose(define(m, n, bits=32, vector=1, inputs=MOST_LOOKED_UP, instructions=3243), H200).unroll == 1
    assert choose(rows(1, 393216, bits=32, vector=1, inputs=2), H200).unroll > 1


@pytest.mark.parametrize("m, n", [(8192, 8192), (16384, 4096), (4096, 16384), (8192, 6000)])
def test_rows_with_arithmetic_come_in_several_rounds_of_blocks(m, n):
    """The last blocks of few rounds end alone: cross entropy of 8192x8192 took 55.4 us on an H100 in 2.6 rounds, and 51.9 in 6.2."""
    best = choose_with_trace(rows(m, n, instructions=11), H100)[1].candidates[0]
    assert best.blocks / (best.blocks_per_sm * H100.sm_count) >= FEW_WAVES


def test_short_rows_share_a_warp():
    params = choose(rows(1 << 20, 64), H200)
    assert params.bdimx < 32 and params.is_warp_only
    assert params.bdimx * params.unroll * 8 >= 64


def test_few_long_rows_are_shared_among_blocks():
    params = choose(rows(8, 1 << 20), H200)
    assert params.is_grid_reduction and 8 * params.grid_split >= 0.9 * H200.sm_count
    params = choose(rows(1, 1 << 24), H200)
    assert params.grid_split * params.threads_per_block >= 512 * H200.sm_count


def test_many_rows_are_not():
    assert not choose(rows(16384, 4096), H200).is_grid_reduction


@pytest.mark.parametrize("arch", CHIPS, ids=lambda a: a.name)
def test_columns_fill_the_chip_once(arch):
    """Blocks of a column sum all run at the same time: a second, partial round would run at a part of the bandwidth."""
    for m, n in ((16384, 4096), (8192, 8192)):
        params, trace = choose_with_trace(columns(m, n), arch)
        blocks = -(-n // params.rows_per_block) * params.grid_split
        assert params.kind == "outer"
        assert 0.85 * arch.sm_count <= blocks <= arch.sm_count * trace.candidates[0].blocks_per_sm


@pytest.mark.parametrize(
    ("m", "n", "block", "split", "is_cluster"),
    [
        (8192, 8192, (8, 64), 1, False), (4096, 16384, (16, 32), 1, False), (16384, 4096, (8, 64), 2, True), (65536, 1024, (8, 64), 8, False),
        (1 << 20, 64, (8, 64), 128, False),
    ],
)  # fmt: skip
def test_columns_are_those_of_one_round_of_blocks_or_shared(m, n, block, split, is_cluster):
    """One round of blocks, alone or in clusters, where that fills the chip; else several small ones that share columns through memory."""
    params = choose(columns(m, n), H200)
    assert ((params.bdimx, params.bdimy), params.grid_split, params.is_cluster) == (block, split, is_cluster)
    assert not choose(columns(m, n), A100).is_cluster


@pytest.mark.parametrize("arch", CHIPS, ids=lambda a: a.name)
def test_many_results_of_columns_fit_shared_memory(arch):
    """Threads of a block fold columns through shared memory, all results of a kernel at once: with more results, fewer threads."""
    threads = []
    for results in (1, 2, 4, 6, 8, 12, 24):
        params = choose(columns(8192, 8192, accumulators=results), arch)
        assert tree_workspace_bytes(params.threads_per_block, params.vector_elems, 32 * results) <= arch.shared_per_block_optin_bytes
        threads.append(params.threads_per_block)
    assert threads == sorted(threads, reverse=True) and threads[-1] % 32 == 0


def test_one_column_of_vectors_is_not_spread_over_idle_threads():
    params = choose(columns(1 << 20, 8), H200)
    assert params.bdimx == 1 and params.is_grid_reduction


def test_batch_statistics_stay_within_the_inner_run_or_merge_it():
    wide = choose(facts(((True, 32), (False, 256), (True, 112 * 112))), H200)
    narrow = choose(facts(((True, 256), (False, 2048), (True, 49)), vector=1), H200)
    assert wide.kind in ("3d", "inner") and narrow.kind == "inner"
    assert wide.threads_per_block <= 1024 and wide.bdimz <= 64


def test_similar_shapes_have_equal_params():
    assert len({choose(rows(m, 4096), H200) for m in (8192, 8200, 8300, 16384, 16400)}) <= 2


@pytest.mark.parametrize("arch", CHIPS, ids=lambda a: a.name)
def test_random_facts_give_legal_params(arch):
    rng = random.Random(2)
    sizes = [1, 2, 3, 8, 31, 32, 100, 1000, 4096, 100003, 1 << 22]
    for _ in range(250):
        kinds = rng.choice([(0, 1), (1, 0), (1,), (1, 0, 1), (0, 1, 0), (1, 0, 1, 0), (0, 1, 0, 1)])
        runs = tuple((bool(k), rng.choice(sizes)) for k in kinds)
        bits = rng.choice([16, 32, 64])
        vector = rng.choice([v for v in (1, 2, 4, 8) if v * bits <= 128])
        f = facts(runs, bits=bits, vector=vector, inputs=rng.randint(0, 5), accumulators=rng.randint(1, 3), instructions=rng.randint(1, 60))
        params, trace = choose_with_trace(f, arch)
        assert params.threads_per_block <= arch.max_threads_per_block
        assert params.bdimz <= 64 and 1 <= params.grid_split <= 65535
        assert params.vector_elems <= vector and params.unroll <= 8
        launched = -(-params.threads_per_block // 32) * 32
        assert params.max_registers * launched <= arch.registers_per_block
        shared = tree_workspace_bytes(launched, params.vector_elems, f.accumulator_bits) if params.kind == "outer" else 0
        assert arch.blocks_per_sm(launched, params.max_registers, shared) >= 1
        assert params.grid_split == 1 or not f.results_meet
        assert params.kind == ("outer" if not runs[-1][0] else params.kind)
        assert 0 < trace.candidates[0].fraction <= 1
        assert choose(f, arch) == params


@pytest.mark.parametrize("arch", CHIPS, ids=lambda a: a.name)
def test_no_width_falls_off_a_cliff(arch):
    """64 Mi elements in rows or columns of any width reach a floor of the roof, vectorized or not."""
    for n in range(101, 200_000, 6001):
        for vector, floor in ((8, 0.35), (1, 0.15)):
            width = n // 8 * 8 if vector == 8 else n
            m = (1 << 26) // width
            assert choose_with_trace(rows(m, width, vector=vector), arch)[1].candidates[0].fraction > floor
            assert choose_with_trace(columns(m, width, vector=vector), arch)[1].candidates[0].fraction > floor


def test_a_choice_is_quick():
    for f in (columns(16384, 4096), columns(16384, 4097, vector=1), rows(8, 1 << 20), facts(((True, 32), (False, 256), (True, 112 * 112)))):
        assert lines_run(lambda: choose(f, H200)) < LINES_OF_A_MILLISECOND


@pytest.mark.parametrize("n", [67, 1025, 4097, 65537])
def test_odd_rows_are_read_in_wide_vectors(n):
    m = (1 << 26) // n
    params = choose(replace(rows(m, n, vector=1), phased_limit_elems=8), H200)
    assert params.is_phased and params.vector_elems == 8 and params.bdimx >= 16
    if n > 1000:
        assert params == replace(choose(rows(m, n // 8 * 8), H200), is_phased=True)
    assert not choose(rows(m, n, vector=1), H200).is_phased
    assert not choose(replace(columns(m, n, vector=1), phased_limit_elems=8), H200).is_phased


def many_values_per_column() -> FusionDefinition:
    """Gradients of the weights of a norm down columns, with six values for each column."""
    with FusionDefinition() as fd:
        gradient, x = (fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16) for _ in range(2))
        values = [fd.define_tensor([-1], contiguity=True, dtype=DataType.BFloat16) for _ in range(6)]
        g, x, *held = (fd.ops.cast(t, DataType.Float) for t in (gradient, x, *values))
        weight, mean, inverse, scale, shift, bias = (fd.ops.broadcast_in_dim(v, shape=x.shape(), broadcast_dims=[1]) for v in held)
        hat = fd.ops.mul(fd.ops.sub(fd.ops.add(x, bias), mean), inverse)
        y = fd.ops.add(fd.ops.mul(fd.ops.mul(hat, weight), scale), shift)
        passed = fd.ops.mul(g, fd.ops.mul(fd.ops.sigmoid(y), fd.ops.add(y, 1.0)))
        for term in (passed, fd.ops.mul(passed, hat), fd.ops.mul(passed, scale), fd.ops.mul(passed, y)):
            fd.add_output(fd.ops.sum(term, [0]))
    return fd


@pytest.mark.parametrize("shape", [(65536, 320), (4096, 4099), (1000, 8192)])
def test_values_that_a_thread_holds_for_its_columns_get_registers(shape):
    """Before they were counted, eight loads ahead were chosen here, and 600 bytes of each thread went to memory."""
    fd = many_values_per_column()
    inputs = [torch.empty(shape, dtype=torch.bfloat16)] * 2 + [torch.empty(shape[1], dtype=torch.bfloat16)] * 6
    caller = fd._executor_cache()._caller
    sizes, engine = caller.sizes(inputs, None, current())
    (use,) = sizes.kernels
    request = caller.request(use, sizes, engine, current())
    program = caller.kernels.program(request)
    compiled = compile_cubin(translation_unit(program.text, program.blocks), program.name, "sm_90a", max_registers=program.max_registers)
    assert compiled.resources.stack_bytes <= 64


@pytest.mark.parametrize(
    "runs, vector, across, bytes_at_once",
    [
        (((True, 1 << 22), (False, 4)), 4, 1, 32 * 4 * 2),  # 32 rows of 4 elements of 16 bits, one piece of memory
        (((True, 1 << 20), (False, 40)), 8, 5, 32 * 8 * 2),  # 6.4 rows of 5 vectors
        (((True, 4096), (False, 8192)), 8, 32, 32 * 8 * 2),  # one row
    ],
)
def test_a_warp_touches_the_lines_of_its_bytes(runs, vector, across, bytes_at_once) -> None:
    """A block that has whole rows reads neighbouring ones together, however few threads are across. A line has 128 bytes."""
    given = facts(runs, vector=vector)
    candidates = Candidates(given, H100)
    table = candidates.table()
    work = work_of_reductions(table, given, H100)
    found = [n for n, each in enumerate(table.bdimx) if each == across]
    assert found
    for n in found:
        warps, vectors = table.bdimx[n] * table.bdimy[n] / 32, candidates.vectors(*(int(v[n]) for v in (table.bdimx, table.bdimy, table.bdimz, table.grid_split)))
        assert work.lines[n] == pytest.approx(np.ceil(warps) * vectors * bytes_at_once / 128)


def test_runs_apart_are_lines_apart() -> None:
    """Threads across that are in different pieces of memory: 16 of 32 bytes each for two vectors of 4 float32 in a run, however few bytes that is."""
    given = facts(((False, 3648), (True, 93), (False, 8)), bits=32, vector=4)
    candidates = Candidates(given, H100)
    table = candidates.table()
    work = work_of_reductions(table, given, H100)
    n = next(n for n, each in enumerate(table.bdimx) if each == 64)
    vectors = candidates.vectors(*(int(v[n]) for v in (table.bdimx, table.bdimy, table.bdimz, table.grid_split)))
    assert work.lines[n] == pytest.approx(table.bdimx[n] * table.bdimy[n] / 32 * vectors * 16)
