"""What holds slow corners back, by Nsight Compute: for every case of corners.py, functions.py and channels.py below a fraction of a copy.

    python bench/ncu_corners.py [OUT.json] [--below 0.93]
    python bench/ncu_corners.py --page      write the recorded table to docs/slow_corners.md; needs no GPU

Takes the fractions from the results of these scripts, and runs itself under `ncu`, one launch of each case. Where ncu fails at a kernel (a cooperative one in
clusters hangs there), the case is left out and the next run goes on behind it. Read first: `reason`.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import channels
import corners
import functions
import torch
from measure import RESULTS, device_of, moved_bytes, parser, table, write
from ncu_reasons import FULL_ISSUE, FULL_MEMORY, METRICS, STALL, STALLS

from weft import FusionDefinition
from weft.dtypes import DataType

MORE_STALLS = ("not_selected", "no_instruction", "dispatch_stall", "branch_resolving", "sleeping")
MORE_METRICS = {
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "busy": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
}
"""busy: percent of the time in which a multiprocessor has a block."""
MOST_IDLE, MOST_MOVED = 82.0, 1.25
"""Percent of the time, below which blocks are too few or too unequal; bytes moved over those that must be, from which these are the reason."""
Built = tuple[FusionDefinition, list[torch.Tensor]]


def cases(below: float) -> dict[str, tuple[float, Callable[[], Built]]]:
    """Return label -> (fraction of a copy, what makes the definition and its inputs)."""
    out: dict[str, tuple[float, Callable[[], Built]]] = {}

    def add(label: str, fraction: float, make: Callable[[], Built]) -> None:
        if fraction < below:
            out[label] = (fraction, make)

    for r in json.loads((RESULTS / "corners.json").read_text(encoding="utf-8"))["rows"]:
        kind, dtype, shape = corners.KINDS[r["case"]], getattr(torch, r["dtype"]), (r["rows"], r["columns"])
        label = f"{r['corner']}: {r['case']} {r['dtype']} {shape[0]}x{shape[1]}"
        add(label, r["fraction"], functools.partial(_corner, kind, dtype, shape))
    found = json.loads((RESULTS / "functions.json").read_text(encoding="utf-8"))
    for r in found["rows"]:
        function, dtype = functions.FUNCTIONS[r["function"]], getattr(torch, r["dtype"])
        shape = (found["rows_of_tensor"], found["columns"])
        label = f"function: {r['function']} {r['dtype']} {shape[0]}x{shape[1]}"
        add(label, r["of_copy"], functools.partial(_function, function, dtype, shape))
    by_label = {c.label: c for c in channels.CASES}
    for r in json.loads((RESULTS / "channels.json").read_text(encoding="utf-8"))["rows"]:
        if r["case"] in by_label:
            add(f"channels: {r['case']}", r["fraction"], functools.partial(_channels, by_label[r["case"]]))
    return out


def _corner(kind: Any, dtype: torch.dtype, shape: tuple[int, int]) -> Built:
    return kind.definition(dtype), kind.inputs(*shape, dtype, "cuda")


def _function(function: Callable[[Any, Any], Any], dtype: torch.dtype, shape: tuple[int, int]) -> Built:
    kind = DataType.Float if dtype is torch.float32 else DataType.BFloat16
    return functions.definition(function, kind), [torch.randn(*shape, device="cuda").to(dtype)]


def _channels(case: channels.Case) -> Built:
    return case.definition(), case.inputs("cuda")


def run_cases(names: Path, begun: int, below: float) -> None:
    """Launch each case once, from number `begun` on; write which kernels belong to it. Called under ncu."""
    for label, (_, make) in list(cases(below).items())[begun:]:
        fd, inputs = make()
        outputs = fd.execute(inputs)
        torch.cuda.synchronize()
        kernels = [r.program.name for r in fd.fec.kernel_runtimes]
        with names.open("a", encoding="utf-8") as file:
            file.write(json.dumps([label, moved_bytes(inputs, outputs), kernels]) + "\n")


def profiled(below: float) -> dict[str, tuple[int, dict[str, str]]]:
    """Return label -> (bytes that must move, ncu's values of the last kernel)."""
    out: dict[str, tuple[int, dict[str, str]]] = {}
    begun, wanted = 0, len(cases(below))
    metrics = [*METRICS.values(), *MORE_METRICS.values(), *map(STALL.format, (*STALLS, *MORE_STALLS))]
    while begun < wanted:
        with tempfile.TemporaryDirectory() as folder:
            log, names = Path(folder) / "ncu.csv", Path(folder) / "names"
            names.touch()
            command = ["ncu", "--clock-control", "none", "--kernel-name", "regex:^weft_", "--metrics", ",".join(metrics), "--csv", "--page", "raw"]
            environment = {**os.environ, "NCU_CORNERS": f"{names}|{begun}|{below}"}
            subprocess.run([*command, "--log-file", str(log), sys.executable, __file__], capture_output=True, env=environment, check=False)
            launched = [json.loads(line) for line in names.read_text(encoding="utf-8").splitlines()]
            out |= matched(launched, log.read_text(encoding="utf-8").splitlines() if log.exists() else [])
        begun += len(launched) + 1  # the case behind them is done, or ncu failed there
    return out


def matched(launched: list[list[Any]], lines: list[str]) -> dict[str, tuple[int, dict[str, str]]]:
    """Return the values of each case's last kernel. launched: cases in order, with the names of their kernels; lines: what ncu wrote."""
    rows = [line for line in csv.reader(line for line in lines if not line.startswith("=="))]
    heads = [n for n, line in enumerate(rows) if line[:1] == ["ID"]]
    if not heads:
        return {}
    head = rows[heads[0]]
    launches = [dict(zip(head, line)) for line in rows[heads[0] + 2 :] if len(line) == len(head)]
    out, place = {}, 0
    for number, (label, count, kernels) in enumerate(launched):
        following = launched[number + 1][2] if number + 1 < len(launched) else []
        mine: list[dict[str, str]] = []
        while place < len(launches) and launches[place]["Kernel Name"] in kernels and not (mine and launches[place]["Kernel Name"] in following):
            mine.append(launches[place])
            place += 1
            if len(mine) == len(kernels):
                break
        if mine:
            out[label] = (count, mine[-1])
    return out


def figures(label: str, fraction: float, count: int, values: dict[str, str]) -> dict[str, Any]:
    """Return the row of a case."""
    value = lambda name: float((values.get(name) or "0").replace(",", ""))  # noqa: E731
    row: dict[str, Any] = {"case": label, "fraction": fraction, "kernel": values["Kernel Name"].removeprefix("weft_").rsplit("_", 1)[0]}
    row |= {key: round(value(metric), 2) for key, metric in {**METRICS, **MORE_METRICS}.items()}
    row["us"] = round(row["us"] / 1e3, 1)
    row["instructions"] = round(row["instructions"] * 32 * 16 / count, 1)
    row["moved"] = round((row.pop("read") + row.pop("written")) / count, 2)
    row["stalls"] = {s: round(value(STALL.format(s)), 2) for s in (*STALLS, *MORE_STALLS)}
    return {**row, "reason": reason(row)}


def reason(row: dict[str, Any]) -> str:
    """Say in words what the figures show, the most telling first."""
    parts = []
    if row["memory"] >= FULL_MEMORY:
        parts.append("memory is as busy as in a copy")
    if row["moved"] >= MOST_MOVED:
        parts.append(f"{row['moved']:.1f} times the bytes are moved")
    if row["busy"] < MOST_IDLE:
        parts.append(f"a multiprocessor has a block in {row['busy']:.0f} % of the time ({row['waves']:.1f} waves)")
    if row["issue"] >= FULL_ISSUE:
        parts.append(f"{row['issue']:.0f} % of the cycles issue: {row['instructions']:.0f} instructions for 16 bytes")
    waits = [name for name in sorted(row["stalls"], key=lambda name: -row["stalls"][name]) if name != "not_selected"][:2]
    text = " and ".join(f"{name} ({row['stalls'][name]:.1f})" for name in waits)
    parts.append(f"warps wait for {text} with {row['warps'] * 0.64:.0f} of 64 resident")
    return "; ".join(parts[:3])


PAGE = RESULTS.parent.parent / "docs" / "slow_corners.md"
TABLE_HEAD = "## The table"


def write_page() -> None:
    """Put the table of the recorded rows at the end of the page."""
    rows = json.loads((RESULTS / "ncu_corners.json").read_text(encoding="utf-8"))["rows"]
    keys = ("fraction", "memory", "busy", "issue", "reason")
    lines = [f"| case | {' | '.join(keys)} |", "|---" * (1 + len(keys)) + "|"]
    for r in rows:
        cells = [r["case"], f"{r['fraction']:.2f}", *(f"{r[k]:.0f}" for k in keys[1:-1]), r["reason"]]
        lines.append(f"| {' | '.join(cells)} |")
    text = PAGE.read_text(encoding="utf-8").split(TABLE_HEAD)[0]
    PAGE.write_text(f"{text}{TABLE_HEAD}\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    if "--page" in sys.argv:
        write_page()
        return
    if inside := os.environ.get("NCU_CORNERS"):
        names, begun, below = inside.split("|")
        run_cases(Path(names), int(begun), float(below))
        return
    arguments = parser(__doc__)
    arguments.add_argument("--below", type=float, default=0.93)
    a = arguments.parse_args()
    if a.cpu_smoke:
        print(f"ncu needs a GPU: {len(cases(a.below))} cases, none run")
        return
    device, wanted = device_of(a), cases(a.below)
    rows = [figures(label, wanted[label][0], *found) for label, found in profiled(a.below).items()]
    keys = ("fraction", "us", "memory", "busy", "issue", "warps", "registers", "reason")
    print(table(("case", *keys), [(r["case"], *(r[k] for k in keys)) for r in rows]))
    write(a, __file__, device, rows, is_row_a_line=True)


if __name__ == "__main__":
    main()
