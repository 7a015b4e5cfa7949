"""Write docs/benchmarks.md from the JSON files of bench/results.

    python bench/make_benchmarks_page.py            write docs/benchmarks.md
    python bench/make_benchmarks_page.py --print    print it
    python bench/make_benchmarks_page.py --take OUT.json ... [--chip "NVIDIA H200" --date 2026-11-20]    keep what fusion_cases.py wrote, then write the page

Owns the page's words, its tables, and the comparison with the goals ("bars"). It measures nothing: the files come from the scripts of this folder and from
`fusion_cases.py`, which runs the same definitions through any module with nvFuser's API. A file that is missing leaves its section with the command
that makes it. Read first: `page`, `bars`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator_page import emulator, emulator_bars
from ncu_page import reasons
from page_text import FUSION_CASE_NAMES, RESULTS, load, machine, mean, missing, prose, table, two
from ways_page import way_bars, ways

TARGET = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

FAMILIES = {
    "softmax forward": r"^softmax_fwd ", "softmax backward": r"^softmax_bwd ", "RMS norm forward": r"^rmsnorm_fwd ", "layer norm forward": r"^layernorm_fwd ",
    "add + RMS norm": r"^add_rmsnorm ", "dropout + layer norm": r"^dropout_layernorm ", "silu * y": r"^silu_mul ", "gelu(x + bias)": r"^gelu_bias ",
    "row sum": r"^row_sum ", "column sum": r"^col_sum ",
}  # fmt: skip
LISTED = re.compile(r"^(softmax_fwd|softmax_bwd|rmsnorm_fwd|layernorm_fwd|add_rmsnorm|silu_mul|gelu_bias|row_sum|col_sum) ")
"""The cases that the bar on nvFuser's fraction and on the geometric mean names."""
SEVERAL_OUTPUTS = ("layernorm", "add_rmsnorm", "dropout")
MEAN_BAR, DROPOUT_BAR, WARM_BAR_US, FIRST_FACTOR = 0.93, 0.80, 12.0, 1.5
ERROR_BARS = {"bfloat16": 2e-3, "float32": 5e-7}
ROUNDING = 0.005
"""nvFuser's figures have two digits: a case counts as reached when ours, rounded to two digits as well, is not below."""


# ---------------------------------------------------------------- data
class Case:
    """A row of fusion_cases with its peers."""

    def __init__(self, row: dict[str, Any], peer: dict[str, Any] | None) -> None:
        self.name: str = row["case"]
        self.row, self.fail = row, row.get("fail")
        self.fraction = None if self.fail else row["copy_ms"] / row["call_ms"]
        self.peers: dict[str, float] = peer["fractions"] if peer else {}
        self.nvfuser = self.peers.get("nvFuser")
        self.nvfuser_first = peer["nvfuser_first_s"] if peer else None
        self.compile_first = peer["compile_first_s"] if peer else None
        self.nvfuser_host = peer["nvfuser_host_us"] if peer else None
        self.best = max(self.peers.items(), key=lambda item: item[1], default=None)
        self.error = row.get("err")

    @property
    def dtype(self) -> str:
        return self.name.split()[1]


def cases() -> list[Case]:
    """Return the cases of fusion_cases.json with the figures of peers.json."""
    ours, peers = load("fusion_cases"), load("peers")
    found = {row["case"]: row for row in (peers or {"rows": []})["rows"]}
    return [Case(row, found.get(row["case"])) for row in (ours or {"rows": []})["rows"]]


def reached(ours: float, theirs: float) -> bool:
    return ours >= theirs - ROUNDING


def yes(is_met: bool | None) -> str:
    return "not measured" if is_met is None else "met" if is_met else "**not met**"


# ---------------------------------------------------------------- sections
Bar = tuple[str, str, bool | None]
"""What was asked, the figure, whether it is met (None: not measured)."""


def with_list(text: str, items: Sequence[str]) -> str:
    return "; ".join([text, *items])


