"""What holds a kernel back, by Nsight Compute: throughput of memory, issue slots, resident warps, and what warps wait for.

    python bench/ncu_reasons.py [OUT.json]

Runs itself under `ncu`, which must be on the path and allowed to read the counters; one launch of each case, with caches flushed by ncu. The cases are those
of `ways.py` in which no way reaches 0.97 of a copy, and column sums. Read first: `METRICS`, `reason`.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from cases import BY_NAME
from measure import RESULTS, device_of, parser, table, write

ALSO = (("col_sum", torch.bfloat16, 8192, 8192), ("col_sum", torch.bfloat16, 16384, 4096))
"""Of `fusion_cases.py`."""
WANTED = 0.97
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = ("long_scoreboard", "barrier", "membar", "short_scoreboard", "math_pipe_throttle", "lg_throttle", "mio_throttle", "wait", "drain")
METRICS = {
    "us": "gpu__time_duration.sum",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "waves": "launch__waves_per_multiprocessor",
    "registers": "launch__registers_per_thread",
    "instructions": "smsp__inst_executed.sum",
}
"""Name here -> name in ncu. memory, issue, warps: percent of the peak."""
FULL_MEMORY, FULL_ISSUE, FEW_WAVES = 79.0, 65.0, 1.0
"""Percent from which memory is as busy as in a copy; from which few cycles are left to issue; waves below which blocks do not follow one another."""


def slow_cases() -> list[tuple[str, torch.dtype, int, int]]:
    """Return the cases of ways.json whose best way stays below WANTED of a copy, and ALSO."""
    rows = json.loads((RESULTS / "ways.json").read_text(encoding="utf-8"))["rows"]
    measured = [r for r in rows if r["part"] in ("tall", "odd", "short")]
    slow = [r for r in measured if max(way.get("fraction", 0.0) for way in r["ways"].values()) < WANTED]
    return [*((r["case"], getattr(torch, r["dtype"]), r["rows"], r["columns"]) for r in slow), *ALSO]


def run_cases() -> None:
    """Launch every kernel once; called under ncu."""
    for name, dtype, rows, columns in slow_cases():
        inputs = BY_NAME[name].inputs(rows, columns, dtype, "cuda")
        BY_NAME[name].definition(dtype).execute(inputs)
        torch.cuda.synchronize()


def profiled() -> list[dict[str, float]]:
    """Return the metrics of every launch, in order."""
    names = [*METRICS.values(), *map(STALL.format, STALLS)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = ["ncu", "--clock-control", "none", "--kernel-name", "regex:^weft_", "--metrics", ",".join(names), "--csv", "--page", "raw"]
        done = subprocess.run([*command, "--log-file", str(log), sys.executable, __file__, "--under-ncu"], capture_output=True, text=True, check=False)
        lines = list(csv.reader(log.open(encoding="utf-8"))) if log.exists() else []
    heads = [n for n, line in enumerate(lines) if line[:1] == ["ID"]]
    if done.returncode or not heads:
        raise SystemExit(f"ncu failed ({done.returncode}): {done.stderr[-800:] or done.stdout[-800:]}")
    head = lines[heads[0]]
    rows = [dict(zip(head, line)) for line in lines[heads[0] + 2 :] if len(line) == len(head)]
    return [{name: float(row[name].replace(",", "")) for name in names if row.get(name)} for row in rows]


def reason(found: dict[str, Any]) -> str:
    """Say in words what the figures show."""
    if found["memory"] >= FULL_MEMORY:
        return "memory is as busy as in a copy; what is left is the start and the end of the launch"
    waits = sorted(STALLS, key=lambda name: -found["stalls"][name])[:2]
    text = "warps wait for " + " and ".join(f"{name} ({found['stalls'][name]:.1f} per issue)" for name in waits)
    if found["issue"] >= FULL_ISSUE:
        text = f"issue slots: {found['issue']:.0f} % of the cycles issue; {text}"
    if found["waves"] <= FEW_WAVES:
        text += "; all blocks run at once, so that the slowest one decides"
    return text


def main() -> None:
    if "--under-ncu" in sys.argv:
        run_cases()
        return
    arguments = parser(__doc__).parse_args()
    if arguments.cpu_smoke:
        print("ncu needs a GPU: nothing to run here")
        return
    device, rows = device_of(arguments), []
    for (name, dtype, height, width), values in zip(slow_cases(), profiled(), strict=True):
        row: dict[str, Any] = {"case": name, "dtype": str(dtype).removeprefix("torch."), "rows": height, "columns": width}
        row |= {key: round(values[metric], 2) for key, metric in METRICS.items()}
        row["us"] = round(row["us"] / 1e3, 1)
        row["instructions"] = round(row["instructions"] * 32 / (height * width), 1)  # per element
        row["stalls"] = {s: round(values.get(STALL.format(s), 0.0), 2) for s in STALLS}
        rows.append({**row, "reason": reason(row)})
    keys = ("us", "memory", "issue", "warps", "waves", "registers", "instructions", "reason")
    print(table(("case", *keys), [(f"{r['case']} {r['dtype']} {r['rows']}x{r['columns']}", *(r[k] for k in keys)) for r in rows]))
    write(arguments, __file__, device, rows, is_row_a_line=True)


if __name__ == "__main__":
    main()
