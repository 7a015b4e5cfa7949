"""How long sums into rows take: behind a sort of the index, or added atomically. Figures of a chip are in `weft.arch`.

Both are predictions from sizes: what an index names is not known when a graph is compiled. Read first: `RowSumSizes`, `is_atomic_faster`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arch import SECTOR_BYTES, Arch

LAUNCH_US = 2.5
"""Of one kernel behind another: 0.9 to 2.6 us are between kernels of our graphs on an H200, and its blocks start and end."""
SHORT_SORT_US, SORT_US, SHORT_SORT = 16.0, 24.0, 4096
"""The launches of torch's sort, 15 of them: 16 us for 2,048 places, and for more than SHORT_SORT (measured on an H200; docs/torch_compile.md)."""
SORT_PASS_NS = 0.012
"""Of a place, for each 8 bits of its key: 24 to 47 us for 400,000 to 500,000 places with keys of 16 and 32 bits (the same source)."""
SEARCH_NS = 0.1
"""Of a row of the result, whose places are searched in the sorted keys: 5, 10 and 25 us for 50,257, 100,000 and 300,000 rows
(`bench/results/row_sum_ways.json`)."""
PLACE_BYTES = 8 + 2 * SECTOR_BYTES
"""Read for each place of an order: itself, and what it names, its index and its weight, which lie anywhere."""
ROOF_OF_BAGS = 0.5
"""Of a copy's rate: what sums of rows in the order of a sort reach (0.42 to 0.6 on an H200, by the table in docs/torch_compile.md less the sort)."""


@dataclass(frozen=True)
class RowSumSizes:
    """places: rows that are added. rows: of the result. row_elems: of a row; run_elems: of them that lie behind one another in the result. read_bytes: of what
    is added. bits: of an element of the result; wide_bits: of an element that is added to. levels: chunks of chunks that the sorted way adds first. key_bits:
    of its keys. is_skewed: a few rows are named most often, as words are (Zipf); otherwise all about equally often."""

    places: int
    rows: int
    row_elems: int
    run_elems: int
    read_bytes: float
    bits: int
    wide_bits: int
    levels: int
    key_bits: int
    is_skewed: bool = False

    @property
    def longest(self) -> float:
        """How often the row is named that is named most often, about."""
        mean = self.places / max(1, self.rows)
        even = mean + 4 * math.sqrt(mean)  # four standard deviations
        return max(even, self.places / (math.log(max(2, self.rows)) + 0.58)) if self.is_skewed else even


def sorted_us(s: RowSumSizes, arch: Arch) -> float:
    """Return the time of a sort of the index, and of the kernels that add rows in its order."""
    sort = (SHORT_SORT_US if s.places <= SHORT_SORT else SORT_US) + s.places * s.key_bits / 8 * SORT_PASS_NS * 1e-3
    moved = s.read_bytes + s.places * PLACE_BYTES + s.rows * s.row_elems * s.bits / 8
    sort += s.rows * SEARCH_NS * 1e-3
    return sort + moved / (ROOF_OF_BAGS * arch.roof_bytes_per_s) * 1e6 + (1 + s.levels) * LAUNCH_US


def atomic_us(s: RowSumSizes, arch: Arch) -> float:
    """Return the time of a kernel that writes zeros, one that adds rows to them atomically, and one that rounds the sums if they are wider than the result."""
    t, elems = arch.latencies, s.rows * s.row_elems
    sums = elems * s.wide_bits / 8
    stays = sums <= arch.l2_bytes / 2  # what is read passes through the other half
    rate = t.l2_bytes_per_s if stays else arch.roof_bytes_per_s
    sectors = s.places * s.row_elems / max(1, s.run_elems) * math.ceil(s.run_elems * s.wide_bits / 8 / SECTOR_BYTES)
    missed = 0.0 if stays else 2 * SECTOR_BYTES * sectors / arch.roof_bytes_per_s  # read and written back
    adding = max(s.read_bytes / arch.roof_bytes_per_s + max(sectors / t.atomic_sectors_per_s, missed), s.longest * t.atomic_repeat_ns * 1e-9)
    rounding = 0.0 if s.bits == s.wide_bits else sums / rate + elems * s.bits / 8 / arch.roof_bytes_per_s
    return (sums / rate + adding + rounding) * 1e6 + (2 + (s.bits != s.wide_bits)) * LAUNCH_US


def is_atomic_faster(s: RowSumSizes, arch: Arch) -> bool:
    """Tell whether rows are added sooner without a sort."""
    return atomic_us(s, arch) < sorted_us(s, arch)


__all__ = ["RowSumSizes", "atomic_us", "is_atomic_faster", "sorted_us"]