def speed_bars(found: list[Case]) -> list[Bar]:
    listed = [c for c in found if LISTED.match(c.name)]
    ran = [c for c in listed if c.fraction is not None]
    against = [c for c in ran if c.nvfuser is not None]
    behind = [f"{c.name} {two(c.fraction)} for {two(c.nvfuser)}" for c in against if not reached(c.fraction, c.nvfuser)]
    behind += [f"{c.name} failed" for c in listed if c.fail]
    total, same, theirs = mean(c.fraction for c in ran), mean(c.fraction for c in against), mean(c.nvfuser for c in against)
    dropout = [c.fraction for c in found if c.name.startswith("dropout_layernorm") and c.fraction]
    return [
        (
            "at least nvFuser's fraction of a copy: forward norms, softmax forward and backward, add + RMS norm, silu, gelu, sums",
            with_list(f"{len(against) - len(behind)} of {len(against)} cases", behind), not behind if against else None,
        ),
        (
            f"geometric mean of these at least {MEAN_BAR}",
            f"{total:.3f} over {len(ran)} cases; over the {len(against)} that nvFuser has {same:.3f}, nvFuser {theirs:.3f}", total >= MEAN_BAR if ran else None,
        ),
        (f"dropout + layer norm at least {DROPOUT_BAR:.2f}", ", ".join(map(two, dropout)) or "-", min(dropout) >= DROPOUT_BAR if dropout else None),
    ]  # fmt: skip


def error_bars(found: list[Case]) -> list[Bar]:
    out: list[Bar] = []
    for dtype, bar in ERROR_BARS.items():
        errors = [(c.error, c.name) for c in found if c.dtype == dtype and c.error is not None and c.error >= 0]
        worst, name = max(errors, default=(None, ""))
        out.append((f"error against float64 at most {bar:.0e} ({dtype})", f"{worst:.1e} ({name})" if errors else "-", worst <= bar if errors else None))
    return out


def host_bars(found: list[Case]) -> list[Bar]:
    ran = [c for c in found if LISTED.match(c.name) and c.fraction is not None]
    first = [(c.row["first_s"], c.nvfuser_first, c.name) for c in ran if c.nvfuser_first]
    slow = [f"{name} {ours:.2f} s for {theirs:.2f}" for ours, theirs, name in first if ours > FIRST_FACTOR * theirs]
    warm = [(c.row["host_us"], c.name) for c in ran if not c.name.startswith(SEVERAL_OUTPUTS)]
    dear = [f"{name} {us:.0f} us" for us, name in warm if us > WARM_BAR_US]
    middle = statistics.median(us for us, _ in warm) if warm else 0.0
    return [
        (
            "first call at most nvFuser's plus half (`fusion_cases.py`; a case may find the kernel of an earlier one)",
            with_list(f"{len(first) - len(slow)} of {len(first)} cases", slow), not slow if first else None,
        ),
        (
            f"a warm call with one output at most {WARM_BAR_US:.0f} us on the host",
            with_list(f"median {middle:.1f} us, {len(warm) - len(dear)} of {len(warm)} cases", dear), not dear if warm else None,
        ),
    ]  # fmt: skip


def width_bar() -> Bar:
    data, what = load("widths"), "no cliff at other widths (100 to 200,000)"
    if data is None:
        return what, "-", None
    fallen = [f"{r['case']} {r['dtype']} {r['columns']}" for r in data["rows"] if r["is_cliff"]]
    text = f"{len(fallen)} of {len(data['rows'])} below {data['cliff']} of their neighbours' median"
    missing = [data["missing"]] if "missing" in data else []
    return what, with_list(text + (f": {', '.join(fallen)}" if fallen else ""), missing), not fallen and not missing


def check_bars() -> list[Bar]:
    checks = (load("checks") or {"checks": {}})["checks"]
    asked = {
        "random fusions, emulator": "1,000 random fusions equal the float64 reference in the emulator",
        "random fusions, GPU": "1,000 random fusions equal it on the GPU",
        "compute-sanitizer": "compute-sanitizer is clean on one kernel per scheduler and heuristic",
    }
    out: list[Bar] = []
    for name, what in asked.items():
        ran = {key.removeprefix(name).strip(", "): check for key, check in checks.items() if key.startswith(name)}
        figures = [" ".join([key, outcome_of(check), *check["lines"][:1]]).strip() for key, check in ran.items()]
        missing = [check["missing"] for check in ran.values() if "missing" in check]
        is_met = all(check["status"] == 0 for check in ran.values()) and not missing if ran else None
        out.append((what, "; ".join([*figures, *missing]) or "-", is_met))
    return out


