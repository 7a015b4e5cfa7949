"""How near to the memory roof each way to keep rows gets: a model of bytes in flight, waves and registers, for the choice among them.

The roof is approached as in `throughput_heuristic`: each limit is the time of a row's bytes at a multiprocessor's share of the memory, over the time of
something else, and the fraction is near the smallest of these ratios, below it where two are alike:

    memory   rows in work * transfer / (rest + own part of the transfer)    rest: what a row waits for besides its bytes
    issue    transfer / time to issue the row's instructions
    L2       transfer / time in which L2 gives the row and its weights
    flight   bytes asked for at once / bytes that must be on their way

Rows in work: blocks of a multiprocessor (registers, tma), compute groups (specialized, whose rows come while others are computed). Pure arithmetic.
Read first: `predicted`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arch import Arch
from .async_rows_heuristic import AsyncRowsParams, registers_for_row, tma_blocks_per_sm, tma_registers
from .facts import PersistentFacts
from .persistent_params import Candidate
from .throughput_heuristic import (
    ACCESS_INSTRUCTIONS,
    BLOCK_REDUCTION_INSTRUCTIONS,
    INSTRUCTIONS_PER_OP,
    LAUNCH_NS,
    MUFU_CLOCKS,
    SHARPNESS,
    WARP_INSTRUCTIONS,
    balance,
    bytes_in_flight_per_sm,
    ceil_div,
    clocks_per_ns,
    l2_bytes_per_ns,
    reduction_clocks,
    share_bytes_per_ns,
)

L1_NS = 20.0
"""Latency of an access that hits L1: about 35 clocks."""
L1_PART = 0.75
"""Of what shared memory leaves of a multiprocessor's L1, the part that can hold weights: rows go through it too. An estimate."""


@dataclass(frozen=True)
class Constants:
    """What is fitted to measurements: `python bench/ways.py --fit FILE.json` prints the values that lose least on a file of results.

    latency_ns: of a row in registers; tma_latency_ns: what the barrier of a bulk copy adds. vector_clocks, element_clocks: chain of dependent operations of a
    warp for a vector in one pass. own_transfer: of a lone block over its multiprocessor's share. cluster_ns, cluster_level_ns: what a block of a cluster
    waits for, in all and per reduction. weight_ns: of one vector of a weight that a thread loads from L2 after its row. l2: over the estimate of L2's rate.
    roof, specialized_roof: what the best kernels reach. specialized_chain: of the chain, the part that a compute group of a specialized block cannot hide.
    preference: how much faster a pipeline must be to be taken instead of registers. bounds_instructions: of a warp for a batch that asks in every pass
    whether it exists; random_bounds_instructions: more of them where it draws random numbers, whose rounds it then shares with no other.
    Source: 230 cases on one H200 at a time, in bench/results/ways.json, November 2026.
    """

    roof: float = 1.01
    specialized_roof: float = 0.951
    latency_ns: float = 53.2
    tma_latency_ns: float = 266.0
    vector_clocks: float = 0.259
    element_clocks: float = 8.81
    own_transfer: float = 0.446
    cluster_ns: float = 548.0
    cluster_level_ns: float = 464.0
    weight_ns: float = 62.3
    l2: float = 1.72
    specialized_chain: float = 1.32
    preference: float = 0.0553
    bounds_instructions: float = 47.1
    random_bounds_instructions: float = 69.3


CONSTANTS = Constants()


