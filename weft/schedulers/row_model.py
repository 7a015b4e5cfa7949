"""Predicts which fraction of the memory bandwidth each way to keep rows reaches: a model of bytes in flight, waves and registers.

Each limit is the time of a row's bytes at a multiprocessor's share of the memory, over the time of something else, and the fraction of the roof is near the
smallest of these ratios, below it where two are alike (`Fitted.sharpness`):

    memory   rows in work * transfer / rest       rest: what a row waits for besides its bytes
    issue    transfer / time to issue the row's instructions
    launch   transfer / least time between two blocks of a multiprocessor
    flight   bytes requested at once / bytes that must be in flight

Rows in work: blocks of a multiprocessor (registers, tma), compute groups (specialized, whose rows come while others are computed). What parts take is in
`cost/parts.py`, what belongs to a chip in `arch.py`. Pure arithmetic. Read first: `predicted_registers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.blocks import BARRIERS_OF_A_GROUP, meets_in_shared
from ..arch import SUB_PARTITIONS, Arch
from .async_rows_heuristic import AsyncRowsParams, registers_for_row, tma_blocks_per_sm, tma_registers
from .cost.parts import (
    ACCESS_INSTRUCTIONS,
    FITTED,
    MUFU_CLOCKS,
    OP_INSTRUCTIONS,
    RANDOM_INSTRUCTIONS,
    RESULT_INSTRUCTIONS,
    STEP_INSTRUCTIONS,
    Fitted,
    alone_factor,
    balance,
    barrier_clocks,
    fold_clocks,
)
from .facts import PersistentFacts
from .persistent_params import Candidate
from .arithmetic import ceil_div

L1_PART = 0.75
"""Fraction of the L1 not used as shared memory that can hold weights, because rows go through it, too. An estimate."""


@dataclass(frozen=True)
class Running:
    """How a way runs. rows: rows (or parts of rows) in flight per multiprocessor. share: fraction of a row in one block. threads: of a row in one block.
    batches: vectors per thread. runs: runs of a row in which a thread has vectors; run_threads: threads of a block that share a run. has_weights_first: weights
    are loaded while the row is in flight. has_bounds: each batch has a bounds check, and shares no instructions with the one before.
    """

    rows: float
    share: float
    threads: int
    batches: int
    vector: int
    is_projected: bool
    registers: int
    cluster_blocks: int = 1
    shared_bytes: float = 0.0
    has_bounds: bool = True
    has_weights_first: bool = False
    runs: int = 1
    run_threads: int = 1


def in_registers(candidate: Candidate) -> Running:
    """Return the `Running` of the chosen candidate for rows in registers."""
    p = candidate.params
    rows = candidate.blocks_per_sm * p.rows_per_block
    threads = candidate.threads_per_block // p.rows_per_block
    return Running(
        rows, 1 / p.cluster_blocks, threads, p.batches * p.outer_batches, p.vector_elems, p.project_to_inputs, p.max_registers, p.cluster_blocks,
        has_bounds=p.fill == "partial", has_weights_first=p.weights != "late",
        shared_bytes=candidate.blocks_per_sm * candidate.shared_bytes,
        runs=p.outer_batches, run_threads=threads // p.bdimz,
    )  # fmt: skip


def by_tma(params: AsyncRowsParams, facts: PersistentFacts, arch: Arch) -> Running:
    """Return the `Running` of blocks that load a row each."""
    blocks = tma_blocks_per_sm(facts, arch, params)
    registers = tma_registers(facts, arch, params)
    return Running(
        blocks, 1.0, params.bdimx, params.batches, params.vector_elems, params.project_to_inputs, registers,
        shared_bytes=blocks * facts.reduction_elems * facts.input_bits / 8, has_bounds=params.fill == "partial",
    )  # fmt: skip


def specialized(params: AsyncRowsParams) -> Running:
    """Return the `Running` of the compute groups of a block."""
    return Running(params.groups, 1.0, params.bdimx, params.batches, params.vector_elems, params.project_to_inputs, 0, has_bounds=params.fill == "partial")


def predicted_registers(candidate: Candidate, facts: PersistentFacts, arch: Arch, c: Fitted = FITTED) -> float:
    """Return the predicted fraction of memory bandwidth for rows in registers; rows in shared memory or read again have a separate model."""
    if candidate.params.storage != "register":
        return candidate.score
    how = in_registers(candidate)
    cost = _Cost(how, facts, arch, c)
    t = arch.latencies
    exchange = c.cluster * (t.cluster_barrier_clocks + t.cluster_block_clocks * how.cluster_blocks) / cost.clock if how.cluster_blocks > 1 else 0.0
    exchanges = cost.meetings + facts.nested_sums * candidate.params.along_run
    rest = exchanges * exchange + cost.chain_ns() + cost.folds_ns() + cost.weights_ns()
    return _fraction(cost.block_limits(rest), c) * balance(facts.iteration_elems * how.cluster_blocks, arch)


def predicted_tma(params: AsyncRowsParams, facts: PersistentFacts, arch: Arch, c: Fitted = FITTED) -> float:
    """Return the predicted fraction of memory bandwidth for a row per block, by TMA."""
    cost = _Cost(by_tma(params, facts, arch), facts, arch, c)
    rest = arch.latencies.bulk_latency_ns + cost.chain_ns() + cost.folds_ns() + cost.weights_ns()
    return _fraction(cost.block_limits(rest), c) * balance(facts.iteration_elems, arch)


def predicted_specialized(params: AsyncRowsParams, facts: PersistentFacts, arch: Arch, c: Fitted = FITTED) -> float:
    """Return the predicted fraction of memory bandwidth for specialized warps, which read weights once. No params are proposed whose kernel must spill."""
    cost, t = _Cost(specialized(params), facts, arch, c), arch.latencies
    rest = cost.chain_ns() + cost.folds_ns()
    in_flight = params.stages * params.groups * facts.reduction_elems * facts.input_bits / 8
    rows_per_group = ceil_div(facts.iteration_elems, params.blocks * params.groups)
    filled = facts.iteration_elems / (params.blocks * params.groups * rows_per_group)
    lasting = rows_per_group * max(cost.transfer_ns * params.groups, rest)
    needed_bytes = c.latency * t.dram_latency_ns * arch.share_bytes_per_ns
    limits = (params.groups * cost.transfer_ns / rest, cost.transfer_ns / cost.issue_ns(), in_flight / needed_bytes)
    first = t.bulk_latency_ns + c.l2 * t.l2_latency_ns * (facts.broadcast_operands > 0)
    return _fraction(limits, c) * filled * lasting / (lasting + first)


def _fraction(ratios: tuple[float, ...], c: Fitted) -> float:
    return float((1.0 + sum(r**-c.sharpness for r in ratios)) ** (-1.0 / c.sharpness))


class _Cost:
    """Times of a row, or of a block's share of it, in ns."""

    def __init__(self, how: Running, facts: PersistentFacts, arch: Arch, c: Fitted) -> None:
        self.how, self.facts, self.arch, self.c = how, facts, arch, c
        self.clock = arch.clocks_per_ns
        self.warps = how.threads / arch.warp_threads
        self.levels = max(1, facts.passes - 1)
        self.meetings = facts.reductions if facts.nested_sums else self.levels  # in such kernels the reductions are exchanged one after the other
        moved_bits = max(1, facts.input_bits + facts.output_bits)  # 0 if inputs depend only on rows or only on columns and no row is stored
        self.transfer_ns = how.share * facts.reduction_elems * moved_bits / 8 / arch.share_bytes_per_ns
        again = facts.projected_bits is not None and how.is_projected
        ops = facts.instructions + (facts.recompute_instructions if again else 0)
        mufu = facts.mufu + (again and facts.recompute_has_exact_exp)
        accesses = max(1, facts.vectorizable_inputs) + facts.broadcast_operands + (facts.output_bits > 0)
        self.instructions = how.vector * ops * OP_INSTRUCTIONS + accesses * ACCESS_INSTRUCTIONS
        self.bounds = (c.predicate + RANDOM_INSTRUCTIONS * facts.has_rng) * how.has_bounds
        self.mufu = how.vector * mufu * MUFU_CLOCKS / 2

    def chain_ns(self) -> float:
        """Arithmetic time of a row in a block that is alone: the dependency chain of a warp, or the issue slots of its warps."""
        return float(self.how.batches * (self.instructions + self.bounds + self.mufu) * alone_factor(self.warps, self.c.alone) / self.clock)

    def has_weights_in_l1(self) -> bool:
        """True if the blocks of a multiprocessor, except the first ones, find the weights of their parts of a row in L1."""
        if self.facts.iteration_elems <= self.how.rows * self.how.share * self.arch.sm_count:
            return False
        weights = self.facts.reduction_elems * self.facts.broadcast_operand_bits / 8 * min(1.0, self.how.share * self.how.rows)
        return weights <= L1_PART * (self.arch.shared_per_sm_bytes - self.how.shared_bytes)

    def weights_ns(self) -> float:
        """Latency of the weights, which a thread loads after its row, as many vectors at once as its free registers can hold."""
        how, facts, t = self.how, self.facts, self.arch.latencies
        if how.has_weights_first:
            return 0.0
        bits = how.vector * facts.broadcast_operand_bits / max(1, facts.broadcast_operands)
        kept_bits = facts.projected_bits if how.is_projected and facts.projected_bits is not None else facts.persistent_bits
        kept = ceil_div(how.batches * how.vector * kept_bits, 32 * facts.reduction_elems)
        at_once = max(1.0, (how.registers - registers_for_row(facts, kept)) * 32 / bits) if bits else 1.0
        rounds = how.batches * facts.broadcast_operands / at_once
        return rounds * (t.l1_latency_clocks / self.clock if self.has_weights_in_l1() else self.c.l2 * t.l2_latency_ns)

    def folds_ns(self) -> float:
        """Time of the row's reductions, with a barrier each if there are several warps."""
        t = self.arch.latencies
        barrier = barrier_clocks(self.warps, t) if self.warps > 1 else 0.0
        clocks = self.meetings * (fold_clocks(self.how.threads, t) + barrier)
        if self.facts.nested_sums:
            warps = self.how.run_threads / self.arch.warp_threads
            clocks += self.facts.nested_sums * (fold_clocks(self.how.run_threads, t) + (barrier if warps > 1 else 0.0))
        for size in self.facts.group_elems:
            lanes = max(1, size // self.how.vector)
            clocks += self.how.batches * (fold_clocks(lanes, t) + BARRIERS_OF_A_GROUP * barrier * meets_in_shared(size, self.how.vector))
        return float(clocks / self.clock)

    def issue_ns(self) -> float:
        slots = self.how.batches * (max(self.instructions, self.mufu) + self.bounds) + self.levels * RESULT_INSTRUCTIONS + STEP_INSTRUCTIONS
        slots += self.facts.nested_sums * self.how.runs * RESULT_INSTRUCTIONS
        return self.warps / SUB_PARTITIONS * slots / self.clock

    def block_limits(self, rest_ns: float) -> tuple[float, float, float]:
        """Bounds by memory, issue slots and block launches of blocks with a row each."""
        rows = min(self.how.rows, ceil_div(self.facts.iteration_elems * self.how.cluster_blocks, self.arch.sm_count))
        return rows * self.transfer_ns / rest_ns, self.transfer_ns / self.issue_ns(), self.transfer_ns / self.arch.latencies.block_launch_ns
