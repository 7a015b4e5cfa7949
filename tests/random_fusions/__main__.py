"""`python -m tests.random_fusions --count 1000 --seed 0 [--gpu] [--long-rows] [--views] [--graphs] [--mixed] [--wide] [--sides] [--tune] [--pairs] [--nvrtc] [--shapes N] [--seconds S]`: run random fusions and compare them with the reference.

Read first: `main`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (str(HERE), str(HERE.parent.parent)):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from fusion_generator import GRAPHS, LONG_ROWS, MIXED, NARROW, SIZED, TWO_SIDES, VIEWS, WIDE, WIDE_SIZED, random_case  # noqa: E402
from fusion_runner import LARGEST_ELEMS, LARGEST_LONG_ROWS, Found, report, run_seeds, shrunk, start_worker  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_fusions", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--gpu", action="store_true", help="tensors on the GPU, without the emulator")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no more fusions after this long")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: 16 with --gpu, else one per core")
    parser.add_argument("--elems", type=int, default=0, help="largest product of a fusion's loops")
    parser.add_argument("--long-rows", action="store_true", help="normalizations of rows of thousands of elements only")
    parser.add_argument("--views", action="store_true", help="graphs over reshapes, permutes, slices, pads and cats only")
    parser.add_argument("--graphs", action="store_true", help="graphs of everything: all types, views, lookups, scans, orders, reductions, products")
    parser.add_argument("--mixed", action="store_true", help="such graphs with arguments of every kind: scalar inputs, CPU scalars, sizes as shapes, empty tensors")
    parser.add_argument("--wide", action="store_true", help="mixed graphs with what the others leave out: narrow floats, reshapes of any sizes, parts of axes in another order, computed positions, batched products, all pointwise ops")
    parser.add_argument("--sides", action="store_true", help="normalizations of rows whose columns are reduced, too")
    parser.add_argument("--narrow", action="store_true", help="fusions with inputs and outputs of floats of 8 and 4 bits")
    parser.add_argument("--tune", action="store_true", help="compute each kernel by one of the candidates that tuning would time, at random")
    parser.add_argument("--shapes", type=int, default=0, help="run each definition, with symbolic sizes, at so many sizes; with --graphs or --wide: graphs without any size in their definition")
    parser.add_argument("--pairs", action="store_true", help="run each kernel also before the one in front of it has ended (programmatic dependent launch)")
    parser.add_argument("--nvrtc", action="store_true", help="compile each kernel by NVRTC, too, before the emulator runs it; with --elems 1048576 those that a GPU is given")
    parser.add_argument("--show", action="store_true", help="print the definition of every seed, and run none")
    parser.add_argument("--no-shrink", action="store_true")
    args = parser.parse_args(arguments)
    if args.shapes and (args.views or args.mixed or args.long_rows):
        parser.error("--shapes changes the sizes of calls, but --views, --mixed and --long-rows write sizes into the definition; combine it with --graphs, --wide, --sides, --narrow, or nothing")
    if args.nvrtc and args.gpu:
        parser.error("--nvrtc is for the emulator: with --gpu, every kernel is compiled by NVRTC")
    device = "cuda" if args.gpu else "cpu"
    family = LONG_ROWS if args.long_rows else VIEWS if args.views else MIXED if args.mixed else WIDE_SIZED if args.wide and args.shapes else WIDE if args.wide else SIZED if args.graphs and args.shapes else GRAPHS if args.graphs else TWO_SIDES if args.sides else NARROW if args.narrow else ""
    largest = args.elems or (LARGEST_LONG_ROWS if args.long_rows else LARGEST_ELEMS[device])
    seeds = list(range(args.seed, args.seed + args.count))
    if args.show:
        for seed in seeds:
            print(random_case(seed, largest, family).text(device))
        return 0
    start = time.monotonic()
    found: list[Found] = []
    for seed, made_as, outcome in run_seeds(seeds, device, args.jobs or (16 if args.gpu else os.cpu_count() or 1), args.seconds, largest, family, args.tune, args.shapes, args.pairs, args.nvrtc):
        found.append((seed, made_as, outcome))
        if outcome.is_failure:
            print(f"seed {seed} ({made_as}): {outcome.kind}: {outcome.detail[:400]}", flush=True)
            print(f"    in the emulator: python -m tests.random_fusions --seed {seed} --count 1 --elems {largest}{' --long-rows' * args.long_rows}{' --views' * args.views}{' --graphs' * args.graphs}{' --mixed' * args.mixed}{' --wide' * args.wide}{' --sides' * args.sides}{' --narrow' * args.narrow}{' --tune' * args.tune}{' --nvrtc' * args.nvrtc}{f' --shapes {args.shapes}' if args.shapes else ''}", flush=True)  # the sizes depend on it
    report(found, time.monotonic() - start)
    failures = [(seed, outcome) for seed, _, outcome in found if outcome.is_failure]
    if not args.no_shrink and not args.shapes:
        start_worker(args.nvrtc)
        for seed, outcome in failures[:5]:
            print(shrunk(seed, outcome, device, largest, family))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