@dataclass(frozen=True)
class Running:
    """How a way runs.

    rows: in work at once on a multiprocessor (or parts of them). share: part of a row in one block. threads: of a row in one block. batches: vectors of each.
    has_weights_first: they are loaded while the row is on its way. has_bounds: each batch asks whether it exists, and shares nothing with the one before.
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


def in_registers(candidate: Candidate) -> Running:
    """Return how the chosen candidate for rows in registers runs."""
    p = candidate.params
    rows = candidate.blocks_per_sm * p.rows_per_block
    threads = candidate.threads_per_block // p.rows_per_block
    return Running(
        rows, 1 / p.cluster_blocks, threads, p.batches * p.outer_batches, p.vector_elems, p.project_to_inputs, p.max_registers, p.cluster_blocks,
        has_bounds=p.fill == "partial", has_weights_first=p.weights != "late",
        shared_bytes=candidate.blocks_per_sm * candidate.shared_bytes,
    )  # fmt: skip


def by_tma(params: AsyncRowsParams, facts: PersistentFacts, arch: Arch) -> Running:
    """Return how blocks run that load a row each."""
    blocks = tma_blocks_per_sm(facts, arch, params)
    registers = tma_registers(facts, arch, params)
    return Running(
        blocks, 1.0, params.bdimx, params.batches, params.vector_elems, params.project_to_inputs, registers,
        shared_bytes=blocks * facts.reduction_elems * facts.input_bits / 8, has_bounds=params.fill == "partial",
    )  # fmt: skip


def specialized(params: AsyncRowsParams) -> Running:
    """Return how the compute groups of a block run."""
    return Running(params.groups, 1.0, params.bdimx, params.batches, params.vector_elems, params.project_to_inputs, 0, has_bounds=params.fill == "partial")


def predicted_registers(candidate: Candidate, facts: PersistentFacts, arch: Arch, c: Constants = CONSTANTS) -> float:
    """Return the fraction of the roof for rows in registers; rows in shared memory or read again have a model of their own."""
    if candidate.params.storage != "register":
        return candidate.score
    how = in_registers(candidate)
    cost = _Cost(how, facts, arch)
    cluster_ns = c.cluster_ns + c.cluster_level_ns * cost.levels if how.cluster_blocks > 1 else 0.0
    rest = c.latency_ns + cluster_ns + cost.chain_ns(c) + cost.barriers_ns() + cost.weights_ns(c)
    return c.roof * _fraction((*cost.block_limits(rest, c), cost.l2_limit(c))) * balance(facts.iteration_elems * how.cluster_blocks, arch)


def predicted_tma(params: AsyncRowsParams, facts: PersistentFacts, arch: Arch, c: Constants = CONSTANTS) -> float:
    """Return the fraction of the roof for a row per block, by TMA."""
    how = by_tma(params, facts, arch)
    cost = _Cost(how, facts, arch)
    rest = c.latency_ns + c.tma_latency_ns + cost.chain_ns(c) + cost.barriers_ns() + cost.weights_ns(c)
    return c.roof * _fraction((*cost.block_limits(rest, c), cost.l2_limit(c))) * balance(facts.iteration_elems, arch)


def predicted_specialized(params: AsyncRowsParams, facts: PersistentFacts, arch: Arch, c: Constants = CONSTANTS) -> float:
    """Return the fraction of the roof for specialized warps, whose weights are read once. No params are made whose kernel must spill."""
    how = specialized(params)
    cost = _Cost(how, facts, arch)
    rest = c.specialized_chain * cost.chain_ns(c) + cost.barriers_ns()
    in_flight = params.stages * params.groups * facts.reduction_elems * facts.input_bits / 8
    rows_per_group = ceil_div(facts.iteration_elems, params.blocks * params.groups)
    filled = facts.iteration_elems / (params.blocks * params.groups * rows_per_group)
    lasting = rows_per_group * max(cost.transfer_ns * params.groups, rest)
    limits = (params.groups * cost.transfer_ns / rest, cost.transfer_ns / cost.issue_ns(c), in_flight / bytes_in_flight_per_sm(arch))
    first = c.latency_ns + c.tma_latency_ns + c.weight_ns * (facts.broadcast_operands > 0)
    return c.specialized_roof * _fraction(limits) * filled * lasting / (lasting + first)


def _fraction(ratios: tuple[float, ...]) -> float:
    return float((1.0 + sum(r**-SHARPNESS for r in ratios)) ** (-1.0 / SHARPNESS))


class _Cost:
    """Times of a row, or of a block's share of it, in ns."""

    def __init__(self, how: Running, facts: PersistentFacts, arch: Arch) -> None:
        self.how, self.facts, self.arch = how, facts, arch
        self.clock = clocks_per_ns(arch)
        self.warps = how.threads / arch.warp_threads
        self.levels = max(1, facts.passes - 1)
        moved_bits = max(1, facts.input_bits + facts.output_bits)  # none where inputs vary over rows or columns alone and no row is stored
        self.transfer_ns = how.share * facts.reduction_elems * moved_bits / 8 / share_bytes_per_ns(arch)
        again = facts.projected_bits is not None and how.is_projected
        ops = facts.instructions + (facts.recompute_instructions if again else 0)
        mufu = facts.mufu + (again and facts.recompute_has_exact_exp)
        accesses = max(1, facts.vectorizable_inputs) + facts.broadcast_operands + (facts.output_bits > 0)
        self.slots = how.vector * max(ops * INSTRUCTIONS_PER_OP, mufu * MUFU_CLOCKS / 2) + accesses * ACCESS_INSTRUCTIONS
        self.alone = how.vector * (ops * INSTRUCTIONS_PER_OP + mufu * MUFU_CLOCKS / 2) + accesses * ACCESS_INSTRUCTIONS

    def chain_ns(self, c: Constants) -> float:
        """Arithmetic of a row in a block alone: the chain of a warp, or the issue slots of its warps."""
        chain = (c.vector_clocks + c.element_clocks * self.how.vector) * self.facts.passes
        return self.how.batches * max(chain, (self.alone + self.bounds(c)) * self.warps / 4) / self.clock

    def has_weights_in_l1(self) -> bool:
        """True when the blocks of a multiprocessor find the weights of their parts of a row in L1: the first do not."""
        if self.facts.iteration_elems <= self.how.rows * self.how.share * self.arch.sm_count:
            return False
        weights = self.facts.reduction_elems * self.facts.broadcast_operand_bits / 8 * min(1.0, self.how.share * self.how.rows)
        return weights <= L1_PART * (self.arch.shared_per_sm_bytes - self.how.shared_bytes)

    def weights_ns(self, c: Constants) -> float:
        """Latency of the weights, which a thread loads after its row, as many vectors at once as its free registers take."""
        how, facts = self.how, self.facts
        if how.has_weights_first:
            return 0.0
        bits = how.vector * facts.broadcast_operand_bits / max(1, facts.broadcast_operands)
        kept_bits = facts.projected_bits if how.is_projected and facts.projected_bits is not None else facts.persistent_bits
        kept = ceil_div(how.batches * how.vector * kept_bits, 32 * facts.reduction_elems)
        at_once = max(1.0, (how.registers - registers_for_row(facts, kept)) * 32 / bits) if bits else 1.0
        rounds = how.batches * facts.broadcast_operands / at_once
        return rounds * (L1_NS if self.has_weights_in_l1() else c.weight_ns)

    def barriers_ns(self) -> float:
        return self.levels * reduction_clocks(max(1, round(self.warps))) / self.clock

    def bounds(self, c: Constants) -> float:
        """Instructions of the bounds of a batch."""
        return (c.bounds_instructions + c.random_bounds_instructions * self.facts.has_rng) * self.how.has_bounds

    def issue_ns(self, c: Constants) -> float:
        slots = self.how.batches * (self.slots + self.bounds(c)) + self.levels * BLOCK_REDUCTION_INSTRUCTIONS + WARP_INSTRUCTIONS
        return self.warps / 4 * slots / self.clock

    def block_limits(self, rest_ns: float, c: Constants) -> tuple[float, float, float]:
        """Memory, issue and launch of blocks that take a row each; no more rows are in work than there are."""
        rows = min(self.how.rows, ceil_div(self.facts.iteration_elems * self.how.cluster_blocks, self.arch.sm_count))
        memory = rows * self.transfer_ns / (rest_ns + c.own_transfer * self.transfer_ns)
        return memory, self.transfer_ns / self.issue_ns(c), self.transfer_ns / LAUNCH_NS

    def l2_limit(self, c: Constants) -> float:
        """L2 gives the inputs of a row, and its weights where L1 does not keep them."""
        facts = self.facts
        weights = facts.reduction_elems * facts.broadcast_operand_bits / 8
        read = facts.reduction_elems * facts.input_bits / 8 + (0.0 if self.has_weights_in_l1() else weights)
        return self.transfer_ns / (self.how.share * read / (c.l2 * l2_bytes_per_ns(self.arch))) if read else math.inf
