"""A timeline of what each role of a kernel does: for the Chrome trace viewer (chrome://tracing, ui.perfetto.dev), or as a picture.

A block is a process, a role of a warp (or a copy, or an mbarrier) a track. Time counts what happened, shown as microseconds: it tells who waits for
whom, not how long anything takes on a GPU. Read first: `read_timeline`, `write_timeline`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.emulator.span import Span
from weft.emulator.timeline_picture import picture


def read_timeline(text: str) -> list[Span]:
    """Return the spans of the runtime's records (`time, kind, block, track, name, detail, line`, separated by tabs)."""
    spans: list[Span] = []
    since: dict[tuple[str, str], tuple[int, str, str]] = {}
    for record in text.splitlines():
        time, kind, block, track, name, detail, line = record.split("\t")
        key = (block, track)
        if kind == "mark":
            spans.append(Span(int(block), track, name, detail, int(time), int(time), int(line), True))
        elif kind == "begin":
            since[key] = (int(time), name, detail)
        else:
            start, begun_name, begun_detail = since.pop(key, (0, name, detail))
            spans.append(Span(int(block), track, begun_name, begun_detail or detail, start, max(int(time), start + 1), int(line)))
    return spans


def write_timeline(text: str, path: Path) -> None:
    """Write the runtime's records: a picture of block 0 if the path ends in .svg, else JSON for trace viewers."""
    spans = read_timeline(text)
    if path.suffix == ".svg":
        path.write_text(picture(spans), encoding="utf-8")
    else:
        path.write_text(json.dumps(chrome_trace(spans)), encoding="utf-8")


def chrome_trace(spans: Sequence[Span]) -> dict[str, Any]:
    """Return the spans as a Chrome trace object."""
    names = sorted({(s.block, s.track) for s in spans})
    numbers = {key: i + 1 for i, key in enumerate(names)}
    events: list[dict[str, Any]] = []
    for s in spans:
        event = {"name": s.name, "pid": s.block, "tid": numbers[(s.block, s.track)], "ts": s.start, "args": {"detail": s.detail, "line": s.line}}
        events.append({"ph": "i", "s": "t", **event} if s.is_mark else {"ph": "X", "dur": s.end - s.start, **event})
    meta = [{"ph": "M", "name": "process_name", "pid": b, "args": {"name": f"block {b}"}} for b in sorted({b for b, _ in names})]
    meta += [{"ph": "M", "name": "thread_name", "pid": b, "tid": numbers[(b, t)], "args": {"name": t}} for b, t in names]
    return {"traceEvents": meta + events, "displayTimeUnit": "ms"}
