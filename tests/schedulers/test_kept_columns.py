"""Which kernels keep columns in registers, and which of them is taken: pure arithmetic on facts."""

from __future__ import annotations

import dataclasses

import pytest

from weft.arch import A100, B200, H100, H200, LINE_BYTES, Arch
from weft.schedulers.arithmetic import PORTABLE_CLUSTER_BLOCKS, tree_workspace_bytes
from weft.schedulers.facts import PersistentFacts
from weft.schedulers.kept_columns import columns_in_registers, kept_candidates

SHAPES = [(4096, 16384), (2048, 32768), (1024, 65536), (256, 262144), (150, 400000), (3000, 20000), (700, 100000), (96, 300000)]


def softmax_down(rows: int, columns: int, bits: int = 16) -> PersistentFacts:
    """Softmax over the first axis of a matrix."""
    return PersistentFacts(
        iteration_elems=columns, reduction_elems=rows, runs=((True, rows), (False, columns)), vector_limit_elems=128 // bits, max_dtype_bits=bits,
        min_dtype_bits=bits, vectorizable_inputs=1, input_bits=bits, late_input_bits=0, output_bits=bits, broadcast_operand_bits=0, broadcast_operands=0,
        persistent_bits=32 * rows, projected_bits=bits * rows, recompute_instructions=4, recompute_has_exact_exp=False, passes=3, reductions=2,
        accumulator_bits=64, instructions=8, mufu=1, has_exp=True, has_rng=False, min_vector_elems=1,
    )  # fmt: skip


@pytest.mark.parametrize("arch", [A100, H100, H200, B200], ids=lambda a: a.name)
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_every_candidate_fits_the_chip(rows: int, columns: int, bits: int, arch: Arch) -> None:
    """All rows have a place, several blocks share a multiprocessor, and every multiprocessor has a block."""
    facts = softmax_down(rows, columns, bits)
    for p in kept_candidates(facts, arch):
        threads = p.bdimx * p.bdimy
        shared = 2 * tree_workspace_bytes(threads, p.vector_elems, facts.accumulator_bits)
        assert p.batches * p.bdimy * p.cluster_blocks >= rows and p.cluster_blocks <= min(p.bdimy, arch.max_cluster_blocks)
        assert arch.blocks_per_sm(threads, p.max_registers, shared) >= 2
        assert -(-columns // (p.vector_elems * p.bdimx)) * p.cluster_blocks >= arch.sm_count
        assert p.unswitch == (p.batches * p.bdimy * p.cluster_blocks == rows)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_blocks_read_whole_lines_and_clusters_are_small(rows: int, columns: int, bits: int) -> None:
    """A block that reads half a line of each row leaves the other half to another block: 0.80 to 0.84 of a copy for 0.90 to 0.93 on an H100. Only where a
    cluster would exchange too much it does."""
    found = kept_candidates(softmax_down(rows, columns, bits), H100)
    params = columns_in_registers(softmax_down(rows, columns, bits), H100)
    assert params is not None and params == found[0] and params.storage == "register" and params.cluster_blocks <= PORTABLE_CLUSTER_BLOCKS
    has_whole_lines = [p for p in found if p.bdimx * p.vector_elems * bits >= 8 * LINE_BYTES]
    assert params in has_whole_lines or not has_whole_lines and bits == 16 and rows > 2048
    assert params.cluster_blocks == 1 or params.bdimx * params.vector_elems * params.cluster_blocks <= 256


def test_what_is_not_kept() -> None:
    """Columns of a few elements or of too many, narrow accesses, and columns for a part of the chip only."""
    kept = softmax_down(1024, 65536)
    assert kept_candidates(kept, H100)
    for other in (
        softmax_down(63, 8 * 131), softmax_down(16385, 65536), softmax_down(64, 8 * 131), dataclasses.replace(kept, vector_limit_elems=4),
        dataclasses.replace(kept, projected_bits=None),
    ):  # fmt: skip
        assert not kept_candidates(other, H100) and columns_in_registers(other, H100) is None


@pytest.mark.parametrize("arch", [A100, H200, B200], ids=lambda a: a.name)
@pytest.mark.parametrize(("rows", "bits", "vector"), [(1, 16, 8), (16, 16, 4), (19, 16, 4), (63, 16, 1), (1, 32, 4), (19, 32, 4), (63, 32, 1)])
def test_short_columns_are_in_one_thread(rows: int, bits: int, vector: int, arch: Arch) -> None:
    """As many neighbouring columns as its registers hold, where all multiprocessors have a block; threads exchange nothing."""
    (found,) = kept_candidates(softmax_down(rows, 1 << 21, bits), arch)
    assert (found.vector_elems, found.batches, found.bdimy, found.cluster_blocks, found.storage) == (vector, rows, 1, 1, "register")
    assert arch.blocks_per_sm(found.bdimx, found.max_registers, 0) >= 4
    few = softmax_down(rows, (arch.sm_count - 1) * found.bdimx, bits)
    assert not kept_candidates(few, arch)
