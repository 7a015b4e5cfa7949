"""Arithmetic shared by all schedulers: powers of two, vector widths, and the record of a choice.

Pure: no fusion, no device. Read first: `vector_elems`, `Trace`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..arch import ceil_div as ceil_div, round_up as round_up
from ..schedule.peel import gains_by_phase
from ..remembered import remembered
from .facts import PersistentFacts, ReductionFacts

PORTABLE_CLUSTER_BLOCKS = 8
"""Larger clusters leave parts of a GPC unused."""


def whole_warps(bdimx: int, bdimy: int = 1, bdimz: int = 1) -> int:
    """Return the least number of threads along x, `bdimx` or more, with which a block has whole warps, because shuffles name all 32 lanes."""
    return round_up(bdimx, 32 // math.gcd(32, bdimy * bdimz))


def tree_workspace_bytes(threads: int, lanes: int, accumulator_bits: int) -> int:
    """Return the shared memory in which `threads` reduce columns of `lanes` vector elements each (`reduce_tree` of the device library), for all results of a
    kernel."""
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


@remembered
def few_digits(value: int) -> int:
    """Round down to at most two binary digits after the first (..., 8, 10, 12, 14, 16, 20, ...): fewer kernels for nearly as many blocks."""
    step = max(1, previous_power_of_two(value) // 4)
    return max(1, value // step * step)


def vector_elems(limit_elems: int, max_dtype_bits: int, min_vector_elems: int, max_vector_bits: int) -> int:
    """Return the vector width: as wide as one access, within the limit, and at least whole bytes."""
    return max(min_vector_elems, min(limit_elems, previous_power_of_two(max_vector_bits // max_dtype_bits)))


def vectors_along_rows(facts: ReductionFacts | PersistentFacts) -> tuple[bool, int]:
    """Return whether vectors along memory are aligned in memory instead of beginning with a row (see `weft.schedule.peel`), and their number of elements."""
    is_simple = facts.is_inner and facts.dimensions == 2 and facts.min_vector_elems == 1
    is_phased = is_simple and gains_by_phase(facts.reduction_elems, facts.vector_limit_elems, facts.phased_limit_elems, facts.max_dtype_bits)
    limit = facts.phased_limit_elems if is_phased else facts.vector_limit_elems
    return is_phased, vector_elems(limit, facts.max_dtype_bits, facts.min_vector_elems, facts.vector_bits)


def best_first(candidates: Iterable[Any], key: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Sort by `key`, largest first; equal ones keep their order."""
    return tuple(sorted(candidates, key=key, reverse=True))
