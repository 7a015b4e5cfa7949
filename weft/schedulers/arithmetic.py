"""Arithmetic that the choices of all schedulers share: powers of two, widths of vectors, rows that begin anywhere, the record of a choice.

Pure: no fusion, no device. Read first: `vector_elems`, `Trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..arch import ceil_div as ceil_div, round_up as round_up
from .facts import PersistentFacts, ReductionFacts

PHASED_ACCESS_BITS = 32
"""Of an access, up to which rows that begin anywhere are rather read in aligned vectors: accesses of 64 bits are nearly as fast as those of 128."""
PHASED_ROW_VECTORS = 8
"""Of a row that begins anywhere, from which aligned vectors with ends of their own are better than narrow accesses. An estimate."""
PORTABLE_CLUSTER_BLOCKS = 8
"""Larger clusters leave parts of a GPC unused."""


def tree_workspace_bytes(threads: int, lanes: int, accumulator_bits: int) -> int:
    """Shared memory in which `threads` fold columns of `lanes` vector elements each (`reduce_tree` of the device library), all results of a kernel."""
    return threads * (lanes + 2) * ceil_div(accumulator_bits, 8)


@dataclass(frozen=True, slots=True)
class Trace:
    """Why a choice was made: candidates considered, best first, and the criteria in order. For WEFT_DUMP=scheduler; `str` makes the text."""

    heuristic: str
    facts: Any
    criteria: tuple[str, ...]
    candidates: tuple[Any, ...]
    chosen: Any
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.heuristic}: {self.facts}"]
        lines += [f"  {note}" for note in self.notes]
        if self.candidates:
            lines.append(f"  in the order of: {'; '.join(self.criteria)}")
        lines += [f"  {'  ' if i else '->'} {candidate}" for i, candidate in enumerate(self.candidates)]
        lines.append(f"  chosen: {self.chosen}")
        return "\n".join(lines)


def previous_power_of_two(value: int) -> int:
    """Largest power of two up to `value`, at least 1."""
    return 1 << (max(1, value).bit_length() - 1)


def next_power_of_two(value: int) -> int:
    """Smallest power of two from `value` on."""
    return 1 << (max(1, value) - 1).bit_length()


def has_phase(facts: ReductionFacts | PersistentFacts) -> bool:
    """True when the length of rows is all that forbids wide vectors, and makes accesses narrow; not for rows of a few vectors."""
    is_phased = gains_by_phase(facts.reduction_elems, facts.vector_limit_elems, facts.phased_limit_elems, facts.max_dtype_bits)
    return is_phased and facts.dimensions == 2 and facts.min_vector_elems == 1


def gains_by_phase(row_elems: int, limit_elems: int, phased_limit_elems: int, max_dtype_bits: int) -> bool:
    """The same of rows of so many elements, given the widest vectors that begin with a row and that begin anywhere."""
    is_narrow = limit_elems * max_dtype_bits <= PHASED_ACCESS_BITS
    is_long = row_elems >= PHASED_ROW_VECTORS * phased_limit_elems
    is_cut = row_elems % phased_limit_elems != 0  # else something other than the length of rows forbids them
    return is_narrow and is_long and is_cut and phased_limit_elems > limit_elems


def row_vectors(row_elems: int, vector_elems: int, is_phased: bool) -> int:
    """Return the vectors of a row for which loops are made: all, or with a phase those that may be whole."""
    return row_elems // vector_elems if is_phased else ceil_div(row_elems, vector_elems)


def vector_elems(limit_elems: int, max_dtype_bits: int, min_vector_elems: int, max_vector_bits: int) -> int:
    """Return the vector width: as wide as one access, within the limit; never below whole bytes."""
    return max(min_vector_elems, min(limit_elems, previous_power_of_two(max_vector_bits // max_dtype_bits)))


def best_first(candidates: Iterable[Any], key: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Sort by `key`, largest first; equals keep their order."""
    return tuple(sorted(candidates, key=key, reverse=True))
