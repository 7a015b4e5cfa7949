"""InnerPersistent with rows loaded by TMA: the parameters of the template in `async_rows.py`, and their choice for each way to keep rows.

Pure: facts and arch in, params out. Which way is taken is decided in `row_ways.py`. Read first: `AsyncRowsParams`, `choose_async_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..analysis.blocks import meets_in_shared
from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import BULK_BYTES, WARP_THREADS, Arch
from ..schedule.circular import MOST_ASYNC_WARPS, MOST_REGISTERS, split_registers
from ..schedule.peel import fill_of_parts
from .base import Decline
from .facts import PersistentFacts
from .persistent_params import WARP_MULTIPLE
from .register_rows import BUSY_REGISTERS, MIN_REGISTERS, OPERAND_REGISTERS, RANDOM_REGISTERS, WIDE_REGISTERS
from .arithmetic import ceil_div, round_up, vector_elems
from .limits import LOOP_THREAD_REGISTERS, MANY_BATCHES, MOST_BATCHES, REGISTER_STEP
from .cost.parts import THREAD_REGISTERS
from ..dtypes import DataType

TILE_ROWS, TILE_STEPS = 128, 4
"""Rows of a scale tile, and how many of them have neighbouring scales."""
TILE_BATCHES, TILE_STAGES, TILE_THREADS = 2, 2, 1024
"""Batches and stages of a block that takes these rows; and the least number of threads in such blocks per multiprocessor."""
ASYNC_THREADS = MOST_ASYNC_WARPS * WARP_THREADS
MOST_STAGES = 12
TMA_BATCHES = (4, 8, MOST_BATCHES)
WIDE_INPUT_ROWS = 2
"""With bounds, rows that a thread keeps for each row input of 32 bits after the first. Read off ptxas: docs/constants.md."""
LEAST_ROWS, MOST_ROWS = 2, 3
BYTES_IN_WORK = 96 * 1024
"""Rows of kind "tma" in flight per multiprocessor: the least and most, and the bytes of all of them."""
USUAL_KEPT = 32
"""Elements per thread up to which the compiler keeps them unpacked. For elements above that a thread needs additional registers: with bounds an eighth of their
registers, without bounds a quarter of their number. Read off ptxas: docs/constants.md."""
WIDE_USUAL_KEPT = 16
"""For types of 32 bits without bounds: number of elements above which that quarter is needed; bounds of the last batch need one more register step. Read off
ptxas: docs/constants.md."""
UNLIMITED_REGISTERS = 72
"""Registers that the compiler takes without a limit for a thread whose row has no bounds checks, with some to spare."""
SMALL_SHARED_BYTES = 1024
"""Shared memory of barriers, workspaces and alignment with a row per block."""
BLOCKS = ((2, 128), (1, 256), (1, 384), (1, 512))
"""Compute groups of a block and threads of each, in order of preference. Two groups of 128 on TIDy: together with the async threads they are whole
warpgroups."""
MOST_SHARED_REGISTERS = MOST_REGISTERS - REGISTER_STEP
"""Registers per thread from which on none can be moved from async threads to compute threads."""


@dataclass(frozen=True, slots=True)
class AsyncRowsParams:
    """A schedule of a normalization whose rows TMA loads; equal params (with equal structure, index type and device) mean the same kernel.

    kind: "tma" or "specialized". bdimx: threads of a row. groups: compute groups of a block, on TIDy (1: along TIDx). grouped_rows: rows that a group takes at
    once. blocks: staying blocks of the grid. stages: per group. async_warps: loading warps, which divide the inputs among them. registers: of async and compute
    threads. is_stored_in_bulk: results are stored by bulk copies from shared memory. project_to_inputs, vector_elems, batches, fill: as for rows in registers.
    tile_rows: rows of a block of kind "tma", in a loop: 1, or TILE_STEPS of a scale tile, with `stages` of them loaded ahead.
    access_bits: of the widest access of a thread to global memory.
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
    tile_rows: int = 1
    access_bits: int = MAX_VECTOR_BITS

    @property
    def part_multiple(self) -> int:
        """The number of vectors in a batch is a multiple of this, if it is larger."""
        return WARP_MULTIPLE if self.batches > 1 else 1

    def filled(self, facts: PersistentFacts) -> AsyncRowsParams:
        """Return the params with `fill` for rows of these sizes; a row per block that was chosen with all bounds checks keeps them."""
        if self.kind == "tma" and self.fill == "partial":
            return self
        return replace(self, fill=_fill(facts.reduction_elems // self.vector_elems, self))


def choose_async_rows(
    facts: PersistentFacts, arch: Arch, kind: str, *, async_warps: int = 0, is_stored_in_bulk: bool = False, groups: int = 0
) -> AsyncRowsParams | Decline:  # fmt: skip
    """Return params of kind "tma" or "specialized", or why there are none.

    async_warps: 0 for one per input, up to 4. groups: compute groups of a specialized block; 0 to choose by the row length.
    """
    reason = why_no_bulk_copy(facts, arch)
    if reason:
        return Decline(reason)
    if kind == "tma":
        return row_per_block(facts, arch, is_stored_in_bulk)
    return specialized_rows(facts, arch, async_warps, is_stored_in_bulk, groups)


def async_rows_candidates(facts: PersistentFacts, arch: Arch) -> list[AsyncRowsParams]:
    """Return params of both kinds to time: the choice of each first, then other batches of rows per block, and other groups and roles."""
    if why_no_bulk_copy(facts, arch):
        return []
    row_bytes, staging_bytes = _row_bytes(facts, False)
    out = [choose_async_rows(facts, arch, "tma")]
    if row_bytes + staging_bytes <= _usable_shared_bytes(arch):
        for params in _rows_per_block(facts, arch, False):
            blocks = tma_blocks_per_sm(facts, arch, params)
            out += [replace(params, max_registers=_limit(facts, params, rows, arch)) for rows in range(1, min(blocks, MOST_ROWS) + 1)]
    out += [choose_async_rows(facts, arch, "specialized", groups=groups, async_warps=warps) for groups, warps in ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2))]
    return list(dict.fromkeys(params for params in out if not isinstance(params, Decline)))


