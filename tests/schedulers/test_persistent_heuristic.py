"""Params of normalizations: registers, clusters, shared memory, rows read again; limits, reuse, and no cliffs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from quick import LINES_OF_A_MILLISECOND, lines_run
from weft.arch import A100, B200, H100, H200, MAX_BLOCK_Z, MAX_GRID
from weft.schedulers.facts import PersistentFacts
from weft.schedulers.persistent_heuristic import choose, choose_with_trace, every_candidate
from weft.schedulers.cost.parts import LOOP_REGISTERS, THREAD_REGISTERS
from weft.schedulers.persistent_params import Candidate, PersistentParams, RowsOf

CHIPS = (A100, H100, H200, B200)
by_name = pytest.mark.parametrize("arch", CHIPS, ids=lambda a: a.name)


def rms_norm(m: int, n: int, bits: int = 16) -> PersistentFacts:
    """x * rsqrt(sum(x * x)) * weight over rows of n."""
    return PersistentFacts(
        iteration_elems=m, reduction_elems=n, runs=((False, m), (True, n)), vector_limit_elems=min(128 // bits, n & -n), max_dtype_bits=bits, min_dtype_bits=bits,
        vectorizable_inputs=1, input_bits=bits, late_input_bits=0, output_bits=bits, broadcast_operand_bits=bits, broadcast_operands=1,
        persistent_bits=n * bits, projected_bits=n * bits, recompute_instructions=1, recompute_has_exact_exp=False, passes=2, reductions=1, accumulator_bits=32,
        instructions=7, mufu=0, has_exp=False, has_rng=False, min_vector_elems=1,
    )  # fmt: skip


def softmax(m: int, n: int, bits: int = 16) -> PersistentFacts:
    return replace(
        rms_norm(m, n, bits), broadcast_operand_bits=0, broadcast_operands=0, persistent_bits=n * 32, recompute_instructions=4, recompute_has_exact_exp=bits > 16,
        passes=3, reductions=2, accumulator_bits=64, instructions=8, mufu=1, has_exp=True,
    )  # fmt: skip


def layer_norm(m: int, n: int, bits: int = 16) -> PersistentFacts:
    return replace(
        rms_norm(m, n, bits), broadcast_operand_bits=2 * bits, broadcast_operands=2, passes=3, reductions=2, accumulator_bits=64, instructions=12,
    )  # fmt: skip


FUSIONS = (rms_norm, softmax, layer_norm)
by_fusion = pytest.mark.parametrize("make", FUSIONS, ids=lambda f: f.__name__)


def candidate(make, n: int, arch, bits: int = 16) -> Candidate:
    """What is chosen for 64 Mi elements in rows of n."""
    params, trace = choose_with_trace(make((1 << 26) // n, n, bits), arch)
    assert trace.candidates[0].params == params
    return trace.candidates[0]


# ---- what is kept
@pytest.mark.parametrize(("n", "arch"), [*((n, arch) for n in (2048, 8192) for arch in CHIPS), (128256, H200)], ids=lambda v: getattr(v, "name", str(v)))
def test_what_takes_longer_to_compute_again_than_its_bytes_is_kept(n, arch):
    """A softmax behind a cap: tanh costs some 50 operations for two bytes."""
    made = softmax(1 << 12, n)
    assert choose(made, arch).project_to_inputs
    capped = replace(made, instructions=66, recompute_instructions=57, recompute_has_exact_exp=True, passes=5)
    assert not choose(capped, arch).project_to_inputs
    wide = replace(capped, input_bits=4000)  # where bytes take longer, instructions do not count
    assert RowsOf(wide, arch).recomputed_loss() == 0 < RowsOf(capped, arch).recomputed_loss() < 1


# ---- what is chosen where
@pytest.mark.parametrize(("n", "batches"), [(1024, 2), (2048, 2), (4096, 2), (8192, 4)])
def test_a_few_vectors_per_thread_on_an_h200(n, batches):
    params = choose(rms_norm((1 << 26) // n, n), H200)
    assert (params.storage, params.vector_elems, params.batches, params.kind) == ("register", 8, batches, "2d")
    assert params.threads_x(rms_norm(1, n)) == n // 8 // batches


def test_rows_of_one_warp_need_no_barrier():
    params = choose(softmax(16384, 1024), H200)
    assert params.is_warp_only and params.rows_per_block > 1
    assert not choose(softmax(16384, 4096), H200).is_warp_only


@pytest.mark.parametrize("n", [16, 32, 64, 128])
def test_rows_below_a_warp_share_one(n):
    facts = rms_norm(1 << 18, n)
    params = choose(facts, H200)
    assert params.bdimx is not None and params.bdimx < 32 and not params.pad_to_warp and params.is_warp_only
    assert params.threads_per_block(facts) % 32 == 0
    assert params.bdimx * params.batches * params.vector_elems == n


def test_long_rows_use_few_large_blocks():
    best = candidate(layer_norm, 32768, A100)
    assert best.params.storage == "register" and best.params.cluster_blocks == 1 and best.threads_per_block >= 512
    assert best.blocks_per_sm <= 2


def test_rows_beyond_all_registers_are_read_again():
    for n in (1 << 21, 1 << 22):
        params = choose(rms_norm(64, n), H200)
        assert params.storage == "reread" and params.batches == 0 and params.bdimx >= 256


def test_rows_that_are_read_again_have_registers_for_what_they_load():
    """Words loaded before the first use, and those of any loop: a kernel with fewer spills them."""
    for make in (rms_norm, layer_norm, softmax):
        facts = make(64, 1 << 21)
        params = choose(facts, H200)
        loaded = params.unroll * params.vector_elems * facts.input_bits // 32
        assert params.storage == "reread" and params.max_registers >= loaded + THREAD_REGISTERS + LOOP_REGISTERS
        assert params.max_registers % 8 == 0 and H200.blocks_per_sm(params.bdimx, params.max_registers) >= 1


def test_blocks_share_rows_that_are_read_again_as_clusters_fit():
    """14 clusters of eight blocks surely run at once: two of 16 would run alone, which takes longer than 16 clusters of four."""
    assert [choose(softmax(rows, 3_000_000), H200).cluster_blocks for rows in (1, 14, 16, 28, 33, 66, 67)] == [8, 8, 4, 8, 8, 2, 1]


def test_shared_memory_keeps_rows_that_no_cluster_takes():
    """A grid has at most 65535 blocks along the axis of clusters."""
    params = choose(layer_norm(100_000, 113_000), H200)
    assert params.storage == "shared" and params.cluster_blocks == 1 and params.batches == 0
    assert choose(layer_norm(100_000, 200_000), H200).storage == "reread"


@by_fusion
def test_clusters_take_long_rows(make):
    for n in (40_000, 65_536, 131_072, 200_000):
        facts = make(512, n)
        params = choose(facts, H200)
        assert params.storage == "register" and 1 < params.cluster_blocks <= 16
        assert params.threads_x(facts) * params.cluster_blocks * params.batches * params.vector_elems >= n
        assert choose(facts, A100).cluster_blocks == 1
    assert choose(make(2048, 16384), H200).cluster_blocks == (2 if make is rms_norm else 1)  # with weights before the row
    assert choose(make(2048, 32768), H200).cluster_blocks == {softmax: 2, rms_norm: 4, layer_norm: 1}[make]  # with weights before the row, or two barriers and exponentials


def test_two_barriers_of_a_cluster_are_worth_longer_threads():
    """Source: rows of 64K and 128K on one H200; see `wanted_batches`."""
    assert [choose(make(512, 131072), H200).batches for make in FUSIONS] == [4, 8, 8]
    assert all(choose(softmax(512, n), H200).batches <= 8 for n in range(70_000, 200_001, 10_000))


@pytest.mark.parametrize(
    ("n", "once", "twice"),
    [
        (4096, ("registers", 1), ("registers", 1)), (8192, ("shared", 1), ("registers", 1)), (16384, ("shared", 2), ("shared", 1)),
        (32768, ("shared", 4), ("late", 1)), (65536, ("shared", 8), ("shared", 8)), (131072, ("shared", 16), ("late", 8)),
    ],
)  # fmt: skip
def test_weights_come_before_rows(n, once, twice):
    """In blocks of 256 threads, as many as a row needs: once for rows that wait at one barrier, twice for those that wait at two."""
    for make, expected in ((rms_norm, once), (layer_norm, twice)):
        params = choose(make((1 << 26) // n, n), H200)
        assert (params.weights, params.cluster_blocks) == expected
        assert params.weights == "late" or params.threads_x(make(1, n)) == (128 if make is layer_norm and n == 4096 else 256)
    assert choose(softmax((1 << 26) // n, n), H200).weights == "late"


def test_weights_in_shared_memory_leave_room_for_several_blocks():
    for make, n in ((layer_norm, 16384), (layer_norm, 65536), (rms_norm, 131072)):
        params, trace = choose_with_trace(make(2048, n), H200)
        chosen = trace.candidates[0]
        assert chosen.params == params and params.weights == "shared" and chosen.blocks_per_sm >= 3
        assert chosen.shared_bytes == params.threads_x(make(1, n)) * params.batches * 8 * make(1, n).broadcast_operand_bits // 8


def test_weights_before_odd_rows_are_left_to_later():
    """The ends of a row read them by element."""
    assert choose(phased(rms_norm(4096, 4097)), H200).weights == "late"


@by_fusion
@pytest.mark.parametrize("n", [50_000, 80_000, 100_000, 200_000])
def test_clusters_never_halve_the_loads_in_flight(make, n):
    assert choose(make(512, n), H200).batches >= 4


def test_projection_halves_what_a_long_softmax_keeps():
    assert choose(softmax(2048, 32768), H200).project_to_inputs


def test_random_numbers_are_never_projected():
    facts = replace(softmax(2048, 32768), projected_bits=None, has_rng=True)
    assert not choose(facts, H200).project_to_inputs


def test_a_cheap_projection_is_always_taken():
    facts = replace(rms_norm(2048, 4096), persistent_bits=4096 * 32)
    assert choose(facts, H200).project_to_inputs


def test_few_rows_get_a_block_each():
    facts = rms_norm(8, 4096)
    assert choose(facts, H200).rows_per_block == 1


def test_three_dimensions_keep_threads_within_the_inner_run():
    facts = replace(rms_norm(64, 32 * 1024), runs=((True, 32), (False, 64), (True, 1024)))
    params = next(c.params for c in every_candidate(facts, H200) if c.params.kind == "3d")
    assert params.bdimz * params.outer_batches * params.cluster_blocks >= 32 and params.threads_x(facts) * params.batches * params.vector_elems >= 1024
    assert params.bdimz <= 64


def test_four_bit_rows_fill_whole_bytes():
    facts = replace(rms_norm(4096, 4096), min_dtype_bits=4, min_vector_elems=2, vector_limit_elems=2)
    assert choose(facts, H200).vector_elems == 2


# ---- reuse
def test_rms_norm_shapes_that_share_a_kernel():
    first = choose(rms_norm(2048, 4096), H200)
    assert choose(rms_norm(2056, 4096), H200) == first == choose(rms_norm(2056, 4088), H200)
    others = choose(rms_norm(2056, 4104), H200), choose(rms_norm(2048, 1280), H200)
    assert first not in others and others[0] != others[1]


def test_odd_rows_say_which_batches_are_full():
    """Not wider ones, to which the bounds cost nothing."""
    fills = {n: choose(replace(rms_norm(2048, n), vector_limit_elems=1), H200).fill for n in (4096, 4093)}
    assert fills == {4096: "whole", 4093: "leading"}
    assert choose(rms_norm(2048, 4096), H200).fill == "partial"


@by_name
def test_the_number_of_rows_does_not_make_new_kernels(arch):
    """From a few rounds of blocks on, all row counts share a kernel."""
    for make in (rms_norm, softmax):
        for n in (1024, 4096, 8192):
            assert len({choose(make(m, n), arch) for m in range(8192, 60000, 1111)}) == 1


@by_name
def test_long_rows_not_in_registers_share_a_kernel_for_all_lengths(arch):
    params = {choose(rms_norm(512, n), arch) for n in range(1 << 21, 1 << 23, 1 << 19)}
    assert {p.storage for p in params} == {"reread"} and len(params) <= 2


def test_choices_are_pure():
    """The same facts give the same params, whatever was asked before."""
    cases = [(make(m, n), arch) for make in FUSIONS for m, n in ((4096, 4096), (64, 100_000), (1 << 20, 101)) for arch in CHIPS]
    first = [choose(facts, arch) for facts, arch in cases]
    assert first == [choose(facts, arch) for facts, arch in reversed(cases)][::-1]


# ---- properties
def check_legal(params: PersistentParams, facts: PersistentFacts, arch) -> None:
    """A block can be launched, and its threads hold the row."""
    threads = params.threads_per_block(facts)
    launched = -(-threads // 32) * 32
    assert 1 <= threads <= arch.max_threads_per_block
    assert threads % 32 == 0 or threads < 32 or facts.iteration_elems < 32
    assert params.vector_elems <= max(facts.vector_limit_elems, facts.min_vector_elems)
    assert params.vector_elems * facts.max_dtype_bits <= 128 or params.vector_elems == facts.min_vector_elems
    assert 24 <= params.max_registers <= arch.max_registers_per_thread
    assert params.max_registers * launched <= arch.registers_per_block
    assert arch.blocks_per_sm(launched, params.max_registers) >= 1
    assert params.cluster_blocks <= arch.max_cluster_blocks and params.cluster_blocks & (params.cluster_blocks - 1) == 0
    assert params.cluster_blocks == 1 or facts.iteration_elems <= MAX_GRID[1] and params.rows_per_block == 1
    assert params.bdimz <= MAX_BLOCK_Z
    assert not (params.project_to_inputs and facts.projected_bits is None)
    assert params.is_warp_only == (params.threads_x(facts) * params.bdimz <= 32)
    kept_bits = facts.projected_bits if params.project_to_inputs else facts.persistent_bits
    row = params.vector_elems * params.threads_x(facts)
    if params.storage == "register":
        if params.kind == "3d":
            along, across = (params.cluster_blocks, 1) if params.along_run else (1, params.cluster_blocks)
            assert row * params.batches * along >= facts.inner_run_elems and params.bdimz * params.outer_batches * across >= facts.outer_run_elems
        else:
            assert row * params.batches * params.cluster_blocks >= facts.reduction_elems
        assert kept_bits / 32 / (params.threads_x(facts) * params.bdimz * params.cluster_blocks) <= params.max_registers
        assert params.unroll == 1
    else:
        assert params.bdimx is not None and params.unroll >= 1 and params.batches == 0
    if params.storage == "shared":
        whole_loops = -(-facts.reduction_elems // (row * params.unroll * params.cluster_blocks)) * row * params.unroll
        assert kept_bits / facts.reduction_elems * whole_loops / 8 <= arch.shared_per_block_optin_bytes


@by_name
def test_random_facts_give_legal_params(arch):
    rng = random.Random(3)
    for _ in range(600):
        n = rng.choice([rng.randint(1, 300), rng.randint(300, 9000), rng.randint(9000, 400_000), rng.randint(400_000, 3_000_000)])
        n = n // 8 * 8 or 8 if rng.random() < 0.6 else n
        m = rng.choice([1, 7, 100, 2048, 16384, 70_000, 1 << 20])
        bits = rng.choice([16, 32, 64])
        facts = rng.choice(FUSIONS)(m, n, bits)
        facts = replace(
            facts, input_bits=bits * rng.randint(0, 4), vectorizable_inputs=rng.randint(0, 4), passes=rng.randint(2, 4), instructions=rng.randint(3, 60),
            projected_bits=rng.choice([None, facts.projected_bits, 2 * facts.projected_bits]), has_rng=rng.random() < 0.2,
        )  # fmt: skip
        if rng.random() < 0.2:
            outer = rng.choice([2, 5, 32, 100])
            facts = replace(
                facts, reduction_elems=n * outer, runs=((True, outer), (False, m), (True, n)), persistent_bits=facts.persistent_bits * outer,
                projected_bits=facts.projected_bits and facts.projected_bits * outer,
            )  # fmt: skip
        params, trace = choose_with_trace(facts, arch)
        check_legal(params, facts, arch)
        assert trace.candidates[0].params == params


@by_fusion
@pytest.mark.parametrize("bits", [16, 32])
def test_what_is_said_of_the_rows_length_holds_for_every_vector(make, bits):
    """fill "whole": every vector of every thread exists; "leading": those of all batches but the last do, as far as the row's end is concerned."""
    seen = set()
    for n in [*range(1, 700), *range(701, 70_000, 211)]:
        facts = make(64, n, bits)
        params = choose(facts, H200)
        seen.add(params.fill)
        if params.fill == "partial":
            continue
        vectors = -(-n // params.vector_elems)
        share = -(-vectors // params.cluster_blocks)
        batch = -(-share // params.batches)
        threads = params.threads_x(facts) if params.pad_to_warp else batch
        batches = params.batches if params.fill == "whole" else params.batches - 1
        last = (batches - 1) * batch + threads  # one beyond the largest position in a block's share
        assert last <= share and (params.cluster_blocks - 1) * share + last <= vectors, (n, params)
        assert params.fill != "whole" or threads == batch, (n, params)
    assert "leading" in seen and "partial" in seen


@by_name
@by_fusion
@pytest.mark.parametrize("bits", [16, 32])
def test_no_width_starves(arch, make, bits):
    """Rows of 100 to 200,000 elements, 64 Mi in all, multiples of eight and odd ones: lanes that hold data, warps and bytes in flight stay above a floor."""
    widths = [*range(104, 1000, 8), *range(101, 1000, 10), *range(1000, 200_000, 8 * 97), *range(1001, 200_000, 2 * 499)]
    for n in widths:
        best = candidate(make, n, arch, bits)
        assert best.lane_fraction > 0.7 and best.warps_per_sm >= 15, n
        assert best.bytes_in_flight_per_sm > 12.5 * 1024, n


@by_fusion
@pytest.mark.parametrize("n", [1000, 4096, 8192, 16384, 40_000, 65_536, 131_072])
def test_odd_widths_keep_lanes_and_half_of_the_bytes_in_flight(make, n):
    """One element more makes the accesses narrow; a thread then has more of them. Rows stay where they were: in registers, of one block or of a cluster."""
    even, odd = candidate(make, n, H200), candidate(make, n + 1, H200)
    assert odd.params.vector_elems == 1 and odd.lane_fraction > 0.9
    assert odd.params.storage == even.params.storage == "register"
    assert odd.bytes_in_flight_per_sm > 0.25 * even.bytes_in_flight_per_sm and odd.bytes_in_flight_per_sm > 31 * 1024


@by_name
@by_fusion
def test_neighbouring_widths_score_alike(arch, make):
    """Eight elements more never cost a quarter of the score, while rows fit the registers of a block: any eight on one chip, on others those that take a warp more."""
    previous = 0.0
    for n in range(512, 32768, 8):
        if arch is H200 or n % 256 in (0, 8):
            score = candidate(make, n, arch).score
            assert score > 0.75 * previous or arch is not H200 and n % 256 == 0, n
            previous = score


def test_a_choice_is_quick():
    for facts in (rms_norm(2048, 4096), softmax(16384, 1001), layer_norm(512, 100_001), softmax(100_000, 100_000)):
        assert lines_run(lambda: choose(facts, H200)) < LINES_OF_A_MILLISECOND


def test_the_trace_tells_the_candidates_and_the_choice():
    params, trace = choose_with_trace(rms_norm(2048, 4096), H200)
    text = str(trace)
    assert text.count("threads") > 5 and "in the order of: score: lanes that hold data" in text
    assert text.splitlines()[-1] == f"  chosen: {params}"
    long = str(choose_with_trace(rms_norm(2048, 65536), H200)[1])
    assert "a row of more than 65536 bytes is spread over a cluster" in long and "register of 4 blocks" in long
    again = str(choose_with_trace(rms_norm(64, 1 << 21), H200)[1])
    assert "registers cannot hold a row" in again and "predicted fraction of the memory roof" in again


# ---- against measurements
LATE, HELD, SHARED = "late", "registers", "shared"
MEASURED = {  # of a copy, for (blocks, vectors per thread, weights) with their best register limits; generated kernels, one H200, November 2026
    # SHARED, and (1, 8, LATE) of layer norm 32768, are of 21 November: these two were compared in one process
    (rms_norm, 2048): {(1, 1, LATE): 0.94, (1, 1, HELD): 0.95, (1, 2, LATE): 1.02, (1, 2, HELD): 1.03, (1, 4, LATE): 1.02, (1, 4, HELD): 1.03},
    (layer_norm, 2048): {(1, 1, HELD): 0.77, (1, 2, LATE): 0.93, (1, 2, HELD): 0.93, (1, 4, LATE): 0.97, (1, 4, HELD): 0.99},
    (softmax, 2048): {(1, 1, LATE): 0.78, (1, 2, LATE): 1.03, (1, 4, LATE): 1.02},
    (rms_norm, 4096): {(1, 1, HELD): 0.83, (1, 2, LATE): 0.95, (1, 2, HELD): 0.98, (1, 4, LATE): 0.97, (1, 4, HELD): 0.96, (1, 8, HELD): 0.96},
    (layer_norm, 4096): {(1, 1, HELD): 0.74, (1, 2, LATE): 0.92, (1, 2, HELD): 0.90, (1, 4, LATE): 0.96, (1, 4, HELD): 0.96, (1, 8, LATE): 0.92},
    (softmax, 4096): {(1, 1, LATE): 0.75, (1, 2, LATE): 0.98, (1, 4, LATE): 0.98, (1, 8, LATE): 0.98, (2, 2, LATE): 0.72},
    (rms_norm, 8192): {
        (1, 2, HELD): 0.97, (1, 4, LATE): 0.97, (1, 4, HELD): 0.98, (1, 8, LATE): 0.97, (1, 8, HELD): 0.97, (2, 4, HELD): 0.98,
        (1, 4, SHARED): 0.99,
    },
    (layer_norm, 8192): {
        (1, 2, LATE): 0.91, (1, 2, HELD): 0.83, (1, 4, LATE): 0.94, (1, 4, HELD): 0.96, (1, 8, LATE): 0.94, (2, 4, HELD): 0.88,
        (1, 4, SHARED): 0.96,
    },
    (softmax, 8192): {(1, 1, LATE): 0.68, (1, 2, LATE): 0.93, (1, 4, LATE): 0.98, (1, 8, LATE): 0.98, (2, 2, LATE): 0.89, (2, 4, LATE): 0.92},
    (rms_norm, 16384): {
        (1, 4, LATE): 0.97, (1, 8, LATE): 0.96, (1, 8, HELD): 0.97, (2, 4, HELD): 0.98, (4, 2, HELD): 0.98, (4, 4, HELD): 0.97,
        (2, 4, SHARED): 0.99, (1, 8, SHARED): 0.97,
    },
    (layer_norm, 16384): {
        (1, 2, LATE): 0.84, (1, 4, LATE): 0.95, (1, 4, HELD): 0.93, (1, 8, LATE): 0.94, (2, 4, LATE): 0.88, (2, 8, LATE): 0.84,
        (1, 8, SHARED): 0.95, (2, 4, SHARED): 0.95,
    },
    (softmax, 16384): {(1, 2, LATE): 0.86, (1, 4, LATE): 0.97, (1, 8, LATE): 0.96, (2, 4, LATE): 0.97, (2, 8, LATE): 0.96, (4, 4, LATE): 0.86},
    (rms_norm, 32768): {
        (1, 4, LATE): 0.95, (2, 4, LATE): 0.95, (2, 4, HELD): 0.94, (4, 4, LATE): 0.94, (4, 4, HELD): 0.97, (8, 4, HELD): 0.96,
        (4, 4, SHARED): 0.98, (2, 8, SHARED): 0.97,
    },
    (layer_norm, 32768): {
        (1, 4, LATE): 0.85, (1, 8, LATE): 0.90, (2, 4, LATE): 0.87, (2, 8, LATE): 0.84, (4, 4, LATE): 0.85, (4, 4, HELD): 0.79,
        (2, 8, SHARED): 0.90, (4, 4, SHARED): 0.89,
    },
    (softmax, 32768): {(1, 4, LATE): 0.95, (1, 8, LATE): 0.95, (2, 4, LATE): 0.98, (2, 8, LATE): 0.97, (4, 4, LATE): 0.98, (8, 4, LATE): 0.84},
    (rms_norm, 65536): {
        (2, 8, LATE): 0.87, (4, 4, LATE): 0.94, (4, 8, HELD): 0.88, (8, 4, LATE): 0.92, (8, 4, HELD): 0.95, (8, 8, HELD): 0.94,
        (8, 4, SHARED): 0.97, (4, 8, SHARED): 0.96,
    },
    (layer_norm, 65536): {
        (1, 8, LATE): 0.72, (2, 8, LATE): 0.82, (4, 4, LATE): 0.81, (4, 4, HELD): 0.72, (4, 8, LATE): 0.81, (8, 4, LATE): 0.81,
        (8, 4, SHARED): 0.86, (4, 8, SHARED): 0.78,
    },
    (softmax, 65536): {(1, 8, LATE): 0.80, (2, 8, LATE): 0.96, (4, 4, LATE): 0.96, (4, 8, LATE): 0.96, (8, 4, LATE): 0.96, (8, 8, LATE): 0.97},
    (rms_norm, 131072): {
        (4, 8, LATE): 0.85, (8, 4, LATE): 0.92, (8, 4, HELD): 0.82, (8, 8, LATE): 0.89, (16, 4, HELD): 0.88, (16, 8, HELD): 0.89,
        (16, 4, SHARED): 0.97, (8, 8, SHARED): 0.97,
    },
    (layer_norm, 131072): {
        (4, 8, LATE): 0.81, (8, 4, LATE): 0.83, (8, 4, HELD): 0.70, (8, 8, LATE): 0.82, (16, 4, LATE): 0.82, (16, 4, HELD): 0.68,
        (16, 4, SHARED): 0.79, (8, 8, SHARED): 0.78,
    },
    (softmax, 131072): {(4, 8, LATE): 0.92, (8, 4, LATE): 0.94, (8, 8, LATE): 0.95, (16, 4, LATE): 0.90, (16, 8, LATE): 0.95},
}  # fmt: skip


@pytest.mark.parametrize("make, n", MEASURED, ids=lambda v: getattr(v, "__name__", v))
def test_the_choice_is_among_the_best_measured(make, n):
    params, fractions = choose(make((1 << 26) // n, n), H200), MEASURED[make, n]
    assert fractions[params.cluster_blocks, params.batches, params.weights] >= max(fractions.values()) - 0.0101


# ---- rows that begin anywhere
def phased(facts: PersistentFacts) -> PersistentFacts:
    """The facts of tensors whose rows follow one another in memory, from an aligned address on."""
    return replace(facts, phased_limit_elems=128 // facts.max_dtype_bits)


@by_fusion
@pytest.mark.parametrize("n", [65, 127, 257, 1009, 4097, 10007, 16385, 24593, 32767, 65537, 131073])
def test_odd_rows_are_read_in_wide_vectors_as_the_rows_beside_them(make, n):
    rows = (1 << 26) // n
    params, beside = choose(phased(make(rows, n)), H200), choose(make(rows, n // 8 * 8), H200)
    assert params.is_phased and params.vector_elems == 8 and not beside.is_phased
    assert params.threads_x(make(rows, n)) >= 16  # of which each does one element at the ends
    if n > 1000 and beside.weights == "late":
        assert params == replace(beside, is_phased=True, max_registers=params.max_registers, batches=params.batches)
        if params.batches == beside.batches:
            assert beside.max_registers <= params.max_registers <= beside.max_registers + 8 * (params.cluster_blocks > 1)
        else:  # two weights, read word by word: more warps with shorter parts of the row
            assert make is layer_norm and params.batches < beside.batches and params.max_registers <= beside.max_registers


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (phased(rms_norm(1000, 4096)), "rows are aligned"),
        (phased(rms_norm(1000, 4100)), "accesses of 8 bytes are wide enough"),
        (rms_norm(1000, 4097), "strides or addresses are in the way"),
        (phased(rms_norm(1000, 63)), "few vectors"),
        (phased(replace(rms_norm(1000, 4097), min_vector_elems=2)), "no access of one element"),
        (phased(replace(rms_norm(1000, 4097), runs=((True, 17), (False, 1000), (True, 241)))), "rows are in pieces"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_read_from_the_start_of_each_row(facts, why):
    assert not choose(facts, H200).is_phased, why


def test_rows_that_registers_cannot_hold_are_read_again_from_their_start():
    params = choose(phased(rms_norm(1000, 3_000_001)), H200)
    assert params.storage == "reread" and not params.is_phased and params.vector_elems == 1


# ---- few rows
@by_fusion
@pytest.mark.parametrize("arch", (A100, H200), ids=lambda a: a.name)
def test_few_rows_take_as_few_vectors_per_thread_as_blocks_hold_at_once(make, arch):
    for rows in (1, 5, arch.sm_count, 2 * arch.sm_count):
        facts = make(rows, 4096)
        params = choose(facts, arch)
        assert params.batches == 1 and params.rows_per_block == 1
        per_sm = -(-rows // arch.sm_count)
        assert arch.blocks_per_sm(params.threads_per_block(facts), params.max_registers, 0) >= per_sm
        assert params.weights == ("registers" if facts.broadcast_operands else "late")
    assert choose(make(8 * arch.sm_count, 4096), arch).batches > 1


@by_fusion
def test_few_long_rows_are_spread_over_idle_multiprocessors(make):
    for rows, blocks in ((1, 8), (16, 8), (33, 4), (66, 2), (132, 1), (500, 1)):
        params = choose(make(rows, 16384), H200)
        assert params.cluster_blocks == blocks or rows > 132 and params.cluster_blocks == (2 if make is rms_norm else 1), rows
        assert params.threads_x(make(rows, 16384)) <= 512
    assert choose(make(132, 32768), H200).cluster_blocks == 2
    assert choose(make(1, 4096), H200).cluster_blocks == choose(make(1, 16384), A100).cluster_blocks == 1


def test_few_rows_share_kernels():
    """Kernels differ for 1, 2 and 4 rows per multiprocessor, not for each number of rows."""
    assert len({choose(layer_norm(rows, 4096), H200) for rows in range(1, 4 * 132 + 1)}) <= 3


def test_weights_come_first_only_where_registers_hold_them():
    params = choose(layer_norm(4 * 132, 16384), H200)
    assert params.weights != "registers" or params.max_registers >= 4 * params.batches * 3 + 16
