"""What a choice by prediction can attain: the regret that an error of so much leaves, and that of boosted trees that have every feature of the model.

    python bench/attainable.py              how exact predictions of kernels for rows and columns must be
    python bench/attainable.py --trees      trees judged on what they were not fitted to; needs LightGBM (pip install lightgbm), minutes

Needs no GPU. Read first: `needed_error`, `by_trees`.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

import numpy as np
from fit_cost import RECORD, WIDTHS, Recorded, geometric_mean, read, regrets
from measure import RESULTS, table

from weft.arch import Arch, arch_by_name
from weft.schedulers.cost.model import time_ns

ERRORS = (0.005, 0.01, 0.016, 0.02, 0.03, 0.05, 0.08)
"""Standard deviations of logarithms."""
DRAWS = 20
NEAR = 1.2
"""Over the fastest kernel of a case, up to which errors count."""
TREES: dict[str, Any] = {
    "objective": "regression", "verbose": -1, "num_threads": 1, "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 20,
    "feature_fraction": 0.5, "bagging_fraction": 0.7, "bagging_freq": 1, "lambda_l2": 5, "seed": 0,
}  # fmt: skip
ROUNDS = 400


def needed_error(recorded: Recorded) -> list[list[str]]:
    """Return for each error the regret of a choice by measured times with that much noise: mean and most."""
    drawn, out = np.random.default_rng(0), []
    for error in ERRORS:
        found = [regrets(recorded, recorded.us * np.exp(error * drawn.normal(size=len(recorded.us))))[0] for _ in range(DRAWS)]
        out.append([f"{100 * error:.1f} %", f"{100 * geometric_mean(np.concatenate(found)):.2f} %", f"{100 * np.mean([f.max() for f in found]):.1f} %"])
    return out


def error_within(recorded: Recorded, predicted: np.ndarray) -> float:
    """Return the standard deviation of a prediction's error within a case, of kernels near the fastest."""
    near = recorded.us < NEAR * recorded.best[recorded.case]
    error, case = np.log(recorded.us / predicted)[near], recorded.case[near]
    mean = np.bincount(case, error) / np.maximum(1, np.bincount(case))
    return float((error - mean[case]).std())


def features(recorded: Recorded, arch: Arch, has_registers: bool) -> np.ndarray:
    """Return params, facts, what the model counts, and the predicted time; the compiler's registers and spills where asked."""
    parts = [recorded.kernels, recorded.rows, recorded.work(arch)]
    columns = [getattr(part, field.name) for part in parts for field in fields(part)]
    columns += [np.log(time_ns(parts[2], arch))] + [recorded.registers, recorded.spill_bytes] * has_registers
    return np.stack([np.broadcast_to(np.asarray(c, float), recorded.us.shape) for c in columns], axis=1)


def by_trees(recorded: Recorded, arch: Arch, part: np.ndarray, leaves: int, has_registers: bool) -> np.ndarray:
    """Return predictions for each part of the cases by trees that were fitted to the error of the model on the others."""
    import lightgbm  # type: ignore[import-not-found]

    model = np.log(time_ns(recorded.work(arch), arch) * 1e-3)
    slower = np.log(recorded.us / recorded.best[recorded.case])
    table_of, out, error = features(recorded, arch, has_registers), model.copy(), np.log(recorded.us) - model
    for number in np.unique(part):
        is_left = part[recorded.case] == number
        used = ~is_left & (slower < np.log(2))
        weight, case = np.exp(-6 * slower[used]), recorded.case[used]
        mean = np.bincount(case, weight * error[used]) / np.maximum(1e-9, np.bincount(case, weight))
        data = lightgbm.Dataset(table_of[used], error[used] - mean[case], weight=weight)
        out[is_left] += lightgbm.train({**TREES, "num_leaves": leaves}, data, ROUNDS).predict(table_of[is_left])
    return np.exp(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", action="store_true")
    a = parser.parse_args()
    arch = arch_by_name("H200")
    recorded = read([RECORD, RESULTS / "two_sided_behind.json"], arch)
    model = time_ns(recorded.work(arch), arch) * 1e-3
    regret, _ = regrets(recorded, model)
    print(table(["error", "regret", "most"], needed_error(recorded)))
    print(f"the model: error {100 * error_within(recorded, model):.1f} %, regret {100 * geometric_mean(regret):.2f} % ({len(regret)} cases)")
    if not a.trees:
        return
    names, count = sorted({spec.norm for spec in recorded.specs}), len(recorded.specs)
    parts = {
        "a sixth": np.random.default_rng(0).permutation(count) % 6,
        "a family": np.array([names.index(spec.norm) for spec in recorded.specs]),
        "a width class": np.array([sum(spec.columns > edge for edge in WIDTHS) for spec in recorded.specs]),
    }
    lines = []
    for name, part in parts.items():
        for leaves, has_registers in ((2, False), (31, False), (31, True)):
            found = by_trees(recorded, arch, part, leaves, has_registers)
            lost, _ = regrets(recorded, found)
            figures = (error_within(recorded, found), geometric_mean(lost), lost.max())
            lines.append([name, leaves, "compiler's" if has_registers else "estimate", *(f"{100 * value:.2f} %" for value in figures)])
    print(table(["left out", "leaves", "registers", "error", "regret", "most"], lines))


if __name__ == "__main__":
    main()
