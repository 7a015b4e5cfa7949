"""Fits the constants of `weft/schedulers/row_model.py` to recorded times: the choice should lose little, and predictions be near. Needs no GPU.

Owns the search: a few constants at a time are changed by random factors, and kept when the loss falls. The same file gives the same constants.
Read first: `fit`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

from forced import Seen
from regret import MOST, times_of

from weft.arch import Arch
from weft.schedulers.row_model import CONSTANTS, Constants
from weft.schedulers.row_ways import Ways, find_ways

BOUNDS = {
    "roof": (0.95, 1.05),
    "specialized_roof": (0.9, 1.0),
    "own_transfer": (0.3, 1.0),
    "l2": (0.7, 3.0),
    "preference": (0.0, 0.15),
    "weight_ns": (20.0, 1500.0),
}
OTHERS = (0.2, 5.0)
"""Least and most of a constant over its present value, where BOUNDS does not name it."""
ERROR_WEIGHT = 0.1
"""What an error of a prediction counts beside a regret of the same size."""
ABOVE_MOST_WEIGHT = 20.0
"""What a regret counts more beyond the most that is allowed."""
STEPS = 6000
LAUNCH_BOUND_ROWS = 4
"""Rows per multiprocessor up to which most of the time is that of the launch, for a copy too: their fractions are not compared, only the choice is."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What a row of the results says: the ways, the times in us, the fraction of a copy of each."""

    label: str
    ways: Ways
    times: dict[str, float]
    fractions: dict[str, float]

    def regret(self, constants: Constants) -> float:
        """Regret among the ways without bulk stores; a way that was not measured cannot be compared, and counts as not lost."""
        best = self.ways.best(constants)
        return self.times[best] / min(self.times.values()) - 1.0 if best in self.times else 0.0

    def error(self, constants: Constants) -> float:
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


def loss(cases: list[Case], constants: Constants) -> float:
    """Mean of the regrets, more for each above 2 %, and a little of the errors."""
    total = 0.0
    for case in cases:
        regret = case.regret(constants)
        total += regret + ABOVE_MOST_WEIGHT * max(0.0, regret - MOST) + ERROR_WEIGHT * case.error(constants)
    return total / len(cases)


def fit(cases: list[Case], steps: int = STEPS) -> Constants:
    """Return constants with which the loss is small."""
    chance, found = random.Random(0), CONSTANTS
    best = loss(cases, found)
    names = [field.name for field in dataclasses.fields(Constants)]
    spread = dict.fromkeys(names, 0.3)
    for _ in range(steps):
        together = chance.sample(names, chance.choice((1, 1, 2, 3)))  # one alone may lose what several gain
        values: dict[str, float] = {}
        for name in together:
            start = getattr(CONSTANTS, name)
            low, high = BOUNDS.get(name) or (start * OTHERS[0], start * OTHERS[1])
            value = min(high, max(low, getattr(found, name) * math.exp(chance.gauss(0.0, spread[name]))))
            values[name] = float(f"{value:.3g}")
        changed = dataclasses.replace(found, **values)
        now = loss(cases, changed)
        for name in together:
            spread[name] = min(0.6, spread[name] * 1.5) if now < best else max(0.03, spread[name] * 0.97)
        if now < best:
            found, best = changed, now
    return found


def print_fit(rows: list[dict[str, Any]], arch: Arch) -> None:
    """Print the present constants, and those that lose least on these rows."""
    cases = cases_of(rows, arch)
    found = fit(cases)
    for what, constants in (("present", CONSTANTS), ("fitted", found)):
        regrets = sorted(((case.regret(constants), case.label) for case in cases), reverse=True)
        mean = math.exp(sum(math.log1p(r) for r, _ in regrets) / len(regrets)) - 1.0
        print(f"{what}: loss {loss(cases, constants):.5f}, regret at most {regrets[0][0] * 100:.1f} %, geometric mean {mean * 100:.3f} %")
        print("\n".join(f"    {label}: {regret * 100:.1f} %" for regret, label in regrets if regret > MOST))
    print("\n".join(f"    {field.name}: float = {getattr(found, field.name)}" for field in dataclasses.fields(Constants)))
