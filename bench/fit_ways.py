"""Fits the numbers of `weft/schedulers/cost` that belong to rows alone to recorded times: the choice should lose little, predictions be near. Needs no GPU.

Owns the search over the few numbers that belong to rows alone, and the check with a family, a class of widths or of row counts left out. Read first: `fit`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from forced import Seen
from regret import MOST, mean_regret, times_of

from weft.arch import Arch
from weft.schedulers.cost.parts import FITTED, Fitted
from weft.schedulers.row_ways import Ways, find_ways

FREE = {"preference": (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12)}
"""Numbers that these cases decide, and the values that are tried; others are fitted to kernels for rows and columns (`fit_cost.py`)."""
WIDTHS, ROWS = (2048, 4096, 8192, 16384), (132, 512, 4096, 16384)
"""Where the classes of widths and row counts meet."""
ERROR_WEIGHT = 0.1
"""What an error of a prediction counts beside a regret of the same size."""
ABOVE_MOST_WEIGHT = 20.0
"""What a regret counts more beyond the most that is allowed."""
ALIKE = 1e-5
"""Losses that differ by less say nothing."""
LAUNCH_BOUND_ROWS = 4
"""Rows per multiprocessor up to which most of the time is that of the launch, for a copy too: their fractions are not compared, only the choice is."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What a row of the results says: the ways, the times in us, the fraction of a copy of each."""

    label: str
    ways: Ways
    times: dict[str, float]
    fractions: dict[str, float]

    def regret(self, constants: Fitted) -> float:
        """Regret among the ways without bulk stores; a way that was not measured cannot be compared, and counts as not lost."""
        best = self.ways.best(constants)
        return self.times[best] / min(self.times.values()) - 1.0 if best in self.times else 0.0

    def error(self, constants: Fitted) -> float:
        logs = [abs(math.log(self.ways.predict[way](constants) / self.fractions[way])) for way in self.fractions if way in self.ways.predict]
        return sum(logs) / max(1, len(logs))


def cases_of(rows: list[dict[str, Any]], arch: Arch) -> list[Case]:
    out = []
    for row in rows:
        seen = Seen.from_json(row["seen"])
        times = times_of(row)
        is_compared = seen.facts.iteration_elems > LAUNCH_BOUND_ROWS * arch.sm_count
        fractions = {way: row["ways"][way]["fraction"] for way in times if is_compared}
        out.append(Case(row["label"], find_ways(seen.facts, arch, is_loadable=seen.is_loadable), times, fractions))
    return out


def loss(cases: list[Case], constants: Fitted) -> float:
    """Mean of the regrets, more for each above 2 %, and a little of the errors."""
    total = 0.0
    for case in cases:
        regret = case.regret(constants)
        total += regret + ABOVE_MOST_WEIGHT * max(0.0, regret - MOST) + ERROR_WEIGHT * case.error(constants)
    return total / len(cases)


def fit(cases: list[Case]) -> Fitted:
    """Return the numbers with which the loss is least. Of those that lose alike, the ones in the middle: cases that decide nothing lean to no side."""
    tried = [dataclasses.replace(FITTED, **dict(zip(FREE, values))) for values in itertools.product(*FREE.values())]
    losses = [loss(cases, fitted) for fitted in tried]
    alike = [fitted for fitted, found in zip(tried, losses) if found <= min(losses) + ALIKE]
    return alike[len(alike) // 2]


# ---------------------------------------------------------------- what is left out
def classes(case: Case) -> dict[str, str]:
    """Return the family, the width class and the class of row counts of a case, by its label."""
    family, _, sizes = case.label.split()
    rows, columns = (int(n) for n in sizes.split("x"))
    return {"family": family, "widths": f"class {sum(columns > edge for edge in WIDTHS)}", "rows": f"class {sum(rows > edge for edge in ROWS)}"}


def left_out(cases: list[Case]) -> dict[tuple[str, str], list[float]]:
    """Return for each class the regrets of its cases, with numbers that are fitted to all others."""
    found = {}
    for kind in ("family", "widths", "rows"):
        for name in sorted({classes(case)[kind] for case in cases}):
            inside = [case for case in cases if classes(case)[kind] == name]
            fitted = fit([case for case in cases if classes(case)[kind] != name])
            found[kind, name] = [case.regret(fitted) for case in inside]
    return found


def print_fit(rows: list[dict[str, Any]], arch: Arch) -> None:
    """Print the present constants, and those that lose least on these rows."""
    cases = cases_of(rows, arch)
    found = fit(cases)
    for what, constants in (("present", FITTED), ("fitted", found)):
        regrets = sorted(((case.regret(constants), case.label) for case in cases), reverse=True)
        mean = math.exp(sum(math.log1p(r) for r, _ in regrets) / len(regrets)) - 1.0
        print(f"{what}: loss {loss(cases, constants):.5f}, regret at most {regrets[0][0] * 100:.1f} %, geometric mean {mean * 100:.3f} %")
        print("\n".join(f"    {label}: {regret * 100:.1f} %" for regret, label in regrets if regret > MOST))
    print("\n".join(f"    {field.name}: float = {getattr(found, field.name)}" for field in dataclasses.fields(Fitted) if field.name in FREE))
    for (kind, name), regrets_of in left_out(cases).items():
        print(f"without {kind} {name}: regret of these {len(regrets_of)} cases {mean_regret(regrets_of) * 100:.3f} %, at most {max(regrets_of) * 100:.1f} %")