def bars(found: list[Case]) -> list[str]:
    """Return the table of bars."""
    rows = [*speed_bars(found), *error_bars(found), *host_bars(found), width_bar(), *way_bars(), *emulator_bars(), *check_bars()]
    return ["## Goals", "", *table(("goal", "figure", ""), [(what, figure, yes(is_met)) for what, figure, is_met in rows])]


def families(found: list[Case]) -> list[str]:
    """Return geometric means by family, over the cases that all compared have."""
    rows = []
    for family, pattern in FAMILIES.items():
        inside = [c for c in found if re.match(pattern, c.name) and c.fraction is not None]
        with_nvfuser, with_peer = [c for c in inside if c.nvfuser is not None], [c for c in inside if c.best is not None]
        pairs = {
            "nvfuser": (mean(c.fraction for c in with_nvfuser), mean(c.nvfuser for c in with_nvfuser)) if with_nvfuser else None,
            "peer": (mean(c.fraction for c in with_peer), mean(c.best[1] for c in with_peer)) if with_peer else None,
        }
        wins = sum(reached(c.fraction, c.best[1]) for c in with_peer)
        shown = [" / ".join(map(two, pair)) if pair else "-" for pair in pairs.values()]
        if inside:
            rows.append((family, len(inside), two(mean(c.fraction for c in inside)), *shown, f"{wins} of {len(with_peer)}"))
    words = """Geometric means of the fractions of a copy. "weft / nvFuser" gives both, over the cases that nvFuser has a figure for. "weft / best other" takes,
        in every case, the fastest of nvFuser, torch.compile, Liger, quack and eager torch; the last column counts the cases in which weft is at least as fast
        as that."""
    return ["### By family", "", *prose(words), *table(("family", "cases", "weft", "weft / nvFuser", "weft / best other", "at least the best other"), rows)]


def winner(c: Case) -> str:
    if c.best is None or c.fraction is None:
        return "-"
    return "weft" if c.fraction >= c.best[1] + ROUNDING else "even" if reached(c.fraction, c.best[1]) else c.best[0]


def kernels(found: list[Case]) -> list[str]:
    """Return the section of fusion_cases."""
    data, peers = load("fusion_cases"), load("peers") or {"versions": {}, "notes": []}
    out = ["## Kernels", "", "One definition per case, the same text for weft and for nvFuser, scheduled automatically, with symbolic sizes.", ""]
    if not data:
        return out + missing("fusion_cases", "python fusion_cases.py weft bench/results/fusion_cases.json")
    versions = "; ".join(f"{name} {text}" for name, text in peers["versions"].items())
    words = """A figure is the time of a device-to-device copy of the same bytes (inputs once, outputs once) divided by the time of the call, both medians of
        triton.testing.do_bench with a flushed L2: 1.00 is as fast as a copy, which moves 4.0 to 4.1 TB/s from 64 MB on. Above 1.00 the last bytes written
        are still in L2. Host: time of Python and C per warm call, 200 calls in a row."""
    if data.get("runs", 1) > 1:
        words += f""" Medians of {data["runs"]} runs of the whole script on one machine, the lowest and highest fraction in brackets. First calls are those
        of the first run, because later runs find compiled kernels."""
    out += ["```bash", data.get("command", "python fusion_cases.py weft OUT.json"), "```", "", machine(data), "", *prose(words)]
    out += prose(
        f"The others, also on one H200 (torch {peers.get('torch')}, CUDA {peers.get('cuda')}, {peers.get('date')}): {versions}. {' '.join(peers['notes'])}"
    )
    out += [*families(found), "### Every case", ""]
    head = ("case", "weft", "nvFuser", "best other", "fastest", "weft us", "first s", "nvFuser first s", "host us", "nvFuser host us", "error")
    out += table(head, [case_row(c) for c in found if not c.fail])
    out += ["Bold: slower than nvFuser in a case that the goals name.", ""]
    failed = [c for c in found if c.fail]
    if failed:
        names, kinds = sorted({c.name.split()[0] for c in failed}), sorted({str(c.fail).split("(")[0] for c in failed})
        out += prose(f"Without a figure: {len(failed)} cases of {', '.join(names)} ({', '.join(kinds)}): reductions over rows and columns in one kernel.")
    others = [c.fraction for c in found if c.name.startswith("transpose") and not c.fail]
    if others and max(others) < 0.5:
        out += prose(f"Transposes ({', '.join(map(two, others))}) run as plain pointwise kernels: no scheduler tiles them through shared memory yet.")
    return out


