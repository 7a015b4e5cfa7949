"""What a launch found.

Read first: `Finding`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from weft.emulator.source_map import Place, SourceMap
from weft.errors import UserError


class KernelFault(UserError):
    """The emulator found errors in a kernel; `.report` has the findings."""

    code = "W420"
    what = "kernel {kernel}: {count} finding(s) in the emulator\n{findings}"
    fix = "see the hint of each finding{replay}"

    def __init__(self, report: LaunchReport) -> None:
        self.report = report
        replay = "" if report.seed is None else f"; WEFT_SEED={report.seed} replays this order"
        super().__init__(kernel=report.kernel, count=len(report.findings), findings="\n".join(f.text() for f in report.findings), replay=replay)


@dataclass(frozen=True)
class Finding:
    """One error. `kind` is a fixed identifier (docs/emulator.md lists them); `line` is in the translation unit, 0 for none.

    `thread` is the one that was running, with its role; the message names the others. `count`: how often it occurred.
    `place`, `other_place`: the lines as numbered in the kernel's text; `caller`: for a line in the device library, the kernel's line that
    called it. `see`: further lines, such as the writers of an output that is not written.
    """

    kind: str
    message: str
    line: int = 0
    line_text: str = ""
    other_line: int = 0
    other_line_text: str = ""
    block: tuple[int, ...] = ()
    thread: str = ""
    count: int = 1
    hint: str = ""
    place: Place | None = None
    other_place: Place | None = None
    caller: Place | None = None
    see: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """All lines that the finding names, the kernel's own first."""
        named = [p for p in (self.caller, self.place, self.other_place, *self.see) if p is not None]
        return tuple(dict.fromkeys(sorted(named, key=lambda p: p.in_library)))

    def text(self) -> str:
        """The finding as a few indented lines."""
        lines = [f"  {self.kind}: {self.message}" + (f" (first of {self.count})" if self.count > 1 else "")]
        lines += [f"    {place}" for place in self.places]
        if self.hint:
            lines.append(f"    hint: {self.hint.strip()}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LaunchReport:
    """The findings and counters of a launch."""

    kernel: str
    findings: tuple[Finding, ...]
    switches: int = 0  # between threads
    joins: int = 0  # of vector clocks
    seed: int | None = None
    sync_points: int = 0
    order: int = 0  # a hash of the order in which threads reached each synchronization object

    def kinds(self) -> set[str]:
        return {f.kind for f in self.findings}


RECORD, FIELD = "\x1e", "\x1f"  # as runtime/report.cpp writes them


def parse_findings(text: str, *sources: SourceMap) -> tuple[Finding, ...]:
    """Parse findings from the runtime's text. sources: the source of each kernel that was launched."""

    def line_text(place: Place | None) -> str:
        return place.text if place else ""

    findings = []
    for record in text.split(RECORD)[:-1]:
        kind, line, other, note, count, grid, other_grid, block, thread, message, hint = record.split(FIELD)
        source, other_source = sources[int(grid)], sources[int(other_grid)]
        where = tuple(int(n) for n in block.split(",")) if block else ()
        first, second = int(line), int(other)
        place, other_place = source.place(first), other_source.place(second)
        message, hint = source.in_words(message), source.in_words(hint)
        finding = Finding(kind, message, first, line_text(place), second, line_text(other_place), where, thread, int(count), hint)
        in_library = any(p is not None and p.in_library for p in (place, other_place))
        caller = source.place(int(note)) if in_library else None
        see = _further(finding, source) if place is None or kind == "deadlock" else ()
        findings.append(replace(finding, place=place, other_place=other_place, caller=caller, see=see))
    return tuple(findings)


def _further(finding: Finding, source: SourceMap) -> tuple[Place, ...]:
    """Further lines of a finding: those that write the tensor that it names, if it has no line; those where threads wait, for a deadlock."""
    if finding.kind == "deadlock":
        waiting = dict.fromkeys(int(n) + source.lines_above for n in re.findall(r"(?<!library) at line (\d+)", finding.message))
        return tuple(p for p in map(source.place, waiting) if p is not None)
    if finding.kind == "no-griddep-wait":
        head = next((n for n, text in enumerate(source.unit_lines, 1) if n > source.lines_above and "__global__" in text), 0)
        return tuple(p for p in [source.place(head)] if p is not None)
    name = re.search(r"'(T\d+)'", finding.message)
    return tuple(source.writers_of(name[1])) if name else ()

