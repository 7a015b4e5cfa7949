"""Parameters of normalizations whose rows are kept in registers, in shared memory, or read again.

Owns `PersistentParams`, the record of a candidate, and what all ways to choose them see of a row. Pure. Read first: `PersistentParams`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..analysis.blocks import lanes_of_blocks, meets_in_shared
from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import SUB_PARTITIONS, WARP_THREADS, Arch
from ..schedule.peel import fill_of_parts, row_vectors
from .facts import PersistentFacts
from .arithmetic import ceil_div, round_up, vectors_along_rows
from .cost.parts import OP_INSTRUCTIONS

NARROW_ACCESS_BITS = 32
"""Bits of an access up to which bounds that are known to hold are left out: each element then needs fewer instructions. With 16-byte vectors the bounds cost
nothing, and the straight code without them makes the compiler spill. Measured: docs/constants.md."""

WARP_MULTIPLE, SHARE_MULTIPLE = WARP_THREADS, 16
"""The vectors of a batch, and the share of each block of a cluster, are rounded up to multiples of these: then every warp begins at a cache line, and every
share at a sector of 32 bytes, even with accesses of two bytes. Sectors that two blocks or two warps write one half each are expensive. Measured:
docs/constants.md."""


@dataclass(frozen=True, slots=True)
class PersistentParams:
    """A schedule of a normalization; equal params (with equal structure, index type and device) mean the same kernel.

    kind: "2d" or "3d". storage: "register", "shared" or "reread". project_to_inputs: keep inputs instead of what is computed from them.
    vector_elems: elements of one access. batches: vectors per thread along the (inner) row, static; 0 if the loop count is known only at launch.
    unroll: vectors whose loads are issued together in such a loop (1 for registers, where all are issued together).
    bdimx: threads of a row; None: ceil(inner row / (vector_elems * batches)) at launch. pad_to_warp: rounded up to whole warps.
    rows_per_block: rows side by side in a block, on TIDy. row_unroll: rows of one thread, loaded together.
    bdimz, outer_batches: 3-D only, threads and static iterations along the outer reduced run.
    is_warp_only: the threads of a row are in one warp, so that no barrier is needed. max_registers: per thread, for the compiler.
    cluster_blocks: blocks of a cluster that share a row (registers, 2-D, one row at a time); they exchange partial results through shared memory. is_phased:
    vectors are aligned in memory although rows are not, so that a row begins and ends inside of one. is_tailed: it only ends inside of one. weights: when
    inputs common to all rows are loaded: "late", after the reductions, or before them into "registers" or, by cp.async, into "shared" memory. block_lanes:
    number of neighbouring lanes that hold one block of neighbours in a row. still_axes: number of innermost loops that form the (inner) row of vectors, 0: all
    of the last reduced run; see `PersistentFacts`. late: when inputs that only the last pass reads are loaded: 0: with the row, 1: all at the start of that
    pass, 2: each vector when it is used. unswitch: one test for the bounds of a thread's vectors along the outer runs ("3d"). fill: which vectors of a row in
    registers are known to exist: "whole": all of every thread; "leading": those of all batches except the last; "partial": none. single_reads: names of inputs
    that are read element by element. access_bits: of the widest access to global memory.
    fewer_passes: dependent reductions are combined into one where possible, with one exchange between threads and blocks; always the case for rows that are
    read again. along_run: the blocks of a cluster divide each (inner) run among them, instead of the set of runs ("3d"). is_copied: cp.async loads rows into
    shared memory, all of a thread's vectors at once ("shared"); otherwise threads load and store them.
    """

    kind: str
    storage: str
    project_to_inputs: bool
    vector_elems: int
    batches: int
    unroll: int
    bdimx: int | None
    pad_to_warp: bool
    rows_per_block: int
    row_unroll: int
    bdimz: int
    outer_batches: int
    is_warp_only: bool
    max_registers: int
    cluster_blocks: int = 1
    fill: str = "partial"
    is_phased: bool = False
    weights: str = "late"
    block_lanes: int = 1
    still_axes: int = 0
    late: int = 0
    unswitch: bool = False
    single_reads: tuple[int, ...] = ()
    fewer_passes: bool = False
    along_run: bool = False
    access_bits: int = MAX_VECTOR_BITS
    is_tailed: bool = False
    is_copied: bool = False

    @property
    def part_multiple(self) -> int:
        """The number of vectors in a batch is a multiple of this, if it is larger."""
        return math.lcm(WARP_MULTIPLE if self.pad_to_warp and self.batches > 1 else 1, self.block_lanes)

    def threads_x(self, facts: PersistentFacts) -> int:
        """Threads of one row at launch."""
        if self.bdimx is not None:
            return self.bdimx
        is_run = self.kind == "3d"
        row = facts.inner_run_elems if is_run else facts.reduction_elems
        is_shared = not is_run or self.along_run
        share = share_of(row_vectors(row, self.vector_elems, self.is_phased), self.cluster_blocks if is_shared else 1)
        threads = round_up(ceil_div(share, self.batches), self.part_multiple)
        return round_up(threads, WARP_MULTIPLE) if self.pad_to_warp else threads

    def fill_of(self, facts: PersistentFacts) -> str:
        """Return `fill` for these sizes; "partial" also where accesses are wider than NARROW_ACCESS_BITS."""
        is_narrow = self.vector_elems * facts.max_dtype_bits <= NARROW_ACCESS_BITS
        if not is_narrow or self.storage != "register" or self.kind != "2d" or facts.reduction_elems % self.vector_elems:
            return "partial"
        vectors, threads = facts.reduction_elems // self.vector_elems, self.threads_x(facts)
        if threads * self.rows_per_block % 32:
            threads = round_up(threads, 32)  # as the launch does
        share = share_of(vectors, self.cluster_blocks)
        return fill_of_parts(vectors, self.batches, round_up(ceil_div(share, self.batches), self.part_multiple), threads, share)

    def threads_per_block(self, facts: PersistentFacts) -> int:
        return self.threads_x(facts) * self.rows_per_block * self.bdimz


def share_of(vectors: int, blocks: int) -> int:
    """Vectors of a row in each of its blocks: all in a single block; in a cluster the last block may have fewer."""
    return vectors if blocks == 1 else round_up(ceil_div(vectors, blocks), SHARE_MULTIPLE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the rows. score: the first criterion of the comparison. kept_registers: registers per thread for its part of the row."""

    params: PersistentParams
    score: float
    lane_fraction: float
    threads_per_block: int
    kept_registers: int
    blocks_per_sm: int
    warps_per_sm: int
    bytes_in_flight_per_sm: float
    shared_bytes: int
    waves: float

    @property
    def key(self) -> tuple[float, int]:
        """The criteria of the comparison; the largest key wins."""
        return round(self.score, 3), -self.threads_per_block

    def __str__(self) -> str:
        p = self.params
        where = p.storage + (f" of {p.cluster_blocks} blocks" if p.cluster_blocks > 1 else "") + (" projected" if p.project_to_inputs else "")
        batches = f"{p.batches}x{p.outer_batches}" if p.kind == "3d" else f"{p.batches}"
        return (
            f"{p.kind} {where} vector {p.vector_elems} batches {batches} threads {self.threads_per_block} ({p.rows_per_block} rows) "
            f"score {self.score:.3f} lanes {self.lane_fraction:.3f} registers {p.max_registers} ({self.kept_registers} kept) "
            f"blocks/SM {self.blocks_per_sm} warps/SM {self.warps_per_sm} in flight {self.bytes_in_flight_per_sm / 1024:.0f} KiB/SM "
            f"shared {self.shared_bytes} bytes waves {self.waves:.1f}"
        )