def case_row(c: Case) -> tuple[str, ...]:
    spread = f" ({two(c.row['lowest'])}-{two(c.row['highest'])})" if "lowest" in c.row else ""
    is_behind = c.nvfuser is not None and LISTED.match(c.name) and not reached(c.fraction, c.nvfuser)
    return (
        c.name, (f"**{two(c.fraction)}**" if is_behind else two(c.fraction)) + spread,
        two(c.nvfuser), f"{two(c.best[1])} {c.best[0]}" if c.best else "-", winner(c),
        f"{c.row['call_ms'] * 1e3:.1f}", f"{c.row['first_s']:.2f}", two(c.nvfuser_first), f"{c.row['host_us']:.0f}",
        "-" if c.nvfuser_host is None else f"{c.nvfuser_host:.0f}", f"{c.error:.1e}" if c.error is not None and c.error >= 0 else "-",
    )  # fmt: skip


FIRST_WORDS = """The disk cache is off, and all compiled kernels are dropped before each case. Stages in milliseconds: definition: building the graph; binding:
    checks of the inputs; schedule: choosing and applying parameters; lowering: kernel IR and text; nvrtc: the compiler; load: loading the machine code into the
    context; rest: the launch and the kernel. `first` is what a caller waits for: everything except the definition. torch.compile: the same math, default mode,
    static shapes, dynamo reset and caches empty before each case. nvFuser: from the table of all cases. With the disk cache on, a later process loads the
    machine code from a file instead of compiling."""


def first_calls(found: list[Case]) -> list[str]:
    """Return the section of first_call.py."""
    data = load("first_call")
    out = ["## First calls", "", "```bash", "python bench/first_call.py", "```", ""]
    if not data:
        return out + missing("first_call", "python bench/first_call.py")
    stages = ("definition", "binding", "schedule", "lowering", "nvrtc", "load", "rest")
    shape = "x".join(map(str, data["shape"]))
    by_name = {c.name: c for c in found}
    rows = []
    for r in data["rows"]:
        case = by_name.get(f"{FUSION_CASE_NAMES.get(r['case'], r['case'])} {data['dtype']} {shape}")
        compiled = f"{r['compile_first_s']:.2f}" if "compile_first_s" in r else "-"
        rows.append((r["case"], *(f"{r[f'{s}_ms']:.1f}" for s in stages), f"{r['first_s']:.3f}", two(case.nvfuser_first) if case else "-", compiled))
    head = ("case", *(f"{s} ms" for s in stages), "first s", "nvFuser first s", "torch.compile first s")
    return out + [machine(data), "", *prose(f"{data['dtype']} {shape}. {FIRST_WORDS} {data.get('note', '')}"), *table(head, rows)]


WARM_WORDS = """Microseconds on the host per call, the smallest of {rounds} rounds of {calls} calls with an idle GPU before each. call: `fd.execute`; method:
    the part of `fd.execute` outside the executor's function; find: addresses and guards of the tensors; allocate: the outputs; launch: cuLaunchKernelEx, which
    is also measured alone; rest: the stream, the random state, arguments of the launch, the list of results. torch.compile: the same math, 200 calls in a
    row."""


