"""The choice among the ways to keep rows, and the model behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.arch import A100, H200, Arch
from weft.check.records import programs
from weft.compiler import prepare
from weft.dtypes import DataType
from weft.quantize.formats import Mx, NvFp4, Recipe
from weft.quantize.functions import _definition
from weft.schedulers.async_rows_heuristic import AsyncRowsParams, choose_async_rows, needed_registers, tma_blocks_per_sm, tma_registers
from weft.schedulers.cost.parts import FITTED
from weft.schedulers.facts import PersistentFacts
from weft.schedulers.persistent_analysis import PersistentAnalysis, analyze_persistent
from weft.schedulers.persistent_heuristic import choose_with_trace
from weft.schedulers.persistent_params import PersistentParams
from weft.schedulers.row_model import predicted_registers, predicted_specialized, predicted_tma
from weft.schedulers.row_ways import choose_rows, find_ways

from .test_rows_by_tma import normalization


def facts_of(rows: int, columns: int, dtype: DataType = DataType.Float, is_softmax: bool = True, inputs: int = 1) -> PersistentFacts:
    fusion = prepare(normalization(dtype, inputs, is_softmax=is_softmax).fusion).fusion
    analysis = analyze_persistent(fusion)
    assert isinstance(analysis, PersistentAnalysis)
    env = {axis.sym: n for tensor in fusion.inputs() for axis, n in zip(tensor.get_logical_domain(), (rows, columns))}  # type: ignore[attr-defined]
    return analysis.facts(env, {})


def chip(**latencies: float) -> Arch:
    """Return an H200 with other latencies."""
    return replace(H200, latencies=replace(H200.latencies, **latencies))


SLOW_CLUSTERS = replace(FITTED, cluster=300.0)


def test_each_way_is_taken_where_the_others_are_slow() -> None:
    assert find_ways(facts_of(4096, 4096), chip(bulk_latency_ns=5_000.0), is_loadable=True).best(FITTED) == "registers"
    assert find_ways(facts_of(4096, 24576), H200, is_loadable=True).best(SLOW_CLUSTERS) == "tma"
    assert find_ways(facts_of(4096, 24576), chip(bulk_latency_ns=50_000.0), is_loadable=True).best(SLOW_CLUSTERS) == "specialized"


@pytest.mark.parametrize(
    ("facts", "arch", "is_loadable", "reason"),
    [
        (facts_of(4096, 32768), H200, False, "the rows of an input do not lie contiguously"),
        (facts_of(4096, 32768), A100, True, "A100 has no TMA"),
        (facts_of(131, 32768), H200, True, "131 rows leave multiprocessors idle that a cluster per row would use"),
        (facts_of(4096, 32769), H200, True, "the bytes of a row are not a multiple of 16"),
        (replace(facts_of(4096, 4096), input_bits=0, output_bits=0), H200, True, "no input has rows to load"),
        (facts_of(4096, 65536), H200, True, "a row of 262144 bytes does not fit into shared memory"),
    ],
)
def test_where_a_row_per_block_is_impossible_the_trace_says_why(facts: PersistentFacts, arch, is_loadable: bool, reason: str) -> None:
    ways = find_ways(facts, arch, is_loadable=is_loadable)
    assert ways.declined["tma"] == reason
    params, trace = choose_rows(facts, arch, is_loadable=is_loadable)
    assert not isinstance(params, AsyncRowsParams)
    assert f"not tma: {reason}" in trace


@pytest.mark.parametrize("rows", [1, 16, 500])
def test_rows_that_are_all_in_work_at_once_are_compared_with_bulk_copies_where_they_wait_twice(rows: int) -> None:
    for passes, ways in ((3, {"registers", "tma"}), (2, {"registers"})):
        found = find_ways(replace(facts_of(rows, 4096, DataType.BFloat16), passes=passes), H200, is_loadable=True)
        assert {*found.params} == ways
        assert found.declined["specialized"] == "all rows are processed at once, so no later row can be loaded ahead"


def test_weights_cost_a_row_in_registers_nothing_when_they_are_loaded_first() -> None:
    facts = replace(facts_of(4096, 8192, DataType.BFloat16, is_softmax=False), broadcast_operands=1, broadcast_operand_bits=16, iteration_elems=16)
    candidate = choose_with_trace(facts, H200)[1].candidates[0]
    assert candidate.params.weights == "registers"
    later = replace(candidate, params=replace(candidate.params, weights="late"))
    slow = replace(FITTED, l2=7.0)
    assert predicted_registers(later, facts, H200, slow) < predicted_registers(candidate, facts, H200, slow)
    assert predicted_registers(candidate, facts, H200, slow) == predicted_registers(candidate, facts, H200)


def test_a_pipeline_must_be_faster_by_more_than_the_preference() -> None:
    ways = find_ways(facts_of(4096, 32768), H200, is_loadable=True)
    assert ways.best(SLOW_CLUSTERS) == "tma"
    assert ways.best(replace(SLOW_CLUSTERS, preference=0.99)) == "registers"


def test_what_costs_time_lowers_the_prediction() -> None:
    """Clusters by their exchange, a row per block by the latency of its copy, every way by the clocks of a warp between two instructions."""
    facts = facts_of(4096, 24576)
    ways = find_ways(facts, H200, is_loadable=True)
    candidate = choose_with_trace(facts, H200)[1].candidates[0]
    assert candidate.params.cluster_blocks > 1
    slow = {
        "registers": ways.predict["registers"](replace(FITTED, cluster=2 * FITTED.cluster)),
        "tma": find_ways(facts, chip(bulk_latency_ns=1000.0), is_loadable=True).predict["tma"](FITTED),
        "specialized": ways.predict["specialized"](replace(FITTED, alone=2 * FITTED.alone)),
    }
    for way, slower in slow.items():
        assert slower < ways.predict[way](FITTED) < 1.0
    assert predicted_registers(candidate, facts, H200) == ways.predict["registers"](FITTED)


def test_rows_that_do_not_fill_the_last_wave_lower_the_prediction() -> None:
    for predicted, kind in ((predicted_tma, "tma"), (predicted_specialized, "specialized")):
        fractions = []
        for rows in (132 * 4, 132 * 4 + 1):
            facts = facts_of(rows, 24576)
            params = choose_async_rows(facts, H200, kind)
            assert isinstance(params, AsyncRowsParams)
            fractions.append(predicted(params, facts, H200))
        assert fractions[1] < 0.9 * fractions[0]


@pytest.mark.parametrize("columns", [1024, 4096, 8192, 16384, 24576, 32768, 40960])
@pytest.mark.parametrize("is_softmax", [False, True])
@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float], ids=lambda dtype: dtype.name)
def test_a_row_per_block_leaves_registers_for_the_rows_in_work(dtype: DataType, is_softmax: bool, columns: int) -> None:
    facts = facts_of(4096, columns, dtype, is_softmax)
    params = choose_async_rows(facts, H200, "tma")
    assert isinstance(params, AsyncRowsParams) and params.max_registers is not None
    blocks = tma_blocks_per_sm(facts, H200, params)
    assert blocks >= 1
    assert H200.blocks_per_sm(params.bdimx, tma_registers(facts, H200, params), 0) >= blocks
    assert needed_registers(facts, params) <= tma_registers(facts, H200, params)
    assert params.batches * params.bdimx * params.vector_elems >= columns


@pytest.mark.parametrize(
    ("columns", "fill", "max_registers", "rows"),
    [
        (4096, "whole", 255, 10),  # short rows: many in work with what the compiler takes without a limit
        (8192, "whole", 255, 5),
        (9216, "whole", 64, 3),  # without a limit the compiler may take more than 288 threads can have
        (10000, "leading", 64, 3),  # a limit where without one there would be fewer than three
        (16384, "partial", 32, 4),  # without bounds there would be two
        (32768, "partial", 32, 2),
        (65536, "whole", 64, 1),  # one with or without
        (81920, "partial", 96, 1),
    ],
)
def test_a_row_per_block_has_no_bounds_where_enough_rows_are_in_work_without(columns: int, fill: str, max_registers: int, rows: int) -> None:
    """A layer norm of bf16 without weights, whose thread needs 48 registers for 32 elements without bounds, and 32 with them."""
    facts = facts_of(4096, columns, DataType.BFloat16, is_softmax=False)
    params = choose_async_rows(facts, H200, "tma")
    assert isinstance(params, AsyncRowsParams)
    assert (params.fill, params.max_registers, tma_blocks_per_sm(facts, H200, params)) == (fill, max_registers, rows)


def test_long_rows_have_no_bounds_where_two_are_in_work() -> None:
    facts = facts_of(4096, 12288, is_softmax=False)
    params = choose_async_rows(facts, H200, "tma")
    assert isinstance(params, AsyncRowsParams)
    assert (params.batches, params.fill, params.max_registers, tma_blocks_per_sm(facts, H200, params)) == (4, "whole", 40, 2)


def test_bounds_are_kept_for_other_sizes_and_what_is_known_of_them_is_not() -> None:
    """Params without bounds are made for sizes that they hold for; the same params with bounds hold for any."""
    facts = facts_of(4096, 4096, DataType.BFloat16)
    params = choose_async_rows(facts, H200, "tma")
    assert isinstance(params, AsyncRowsParams) and params.fill == "whole"
    shorter = facts_of(4096, 4088, DataType.BFloat16)
    assert params.filled(shorter).fill == "leading" and params.filled(facts_of(4096, 1024, DataType.BFloat16)).fill == "partial"
    assert replace(params, fill="partial").filled(facts).fill == "partial"


@pytest.mark.parametrize("variant", ["tma", "specialized"])
def test_a_forced_way_shares_a_kernel_among_rows_that_end_anywhere_in_their_last_part(variant: str) -> None:
    """(2048, 4096), (2056, 4096) and (2056, 4088) share one, as they do when nothing is forced; other lengths have their own."""
    shapes = ((2048, 4096), (2056, 4096), (2056, 4088), (2056, 4104))
    made = [choose_rows(facts_of(*shape, DataType.BFloat16), H200, is_loadable=True, way=variant)[0] for shape in shapes]
    assert made[0] == made[1] == made[2] != made[3]
    assert isinstance(made[0], AsyncRowsParams) and made[0].fill == "leading"


@pytest.mark.parametrize("recipe, way", [(NvFp4("128x4"), AsyncRowsParams), (NvFp4(), AsyncRowsParams), (Mx(layout="128x4"), PersistentParams)], ids=str)
def test_rows_that_become_4_bits_in_blocks_come_by_tma(recipe: Recipe, way: type) -> None:
    """RMS norm + NVFP4 of 16384 x 4096 on one H200: 0.79 of a copy by TMA and 0.70 in registers; + MXFP8: 0.88 and 0.92."""
    fd = _definition(recipe, "rms_norm", ((DataType.BFloat16, 2, True), (DataType.BFloat16, 1, True)), 1e-5)
    (made,) = programs(fd, [(16384, 4096), (4096,)], H200)
    assert made.params.startswith(way.__name__)