def why_no_bulk_copy(facts: PersistentFacts, arch: Arch) -> str:
    """Return why bulk copies cannot load these rows; empty if they can."""
    if not arch.has_tma:
        return f"{arch.name} has no TMA"
    if all(is_reduced for is_reduced, _ in facts.runs):
        return "all axes are reduced, so there is only one row"
    if not facts.input_bits:
        return "no input has rows to load"
    if len(facts.runs) > 2:
        return "the reduced axes are not adjacent in memory"
    if any(meets_in_shared(size, _vector(facts, arch)) for size in facts.group_elems):
        return "the threads of a group meet in shared memory, at barriers of whole blocks"
    if _vector(facts, arch) * facts.max_dtype_bits < (8 * BULK_BYTES) or facts.reduction_elems * facts.min_dtype_bits % (8 * BULK_BYTES):
        return "the bytes of a row are not a multiple of 16"
    return ""


def row_per_block(facts: PersistentFacts, arch: Arch, is_stored_in_bulk: bool) -> AsyncRowsParams | Decline:
    """Return params of kind "tma": the fewest batches with which a multiprocessor has enough rows in flight, or else as many rows as possible."""
    row_bytes, staging_bytes = _row_bytes(facts, is_stored_in_bulk)
    if row_bytes + staging_bytes > _usable_shared_bytes(arch):
        return Decline(f"a row of {row_bytes} bytes does not fit into shared memory")
    found = [(tma_blocks_per_sm(facts, arch, params), params) for params in _rows_per_block(facts, arch, is_stored_in_bulk)]
    if not found:
        return Decline("a row is too long for the registers of a block")
    wanted = max(LEAST_ROWS, min(MOST_ROWS, ceil_div(BYTES_IN_WORK, max(1, row_bytes))))
    most = min(wanted, max(blocks for blocks, _ in found))
    blocks, params = next((blocks, params) for blocks, params in found if blocks >= most)
    tiled = tile_per_block(facts, arch, params) if facts.has_scale_tiles and not is_stored_in_bulk else None
    if tiled is not None:
        return tiled
    return replace(params, max_registers=_limit(facts, params, blocks if params.fill == "partial" else max(1, most), arch))


