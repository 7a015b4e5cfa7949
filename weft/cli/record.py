"""`weft record` and `weft diff`: the kernels of a corpus as a file, and what differs between two such files.

Owns arguments and what is printed; records are made and compared in `weft.check.records`. Read first: `record`, `diff`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..errors import UserError

SHOWN_LINES = 40


class NoRecord(UserError):
    code = "W869"
    what = "{path} is not a record: {reason}"
    fix = "make one with `weft record {path}`"


def record_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `weft record`."""
    parser.add_argument("out", help="file to write, JSON")
    parser.add_argument("--corpus", default="suite", help="suite, or a script with CASES: name -> (definition, shapes of its tensor inputs)")
    parser.add_argument("--targets", default="", help="chips to compile for, as sm_90a,sm_100a; needs NVRTC. Default: CUDA text only")
    parser.add_argument("--only", default="", help="record the cases whose names contain this")


def record(given: argparse.Namespace) -> int:
    """Write the record of a corpus."""
    from ..check.record_corpus import of_script, suite
    from ..check.records import make_record

    cases = suite() if given.corpus == "suite" else of_script(given.corpus)
    found = make_record({name: case for name, case in cases.items() if given.only in name}, [t for t in given.targets.split(",") if t])
    Path(given.out).write_text(json.dumps(found, indent=1))
    errors = sum("error" in case for case in found["cases"].values())
    print(f"{len(found['cases'])} cases, {sum(len(c['kernels']) for c in found['cases'].values())} kernels, {errors} that no kernel was made for: {given.out}")
    return 0


def diff_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `weft diff`."""
    parser.add_argument("before", help="record made first")
    parser.add_argument("after", help="record made second")
    parser.add_argument("--html", default="", help="page to write")
    parser.add_argument("--json", default="", help="file to write for CI")


def diff(given: argparse.Namespace) -> int:
    """Print what differs between two records; return 1 when anything does."""
    from ..check.record_page import page, summary
    from ..check.records import compare

    before, after = _read(given.before), _read(given.after)
    found = compare(before, after)
    print("\n".join((summary(found), *found.notes)))
    for label, names in (("new", found.new), ("removed", found.removed)):
        for name in names:
            print(f"{label}: {name}")
    for change in found.changed:
        print(f"\n{change.case}: {', '.join(change.what)}")
        for line in (*change.figures, *change.lines[:SHOWN_LINES]):
            print(f"  {line}")
        if len(change.lines) > SHOWN_LINES:
            print(f"  ... {len(change.lines) - SHOWN_LINES} lines more")
    if given.html:
        Path(given.html).write_text(page(found, before, after))
    if given.json:
        Path(given.json).write_text(json.dumps(found.to_json(), indent=1))
    return int(found.differs)


def _read(path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise NoRecord(path=path, reason=error) from error
    if not isinstance(found, dict) or "cases" not in found:
        raise NoRecord(path=path, reason="it has no cases")
    return found