def warm_calls() -> list[str]:
    """Return the section of profile_warm.py."""
    data, first = load("profile_warm"), load("first_call")
    out = ["## Warm calls", "", "```bash", "python bench/profile_warm.py", "```", ""]
    if not data:
        return out + missing("profile_warm", "python bench/profile_warm.py")
    keys = ("call", "method", "find", "allocate", "launch", "rest", "launch alone")
    compiled = {r["case"]: r.get("compile_warm_us") for r in first["rows"]} if first else {}
    rows = [(r["case"], r["inputs"], r["outputs"], *(f"{r[k]:.2f}" for k in keys), two(compiled.get(r["case"]))) for r in data["rows"]]
    words = WARM_WORDS.format(rounds=data.get("rounds", "nine"), calls=data.get("calls", 200))
    return out + [machine(data), "", *prose(words), *table(("case", "inputs", "outputs", *keys, "torch.compile"), rows)]


def widths() -> list[str]:
    """Return the section of widths.py."""
    data = load("widths")
    out = ["## Widths", "", "```bash", "python bench/widths.py", "```", ""]
    if not data:
        return out + missing("widths", "python bench/widths.py")
    groups = list(dict.fromkeys((r["case"], r["dtype"]) for r in data["rows"]))
    summary = [width_summary([r for r in data["rows"] if (r["case"], r["dtype"]) == group]) for group in groups]
    found = {(r["case"], r["dtype"], r["columns"]): r for r in data["rows"]}
    rows = []
    for n in sorted({r["columns"] for r in data["rows"]}):
        cells = [found.get((*group, n)) for group in groups]
        shown = ["-" if r is None else f"**{r['fraction']:.2f}**" if r["is_cliff"] else f"{r['fraction']:.2f}" for r in cells]
        rows.append((n, *shown, cells[0]["params"] if cells[0] else ""))
    words = f"""Does speed drop at some widths? Forward, as many rows as give {data["tensor_bytes"] // 10**6} MB per tensor, {len(data["rows"])} calls with
        {data["kernels"]} kernels. A cliff (bold) is a width whose fraction is below {data["cliff"]} of the median of its four neighbours in the list. Rows of
        odd length are read and written in aligned vectors, their ends element by element. {data.get("note", "")}"""
    head = ("fusion", "widths", "mean, multiples of 8", "mean, others", "lowest", "cliffs", "largest error")
    return out + [
        machine(data), "", *prose(words), *table(head, summary),
        *prose(f"Fractions of a copy by number of columns; the last column has the parameters of {groups[0][0]} {groups[0][1]}."),
        *table(("columns", *(" ".join(group) for group in groups), "params"), rows),
    ]  # fmt: skip


def width_summary(rows: list[dict[str, Any]]) -> tuple[object, ...]:
    lowest = min(rows, key=lambda r: r["fraction"])
    even, others = ([r["fraction"] for r in rows if (r["columns"] % 8 == 0) == is_even] for is_even in (True, False))
    fallen = ", ".join(str(r["columns"]) for r in rows if r["is_cliff"]) or "none"
    return (
        f"{rows[0]['case']} {rows[0]['dtype']}", len(rows), two(mean(even)), two(mean(others)), f"{lowest['fraction']:.2f} at {lowest['columns']}", fallen,
        f"{max(r['error'] for r in rows):.1e}",
    )  # fmt: skip


def outcome_of(check: dict[str, Any]) -> str:
    status = check["status"]
    return "passed" if status == 0 else f"exit status {status}" if isinstance(status, int) else status


def correctness() -> list[str]:
    """Return the section of checks.py."""
    data = load("checks")
    out = ["## Correctness: random fusions, compute-sanitizer", "", "```bash", "python bench/checks.py", "```", ""]
    if not data:
        return out + missing("checks", "python bench/checks.py")
    for name, check in data["checks"].items():
        out += [f"**{name}**: {outcome_of(check)}, {check['seconds']} s. {machine(check)}", "", "```text", f"$ {check['command']}", *check["lines"], "```", ""]
    return out


