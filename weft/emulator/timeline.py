"""A timeline of what each role of a kernel does, for the Chrome trace viewer (chrome://tracing, ui.perfetto.dev).

A block is a process, a role of a warp (or a copy) a track. Time counts the steps of the scheduler, shown as microseconds:
it tells who waits for whom, not how long anything takes on a GPU. Read first: `write_chrome_trace`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_chrome_trace(text: str, path: Path) -> None:
    """Write the runtime's records (`time, kind, block, track, name, detail, line`, separated by tabs) as JSON."""
    events: list[dict[str, Any]] = []
    since: dict[tuple[str, str], tuple[int, str, str]] = {}
    for record in text.splitlines():
        time, kind, block, track, name, detail, line = record.split("\t")
        key = (block, track)
        if kind == "begin":
            since[key] = (int(time), name, detail)
            continue
        start, begun_name, begun_detail = since.pop(key, (0, name, detail))
        events.append({
            "ph": "X", "name": begun_name, "pid": int(block), "tid": track, "ts": start, "dur": max(int(time) - start, 1),
            "args": {"detail": begun_detail or detail, "line": int(line)},
        })  # fmt: skip
    names = sorted({(e["pid"], e["tid"]) for e in events})
    numbers = {key: i + 1 for i, key in enumerate(names)}
    for event in events:
        event["tid"] = numbers[(event["pid"], event["tid"])]
    meta = [{"ph": "M", "name": "process_name", "pid": b, "args": {"name": f"block {b}"}} for b in sorted({b for b, _ in names})]
    meta += [{"ph": "M", "name": "thread_name", "pid": b, "tid": numbers[(b, t)], "args": {"name": t}} for b, t in names]
    path.write_text(json.dumps({"traceEvents": meta + events, "displayTimeUnit": "ms"}))
