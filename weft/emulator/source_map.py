"""From lines of a translation unit to what their reader knows: lines of the kernel's own text, and the op of the fusion behind them.

A unit is the device library, then the kernel. Read first: `SourceMap`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.device.library import translation_unit
from weft.lower.program import LineOrigin


@dataclass(frozen=True)
class Place:
    """A line of a unit. `line`: in the kernel's text, or in the unit for a line of the device library. `origin`: "T5 = exp(T4)" where it is known."""

    line: int
    text: str
    origin: str = ""
    in_library: bool = False
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.in_library:
            return f"line {self.line} of the device library: {self.text}"
        return f"line {self.line}: {self.text}" + (f"    <- {self.origin}" if self.origin else "")


@dataclass(frozen=True)
class SourceMap:
    """Where the kernel's text begins in a unit (`lines_above` lines before it), and what its lines compute."""

    unit_lines: tuple[str, ...]
    lines_above: int = 0
    origins: tuple[LineOrigin, ...] = ()

    @staticmethod
    def of(unit: str, kernel_text: str | None = None, origins: Iterable[LineOrigin] = ()) -> SourceMap:
        """Return the map of a unit; without `kernel_text` all of it counts as the kernel's."""
        above = 0 if kernel_text is None else unit[: unit.rindex(kernel_text.rstrip())].count("\n")
        return SourceMap(tuple(unit.split("\n")), above, tuple(origins))

    def origin(self, kernel_line: int) -> LineOrigin | None:
        """Return the innermost statement that wrote a line of the kernel's text."""
        around = [o for o in self.origins if o.first_line <= kernel_line <= o.last_line]
        return min(around, key=lambda o: o.last_line - o.first_line, default=None)

    def place(self, unit_line: int) -> Place | None:
        """Return what is known of a line of the unit; None for no line."""
        if not 0 < unit_line <= len(self.unit_lines):
            return None
        text = self.unit_lines[unit_line - 1].strip()
        if unit_line <= self.lines_above:
            return Place(unit_line, text, in_library=True)
        origin = self.origin(unit_line - self.lines_above)
        return Place(unit_line - self.lines_above, text, origin.text if origin else "", tensors=origin.tensors if origin else ())

    def in_words(self, message: str) -> str:
        """Return a message of the runtime with its line numbers as the reader counts them."""
        message = NOBODY.sub(self._who_would_arrive, message)
        if not self.lines_above:
            return message

        def renumbered(found: re.Match[str]) -> str:
            line = int(found[1])
            return f"library line {line}" if line <= self.lines_above else f"line {line - self.lines_above}"

        return re.sub(r"\bline (\d+)", renumbered, message)

    def _who_would_arrive(self, found: re.Match[str]) -> str:
        """Name the roles whose part of the text has arrivals at a barrier, for a deadlock before any of them came."""
        roles: dict[str, None] = {}
        lines: list[str] = []
        role = ""
        for number, text in enumerate(self.unit_lines, 1):
            if number <= self.lines_above:
                continue
            named = re.search(r"WEFT_ROLE\((.*?)\);", text)
            if named:
                role = " or ".join(f"[{r}]" for r in re.findall(r'"([^"]*)"', named[1]))
            if re.search(rf"mbarrier_arrive\w*\(\s*{re.escape(found[2])}\b", text):
                roles[role or "a thread"] = None
                lines.append(f"line {number}")
        if not lines:
            return found[0]
        return f"{found[1]}'{found[2]}'{found[3]}{' and '.join(roles)} ({', '.join(lines)}), and nobody has arrived so far"

    def writers_of(self, tensor: str) -> list[Place]:
        """Return the last lines of the statements that compute a tensor."""
        places = [self.place(self.lines_above + o.last_line) for o in self.origins if tensor in o.tensors]
        return [p for p in places if p is not None]


LIBRARY_CALL = re.compile(r"\bweft::((reduce|arrive|fold)_\w+<|release_stage\()")
NOBODY = re.compile(r"(waits for phase \d+ of shared )'(\w+)'( \+ \d+ <- needs )nobody has arrived at it so far")
SCALAR = re.compile(r"^(\s*)((?:unsigned |signed )?(?:bool|char|short|int|long long|float|double)|weft::bf16|weft::f16) (T\d+)( = .*)?;$", re.MULTILINE)


def with_checked_scalars(text: str) -> str:
    """Return a generated kernel's text with its scalar variables as register arrays of one element, which know whether they were written.

    Line numbers stay. The variables of tensors are called T and a number, and no name stands for a scalar here and for something else there.
    """
    names = {found[3] for found in SCALAR.finditer(text)}
    if not names:
        return text

    def declaration(found: re.Match[str]) -> str:
        indent, ctype, name, value = found.groups()
        return f"{indent}weft::Array<{ctype}, 1> \0{name};" + (f" \0{name}[0]{value};" if value else "")

    text = SCALAR.sub(declaration, text)
    return re.sub(r"(?<![\w\0])(T\d+)\b", lambda found: f"{found[1]}[0]" if found[1] in names else found[1], text).replace("\0", "")


def noted(text: str, origins: Sequence[LineOrigin]) -> str:
    """Return a generated kernel's text with a note before each call of the library that accesses memory or meets other threads; line numbers stay.

    Findings inside the library then tell which call it was.
    """
    if not origins:
        return text
    lines = text.split("\n")
    computed = {number: o.text for o in origins if o.kind == "reduction" for number in range(o.first_line - 1, o.last_line)}
    for number, line in enumerate(lines):
        if LIBRARY_CALL.search(line):
            quoted = computed.get(number, line.strip()).replace("\\", "\\\\").replace('"', '\\"')
            lines[number] = f'WEFT_LINE_NOTE("{quoted}"); {line}'
    return "\n".join(lines)


def unit_for_emulator(text: str, blocks: Iterable[str], origins: Sequence[LineOrigin], *, check_scalars: bool) -> tuple[str, SourceMap]:
    """Return the translation unit of a kernel for the emulator, with its map, which has the text as it was."""
    plain = translation_unit(text, blocks)
    watched = noted(with_checked_scalars(text) if check_scalars and origins else text, origins)
    return plain.replace(text.rstrip(), watched.rstrip()), SourceMap.of(plain, text, origins)
