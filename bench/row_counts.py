"""How many kernels one definition of norm backward makes over row counts: 200 random ones, and as many as a search finds from 1 to 100,000.

    python bench/row_counts.py [--columns 4096] [--chip H200]

Needs no GPU: equal params are one kernel, and params are chosen from sizes alone. The search compares neighbouring row counts of a grid, and looks between
those that differ until they are neighbours, so that it misses only params that appear and vanish between two points of the grid.
"""

from __future__ import annotations

import argparse
import math
import random

from corners import KINDS

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.compiler import prepare
from weft.schedulers.inner_outer import InnerOuterPersistent

MOST_ROWS = 100_000
GRID = 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--chip", default="H200")
    a = parser.parse_args()
    arch, scheduler = arch_by_name(a.chip), InnerOuterPersistent()
    for name in ("rms_backward", "layer_backward"):
        with FusionDefinition() as fd:
            KINDS[name].define(fd, DataType.BFloat16)
        prepared = prepare(fd.fusion)
        analysis = scheduler.analyze(prepared.fusion)
        rows_sym, columns_sym = (axis.sym for axis in prepared.fusion.inputs()[0].get_logical_domain())  # type: ignore[attr-defined]
        known: dict[int, object] = {}

        def params(rows: int) -> object:
            if rows not in known:  # noqa: B023
                known[rows] = scheduler.choose(analysis, {rows_sym: rows, columns_sym: a.columns}, {}, arch)[0]  # type: ignore[arg-type] # noqa: B023
            return known[rows]  # noqa: B023

        def search(low: int, high: int) -> None:
            if high - low > 1 and params(low) != params(high):  # noqa: B023
                middle = (low + high) // 2
                search(low, middle)  # noqa: B023
                search(middle, high)  # noqa: B023

        drawn = random.Random(0)
        some = {params(drawn.randint(1, MOST_ROWS)) for _ in range(200)}
        points = sorted({round(math.exp(n / GRID * math.log(MOST_ROWS))) for n in range(GRID + 1)})
        for low, high in zip(points, points[1:]):
            search(low, high)
        found = len(set(known.values()))
        print(f"{name} x{a.columns}: {len(some)} kernels for 200 random row counts, {found} found from 1 to {MOST_ROWS} ({len(known)} asked)", flush=True)


if __name__ == "__main__":
    main()
