"""The choice among the ways to keep rows, made again by the code as it is from recorded facts. Needs no GPU. Read first: `print_regret`."""

from __future__ import annotations

import math
from typing import Any

from forced import WAYS, Seen, ways_of
from measure import table
from regret import MOST, MOST_MEAN, mean_regret, regret_of, times_of

from weft.arch import Arch
from weft.schedulers.base import Decline
from weft.schedulers.row_ways import choose_rows


def choice_now(row: dict[str, Any], arch: Arch) -> tuple[str, str]:
    """Return the way that is taken, and a remark where other params were measured for it."""
    seen = Seen.from_json(row["seen"])
    params, _ = choose_rows(seen.facts, arch, is_loadable=seen.is_loadable)
    recorded = {way: found.get("params") for way, found in row["ways"].items()}
    if str(params) in recorded.values():
        return next(way for way, text in recorded.items() if text == str(params)), ""
    now = ways_of(seen, arch)
    way = next((name for name in WAYS if not isinstance(now[name], Decline) and now[name] == params), "")
    return way, f"its time is that of other params, now {params}" if way in recorded else f"not measured: {params}"


def regret_now(row: dict[str, Any], arch: Arch) -> tuple[str, float]:
    """Return the way that is taken and its regret: infinite where it was measured with other params, whose time says nothing of it."""
    way, remark = choice_now(row, arch)
    return way, math.inf if remark else regret_of(row, way)


def changed_labels(rows: list[dict[str, Any]], arch: Arch) -> set[str]:
    """Return the cases of which a way was measured with other params than it has now."""

    def is_changed(row: dict[str, Any]) -> bool:
        now = ways_of(Seen.from_json(row["seen"]), arch)
        return any("params" in found and found["params"] != str(now.get(way, found["params"])) for way, found in row["ways"].items())

    return {row["label"] for row in rows if row["part"] != "variants" and is_changed(row)}


def print_regret(rows: list[dict[str, Any]], arch: Arch, *, every: bool) -> None:
    """Print the regret of each case above 0.5 % (or of every case), the largest, and the geometric mean."""
    lines, remarks, regrets = [], [], []
    for row in rows:
        way, remark = choice_now(row, arch)
        regret, times = math.inf if remark else regret_of(row, way), times_of(row)
        best = min(times, key=times.__getitem__)
        regrets.append((regret, row["label"]))
        if remark:
            remarks.append(f"{row['label']}: {remark}")
        if every or regret > MOST_MEAN:
            lines.append(
                [row["label"], way, best, f"{times.get(way, math.nan):.2f}", f"{times[best]:.2f}", "not measured" if remark else f"{regret * 100:.1f} %"]
            )
    if lines:
        print(table(["case", "chosen", "fastest", "chosen us", "fastest us", "regret"], lines))
    if remarks:
        print(f"{len(remarks)} choices were not measured with the params that are chosen now, as {remarks[0]}")
    known = [r for r, _ in regrets if math.isfinite(r)]
    if known:
        worst, where = max((r, label) for r, label in regrets if math.isfinite(r))
        print(
            f"{len(known)} of {len(rows)} cases: regret at most {worst * 100:.2f} % ({where}), geometric mean {mean_regret(known) * 100:.3f} %, "
            f"above {MOST * 100:.0f} %: {sum(r > MOST for r in known)}"
        )
