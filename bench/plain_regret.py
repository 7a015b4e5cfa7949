"""What the cost model loses on recorded kernels without kept rows: pointwise, reductions along and across memory, transposes.

    python bench/plain_regret.py [RECORD.json ...] [--worst 10]

Needs no GPU. A record is what `candidates.py --plain` writes. Nothing is fitted to these kernels, so that every case judges. Regret of a case: the time of the
kernel that the model takes for the fastest, over the fastest one of those that were timed. Read first: `Timed`, `predicted_ns`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fit_cost import geometric_mean
from measure import RESULTS, table
from plain_definitions import PARAMS, TEMPLATES, PlainSpec, facts_of

from weft.arch import Arch, arch_by_name, ceil_div
from weft.schedulers.cost.parts import FITTED, Fitted
from weft.schedulers.cost.passing import passing_ns
from weft.schedulers.cost.pointwise import Pointwise, work_of_pointwise
from weft.schedulers.cost.reductions import Reductions, work_of_reductions
from weft.schedulers.cost.transposes import Tiles, work_of_transposes
from weft.schedulers.pointwise_heuristic import Candidates, in_order
from weft.schedulers.reduction_heuristic import BLOCK_THREADS, MOST_CLUSTER, MOST_SHIFTED_UNROLL

RECORD, POINTWISE = RESULTS / "plain.json", RESULTS / "pointwise.json"
"""Of an H200. The second: 263 pointwise definitions and sizes of new seeds, and 67 of the first record, with the choices of rules and of the model. Since
these were timed, indices are divided by factors of the host: their kernels of several axes in one loop ("spread") were slower than such kernels are now."""
H100_RECORD = RESULTS / "plain_h100.json"
"""Of an H100, of new seeds, after that change: pointwise kernels with a spread operand, transposes, reductions."""
MOST_MISSED = 1.1
"""The fastest candidate that was timed over the fastest kernel, in a case that can judge."""
LEAST_KERNELS = 3
"""Of a case that can judge."""


@dataclass(frozen=True)
class Timed:
    """A case with its kernels. chosen: the place of the choice of that time, or None."""

    spec: PlainSpec
    params: list[Any]
    us: np.ndarray
    chosen: int | None
    copy_us: float


def read(paths: Sequence[Path]) -> list[Timed]:
    """Read records."""
    return timed_of([found for path in paths for found in json.loads(path.read_text(encoding="utf-8"))["cases"]])


def timed_of(cases: Sequence[dict[str, Any]]) -> list[Timed]:
    """Return the cases of a record; kernels that failed are left out."""
    out = []
    for found in cases:
        spec = PlainSpec.from_json(found["spec"])
        kernels = [k for k in found.get("kernels", ()) if k[0] is not None]
        if len(kernels) < LEAST_KERNELS:
            continue
        params = [_params(spec, k[4:]) for k in kernels]
        chosen = _params(spec, found["chosen"])
        place = params.index(chosen) if chosen in params else None
        out.append(Timed(spec, params, np.array([k[0] for k in kernels]), place, found["copy_us"]))
    return out


def _params(spec: PlainSpec, values: Sequence[Any]) -> Any:
    return PARAMS[spec.template](*(tuple(v) if isinstance(v, list) else v for v in values))


def predicted_ns(case: Timed, arch: Arch, fitted: Fitted = FITTED) -> np.ndarray:
    """Return the predicted time of each kernel."""
    analysis, facts, sizes = facts_of(case.spec)

    def of(name: str, kind: type = float) -> np.ndarray:
        return np.array([getattr(params, name) for params in case.params], dtype=kind)

    if case.spec.template == "pointwise":
        names = ("vector_elems", "unroll_outer", "unroll_inner", "bdimx", "bdimy")
        walks = tuple(of(name, bool) for name in ("is_left_fastest", "is_phased", "shares_rows"))
        work = work_of_pointwise(Pointwise(of("break_point", int), *map(of, names), *walks), facts, arch, fitted)
    elif case.spec.template == "reduction":
        shape = {name: of(name) for name in ("vector_elems", "unroll", "bdimx", "bdimy", "bdimz", "grid_split", "max_registers")}
        is_3d = np.array([params.kind == "3d" for params in case.params])
        same = {name: getattr(case.params[0], name) for name in ("is_phased", "overlaps", "are_all")}
        kernels = Reductions(not facts.is_inner, is_3d, is_cluster=of("is_cluster", bool), **same, **shape)
        work = work_of_reductions(kernels, facts, arch, fitted)
    else:
        names = ("tile_elems", "along_vector", "across_vector", "threads", "unroll", "turned_unroll", "is_along_first", "across_anywhere")
        work = work_of_transposes(Tiles(*map(of, names)), analysis.facts(sizes, analysis.cuts[0]), arch, fitted)
    return passing_ns(work, arch, fitted)


def candidates_among(case: Timed, arch: Arch) -> np.ndarray:
    """Return which of the kernels are such as the choice compares: of columns, neither large clusters nor large blocks, and one shifted vector at a time."""
    if case.spec.family == "rows":
        return np.ones(len(case.params), bool)
    analysis, facts, sizes = facts_of(case.spec)
    if case.spec.template == "transpose":
        tiles = {str(params) for _, params in TEMPLATES["transpose"].candidates(analysis, sizes, {}, arch)}
        return np.array([str(params) in tiles for params in case.params])
    if case.spec.template == "pointwise":
        made = Candidates(facts, arch)
        compared = {made.params(row) for row in made.rows}
        return np.array([params in compared for params in case.params])

    def is_one(p: Any) -> bool:
        blocks = ceil_div(facts.iteration_elems, p.vector_elems * p.bdimx) * p.grid_split
        is_cluster_fine = not p.is_cluster or p.grid_split <= MOST_CLUSTER and blocks <= arch.sm_count
        return is_cluster_fine and p.threads_per_block <= BLOCK_THREADS[-1] and (not p.overlaps or p.unroll <= MOST_SHIFTED_UNROLL)

    found = np.array([is_one(p) for p in case.params])
    return found if found.any() else np.ones(len(case.params), bool)


def taken_of(case: Timed, predicted: np.ndarray, arch: Arch) -> int:
    """Return the place of the kernel that would be taken: the fastest by prediction, for pointwise kernels with what decides among those predicted alike."""
    if case.spec.template != "pointwise":
        return int(np.argmin(predicted))
    shapes = np.array([[p.break_point, p.vector_elems, p.unroll_outer, p.unroll_inner, p.bdimx, p.bdimy] for p in case.params])
    _, facts, _ = facts_of(case.spec)
    return int(in_order(shapes, predicted, facts)[0])


@dataclass(frozen=True)
class Judged:
    """regret: of the model; was: of the choice of that time. error: logarithms of predicted over measured times, of kernels up to twice the fastest."""

    case: Timed
    regret: float
    was: float | None
    error: np.ndarray


def judge(cases: Sequence[Timed], arch: Arch, fitted: Fitted = FITTED) -> list[Judged]:
    """Compare predictions with times."""
    out = []
    for case in cases:
        predicted, best = predicted_ns(case, arch, fitted), case.us.min()
        near = case.us < 2 * best
        was = None if case.chosen is None else float(case.us[case.chosen] / best - 1)
        is_one = candidates_among(case, arch)
        if not is_one.any() or case.us[is_one].min() > MOST_MISSED * best:
            continue  # of the few that were drawn, none that the choice would compare is good
        among = np.where(is_one, predicted, np.inf)
        taken = taken_of(case, among, arch)
        out.append(Judged(case, float(case.us[taken] / best - 1), was, np.log(predicted * 1e-3 / case.us)[near]))
    return out


def families(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    names = sorted({j.case.spec.family for j in judged})
    return {name: [j for j in judged if j.case.spec.family == name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--chip", default="H200")
    parser.add_argument("--worst", type=int, default=10, help="cases to show")
    a = parser.parse_args()
    judged = judge(read(a.records or [RECORD]), arch_by_name(a.chip))
    lines = []
    for name, found in families(judged).items():
        regret, was = np.array([j.regret for j in found]), np.array([j.was for j in found if j.was is not None])
        error = np.median(np.abs(np.concatenate([j.error for j in found])))
        figures = (geometric_mean(regret), regret.max(), geometric_mean(was), was.max(), error)
        lines.append([name, len(found), *(f"{100 * value:.2f} %" for value in figures)])
    print(table(["kernels", "cases", "regret", "most", "choice of then", "most", "error"], lines))
    worst = sorted(judged, key=lambda j: -j.regret)[: a.worst]
    print(table(["case", "fastest us", "regret"], [[str(j.case.spec), f"{j.case.us.min():.1f}", f"{100 * j.regret:.1f} %"] for j in worst]))


if __name__ == "__main__":
    main()