class RowsOf:
    """What the candidates of one set of facts have in common."""

    def __init__(self, facts: PersistentFacts, arch: Arch) -> None:
        self.facts, self.arch = facts, arch
        self.is_wide = facts.max_dtype_bits >= 32
        self.is_phased, self.vector = vectors_along_rows(facts)
        self.row_vectors = row_vectors(facts.reduction_elems, self.vector, self.is_phased)
        self.block_lanes = lanes_of_blocks((facts.block_elems, *facts.group_elems), self.vector)
        self.share = arch.share_bytes_per_ns
        self.moved_bits = max(1, facts.input_bits + facts.output_bits)
        self.levels = max(1, facts.passes - 1)

    def projections(self) -> tuple[tuple[bool, float], ...]:
        """(is projected, kept bits per element) worth considering."""
        facts = self.facts
        plain = (False, facts.persistent_bits / facts.reduction_elems)
        if facts.projected_bits is None or facts.projected_bits >= facts.persistent_bits:
            return (plain,)
        projected = (True, facts.projected_bits / facts.reduction_elems)
        return (projected, plain) if facts.recompute_has_exact_exp or self.recomputed_loss() else (projected,)

    def recomputed_loss(self) -> float:
        """Part of its time that a projected row loses where instructions take longer than bytes: every pass but the first computes the row again."""
        facts = self.facts
        ops_per_ns = SUB_PARTITIONS * WARP_THREADS * self.arch.clocks_per_ns / OP_INSTRUCTIONS
        once, moved_ns = facts.instructions / ops_per_ns, self.moved_bits / 8 / self.share
        again = once + self.levels * facts.recompute_instructions / ops_per_ns
        return max(0.0, 1.0 - max(once, moved_ns) / again)

    def full_vectors(self) -> int:
        """Vectors with as many bytes as the widest access."""
        return max(1, MAX_VECTOR_BITS // (self.vector * self.facts.max_dtype_bits))

    def workspace_bytes(self, block: int) -> int:
        """Shared memory in which the warps of a block exchange partial results, and threads those of groups, at most."""
        result_bytes = ceil_div(self.facts.accumulator_bits, 8)
        meetings = sum(meets_in_shared(size, self.vector) for size in self.facts.group_elems)
        return round_up((ceil_div(block, 32) * self.levels + block * meetings) * result_bytes, 128)

    def block_multiple(self, batches: int) -> int:
        """The threads of a row are a multiple of this: of a warp, and of the threads of a group where a thread has several vectors."""
        return math.lcm(WARP_THREADS, self.block_lanes if batches > 1 else 1)
