"""What the pages made from bench/results share: reading a file of results, tables, paragraphs. Read first: `load`, `table`."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
FUSION_CASE_NAMES = {
    "softmax": "softmax_fwd", "rms_norm": "rmsnorm_fwd", "layer_norm": "layernorm_fwd", "add_rms_norm": "add_rmsnorm",
    "dropout_layer_norm": "dropout_layernorm",
}  # fmt: skip
"""Cases of bench/cases.py as fusion_cases.py calls them, where they differ."""


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(str(c) for c in row) + " |" for row in rows), ""]


def prose(text: str) -> list[str]:
    """Return a paragraph, wrapped."""
    return [*textwrap.wrap(" ".join(text.split()), 150, break_long_words=False, break_on_hyphens=False), ""]


def two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def machine(data: dict[str, Any]) -> str:
    """Return the machine and date of a file in a sentence."""
    parts = [data.get("chip", ""), *(f"{name} {data[name]}" for name in ("driver", "cuda", "torch", "python") if data.get(name))]
    return f"{', '.join(p for p in parts if p)}; {data.get('date', 'no date')}."


def missing(name: str, command: str) -> list[str]:
    return [f"Not measured yet: `{command}` makes `bench/results/{name}.json`.", ""]
