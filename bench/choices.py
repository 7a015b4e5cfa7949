"""What the schedulers choose for every case that was ever recorded here: params of each, without a GPU and without lowering.

    python bench/choices.py OUT.json [--random 300]         writes the choices; --random: of so many random definitions and sizes of each kind, too
    python bench/choices.py --compare BEFORE.json AFTER.json  names the cases whose choice differs

A change of the choice's code that should change no choice is shown not to by two runs. Read first: `choices`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import channels
import narrow_shapes
import plain_definitions
import torch
import two_sided_definitions
from corners import CORNERS, KINDS
from fit_cost import RECORD as TWO_SIDED
from forced import Seen, ways_of
from grid import CASES as GRID_KINDS, cells
from measure import RESULTS
from plain_definitions import PlainSpec
from plain_regret import POINTWISE, RECORD as PLAIN
from two_sided_definitions import Spec
from widths import NAMES as WIDTH_KINDS, TENSOR_BYTES, WIDTHS

from weft import FusionDefinition
from weft.arch import CHIPS, H200
from weft.errors import WeftError
from weft.options import current
from weft.schedulers.inner_outer_heuristic import choose_inner_outer
from weft.schedulers.row_ways import choose_rows

TYPES = (torch.bfloat16, torch.float32)
SHAPES = ((16384, 1024), (16384, 2048), (16384, 4096), (16384, 5120), (8192, 8192), (8192, 12288), (4096, 16384), (2048, 32768), (1, 4096), (64, 8192))
"""Of the benchmarks, and of few rows."""
Choice = tuple[str, str]


def choices(random: int) -> Iterator[Choice]:
    """Yield the name of each case and what is chosen for it."""
    yield from _ways()
    yield from _two_sided(random)
    yield from _plain(random)
    yield from _defined()


def _ways() -> Iterator[Choice]:
    for row in json.loads((RESULTS / "ways.json").read_text(encoding="utf-8"))["rows"]:
        seen = Seen.from_json(row["seen"])
        for chip in CHIPS.values():
            yield f"rows, {row['part']} {row['label']}, {chip.name}", str(choose_rows(seen.facts, chip, is_loadable=seen.is_loadable)[0])
        for way, params in ways_of(seen, H200).items():
            yield f"rows, {row['part']} {row['label']}, {way}", str(params)


def _specs(paths: Iterable[Path]) -> Iterator[list[Any]]:
    for path in paths:
        for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
            yield case["spec"]


def _two_sided(random: int) -> Iterator[Choice]:
    recorded = [Spec(*values) for values in _specs((TWO_SIDED, RESULTS / "two_sided_behind.json"))]
    for spec in dict.fromkeys([*recorded, *(two_sided_definitions.random_spec(90000 + n) for n in range(random))]):
        try:
            seen = two_sided_definitions.seen_of(spec)
        except ValueError:
            continue
        for chip in CHIPS.values() if spec in recorded[-60:] else (H200,):
            yield f"rows and columns, {spec}, {chip.name}, {spec.weight}, {spec.wide_columns}", str(choose_inner_outer(seen.facts, chip, seen.is_loadable)[0])


def _plain(random: int) -> Iterator[Choice]:
    recorded = [PlainSpec.from_json(values) for values in _specs((PLAIN, POINTWISE))]
    for spec in dict.fromkeys([*recorded, *(plain_definitions.random_spec(90000 + n) for n in range(random))]):
        scheduler = plain_definitions.TEMPLATES[spec.template]
        try:
            analysis, _, sizes = plain_definitions.facts_of(spec)
        except ValueError:
            continue
        if scheduler.accept(analysis, sizes, {}, H200) is None:
            yield f"plain, {spec}", str(scheduler.choose(analysis, sizes, {}, H200)[0])


def _defined() -> Iterator[Choice]:
    made: dict[Any, FusionDefinition] = {}

    def of(key: Any, build: Any, inputs: list[torch.Tensor], name: str) -> Choice:
        if key not in made:
            made[key] = build()
        return name, chosen_by_call(made[key], inputs)

    sized = [(name, dtype, max(1, TENSOR_BYTES // dtype.itemsize // n), n) for name in WIDTH_KINDS for dtype in TYPES for n in WIDTHS]
    sized += [case for cases in CORNERS.values() for case in cases] + [(name, dtype, *shape) for name in KINDS for dtype in TYPES for shape in SHAPES]
    sized += [cell for cell in cells("") if cell[0] in {kind for kind, _ in GRID_KINDS}]
    for name, dtype, rows, columns in dict.fromkeys(sized):
        inputs = KINDS[name].inputs(rows, columns, dtype, "meta")
        yield of((name, dtype), lambda: KINDS[name].definition(dtype), inputs, f"{name} {str(dtype)[6:]} {rows}x{columns}")  # noqa: B023
    for case in channels.CASES:
        yield of(case, case.definition, case.inputs("meta"), case.label)
    for op, (_, types, results, more) in narrow_shapes.OPS.items():
        for dtype, out in ((d, o) for d in types for o in results if d is not o or op != "cast"):
            for rows, columns in narrow_shapes.SHAPES:
                inputs = narrow_shapes.inputs_of(dtype, more, rows, columns, "meta")
                build = lambda: narrow_shapes.definition(op, dtype, out)  # noqa: B023, E731
                yield of((op, dtype, out), build, inputs, f"narrow {op} {dtype.name} to {out.name} {rows}x{columns}")


def chosen_by_call(fd: FusionDefinition, inputs: list[torch.Tensor]) -> str:
    """Return what a call with inputs of these sizes would run; no input is made but its memory, which nobody touches."""
    empty = [torch.empty_like(t, device="cpu") for t in inputs]
    caller = fd._executor_cache()._caller
    try:
        sizes, engine = caller.sizes(empty, None, current())
        proposals = [caller.request(use, sizes, engine, current()).proposal for use in sizes.kernels]
    except (WeftError, ValueError) as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return "; ".join(f"{p.scheduler.name} {p.params}" for p in proposals)


def compare(before: Path, after: Path) -> int:
    """Print the cases that differ; return how many there are."""
    old, now = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    changed = [name for name in old.keys() | now.keys() if old.get(name) != now.get(name)]
    for name in sorted(changed):
        print(f"{name}\n  {old.get(name)}\n  {now.get(name)}")
    print(f"{len(changed)} of {len(old.keys() | now.keys())} choices differ")
    return len(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="+", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--random", type=int, default=0)
    a = parser.parse_args()
    if a.compare:
        return int(compare(*a.out) > 0)
    found = dict(choices(a.random))
    a.out[0].write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    print(f"{len(found)} choices: {a.out[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
