"""How much of a regret is in the timing, and what the choice between ways alone loses: from kernels of one H100 that were timed twice.

    python bench/repeated.py

Needs no GPU. The second times are of another process, with cases and kernels in another order. Three choices are judged, each by both times of a kernel:
the fastest of the other run (what timing everything once and choosing by that would lose: no model can be shown to lose less), the model's, and, for rows
and columns, between two ways: rows by bulk copies into a ring that is filled behind the arithmetic (what nvFuser does by warp specialization), or by loads of
the threads themselves. Read first: `Twice`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plain_regret
from fit_cost import geometric_mean
from measure import RESULTS, table
from two_sided_definitions import Spec, seen_of

from weft.arch import H100, Arch
from weft.schedulers.cost.model import time_ns
from weft.schedulers.cost.two_sided import Kernels, work_of
from weft.schedulers.inner_outer_candidates import FILLS, Candidates
from weft.schedulers.inner_outer_params import LOADS

PLAIN, TWO_SIDED, AGAIN = (RESULTS / name for name in ("plain_h100.json", "two_sided_h100.json", "again_h100.json"))
LEAST = 3
"""Kernels of a case that can judge; for the choice between ways two of each."""


@dataclass(frozen=True)
class Twice:
    """A case. us: two times of each kernel; predicted: by the model, ns; ways: True for rows that come by bulk copies, or None."""

    family: str
    us: np.ndarray
    predicted: np.ndarray
    ways: np.ndarray | None = None

    def lost(self, taken: int, among: np.ndarray | None = None) -> list[float]:
        """Return what taking a kernel loses, in each run, to the fastest of that run."""
        us = self.us if among is None else self.us[:, among]
        return [float(run[taken] / best - 1) for run, best in zip(self.us, us.min(axis=1))]


def cases(arch: Arch = H100) -> list[Twice]:
    """Return the cases of both records whose kernels were timed twice."""
    again = json.loads(AGAIN.read_text(encoding="utf-8"))
    out = []
    for found, second in zip(json.loads(PLAIN.read_text(encoding="utf-8"))["cases"], again[PLAIN.name], strict=True):
        if (kept := _kept(found, second)) is not None:
            (case,) = plain_regret.timed_of([{**found, "kernels": [k for k, _ in kept]}])
            is_one = plain_regret.candidates_among(case, arch)
            predicted = np.where(is_one, plain_regret.predicted_ns(case, arch), np.inf)
            if is_one.any():  # equal predictions are told apart as the choice does
                predicted[plain_regret.taken_of(case, predicted, arch)] = 0.0
            out.append(Twice(case.spec.family, np.array([[k[0] for k, _ in kept], [us for _, us in kept]]), predicted))
    record = json.loads(TWO_SIDED.read_text(encoding="utf-8"))
    for found, second in zip(record["cases"], again[TWO_SIDED.name], strict=True):
        kept = [(k, us) for k, us in _kept(found, second) or () if not k[2]]  # as the runtime does, which takes another one for what spills
        if len(kept) >= LEAST:
            params = [dict(zip(record["columns"], k)) for k, _ in kept]
            us = np.array([[k[0] for k, _ in kept], [us for _, us in kept]])
            out.append(Twice("rows and columns", us, _of_two_sides(Spec(*found["spec"]), params, arch), np.array([p["loads"] == "tma" for p in params])))
    return out


def _kept(found: dict[str, Any], second: Sequence[float | None]) -> list[tuple[list[Any], float]] | None:
    kept = [(k, us) for k, us in zip(found["kernels"], second, strict=True) if k[0] is not None and us is not None]
    return kept if len(kept) >= LEAST else None


def _of_two_sides(spec: Spec, params: list[dict[str, Any]], arch: Arch) -> np.ndarray:
    seen = seen_of(spec)
    rows = Candidates(seen.facts, arch, seen.is_loadable).facts_of_rows

    def column(name: str) -> np.ndarray:
        values = [p.get(name, False) for p in params]  # records made before a param was there
        return np.array([LOADS.index(v) if name == "loads" else FILLS.index(v) if name == "fill" else v for v in values])

    found = time_ns(work_of(Kernels(**{name: column(name) for name in Kernels.__dataclass_fields__}), rows, arch), arch)
    return np.broadcast_to(found, len(params)).copy()


# ---------------------------------------------------------------- what is lost
def of_other_run(case: Twice) -> list[float]:
    first, second = case.us
    return [float(second[first.argmin()] / second.min() - 1), float(first[second.argmin()] / first.min() - 1)]


def of_model(case: Twice) -> list[float]:
    return case.lost(int(case.predicted.argmin()))


def between_ways(case: Twice) -> list[float] | None:
    """Return what the model's choice loses to the better of its choices among either way; None for a case that has one way."""
    if case.ways is None or not 2 <= case.ways.sum() <= len(case.ways) - 2:
        return None
    best = [int(np.where(part, case.predicted, np.inf).argmin()) for part in (case.ways, ~case.ways)]
    return case.lost(int(case.predicted.argmin()), np.array(best))


def between_best_of_ways(case: Twice) -> list[float] | None:
    """Return what the way that the model takes loses to the other one, with the fastest kernel of either."""
    if case.ways is None or not 2 <= case.ways.sum() <= len(case.ways) - 2:
        return None
    part = case.ways == case.ways[case.predicted.argmin()]
    return [float(run[part].min() / run.min() - 1) for run in case.us]


JUDGED: dict[str, Callable[[Twice], list[float] | None]] = {
    "fastest of the other run": of_other_run, "model": of_model, "model, between its choices of two ways": between_ways,
    "model's way, with its fastest kernel": between_best_of_ways,
}  # fmt: skip


def summary(found: Sequence[Twice]) -> list[list[Any]]:
    """Return for each family and choice: cases, what is lost in the geometric mean of both runs, at most in a case (mean of its two), cases above 2 %."""
    lines = []
    for family in dict.fromkeys(case.family for case in found):
        for name, judge in JUDGED.items():
            lost = [values for case in found if case.family == family and (values := judge(case)) is not None]
            if lost:
                mean = np.exp(np.log1p(np.array(lost)).mean(axis=1)) - 1
                lines.append([family, name, len(lost), f"{100 * geometric_mean(mean):.2f} %", f"{100 * mean.max():.1f} %", int((mean > 0.02).sum())])
    return lines


def main() -> None:
    print(table(["kernels", "choice", "cases", "loses", "most", "above 2 %"], summary(cases())))


if __name__ == "__main__":
    main()
