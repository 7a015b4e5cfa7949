"""Columns in the registers of a block, or of the blocks of a cluster: which kernels are compared, and the choice by the cost model.

A block holds its columns from the first pass to the last, so several blocks of a multiprocessor must take turns at loading, folding and storing. Pure: facts
and arch in, params out. Read first: `columns_in_registers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import LINE_BYTES, MAX_GRID, Arch
from .arithmetic import PORTABLE_CLUSTER_BLOCKS, ceil_div, round_up, tree_workspace_bytes
from .cost.kept_columns import KeptColumns, work_of_kept_columns
from .cost.passing import passing_ns
from .facts import PersistentFacts
from .limits import FULL_BLOCK_THREADS, MANY_BATCHES, MOST_BATCHES, REGISTER_STEP, ROW_THREAD_REGISTERS


@dataclass(frozen=True, slots=True)
class OuterParams:
    """A schedule of columns; equal params (with equal structure, index type and device) mean the same kernel.

    vector_elems: columns of one access. bdimx, bdimy: threads across and along the columns. unroll: loads issued before the first is used ("reread").
    storage: "register", "reread", or "shared" (a turned tile of one input). batches: rows of a thread. cluster_blocks: blocks that share columns.
    project_to_inputs: keep inputs instead of what is computed from them.
    is_tile: threads lie only along the last run in memory, so that neighbouring threads have neighbouring elements.
    is_turned: a tile whose columns are stored one by one, see `turned.py`; bdimy: tiles on top of each other.
    single_reads: names of inputs that are read element by element. unswitch: one test for the bounds of a thread's batches, or of a turned tile ("register").
    """

    vector_elems: int
    unroll: int
    bdimx: int
    bdimy: int
    max_registers: int
    storage: str = "reread"
    batches: int = 0
    cluster_blocks: int = 1
    project_to_inputs: bool = True
    is_tile: bool = False
    is_turned: bool = False
    single_reads: tuple[int, ...] = ()
    unswitch: bool = False


LEAST_KEPT, MOST_KEPT = 64, 16384
"""Elements of a column: least and most."""
SHORT_THREADS = FULL_BLOCK_THREADS // 4
"""Of a block whose threads have columns of fewer rows alone. They have the registers of threads of which a multiprocessor has a full block."""
KEPT_REGISTERS, COLUMN_REGISTERS = 8, 6
"""Registers besides the columns; and for the results of each column."""
MOST_THREAD_REGISTERS = ROW_THREAD_REGISTERS - REGISTER_STEP
"""With a step more the compiler schedules 16 vectors of eight columns differently, and spills. Measured: docs/constants.md."""
LANES_X = (LINE_BYTES * 8 // MAX_VECTOR_BITS // 2, LINE_BYTES * 8 // MAX_VECTOR_BITS, LINE_BYTES * 8 // MAX_VECTOR_BITS * 2)
"""Threads across columns: half a cache line, a whole one, two."""
MOST_EXCHANGED = 256
"""The most results that a block receives in an exchange (columns times blocks of the cluster), if there is another way. Measured: docs/constants.md."""
LEAST_SHARED_BATCHES = MANY_BATCHES // 2
"""Rows per thread, at least, if blocks share columns: fewer are not worth an exchange."""
LEAST_RESIDENT = 2
"""Resident blocks per multiprocessor, at least: while a single one waits for its loads, its exchange and its stores, nothing else runs. Measured:
docs/constants.md."""


def columns_in_registers(facts: PersistentFacts, arch: Arch) -> OuterParams | None:
    """Return the params for columns in registers; None if they are too long or short, accesses too narrow, or blocks too few."""
    found = kept_candidates(facts, arch)
    return found[0] if found else None


def kept_candidates(facts: PersistentFacts, arch: Arch) -> list[OuterParams]:
    """Return all params that fit the chip, fastest by prediction first."""
    vector = min(facts.vector_limit_elems, MAX_VECTOR_BITS // facts.max_dtype_bits)
    if 0 < facts.reduction_elems < LEAST_KEPT:
        return _of_a_thread(facts, arch, max(1, vector))
    is_wide = vector * facts.max_dtype_bits == MAX_VECTOR_BITS
    if not is_wide or not LEAST_KEPT <= facts.reduction_elems <= MOST_KEPT or facts.projected_bits is None:
        return []
    shapes = list(_shapes(facts, arch, vector))
    alone = [s for s in shapes if s[3] == 1 and s[0] >= LANES_X[1]]  # blocks that read whole cache lines and exchange nothing
    shared = [s for s in shapes if s[3] <= PORTABLE_CLUSTER_BLOCKS and s[0] * vector * s[3] <= MOST_EXCHANGED]
    shapes = alone or shared or shapes
    if not shapes:
        return []
    columns = np.array(shapes, dtype=float).T
    times = passing_ns(work_of_kept_columns(KeptColumns(vector, *columns), facts, arch), arch)
    return [_params(shapes[n], facts, vector) for n in np.argsort(times, kind="stable")]


def _of_a_thread(facts: PersistentFacts, arch: Arch, most: int) -> list[OuterParams]:
    """Return the params for columns of a few rows, all of which a thread keeps, so that threads exchange nothing; empty where they do not fit its registers,
    or are too few for all multiprocessors. most: columns that a thread can have, at most."""
    rows, vector, most_registers = facts.reduction_elems, most, arch.registers_per_thread(FULL_BLOCK_THREADS)
    if facts.projected_bits is None:
        return []
    while vector >= max(1, facts.min_vector_elems):
        values = max(vector * facts.vectorizable_inputs, _words(facts, vector))  # the compiler keeps 16 bits as floats
        registers = round_up(values * rows + KEPT_REGISTERS + COLUMN_REGISTERS * vector, 8)
        blocks = ceil_div(ceil_div(facts.iteration_elems, vector), SHORT_THREADS)
        if registers <= most_registers and blocks >= arch.sm_count:
            return [_params((SHORT_THREADS, 1, rows, 1, most_registers), facts, vector)]
        vector //= 2
    return []


def _words(facts: PersistentFacts, vector: int) -> int:
    """Registers for one row of a thread's columns."""
    return ceil_div(int(vector * max(facts.projected_bits / facts.reduction_elems, facts.input_bits)), 32)  # type: ignore[operator]


