"""The section of docs/benchmarks.md on the ways to keep a normalization's rows, from ways.json and peers.json. Read first: `ways`."""

from __future__ import annotations

import math
from typing import Any

from page_text import FUSION_CASE_NAMES, load, machine, missing, prose, table, two
from rechoose import regret_now
from regret import MOST, MOST_MEAN, mean_regret, times_of

from weft.arch import arch_by_name

NAMES = ("registers", "tma", "tma, bulk stores", "specialized", "specialized, bulk stores")
TITLES = {
    "tall": "Many rows", "odd": "Rows that are no multiple of 16 bytes: TMA declines", "short": "Few rows",
    "earlier": "By an earlier script, before clusters were improved (without registers and errors)",
}  # fmt: skip
WORDS = """Where should a normalization keep its rows between passes? Fractions of a copy of the same bytes, all ways in turn in one process; medians (for
small tensors over seven placements in memory). registers: no pipeline; rows too long for a block's registers are spread over a cluster, kept in shared memory
or read again. tma: a block loads its row by one bulk copy. specialized: a fixed number of blocks with compute warps and one loading warp per input, as many
stages as fit (warp specialization). bulk stores: results are stored by bulk copies from shared memory. A dash: it does not fit, or TMA declines. "chosen" is
what the present code takes; its regret is how much slower that is than the fastest of the five ("other params": the present params of that way were not
measured). Registers per thread are ptxas's, in the order of the columns, with spilled bytes if any. "other": the best other compiler or library in the table
of all cases with the same rows and columns."""


def chosen(row: dict[str, Any]) -> tuple[str, float]:
    return regret_now(row, arch_by_name("H200"))


def measured() -> list[dict[str, Any]]:
    data = load("ways")
    return [row for row in (data or {"rows": []})["rows"] if row["part"] != "variants"]


def way_bars() -> list[tuple[str, str, bool | None]]:
    """Return the bars on the choice among the ways: what was asked, the figure, is it met."""
    chosen_now = [(chosen(row)[1], row["label"]) for row in measured()]
    regrets = [(regret, label) for regret, label in chosen_now if math.isfinite(regret)]
    if not regrets:
        return [(f"the choice among ways to keep rows loses at most {MOST * 100:.0f} %, {MOST_MEAN * 100} % in the mean", "-", None)]
    worst, where = max(regrets)
    mean = mean_regret(r for r, _ in regrets)
    above = sum(r > MOST for r, _ in regrets)
    return [
        (
            f"the choice among ways to keep rows is at most {MOST * 100:.0f} % slower than the best of them",
            f"{len(regrets) - above} of {len(regrets)} cases; at most {worst * 100:.1f} % ({where})"
            + f"; {len(chosen_now) - len(regrets)} with params that were not measured" * (len(chosen_now) > len(regrets)),
            above == 0,
        ),
        (f"and at most {MOST_MEAN * 100} % in the geometric mean", f"{mean * 100:.2f} %", mean <= MOST_MEAN),
    ]  # fmt: skip


def peer_of(row: dict[str, Any], peers: dict[str, dict[str, float]]) -> str:
    name = f"{FUSION_CASE_NAMES.get(row['case'], row['case'])} {row['dtype']} {row['rows']}x{row['columns']}"
    who, fraction = max(peers.get(name, {}).items(), key=lambda item: item[1], default=("", math.nan))
    return f"{fraction:.2f} {who}" if who else ""


def registers_of(way: dict[str, Any]) -> str:
    if "registers" not in way:
        return "-"
    return f"{way['registers']}" + (f" ({way['spill_bytes']} B spilled)" if way.get("spill_bytes") else "")


def case_row(row: dict[str, Any], peers: dict[str, dict[str, float]]) -> list[str]:
    ways, times = row["ways"], times_of(row)
    fastest = min(times, key=times.__getitem__)
    cells = []
    for name in NAMES:
        way = ways.get(name, {})
        text = "wrong" if way.get("wrong") else two(way.get("fraction"))
        cells.append(f"**{text}**" if name == fastest else text)
    registers = " / ".join(registers_of(ways.get(name, {})) for name in NAMES)
    way, regret = chosen(row)
    return [row["label"], *cells, way, f"{regret * 100:.1f} %" if math.isfinite(regret) else "other params", peer_of(row, peers), registers]


def variants(rows: list[dict[str, Any]]) -> list[str]:
    """Return the tables of what was varied in specialized kernels: one row per change, one column per case."""
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row["ways"]))
    out = ["### Specialized kernels, one thing changed at a time", ""]
    out += prose("""Fractions of a copy, and registers per thread. One role: one warp loads the rows of all inputs; two roles: each loads one input. Registers
        shared: loading warps give registers to compute warps (setmaxnreg); alike: all threads have the same number.""")
    for title, keep in (
        ("Roles", lambda n: "role" in n), ("Registers", lambda n: n.startswith("registers")),
        ("Stages, groups, rows at once, bulk stores", lambda n: "role" not in n and not n.startswith("registers")),
    ):  # fmt: skip
        body = [(name, *(variant_cell(row["ways"].get(name, {})) for row in rows)) for name in names if keep(name)]
        shown = [line for line in body if any(cell != "-" for cell in line[1:])]
        out += table((title, *(row["label"] for row in rows)), shown)
    return out


def variant_cell(way: dict[str, Any]) -> str:
    return f"{way['fraction']:.3f} ({registers_of(way)})" if "fraction" in way else "-"


def ways() -> list[str]:
    """Return the section."""
    data, out = (
        load("ways"),
        ["## Ways to keep rows", "", "```bash", "python bench/ways.py", "python bench/ways.py --regret bench/results/ways.json", "```", ""],
    )
    if not data:
        return out + missing("ways", "python bench/ways.py")
    peers = {row["case"]: row["fractions"] for row in (load("peers") or {"rows": []})["rows"]}
    out += [machine(data), "", *prose(WORDS)]
    for part, title in TITLES.items():
        rows = [row for row in data["rows"] if row["part"] == part]
        if rows:
            out += [f"### {title}", ""]
            out += table(("case", *NAMES, "chosen", "regret", "other", "registers"), [case_row(row, peers) for row in rows])
    out += variants([row for row in data["rows"] if row["part"] == "variants"])
    right = data.get("right")
    if right:
        out += ["### Right results", "", "```bash", right["command"], "```", "", "```text", *right["lines"], "```", ""]
        if any("FAILED" in line for line in right["lines"]):
            out += prose(
                "The one failure is open: the emulator finds neither a wrong element nor a race in the same shapes. No heuristic chooses that kernel."
            )
    return out