def tried() -> list[str]:
    """Return what was measured and decided, from tried.json."""
    data = load("tried")
    if not data:
        return []
    rows = [(r["what"] or '"', r["case"], two(r["before"]), two(r["after"]), r["verdict"] or '"') for r in data["rows"]]
    words = f"{data['chip']}; {data['date']}. {data['how'][0].upper()}{data['how'][1:]}."
    return ["## What was tried", "", *prose(words), *table(("what", "case", "without", "with", "verdict"), rows)]


WHOLE_WORDS = """What `torch.compile(model, backend="weft")` gives whole models. [torch_compile.md](torch_compile.md) has each figure with its table and how it
    was measured; `bench/results/whole_models.json` repeats them for this page."""


def whole_models() -> list[str]:
    """Return the main figures of whole models, with their commands."""
    data = load("whole_models")
    if data is None:
        return []
    rows = [
        (r["what"], r["figure"], r["chip"], f"`{r['command']}`" if r["command"].startswith("python") else r["command"], r["goal"], r["state"])
        for r in data["rows"]
    ]
    return ["## Whole models", "", *prose(WHOLE_WORDS), *table(("what", "figure", "chip, date", "command", "goal", "state"), rows)]


PAGE_WORDS = """How fast single forward kernels and softmax backward are beside nvFuser, torch.compile, Liger, quack and eager torch; first calls, host
    time, many widths, the emulator, and the project's goals. Other kernels (norm backward, transposes, losses, batch norm, quantization) are on
    [benchmarks_graphs.md](benchmarks_graphs.md), whole models on [torch_compile.md](torch_compile.md). This page is made by `python
    bench/make_benchmarks_page.py` from the files in `bench/results`. To renew a section, run the script that it names and then that one, in the root of
    this repository, with `PYTHONPATH=.` if the package is not installed. Every script has `--cpu-smoke`, which runs tiny sizes in the emulator."""


def page() -> str:
    """Return the text of the page."""
    found = cases()
    lines = ["# Benchmarks: forward kernels", "", *prose(PAGE_WORDS), *kernels(found), *first_calls(found), *warm_calls(), *widths(), *ways()]
    lines += [*reasons(), *emulator(), *correctness(), *bars(found), *whole_models(), *tried()]
    return "\n".join(lines).rstrip() + "\n"


def middle_of_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one output for several of fusion_cases.py: medians of the times, the largest error, first calls of the first run, which alone finds no kernels."""
    rows = []
    for row in runs[0]["rows"]:
        same = [r for run in runs for r in run["rows"] if r["case"] == row["case"] and "fail" not in r]
        times = {name: statistics.median(r[name] for r in same) for name in ("call_ms", "copy_ms", "host_us") if same and name in row}
        fractions = sorted(r["copy_ms"] / r["call_ms"] for r in same)
        spread = {"lowest": fractions[0], "highest": fractions[-1]} if same else {}
        errors = {"err": max(r["err"] for r in same if "err" in r)} if "err" in row else {}
        rows.append({**row, **times, **errors, **spread})
        if same:
            rows[-1]["call_ms"] = times["copy_ms"] / statistics.median(fractions)
    return {**runs[0], "runs": len(runs), "rows": rows}


def take(paths: Sequence[Path], chip: str, date: str) -> None:
    """Keep the output of one or several runs of fusion_cases.py, with the machine and the date that it does not name."""
    known = load("fusion_cases") or {"command": "python fusion_cases.py weft OUT.json"}
    about = {name: known[name] for name in ("command", "chip", "torch", "cuda", "driver") if name in known}
    data = {**about, **({"chip": chip} if chip else {}), "date": date, **middle_of_runs([json.loads(path.read_text(encoding="utf-8")) for path in paths])}
    for row in data["rows"]:
        if "fail" in row:
            row["fail"] = row["fail"][:160]
    (RESULTS / "fusion_cases.json").write_text(json.dumps(data, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--take", type=Path, nargs="+", help="output of fusion_cases.py, of the first run of a process without a cache, then of others")
    parser.add_argument("--chip", default="", help="where it was measured; default: where the last one was")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    arguments = parser.parse_args()
    if arguments.take:
        take(arguments.take, arguments.chip, arguments.date)
    if arguments.print:
        print(page())
    else:
        TARGET.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
