"""One self-contained HTML page of what differs between two records: texts side by side, a filter, light and dark as the reader's system is.

Read first: `page`.
"""

from __future__ import annotations

import difflib
import html
from collections.abc import Mapping
from typing import Any

from .records import Comparison

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --added: #2ea04333; --gone: #f8514933; --changed: #d2992233; }
body { font: 14px system-ui, sans-serif; margin: 2rem; }
table.diff { font: 12px ui-monospace, monospace; border-collapse: collapse; width: 100%; table-layout: fixed; }
table.diff td { white-space: pre-wrap; overflow-wrap: anywhere; vertical-align: top; padding: 0 .4em; }
table.diff td.diff_header { width: 3.5em; opacity: .6; text-align: right; } table.diff .diff_next { display: none; }
.diff_add { background: var(--added); } .diff_sub { background: var(--gone); } .diff_chg { background: var(--changed); }
details { border-top: 1px solid var(--line); padding: .5rem 0; } summary { cursor: pointer; } input { font: inherit; padding: .3em; width: 24em; }
"""
_SCRIPT = """
document.getElementById("filter").oninput = e => { for (const d of document.querySelectorAll("details"))
  d.hidden = !d.querySelector("summary").textContent.toLowerCase().includes(e.target.value.toLowerCase()); };
"""


def page(found: Comparison, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the page of a comparison of the two records."""
    parts = [f"<p>{summary(found)}</p>"]
    parts += [f"<p>{label}: {html.escape(', '.join(names))}</p>" for label, names in (("New", found.new), ("Removed", found.removed)) if names]
    parts += [f"<p>{html.escape(note)}</p>" for note in found.notes]
    parts.append('<input id="filter" placeholder="filter by name or by what changed">')
    for change in found.changed:
        figures = "".join(f"<li>{html.escape(line)}</li>" for line in change.figures)
        tables = "".join(_side_by_side(a["text"], b["text"]) for a, b in _kernels(before, after, change.case) if a["text"] != b["text"])
        title = f"{html.escape(change.case)}: {html.escape(', '.join(change.what))}"
        parts.append(f"<details><summary>{title}</summary><ul>{figures}</ul>{tables}</details>")
    head = f"<!doctype html><meta charset=utf-8><title>Kernels that changed</title><style>{_STYLE}</style><h1>Kernels that changed</h1>"
    return head + "\n".join(parts) + f"<script>{_SCRIPT}</script>\n"


def summary(found: Comparison) -> str:
    """Return the numbers in a sentence."""
    return f"{len(found.changed)} cases changed, {len(found.new)} are new, {len(found.removed)} were removed, {found.same} are the same."


def _kernels(before: Mapping[str, Any], after: Mapping[str, Any], case: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return list(zip(before["cases"][case]["kernels"], after["cases"][case]["kernels"]))


def _side_by_side(before: str, after: str) -> str:
    table = difflib.HtmlDiff(wrapcolumn=100).make_table(before.splitlines(), after.splitlines(), context=True, numlines=3)
    return table.replace('nowrap="nowrap"', "")