def tile_per_block(facts: PersistentFacts, arch: Arch, row: AsyncRowsParams) -> AsyncRowsParams | None:
    """Return params with which a block takes the rows of a scale tile with neighbouring scales, so that these are stored together; None if that is not better.

    With a row per block, four bytes of scales use a whole sector. Tensors with fewer threads per multiprocessor were not measured. Measured: docs/constants.md.
    """
    vectors = facts.reduction_elems // row.vector_elems
    params = replace(row, batches=TILE_BATCHES, bdimx=vectors // TILE_BATCHES, stages=TILE_STAGES, tile_rows=TILE_STEPS)
    is_whole = not vectors % (TILE_BATCHES * arch.warp_threads) and not facts.iteration_elems % TILE_ROWS and row.fill == "whole"
    if not is_whole or facts.block_elems != row.vector_elems or params.bdimx > arch.max_threads_per_block:
        return None
    row_bytes, _ = _row_bytes(facts, False)
    blocks = arch.blocks_per_sm(params.bdimx, needed_registers(facts, params), TILE_STAGES * row_bytes + SMALL_SHARED_BYTES)
    is_busy = facts.iteration_elems // TILE_STEPS * params.bdimx >= TILE_THREADS * arch.sm_count
    return replace(params, max_registers=_limit(facts, params, min(blocks, MOST_ROWS), arch)) if blocks >= LEAST_ROWS and is_busy else None


def _limit(facts: PersistentFacts, params: AsyncRowsParams, rows: int, arch: Arch) -> int:
    """The most registers per thread with which so many rows are in flight; the hardware's limit if a row without bounds needs none.

    With a limit the compiler takes more registers than without one, up to the limit. With many more than a row without bounds needs it loads the weights of all
    batches first, and spills in the end, so the limit is one step above that. Read off ptxas: docs/constants.md.
    """
    registers = arch.registers_per_thread(rows * params.bdimx)
    if params.fill != "partial":
        needed = needed_registers(facts, params)
        usual = max(UNLIMITED_REGISTERS, needed + REGISTER_STEP)
        can_have_all = arch.registers_per_thread(params.bdimx) == arch.max_registers_per_thread
        if can_have_all and arch.blocks_per_sm(params.bdimx, usual) >= MOST_ROWS:
            return arch.max_registers_per_thread
        registers = min(registers, max(LOOP_THREAD_REGISTERS, needed + REGISTER_STEP))
    return registers if registers < 8 else registers // 8 * 8


def _rows_per_block(facts: PersistentFacts, arch: Arch, is_stored_in_bulk: bool) -> Iterator[AsyncRowsParams]:
    """Yield params of kind "tma" with the registers that the row needs: few batches first, then those without bounds checks, then those without recomputed
    exponentials."""
    vector = _vector(facts, arch)
    vectors = facts.reduction_elems // vector
    projections = tuple(dict.fromkeys((_is_projected(facts) and not facts.recompute_has_exact_exp, _is_projected(facts))))
    for batches in dict.fromkeys(min(b, max(1, ceil_div(vectors, arch.warp_threads))) for b in TMA_BATCHES):
        bdimx = round_up(ceil_div(vectors, batches), arch.warp_threads)
        bounded = AsyncRowsParams("tma", False, vector, batches, bdimx, is_stored_in_bulk=is_stored_in_bulk)
        known = _fill(vectors, bounded) if batches <= MANY_BATCHES else "partial"
        for fill in dict.fromkeys((known, "partial")):
            for is_projected in projections:
                made = replace(bounded, project_to_inputs=is_projected, fill=fill)
                needed = needed_registers(facts, made)
                if bdimx <= arch.max_threads_per_block and needed <= arch.registers_per_thread(bdimx):
                    yield replace(made, max_registers=needed)


def tma_blocks_per_sm(facts: PersistentFacts, arch: Arch, params: AsyncRowsParams) -> int:
    """Resident blocks of kind "tma" per multiprocessor, with a row each."""
    shared = sum(_row_bytes(facts, params.is_stored_in_bulk)) + SMALL_SHARED_BYTES
    return arch.blocks_per_sm(params.bdimx, tma_registers(facts, arch, params), shared)


def tma_registers(facts: PersistentFacts, arch: Arch, params: AsyncRowsParams) -> int:
    """Registers that the compiler takes for a thread of kind "tma": the limit, or what the row needs if there is none."""
    is_limited = params.max_registers is not None and params.max_registers < arch.max_registers_per_thread
    return params.max_registers if is_limited else needed_registers(facts, params)  # type: ignore[return-value]


def needed_registers(facts: PersistentFacts, params: AsyncRowsParams) -> int:
    """Registers with which a thread of kind "tma" does not spill.

    Without bounds checks the compiler interleaves the batches: it keeps the unpacked values, and a vector of each weight (bf16: layer norm and dropout
    + layer norm spill with 56, RMS norm and add + RMS norm do not, softmax does not with 48; float32: layer norm spills with 32, and not with 40).
    """
    kept_bits = (facts.projected_bits if params.project_to_inputs else facts.persistent_bits) or 0
    elems = params.batches * params.vector_elems
    if params.fill == "partial":
        return registers_for_row(facts, ceil_div(elems * kept_bits, 32 * facts.reduction_elems), params.is_stored_in_bulk)
    kept = ceil_div(elems * kept_bits, 32 * facts.reduction_elems)
    if facts.max_dtype_bits >= 32:
        beside = WIDE_REGISTERS + max(0, elems - WIDE_USUAL_KEPT) // 4 + REGISTER_STEP * (params.fill == "leading")
    else:
        kept = max(kept, min(elems, USUAL_KEPT))
        beside = THREAD_REGISTERS + params.vector_elems * facts.broadcast_operands + max(0, elems - USUAL_KEPT) // 4
    return max(MIN_REGISTERS, round_up(kept + beside + REGISTER_STEP * params.is_stored_in_bulk, 8))


def registers_for_row(facts: PersistentFacts, kept: int, is_stored_in_bulk: bool = False) -> int:
    """Registers of a thread that keeps its part of a row in `kept` of them, plus others as in `register_rows`."""
    beside = WIDE_REGISTERS if facts.max_dtype_bits >= 32 else THREAD_REGISTERS
    inputs = WIDE_INPUT_ROWS * kept * max(0, facts.vectorizable_inputs - 1) if facts.max_dtype_bits >= 32 else 0
    operands = inputs + OPERAND_REGISTERS * facts.broadcast_operands + RANDOM_REGISTERS * facts.has_rng + REGISTER_STEP * is_stored_in_bulk
    return max(MIN_REGISTERS, round_up(kept + max(0, kept - USUAL_KEPT) // 8 + beside + operands, 8))


def specialized_rows(facts: PersistentFacts, arch: Arch, async_warps: int, is_stored_in_bulk: bool, groups: int) -> AsyncRowsParams | Decline:
    """Return params of kind "specialized": two groups if the row is short enough, as many stages as fit."""
    if facts.group_operands:
        return Decline("weights differ between groups of rows, so threads cannot keep them while they loop over rows")
    row_bytes, staging_bytes = _row_bytes(facts, is_stored_in_bulk)
    vector = _vector(facts, arch)
    warps = async_warps or max(1, min(MOST_ASYNC_WARPS, facts.vectorizable_inputs))
    for count, bdimx in BLOCKS:
        batches = ceil_div(facts.reduction_elems // vector, bdimx)
        stages = min(MOST_STAGES, (_usable_shared_bytes(arch) - count * staging_bytes) // (count * row_bytes))
        has_own_stores = count == 1 or not is_stored_in_bulk or vector * facts.min_dtype_bits >= (8 * BULK_BYTES)  # each group's staged row starts at 16 bytes
        if has_own_stores and groups in (0, count) and batches <= (MANY_BATCHES if count > 1 else MOST_BATCHES) and stages >= 2:
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
    return Decline(f"two rows of {row_bytes} bytes do not fit into shared memory, or one row does not fit into the registers of a block{many}")


def _held_registers(facts: PersistentFacts, vector: int, batches: int) -> int:
    """Registers of a compute thread: its part of a row in the type of the computation, its part of the weights, which it reads once, and the rest.

    More than the limit allows makes the kernel spill, and slow. Measured: docs/constants.md.
    """
    bits = max(DataType.Float.bits, facts.input_bits) + facts.broadcast_operand_bits
    return ceil_div(batches * vector * bits, 32) + BUSY_REGISTERS + 2 * RANDOM_REGISTERS * facts.has_rng


def _vector(facts: PersistentFacts, arch: Arch) -> int:
    return vector_elems(facts.vector_limit_elems, facts.max_dtype_bits, facts.min_vector_elems, facts.vector_bits)


def _row_bytes(facts: PersistentFacts, is_stored_in_bulk: bool) -> tuple[int, int]:
    """Return the bytes of a row of all inputs, and of a row of all outputs that are stored from shared memory."""
    return facts.reduction_elems * facts.input_bits // 8, facts.reduction_elems * facts.output_bits // 8 if is_stored_in_bulk else 0


def _usable_shared_bytes(arch: Arch) -> int:
    """Shared memory without barriers, workspaces and alignment."""
    return arch.shared_per_block_optin_bytes - 4096


def _fill(vectors: int, params: AsyncRowsParams) -> str:
    """Return `fill` for a row of so many vectors."""
    return fill_of_parts(vectors, params.batches, round_up(ceil_div(vectors, params.batches), params.part_multiple), params.bdimx, vectors)


def _is_projected(facts: PersistentFacts) -> bool:
    return facts.projected_bits is not None and facts.projected_bits <= facts.persistent_bits
