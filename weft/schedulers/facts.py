"""The facts that heuristics may use: numbers about a fusion, for one set of sizes.

Owns the records. `pointwise_analysis.py`, `reduction_analysis.py` and `persistent_analysis.py` make them from a fusion. Read first: `PersistentFacts`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..analysis.index_work import IndexWork
from ..analysis.lookup_work import LookupWork, RowSharing
from ..analysis.vectorization import MAX_VECTOR_BITS
from .still_rows import StillRows


@dataclass(frozen=True, slots=True)
class PointwiseFacts:
    """A fusion without reductions, whose loops are the axes of one output.

    extents_elems: loops, outermost first, in memory order. vector_limit_elems[p]: for the loops from p on merged (p = 0: all). right_bits[p]: of an element,
    summed over the inputs and outputs that depend on one of the loops from p on. max_dtype_bits, min_dtype_bits: over the tensors that a vector access can be
    used on (all inputs and outputs when there is none).
    vectorizable_inputs, vectorizable_outputs: their number. full_inputs: inputs that depend on every loop.
    instructions, mufu: cost per element. min_vector_elems: fewest elements that fill the bytes of every output. vector_bits: see `packed.thread_vector_bits`.
    access_bits: of the widest access that the chip has and alignments allow. read_bits, written_bits: per element, of tensors that depend on every loop.
    repeated_bits: in total, of what lookups read again, which read_bits counts.
    divides_rows: with all loops merged, an index needs its row and column, by division. block_elems: neighbours in a row that must be in one thread or in few
    lanes. single_reads: names of inputs that must be read element by element, because their addresses do not allow the vectors that the outputs need.
    phased_limit_elems[p]: as vector_limit_elems, for vectors that need not fill a row; is_tailed[p]: all rows begin with one of these. index_work[p],
    phased_index_work[p]: accesses and divisions of an index there; the second for these vectors.
    other_lookups[p], phased_other_lookups[p]: lookups that are read element by element there, at positions that index tensors give.
    lookups[p], phased_lookups[p]: what a thread with 1, 2, 4, ... neighbouring results does if lookups at positions that the kernel computes are read element
    by element there; empty if none are.
    shared_rows[p]: what a thread's 1, 2, 4, ... neighbouring indices left of p share of lookups in vectors; empty if they share no loads.
    still_rows[p]: what does not vary along the innermost loop left of p; None if that is nothing.
    outside_accesses: of those in vectors, the part for elements that pads fill, which loads nothing.
    spread: (bits of an element, the loops that it depends on) of each input that depends on some loops, but not on all.
    """

    extents_elems: tuple[int, ...]
    vector_limit_elems: tuple[int, ...]
    right_bits: tuple[int, ...]
    max_dtype_bits: int
    min_dtype_bits: int
    vectorizable_inputs: int
    vectorizable_outputs: int
    full_inputs: int
    instructions: int
    mufu: int
    has_exp: bool
    has_rng: bool
    min_vector_elems: int
    vector_bits: int = MAX_VECTOR_BITS
    access_bits: int = MAX_VECTOR_BITS
    read_bits: int = 0
    written_bits: int = 0
    repeated_bits: int = 0
    divides_rows: bool = False
    block_elems: int = 0
    single_reads: tuple[int, ...] = ()
    phased_limit_elems: tuple[int, ...] = ()
    is_tailed: tuple[bool, ...] = ()
    index_work: tuple[IndexWork, ...] = ()
    phased_index_work: tuple[IndexWork, ...] = ()
    lookups: tuple[tuple[LookupWork, ...], ...] = ()
    phased_lookups: tuple[tuple[LookupWork, ...], ...] = ()
    other_lookups: tuple[int, ...] = ()
    phased_other_lookups: tuple[int, ...] = ()
    shared_rows: tuple[tuple[RowSharing, ...], ...] = ()
    still_rows: tuple[StillRows | None, ...] = ()
    outside_accesses: float = 0.0
    spread: tuple[tuple[int, frozenset[int]], ...] = ()

    @property
    def total_elems(self) -> int:
        return math.prod(self.extents_elems)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """What the facts of reductions and of normalizations have in common: sizes of rows and their runs, vectors, bits moved, cost.

    runs: (is reduced, extent) of neighbouring loops of one kind, outermost first, in memory order. is_inner: the last run is reduced.
    vector_limit_elems: along the last run. phased_limit_elems, is_tailed, single_reads, access_bits: as in `PointwiseFacts`. input_bits, output_bits: bits per
    element of the loops, of inputs and outputs that depend on both reduced and other loops. reductions: results per row; accumulator_bits: bits of their
    state. block_elems: neighbours in a row that must be in one thread or in few lanes. group_elems: of each fold over groups of neighbours, the
    size of a group, which neighbouring threads hold; they may meet in shared memory.
    """

    iteration_elems: int
    reduction_elems: int
    runs: tuple[tuple[bool, int], ...]
    vector_limit_elems: int
    max_dtype_bits: int
    min_dtype_bits: int
    vectorizable_inputs: int
    input_bits: int
    output_bits: int
    reductions: int
    accumulator_bits: int
    instructions: int
    mufu: int
    has_exp: bool
    has_rng: bool
    min_vector_elems: int
    phased_limit_elems: int = 1
    is_tailed: bool = False
    vector_bits: int = MAX_VECTOR_BITS
    access_bits: int = MAX_VECTOR_BITS
    block_elems: int = 0
    single_reads: tuple[int, ...] = ()
    group_elems: tuple[int, ...] = ()

    @property
    def is_inner(self) -> bool:
        return self.runs[-1][0]

    @property
    def inner_run_elems(self) -> int:
        return self.runs[-1][1]

    @property
    def outer_run_elems(self) -> int:
        """Elements of the reduced runs without the last run, if that is reduced."""
        return self.reduction_elems // max(1, self.inner_run_elems)

    @property
    def dimensions(self) -> int:
        """2: one reduced run and at most one other; 3: the reduced loops, or the others, are in several runs."""
        return 2 if len(self.runs) <= 2 else 3

    @property
    def total_elems(self) -> int:
        return self.iteration_elems * self.reduction_elems


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionFacts(RowFacts):
    """A fusion whose reductions reduce the same loops, once.

    results_meet: an expression uses two results. exchange_factor: cost of combining partial results of threads, relative to a sum. can_begin_anywhere: vectors
    of columns need not be aligned, see `VectorLimits`. column_inputs: inputs with one value per column, which a thread keeps while it loops down the column.
    still_loads: loads for each vector of inputs that neighbouring elements share, such as a value per channel. columns_of_one: neighbouring columns that are
    all elements of the innermost loop, such as coordinates, if no input has an element for each term; common_instructions: those of `instructions` whose
    results do not vary along that loop. free_columns: neighbouring columns of one run, of which no tensor in memory but results has elements. looked_up:
    lookups for each element that are read one by one, if they are windows. window_elems: neighbours along the innermost loop that share what they look up, and
    so are best in one thread, 1 if there are no windows; window: what such a thread does.
    """

    results_meet: bool = False
    can_begin_anywhere: bool = False
    exchange_factor: int = 1
    column_inputs: int = 0
    still_loads: int = 0
    columns_of_one: int = 1
    common_instructions: int = 0
    free_columns: int = 1
    looked_up: int = 0
    window_elems: int = 1
    window: LookupWork | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentFacts(RowFacts):
    """A fusion that uses the result of a reduction over the axes that it reduced.

    input_bits, output_bits: bits per element of a row that must move. late_input_bits: the part of input_bits that only passes after the first one read.
    broadcast_operand_bits, broadcast_operands: inputs that depend on the reduced loops only (weights), read by every row, from L2; group_operands: those among
    them that differ between groups of rows (a scale per sample). persistent_bits: bits per element kept between passes. projected_bits: the same if inputs are
    kept instead; None if that is impossible. has_lookup: an index tensor, which is read first, selects the rows of an input. has_scale_tiles: block scales are
    stored in tiles of rows and columns. still_axes: number of innermost loops that some input does not depend on, although it depends on others of their run (a
    weight per channel of a group); the last of `runs` is then these loops, and vectors do not cross their end. 0: none, or vectors would be too narrow.
    nested_sums, nested_bits: number of reductions over only the innermost loops of a row, whose results are outputs, and bits of one result of each. passes:
    passes over the row; folded_passes: the same if dependent reductions are combined. folds_last: the last pass reduces the row, too. recompute_instructions,
    recompute_has_exact_exp: what projection recomputes, per element; has_exact_exp as in `OpCost`.
    """

    late_input_bits: int
    broadcast_operand_bits: int
    broadcast_operands: int
    persistent_bits: int
    projected_bits: int | None
    recompute_instructions: int
    recompute_has_exact_exp: bool
    passes: int
    still_axes: int = 0
    has_lookup: bool = False
    has_scale_tiles: bool = False
    nested_sums: int = 0
    nested_bits: int = 0
    folded_passes: int = 2
    folds_last: bool = False
    group_operands: int = 0
