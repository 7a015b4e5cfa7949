"""What a launch found.

Read first: `Finding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import UserError


class KernelFault(UserError):
    """A kernel did something wrong; `.report` has the findings."""

    code = "W420"
    what = "kernel {kernel}: {count} finding(s) in the emulator\n{findings}"
    fix = "see the hint of each finding; line numbers refer to the translation unit"

    def __init__(self, report: LaunchReport) -> None:
        self.report = report
        super().__init__(kernel=report.kernel, count=len(report.findings), findings="\n".join(f.text() for f in report.findings))


@dataclass(frozen=True)
class Finding:
    """One thing wrong. `kind` is a fixed slug (docs/emulator.md lists them); `line` is in the translation unit, 0 for none.

    `thread` is the one that ran when it showed, with its role; the message names the others. `count`: how often it showed.
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

    def text(self) -> str:
        """The finding in a few indented lines."""
        lines = [f"  {self.kind}: {self.message}" + (f" (first of {self.count})" if self.count > 1 else "")]
        if self.line:
            lines.append(f"    line {self.line}: {self.line_text}")
        if self.other_line and self.other_line != self.line:
            lines.append(f"    line {self.other_line}: {self.other_line_text}")
        if self.hint:
            lines.append(f"    hint: {self.hint.strip()}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LaunchReport:
    """What a launch found, and how much it did."""

    kernel: str
    findings: tuple[Finding, ...]
    switches: int = 0  # between threads
    joins: int = 0  # of vector clocks

    def kinds(self) -> set[str]:
        return {f.kind for f in self.findings}


RECORD, FIELD = "\x1e", "\x1f"  # as runtime/report.cpp writes them


def parse_findings(text: str, source_lines: Sequence[str]) -> tuple[Finding, ...]:
    """Findings from the runtime's text."""

    def line_text(line: int) -> str:
        return source_lines[line - 1].strip() if 0 < line <= len(source_lines) else ""

    findings = []
    for record in text.split(RECORD)[:-1]:
        kind, line, other, count, block, thread, message, hint = record.split(FIELD)
        where = tuple(int(n) for n in block.split(",")) if block else ()
        first, second = int(line), int(other)
        findings.append(Finding(kind, message, first, line_text(first), second, line_text(second), where, thread, int(count), hint))
    return tuple(findings)
