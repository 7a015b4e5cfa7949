"""The section of docs/benchmarks.md that ncu_reasons.py fills. Read first: `reasons`."""

from __future__ import annotations

from ncu_reasons import WANTED, slow_cases
from page_text import load, machine, missing, prose, table

WORDS = """One launch of each kernel under Nsight Compute, caches flushed. memory, issue, resident warps: percent of the chip's peak (in a copy memory is at
    about 80); waves: of blocks; instructions: per element of the tensor. "What was tried", below, has what was tried against it."""


def slow_labels() -> list[str]:
    """Return the cases that `ncu_reasons.py` would ask for now."""
    return [f"{name} {str(dtype)[6:]} {rows}x{columns}" for name, dtype, rows, columns in slow_cases()]


def reasons() -> list[str]:
    """Return the section."""
    data = load("ncu_reasons")
    out = ["## Why not as fast as a copy", "", "```bash", "python bench/ncu_reasons.py", "```", ""]
    if not data:
        return out + missing("ncu_reasons", "python bench/ncu_reasons.py")
    head = ("case", "us", "memory %", "issue %", "warps %", "waves", "registers", "instructions", "reason")
    keys = ("us", "memory", "issue", "warps", "waves", "registers", "instructions", "reason")
    rows = [(f"{r['case']} {r['dtype']} {r['rows']}x{r['columns']}", *(f"{r[k]:g}" if isinstance(r[k], float) else r[k] for k in keys)) for r in data["rows"]]
    lacking = sorted(set(slow_labels()) - {row[0] for row in rows})
    more = f"No way reaches {WANTED} of a copy in these cases either, and they were not run under ncu yet: {', '.join(lacking)}." if lacking else ""
    return out + [machine(data), "", *prose(WORDS), *table(head, rows), *(prose(more) if more else [])]
