"""InnerPersistent with rows that TMA loads: the parameters of the template in `async_rows.py`, and a choice of them for each way to keep rows.

Pure: facts and arch in, params out. Which way is taken is decided in `row_ways.py`. Read first: `AsyncRowsParams`, `choose_async_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..arch import Arch
from ..schedule.circular import split_registers
from ..schedule.full_rows import fill_of_parts
from .base import Decline
from .facts import PersistentFacts
from .throughput_heuristic import ceil_div, round_up, vector_elems

ASYNC_THREADS = 128
BULK_BITS = 128
"""A bulk copy moves multiples of 16 bytes."""
MOST_ASYNC_WARPS = 4
MOST_STAGES = 12
MOST_BATCHES = 16
GROUP_THREADS = 128
"""Threads of a compute group on TIDy: with the async ones they are whole warpgroups."""


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
        """Return the params with `fill` for rows of these sizes."""
        return replace(self, fill=fill_of_parts(facts.reduction_elems // self.vector_elems, self.batches, self.bdimx))


def choose_async_rows(facts: PersistentFacts, arch: Arch, kind: str, *, async_warps: int = 0, is_stored_in_bulk: bool = False) -> AsyncRowsParams | Decline:
    """Return params of kind "tma" or "specialized", or why there are none. async_warps: 0 for one per input, up to 4."""
    if not arch.has_tma:
        return Decline(f"{arch.name} has no TMA")
    if all(is_reduced for is_reduced, _ in facts.runs):
        return Decline("all axes are reduced: there is one row")
    if len(facts.runs) > 2:
        return Decline("the reduced axes are in several runs")
    vector = vector_elems(facts.vector_limit_elems, facts.max_dtype_bits, facts.min_vector_elems, arch.max_vector_bits)
    if vector * facts.max_dtype_bits < BULK_BITS or facts.reduction_elems * facts.min_dtype_bits % BULK_BITS:
        return Decline("the bytes of a row are no multiple of 16")
    vectors = facts.reduction_elems // vector
    row_bytes = facts.reduction_elems * facts.input_bits // 8
    staging = facts.reduction_elems * facts.output_bits // 8 if is_stored_in_bulk else 0
    shared = arch.shared_per_block_optin_bytes - 4096  # barriers, workspaces, alignment
    projected = facts.projected_bits is not None and facts.projected_bits <= facts.persistent_bits
    if kind == "tma":
        if row_bytes + staging > shared:
            return Decline(f"a row of {row_bytes} bytes does not fit into shared memory")
        batches = next((b for b in (4, 8, MOST_BATCHES) if ceil_div(vectors, b) <= 1024), None)
        if batches is None:
            return Decline("a row has more vectors than a block can hold")
        batches = min(batches, max(1, ceil_div(vectors, 32)))
        bdimx = round_up(ceil_div(vectors, batches), 32)
        registers = arch.registers_per_thread(bdimx)
        made = AsyncRowsParams("tma", projected, vector, batches, bdimx, is_stored_in_bulk=is_stored_in_bulk, max_registers=registers)
        return made.filled(facts)
    warps = async_warps or max(1, min(MOST_ASYNC_WARPS, facts.vectorizable_inputs))
    for groups, bdimx in ((2, GROUP_THREADS), (1, 256), (1, 384), (1, 512)):
        batches = ceil_div(vectors, bdimx)
        stages = min(MOST_STAGES, (shared - groups * staging) // (groups * row_bytes))
        if batches <= (8 if groups > 1 else MOST_BATCHES) and stages >= 2:
            compute = groups * bdimx
            threads = compute + ASYNC_THREADS
            each = arch.registers_per_thread(threads)
            split_ = split_registers(each, compute, ASYNC_THREADS) if each < 248 else None
            made = AsyncRowsParams(
                "specialized", projected, vector, batches, bdimx, groups, 1, arch.sm_count, stages, warps, split_, is_stored_in_bulk,
            )  # fmt: skip
            return made.filled(facts)
    return Decline(f"two rows of {row_bytes} bytes do not fit into shared memory, or one not into the registers of a block")
