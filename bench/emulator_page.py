"""The section and the bars of docs/benchmarks.md that emulator.py fills. Read first: `emulator`."""

from __future__ import annotations

from typing import Any

from emulator import BUILDS, CALLS
from page_text import load, missing, prose, table

SPEED_BAR, BUILD_BAR_S = 80.0, 0.15
NORMALIZATIONS = ("rms_norm", "layer_norm")
WORDS = """A call of `execute` on CPU tensors of {shape}, on one thread, with bounds and alignment of every access checked: million elements of the input per
    second, and seconds to build the kernel, whose text is in no cache. Fastest and median of {calls} calls and {builds} builds; other work on the core can only
    make a call slower. `python tests/emulator/throughput.py` measures two hand-written kernels."""


def by_processor(data: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each processor."""
    out: dict[str, list[dict[str, Any]]] = {}
    for row in data["rows"]:
        out.setdefault(row["cpu"], []).append(row)
    return out


def emulator_bars() -> list[tuple[str, str, bool | None]]:
    """Return what was asked, the figures on each processor, and whether a normalization reaches it on all of them, and all kernels' builds on one.

    The fastest call counts: what else runs on a core is not the emulator's. Builds take 0.11 to 0.2 s where others share the two cores.
    """
    data = load("emulator")
    speed, build = f"the emulator: at least {SPEED_BAR:.0f} M elements/s of a row normalization on one core", f"the emulator: a kernel built in {BUILD_BAR_S} s"
    if data is None:
        return [(speed, "-", None), (build, "-", None)]
    speeds, builds = {}, {}
    for cpu, rows in by_processor(data).items():
        norms = [r for r in rows if r["case"] in NORMALIZATIONS and r["dtype"] == "bfloat16"]
        speeds[cpu] = {r["case"]: (r["fastest"], r["median"]) for r in norms}
        builds[cpu] = (min(r["build_s"] for r in rows), max(r["build_s"] for r in rows))
    told = [f"{cpu}: " + ", ".join(f"{name} {best:.0f} (median {usual:.0f})" for name, (best, usual) in found.items()) for cpu, found in speeds.items()]
    spans = [f"{cpu}: {low:.2f} to {high:.2f} s" for cpu, (low, high) in builds.items()]
    return [
        (f"{speed} (bfloat16)", "; ".join(told), all(any(best >= SPEED_BAR for best, _ in found.values()) for found in speeds.values())),
        (build, "; ".join(spans), any(high <= BUILD_BAR_S for _, high in builds.values())),
    ]


def emulator() -> list[str]:
    """Return the section."""
    data = load("emulator")
    out = ["## The emulator", "", "```bash", "python bench/emulator.py", "```", ""]
    if not data:
        return out + missing("emulator", "python bench/emulator.py")
    shape = " x ".join(str(data["rows"][0][key]) for key in ("rows", "columns"))
    out += [f"{data['chip']}; {data['date']}.", "", *prose(WORDS.format(shape=shape, calls=CALLS, builds=BUILDS))]
    head = ("case", "fastest", "median", "build s", "build s, median")
    keys = ("fastest", "median", "build_s", "build_median_s")
    for cpu, rows in by_processor(data).items():
        out += [f"**{cpu}**", "", *table(head, [(f"{r['case']} {r['dtype']}", *(r[k] for k in keys)) for r in rows])]
    return out
