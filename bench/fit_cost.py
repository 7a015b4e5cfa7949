"""Fits the few numbers of the cost model to recorded kernels, and says what a choice by the model loses.

    python bench/fit_cost.py [RECORD.json ...]              regret of the model as it is
    python bench/fit_cost.py [RECORD.json ...] --fit        fit on two thirds of the cases, judge on the rest, and with a family, width or row class left out

Needs no GPU. A record is what `candidates.py` writes. Regret of a case: the time of the kernel that the model takes for the fastest, over the fastest one of
those that were timed. Read first: `Recorded`, `regrets`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from fit_ways import FREE
from measure import RESULTS, table
from two_sided_definitions import Spec, benchmark_specs, seen_of

from weft.arch import Arch, arch_by_name
from weft.schedulers.cost.model import time_ns
from weft.schedulers.cost.parts import FITTED, Fitted
from weft.schedulers.cost.two_sided import Kernels, Rows, needed_registers, work_of
from weft.schedulers.cost.work import Work
from weft.schedulers.inner_outer import FEW_SPILL_BYTES
from weft.schedulers.inner_outer_candidates import FILLS, Candidates
from weft.schedulers.inner_outer_params import LOADS

RECORD = RESULTS / "two_sided.json"
LEAST_CASES = 8
"""Of a part that is left out."""
SHARPNESS = 0.03
"""Of predicted times, for the smooth regret that the fit makes small: kernels whose predictions differ by less are taken alike."""
STEPS = 4000
BOUNDS = {"sharpness": (1.5, 8.0)}
"""Of the fitted numbers; others are between 0.01 and 100 times what they are now."""
WIDTHS, ROWS = (1024, 4096, 16384), (512, 4096, 16384)
"""Where the classes of widths and row counts meet."""


@dataclass(frozen=True)
class Recorded:
    """Kernels that were timed, one element each. case: number of the definition and sizes; best: of each case, us. chosen: the choice of that time."""

    specs: list[Spec]
    kernels: Kernels
    rows: Rows
    us: np.ndarray
    case: np.ndarray
    chosen: np.ndarray
    registers: np.ndarray
    spill_bytes: np.ndarray
    copy_us: np.ndarray
    fits: np.ndarray

    @property
    def best(self) -> np.ndarray:
        out = np.full(len(self.specs), np.inf)
        np.minimum.at(out, self.case, self.us)
        return out

    def work(self, arch: Arch) -> Work:
        return work_of(self.kernels, self.rows, arch)


def read(paths: Sequence[Path], arch: Arch, most_spill_bytes: int = FEW_SPILL_BYTES) -> Recorded:
    """Read records: kernels that the runtime takes, of cases that have three at least.

    The runtime refuses a kernel that spills more, and takes the next one by the model: as if the first had not been there.
    """
    specs: list[Spec] = []
    columns: dict[str, list[Any]] = {f.name: [] for f in fields(Kernels)}
    facts: dict[str, list[Any]] = {f.name: [] for f in fields(Rows)}
    us, case, chosen, registers, spills, copies = [], [], [], [], [], []
    for path in paths:
        data = json.loads(path.read_text(encoding="utf-8"))
        for found in data["cases"]:
            timed = [dict(zip(data["columns"], k)) for k in found.get("kernels", ()) if k[0] is not None]
            good = [k for k in timed if (k["spill_bytes"] or 0) <= (0 if k["loads"] == "tma" else most_spill_bytes)]
            if len(good) < 3:
                continue
            spec = Spec(*found["spec"])
            seen = seen_of(spec)
            of_form = [dataclasses.asdict(Candidates(seen.facts, arch, seen.is_loadable, is_online=form).facts_of_rows) for form in (False, True)]
            for values in good:
                rows = of_form[values.get("is_online", False)]
                for name, column in columns.items():
                    value = values.get(name, False)  # records made before a param was there
                    column.append(LOADS.index(value) if name == "loads" else FILLS.index(value) if name == "fill" else value)
                for name, value in rows.items():
                    facts[name].append(value)
                us.append(values["us"])
                case.append(len(specs))
                chosen.append([values[name] for name in data["columns"][4:]] == found.get("chosen"))
                registers.append(values["registers"] or 0)
                spills.append(values["spill_bytes"] or 0)
            specs.append(spec)
            copies.append(found["copy_us"])
    are_bool = ("is_reread", "project_to_inputs", "is_behind", "is_online")
    kernels = Kernels(**{name: np.array(values, dtype=bool if name in are_bool else float) for name, values in columns.items()})
    rows_of = Rows(**{name: np.array(values, dtype=float) for name, values in facts.items()})
    fits = needed_registers(kernels, rows_of) <= kernels.max_registers
    return Recorded(specs, kernels, rows_of, *(np.array(v) for v in (us, case, chosen, registers, spills, copies)), fits)


# ---------------------------------------------------------------- regret
def regrets(recorded: Recorded, predicted: np.ndarray, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the regret of each case, and the kernel that was taken. among: the kernels that may be taken."""
    shown = predicted if among is None else np.where(among, predicted, predicted * 1e6)
    order = np.lexsort((shown, recorded.case))
    taken = order[np.unique(recorded.case[order], return_index=True)[1]]
    return recorded.us[taken] / recorded.best - 1.0, taken


def geometric_mean(regret: np.ndarray) -> float:
    return float(np.exp(np.log1p(regret).mean()) - 1.0)


