"""A timeline as an SVG picture: roles above, what the stages of the rings hold below.

A role is drawn by the first of its warps. A stage is known by its barriers `full_X[i]` and `empty_X[i]`: it is filled from the issue of its load until
`full` completes, read until `empty` does, else free. Read first: `picture`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from weft.emulator.span import Span

WIDTH, ROW, GAP, LEFT, TOP = 1160, 20, 4, 150, 46  # pixels
COLOURS = {
    "run": "#4c78a8", "waits for an mbarrier": "#f2cf5b", "waits at a barrier": "#e8e8e8", "waits for a bulk store": "#d9b38c", "waits": "#d0d0d0",
    "being filled": "#9ecae9", "read": "#54a24b", "leaves by a bulk store": "#b279a2",
}  # fmt: skip
WAITS = {
    "an mbarrier": "waits for an mbarrier", "a block or named barrier": "waits at a barrier", "bulk_wait": "waits for a bulk store",
    "run": "run", "store": "leaves by a bulk store",
}  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """A rectangle in a row: start, end, label."""

    start: int
    end: int
    what: str
    tip: str


def picture(spans: Sequence[Span], block: int = 0) -> str:
    """Return the SVG of one block's timeline."""
    own = [s for s in spans if s.block == block]
    rows = [*_roles(own), *_stages(own), *_stores(own)]
    first = min((b.start for _, bars in rows for b in bars), default=0)
    last = max((b.end for _, bars in rows for b in bars), default=1)
    scale = (WIDTH - LEFT - 10) / max(last - first, 1)
    height = TOP + len(rows) * (ROW + GAP) + 26
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">']
    out.append(f'<rect width="{WIDTH}" height="{height}" fill="white"/>')
    used = dict.fromkeys(b.what for _, bars in rows for b in bars)
    x = LEFT
    for what in (w for w in COLOURS if w in used):
        out.append(f'<rect x="{x}" y="12" width="14" height="14" fill="{COLOURS[what]}"/><text x="{x + 19}" y="24">{what}</text>')
        x += 40 + 7 * len(what)
    for number, (name, bars) in enumerate(rows):
        y = TOP + number * (ROW + GAP)
        out.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        for b in bars:
            width = max((b.end - b.start) * scale, 0.8)
            place = f'x="{LEFT + (b.start - first) * scale:.1f}" y="{y}" width="{width:.1f}" height="{ROW}"'
            out.append(f'<rect {place} fill="{COLOURS[b.what]}"><title>{escape(b.tip)}</title></rect>')
    out.append(f'<text x="{LEFT}" y="{height - 8}" fill="#666">order of events in block {block}, from left to right; lengths are no durations</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _roles(spans: Iterable[Span]) -> list[tuple[str, list[Bar]]]:
    """A row per role, for its lowest warp. The time before a warp entered its role is left out."""
    warps: dict[str, str] = {}
    for s in spans:
        named = re.fullmatch(r"warp \d+ (.+)", s.track)
        if named:
            warps[named[1]] = min(warps.get(named[1], s.track), s.track)
    if not warps:
        warps = {s.track: s.track for s in spans if re.fullmatch(r"warp \d+", s.track)}
    rows = []
    for role, track in sorted(warps.items(), key=lambda item: (not item[0].startswith("load"), item[1])):
        bars = [Bar(s.start, s.end, WAITS.get(s.name, "waits"), f"{s.name} {s.detail}") for s in spans if s.track == track and not s.is_mark]
        rows.append((role, bars))
    return rows


def _stages(spans: Sequence[Span]) -> list[tuple[str, list[Bar]]]:
    """A row per stage of each circular buffer."""
    loads: dict[str, list[int]] = {}
    for s in spans:
        into = re.match(r"load into (full\S*\[\d+\])", s.track)
        if into:
            loads.setdefault(into[1], []).append(s.start)
    rows = []
    for full in sorted(loads):
        filled = [s.start for s in spans if s.is_mark and s.track == full]
        emptied = [s.start for s in spans if s.is_mark and s.track == full.replace("full", "empty", 1)]
        bars = []
        for use, done in enumerate(filled):
            previous = filled[use - 1] if use else -1
            begun = min((start for start in loads[full] if previous < start < done), default=done)
            free = next((e for e in emptied if e > done), done + 1)
            bars += [Bar(begun, done, "being filled", f"{full}, use {use}: loading"), Bar(done, free, "read", f"{full}, use {use}: being read")]
        rows.append((full.replace("full_", "stage ", 1).replace("full", "stage", 1), bars))
    return rows


def _stores(spans: Iterable[Span]) -> list[tuple[str, list[Bar]]]:
    bars = [Bar(s.start, s.end, "leaves by a bulk store", s.detail) for s in spans if s.track.startswith("store slot")]
    return [("bulk stores", bars)] if bars else []
