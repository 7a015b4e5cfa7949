"""InnerPersistent with rows that TMA loads: the parameters of the template in `async_rows.py`, and a choice of them for each way to keep rows.

Pure: facts and arch in, params out. Which way is taken is decided in `row_ways.py`. Read first: `AsyncRowsParams`, `choose_async_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..arch import Arch
from ..schedule.circular import split_registers
from ..schedule.full_rows import fill_of_parts
from .base import Decline
from .facts import PersistentFacts
from .persistent_heuristic import MIN_REGISTERS, OPERAND_REGISTERS, OVERHEAD_REGISTERS, RANDOM_REGISTERS, WIDE_REGISTERS
from .throughput_heuristic import ceil_div, round_up, vector_elems

ASYNC_THREADS = 128
BULK_BITS = 128
"""A bulk copy moves multiples of 16 bytes."""
MOST_ASYNC_WARPS = 4
MOST_STAGES = 12
MOST_BATCHES = 16
TMA_BATCHES = (4, 8, MOST_BATCHES)
BULK_STORE_REGISTERS = 8
"""Of a thread, for the place of its results in shared memory."""
WIDE_INPUT_REGISTERS = 16
"""Of a thread, for each row input of 32 bits after the first: add + RMS norm spills with 56 registers, and not with 64."""
SMALL_SHARED_BYTES = 1024
"""Barriers, workspaces, alignment of a row per block."""
MOST_GROUP_BATCHES = 8
BLOCKS = ((2, 128), (1, 256), (1, 384), (1, 512))
"""Groups of a block and threads of each, in order of preference. Two groups of 128 on TIDy: with the async threads they are whole warpgroups."""
COMPUTED_BITS = 32
"""Of an element of a row after its load: the compiler keeps what it has unpacked."""
SPECIALIZED_OVERHEAD_REGISTERS = 32
"""Of a compute thread, beside rows and weights: stages, phases, addresses of the loop over rows, and what it computes with."""
MOST_SHARED_REGISTERS = 248
"""Of a thread, from which on there is nothing to move from async threads to the others."""


@dataclass(frozen=True, slots=True)
class AsyncRowsParams:
    """A schedule of a normalization whose rows TMA loads; equal params (with equal structure, index type and device) mean the same kernel.

    kind: "tma" or "specialized". bdimx: threads of a row. groups: compute groups of a block, on TIDy (1: along TIDx). grouped_rows: rows that a group takes
    at once. blocks: of the grid, which stay. stages: per group. async_warps: roles that share the inputs. registers: of async and compute threads.
    is_stored_in_bulk: results leave through shared memory. project_to_inputs, vector_elems, batches, fill: as for rows in registers.
    """

    kind: str
    project_to_inputs: bool
    vector_elems: int
    batches: int
    bdimx: int
    groups: int = 1
    grouped_rows: int = 1
    blocks: int = 0
    stages: int = 1
    async_warps: int = 1
    registers: tuple[int, int] | None = None
    is_stored_in_bulk: bool = False
    max_registers: int | None = None
    fill: str = "partial"

    def filled(self, facts: PersistentFacts) -> AsyncRowsParams:
        """Return the params with `fill` for rows of these sizes.

        A row per block keeps its bounds: in the straight code without them the compiler keeps what it has unpacked (layer norm of bf16: 62 registers for 40).
        """
        if self.kind == "tma":
            return self
        return replace(self, fill=fill_of_parts(facts.reduction_elems // self.vector_elems, self.batches, self.bdimx))


def choose_async_rows(
    facts: PersistentFacts, arch: Arch, kind: str, *, async_warps: int = 0, is_stored_in_bulk: bool = False, groups: int = 0
) -> AsyncRowsParams | Decline:  # fmt: skip
    """Return params of kind "tma" or "specialized", or why there are none.

    async_warps: 0 for one per input, up to 4. groups: of a specialized block; 0 for as many as suit the row.
    """
    reason = why_no_bulk_copy(facts, arch)
    if reason:
        return Decline(reason)
    if kind == "tma":
        return row_per_block(facts, arch, is_stored_in_bulk)
    return specialized_rows(facts, arch, async_warps, is_stored_in_bulk, groups)


def why_no_bulk_copy(facts: PersistentFacts, arch: Arch) -> str:
    """Return why no bulk copy can bring rows of these facts; empty when one can."""
    if not arch.has_tma:
        return f"{arch.name} has no TMA"
    if all(is_reduced for is_reduced, _ in facts.runs):
        return "all axes are reduced: there is one row"
    if not facts.input_bits:
        return "no input has rows of its own that could be loaded"
    if len(facts.runs) > 2:
        return "the reduced axes are in several runs"
    if _vector(facts, arch) * facts.max_dtype_bits < BULK_BITS or facts.reduction_elems * facts.min_dtype_bits % BULK_BITS:
        return "the bytes of a row are no multiple of 16"
    return ""


def row_per_block(facts: PersistentFacts, arch: Arch, is_stored_in_bulk: bool) -> AsyncRowsParams | Decline:
    """Return params of kind "tma": the fewest batches with which a multiprocessor has two rows in work, and as many registers as leave it these rows."""
    row_bytes, staging_bytes = _row_bytes(facts, is_stored_in_bulk)
    if row_bytes + staging_bytes > _usable_shared_bytes(arch):
        return Decline(f"a row of {row_bytes} bytes does not fit into shared memory")
    found = [(tma_blocks_per_sm(facts, arch, params), params) for params in _rows_per_block(facts, arch, is_stored_in_bulk)]
    if not found:
        return Decline("a row is too long for the registers of a block")
    most = min(2, max(blocks for blocks, _ in found))
    blocks, params = next((blocks, params) for blocks, params in found if blocks >= most)
    registers = arch.registers_per_thread(max(1, blocks) * params.bdimx)
    return replace(params, max_registers=registers if registers < 8 else registers // 8 * 8).filled(facts)


def _rows_per_block(facts: PersistentFacts, arch: Arch, is_stored_in_bulk: bool) -> Iterator[AsyncRowsParams]:
    """Params of kind "tma" with the registers that the row needs, those that compute no exponential twice first."""
    vector = _vector(facts, arch)
    vectors = facts.reduction_elems // vector
    for is_projected in dict.fromkeys((_is_projected(facts) and not facts.recompute_has_exact_exp, _is_projected(facts))):
        kept_bits = (facts.projected_bits if is_projected else facts.persistent_bits) or 0
        for batches in dict.fromkeys(min(b, max(1, ceil_div(vectors, arch.warp_threads))) for b in TMA_BATCHES):
            bdimx = round_up(ceil_div(vectors, batches), arch.warp_threads)
            kept = ceil_div(batches * vector * kept_bits, 32 * facts.reduction_elems)
            needed = registers_for_row(facts, kept, is_stored_in_bulk)
            if bdimx <= arch.max_threads_per_block and needed <= arch.registers_per_thread(bdimx):
                yield AsyncRowsParams("tma", is_projected, vector, batches, bdimx, is_stored_in_bulk=is_stored_in_bulk, max_registers=needed)


def tma_blocks_per_sm(facts: PersistentFacts, arch: Arch, params: AsyncRowsParams) -> int:
    """Blocks of kind "tma", which have a row each, that a multiprocessor has in work."""
    shared = sum(_row_bytes(facts, params.is_stored_in_bulk)) + SMALL_SHARED_BYTES
    return arch.blocks_per_sm(params.bdimx, params.max_registers or arch.max_registers_per_thread, shared)


def registers_for_row(facts: PersistentFacts, kept: int, is_stored_in_bulk: bool = False) -> int:
    """Registers of a thread that keeps `kept` of them for its part of a row, with what it needs beside as in `persistent_heuristic`."""
    beside = WIDE_REGISTERS if facts.max_dtype_bits >= 32 else OVERHEAD_REGISTERS
    inputs = WIDE_INPUT_REGISTERS * (facts.vectorizable_inputs - 1) if facts.max_dtype_bits >= 32 else 0
    operands = inputs + OPERAND_REGISTERS * facts.broadcast_operands + RANDOM_REGISTERS * facts.has_rng + BULK_STORE_REGISTERS * is_stored_in_bulk
    return max(MIN_REGISTERS, round_up(kept + beside + operands, 8))


def specialized_rows(facts: PersistentFacts, arch: Arch, async_warps: int, is_stored_in_bulk: bool, groups: int) -> AsyncRowsParams | Decline:
    """Return params of kind "specialized": two groups where the row is short enough, as many stages as fit."""
    row_bytes, staging_bytes = _row_bytes(facts, is_stored_in_bulk)
    vector = _vector(facts, arch)
    warps = async_warps or max(1, min(MOST_ASYNC_WARPS, facts.vectorizable_inputs))
    for count, bdimx in BLOCKS:
        batches = ceil_div(facts.reduction_elems // vector, bdimx)
        stages = min(MOST_STAGES, (_usable_shared_bytes(arch) - count * staging_bytes) // (count * row_bytes))
        has_own_stores = count == 1 or not is_stored_in_bulk or vector * facts.min_dtype_bits >= BULK_BITS  # each group's staged row starts at 16 bytes
        if has_own_stores and groups in (0, count) and batches <= (MOST_GROUP_BATCHES if count > 1 else MOST_BATCHES) and stages >= 2:
            compute = count * bdimx
            each = arch.registers_per_thread(compute + ASYNC_THREADS)
            registers = split_registers(each, compute, ASYNC_THREADS) if each < MOST_SHARED_REGISTERS else None
            if _held_registers(facts, vector, batches) > (registers[1] if registers else each):
                continue
            made = AsyncRowsParams(
                "specialized", _is_projected(facts), vector, batches, bdimx, count, 1, arch.sm_count, stages, warps, registers, is_stored_in_bulk,
            )  # fmt: skip
            return made.filled(facts)
    many = f" in {groups} group{'s' * (groups > 1)}" if groups else ""
    return Decline(f"two rows of {row_bytes} bytes do not fit into shared memory, or one not into the registers of a block{many}")


def _held_registers(facts: PersistentFacts, vector: int, batches: int) -> int:
    """Registers of a compute thread: its part of a row in the type that it computes in, that of the weights, which it reads once, and the rest.

    Source: one H200, November 2026: RMS norm of 24K float32 (144 and the rest, of 160) is 0.93 of a copy; of 40K bf16 (168 and the rest) 0.61.
    """
    bits = max(COMPUTED_BITS, facts.input_bits) + facts.broadcast_operand_bits
    return ceil_div(batches * vector * bits, 32) + SPECIALIZED_OVERHEAD_REGISTERS + 2 * RANDOM_REGISTERS * facts.has_rng


def _vector(facts: PersistentFacts, arch: Arch) -> int:
    return vector_elems(facts.vector_limit_elems, facts.max_dtype_bits, facts.min_vector_elems, arch.max_vector_bits)


def _row_bytes(facts: PersistentFacts, is_stored_in_bulk: bool) -> tuple[int, int]:
    """Return the bytes of a row of all inputs, and those of a row of all outputs that leave through shared memory."""
    return facts.reduction_elems * facts.input_bits // 8, facts.reduction_elems * facts.output_bits // 8 if is_stored_in_bulk else 0


def _usable_shared_bytes(arch: Arch) -> int:
    """What barriers, workspaces and alignment leave."""
    return arch.shared_per_block_optin_bytes - 4096


def _is_projected(facts: PersistentFacts) -> bool:
    return facts.projected_bits is not None and facts.projected_bits <= facts.persistent_bits
