"""A chip of a few multiprocessors, on which few rows are chosen for as many rows are on a whole one.

Kernels for rows in waves, in clusters and in specialized warps get the same params for `rows_of_part(rows)` there as for all rows on an H200: the emulator runs the
same text on an eighth of the elements. Caches, bandwidths and clocks per multiprocessor are those of the whole chip.
Read first: `part_of_the_chip`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from weft.arch import CHIPS, H200, ceil_div
from weft.options import options

PART_SMS = 16
"""As many as the largest cluster has blocks."""


def part_of_h200(sm_count: int = PART_SMS) -> str:
    """Return the name of the chip, which is put into the table of chips."""
    share, name = sm_count / H200.sm_count, f"{sm_count} MULTIPROCESSORS OF AN H200"
    CHIPS[name] = replace(
        H200, name=name, sm_count=sm_count, l2_bytes=int(H200.l2_bytes * share), dram_bytes_per_s=H200.dram_bytes_per_s * share,
        copy_bytes_per_s=(H200.copy_bytes_per_s or 0.0) * share, bus_width_bits=int(H200.bus_width_bits * share),
        latencies=replace(H200.latencies, l2_bytes_per_s=H200.latencies.l2_bytes_per_s * share),
    )  # fmt: skip
    return name


@contextlib.contextmanager
def part_of_the_chip() -> Iterator[None]:
    """Choose and run kernels for it."""
    name = part_of_h200()
    try:
        with options(chip=name):
            yield
    finally:
        del CHIPS[name]


def rows_of_part(rows: int) -> int:
    """Return as many rows for the part as `rows` are for the whole chip: as many waves, also of one row more than fits."""
    return ceil_div(rows * PART_SMS, H200.sm_count)