def _shapes(facts: PersistentFacts, arch: Arch, vector: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (threads across the columns, threads along them, rows per thread, blocks of a cluster, registers per thread)."""
    rows, words = facts.reduction_elems, _words(facts, vector)
    levels = max(1, facts.passes - 1)
    for bdimx in LANES_X:
        columns = ceil_div(ceil_div(facts.iteration_elems, vector), bdimx)
        for threads in (FULL_BLOCK_THREADS // 2, FULL_BLOCK_THREADS):
            shared = levels * tree_workspace_bytes(threads, vector, facts.accumulator_bits)
            for cluster in (1, 2, 4, 8, 16):
                bdimy = threads // bdimx
                batches = ceil_div(ceil_div(rows, cluster), bdimy)
                registers = round_up(words * batches + KEPT_REGISTERS + COLUMN_REGISTERS * vector, 8)
                fits = batches <= MOST_BATCHES and cluster <= min(bdimy, arch.max_cluster_blocks)
                fits = fits and (cluster == 1 or columns <= MAX_GRID[1] and batches >= LEAST_SHARED_BATCHES)
                if not fits or columns * cluster < arch.sm_count or registers > MOST_THREAD_REGISTERS:
                    continue
                resident = arch.blocks_per_sm(threads, registers, shared)
                if resident >= LEAST_RESIDENT:
                    most = arch.registers_per_thread(threads * resident) // REGISTER_STEP * REGISTER_STEP
                    yield bdimx, bdimy, batches, cluster, min(MOST_THREAD_REGISTERS, most)


def _params(shape: tuple[int, int, int, int, int], facts: PersistentFacts, vector: int) -> OuterParams:
    bdimx, bdimy, batches, cluster, registers = shape
    is_whole = facts.reduction_elems == cluster * batches * bdimy
    return OuterParams(vector, 1, bdimx, bdimy, registers, "register", batches, cluster, unswitch=is_whole)


__all__ = ["OuterParams", "columns_in_registers", "kept_candidates"]