# ---------------------------------------------------------------- fit
def fit(recorded: Recorded, arch: Arch, cases: np.ndarray, steps: int = STEPS, start: Fitted = FITTED, seed: int = 0) -> Fitted:
    """Return the numbers with which a choice among the kernels of `cases` (true for each that counts) loses least.

    A random walk in the logarithms of the numbers: what is made small is the expected regret of a choice that takes near predictions alike, and a part of the
    error of the predictions themselves, which keeps them times.
    """
    work, drawn = recorded.work(arch), np.random.default_rng(seed)
    names = [f.name for f in fields(Fitted) if f.name not in FREE]
    us, case, count = recorded.us, recorded.case, len(recorded.specs)
    best = recorded.best
    lost = np.minimum(2.0, us / best[case] - 1.0)
    weight = (best[case] / us) ** 4
    weight = weight / np.bincount(case, weight, count)[case] * cases[case]
    now = np.array([getattr(start, name) for name in names])
    low, high = np.log(now / 100), np.log(now * 100)
    for name, (least, most) in BOUNDS.items():
        low[names.index(name)], high[names.index(name)] = np.log(least), np.log(most)

    def loss(values: np.ndarray) -> float:
        predicted = np.log(time_ns(work, arch, dataclasses.replace(start, **dict(zip(names, np.exp(values).tolist())))) * 1e-3)
        least = np.full(count, np.inf)
        np.minimum.at(least, case, predicted)
        share = np.exp((least[case] - predicted) / SHARPNESS)
        expected = (np.bincount(case, share * lost, count) / np.bincount(case, share, count))[cases]
        error = predicted - np.log(us)
        return float(expected.mean() + 0.5 * np.sqrt((expected**2).mean()) + 0.3 * np.sqrt((weight * error**2).sum() / cases.sum()))

    values, width = np.log(now), 0.3
    least = loss(values)
    for _ in range(steps):
        moved = values + width * drawn.normal(size=len(names)) * (drawn.random(len(names)) < drawn.choice((0.15, 0.5))) * drawn.choice((0.3, 1.0, 3.0))
        moved = np.clip(moved, low, high)
        found = loss(moved)
        if found < least:
            values, least, width = moved, found, min(0.5, width * 1.1)
        else:
            width = max(0.02, width * 0.995)
    return dataclasses.replace(start, **dict(zip(names, np.exp(values).tolist())))


# ---------------------------------------------------------------- what is left out
def folds(recorded: Recorded) -> dict[str, dict[str, np.ndarray]]:
    """Return for each way to divide the cases the parts that are left out in turn: true for each case of the part."""
    specs = recorded.specs
    thirds = np.arange(len(specs)) % 3

    def parts(of: Callable[[Spec], Any]) -> dict[str, np.ndarray]:
        values = [of(spec) for spec in specs]
        return {str(value): np.array([v == value for v in values]) for value in sorted(set(values))}

    return {
        "a third": {str(n): thirds == n for n in range(3)},
        "a family": parts(lambda s: s.norm),  # with all that stands around it
        "a width class": parts(lambda s: sum(s.columns > edge for edge in WIDTHS)),
        "a row class": parts(lambda s: sum(s.rows > edge for edge in ROWS)),
        "a type": parts(lambda s: s.dtype),
    }


def print_folds(recorded: Recorded, arch: Arch, steps: int, is_benchmark: np.ndarray) -> None:
    lines = []
    for what, parts in folds(recorded).items():
        for name, out in parts.items():
            if not LEAST_CASES <= out.sum() <= len(out) - LEAST_CASES:
                continue
            fitted = fit(recorded, arch, ~out & ~is_benchmark, steps)
            regret, _ = regrets(recorded, time_ns(recorded.work(arch), arch, fitted))
            lost = (geometric_mean(regret[out]), regret[out].max(), geometric_mean(regret[~out]))
            lines.append([what, name, int(out.sum()), *(f"{100 * v:.2f} %" for v in lost)])
    print(table(["left out", "which", "cases", "regret", "most", "of the others"], lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--chip", default="H200")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--worst", type=int, default=10, help="cases to show")
    a = parser.parse_args()
    arch = arch_by_name(a.chip)
    recorded = read(a.records or [RECORD], arch)
    is_benchmark = np.isin([str(spec) for spec in recorded.specs], [str(spec) for spec in benchmark_specs()])
    fitted = FITTED
    if a.fit:
        print_folds(recorded, arch, a.steps, is_benchmark)
        fitted = fit(recorded, arch, ~is_benchmark, 2 * a.steps)
        print("\n".join(f"    {f.name}: float = {getattr(fitted, f.name):.4g}" for f in fields(Fitted)))
    predicted = time_ns(recorded.work(arch), arch, fitted)
    regret, taken = regrets(recorded, predicted)
    worst = np.argsort(-regret)[: a.worst]
    lines = [[str(recorded.specs[n]), f"{recorded.us[taken[n]]:.1f}", f"{recorded.best[n]:.1f}", f"{100 * regret[n]:.1f} %"] for n in worst]
    print(table(["case", "taken us", "fastest us", "regret"], lines))
    mean, most = 100 * geometric_mean(regret), 100 * regret.max()
    print(f"{len(regret)} cases, {len(recorded.us)} kernels: regret {mean:.2f} % in the geometric mean, {most:.1f} % at most")
    if is_benchmark.any():
        print(f"of these the benchmark's, to which nothing is fitted: {100 * geometric_mean(regret[is_benchmark]):.2f} % ({is_benchmark.sum()} cases)")
    was = np.array([recorded.us[(recorded.case == n) & recorded.chosen].min(initial=np.inf) for n in range(len(regret))])
    known = np.isfinite(was)
    if known.any():
        lost = was[known] / recorded.best[known] - 1.0
        print(f"the choice when they were recorded: {100 * geometric_mean(lost):.2f} %, {100 * lost.max():.1f} % at most ({known.sum()} cases)")


if __name__ == "__main__":
    main()
