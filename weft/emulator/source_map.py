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
    """Where the kernel's text begins in a translation unit (after `lines_above` lines), and what its lines compute."""

    unit_lines: tuple[str, ...]
    lines_above: int = 0
    origins: tuple[LineOrigin, ...] = ()

    @staticmethod
    def of(unit: str, kernel_text: str | None = None, origins: Iterable[LineOrigin] = ()) -> SourceMap:
        """Return the map of a translation unit; without `kernel_text` all of it counts as the kernel's text."""
        above = 0 if kernel_text is None else unit[: unit.rindex(kernel_text.rstrip())].count("\n")
        return SourceMap(tuple(unit.split("\n")), above, tuple(origins))

    def origin(self, kernel_line: int) -> LineOrigin | None:
        """Return the innermost statement that wrote a line of the kernel's text."""
        around = [o for o in self.origins if o.is_statement and o.first_line <= kernel_line <= o.last_line]
        return min(around, key=lambda o: o.last_line - o.first_line, default=None)

    def place(self, unit_line: int) -> Place | None:
        """Return the place of a line of the unit; None for no line."""
        if not 0 < unit_line <= len(self.unit_lines):
            return None
        text = self.unit_lines[unit_line - 1].strip()
        if unit_line <= self.lines_above:
            return Place(unit_line, text, in_library=True)
        origin = self.origin(unit_line - self.lines_above)
        return Place(unit_line - self.lines_above, text, origin.text if origin else "", tensors=origin.tensors if origin else ())

    def in_words(self, message: str) -> str:
        """Return a message of the runtime with line numbers of the kernel's text."""
        message = NOBODY.sub(self._who_would_arrive, message)
        if not self.lines_above:
            return message

        def renumbered(found: re.Match[str]) -> str:
            line = int(found[1])
            return f"library line {line}" if line <= self.lines_above else f"line {line - self.lines_above}"

        return re.sub(r"\bline (\d+)", renumbered, message)

    def _who_would_arrive(self, found: re.Match[str]) -> str:
        """Name the roles whose text has arrivals at a barrier, for a deadlock in which none has arrived."""
        arrivals = [o for o in self.origins if o.kind == "arrival" and found[2] in o.tensors]
        arrivals = [o for o in arrivals if found[2] in self.unit_lines[self.lines_above + o.first_line - 1]]  # a mistake may have been planted there
        if arrivals:
            numbers = [self.lines_above + o.first_line for o in arrivals]
            names = [o.text for a in arrivals for o in self.origins if o.kind == "role" and o.first_line <= a.first_line <= o.last_line]
            return self._nobody(found, [f"[{name}]" for name in names] or ["a thread"], numbers)
        return found[0] if self.origins else self._who_would_arrive_by_hand(found)

    def _nobody(self, found: re.Match[str], roles: Sequence[str], numbers: Sequence[int]) -> str:
        lines = ", ".join(f"line {n}" for n in numbers)
        return f"{found[1]}'{found[2]}'{found[3]}{' and '.join(dict.fromkeys(roles))} ({lines}), and nobody has arrived so far"

    def _who_would_arrive_by_hand(self, found: re.Match[str]) -> str:
        """The same for a hand-written text, for which only the lines are known."""
        roles: list[str] = []
        numbers: list[int] = []
        role = ""
        for number, text in enumerate(self.unit_lines, 1):
            if number <= self.lines_above:
                continue
            named = re.search(r"WEFT_ROLE\((.*?)\);", text)
            if named:
                role = " or ".join(f"[{r}]" for r in re.findall(r'"([^"]*)"', named[1]))
            if re.search(rf"mbarrier_arrive\w*\(\s*{re.escape(found[2])}\b", text):
                roles.append(role or "a thread")
                numbers.append(number)
        return self._nobody(found, roles, numbers) if numbers else found[0]

    def writers_of(self, tensor: str) -> list[Place]:
        """Return the last lines of the statements that compute a tensor."""
        places = [self.place(self.lines_above + o.last_line) for o in self.origins if o.is_statement and tensor in o.tensors]
        return [p for p in places if p is not None]


NOBODY = re.compile(r"(waits for phase \d+ of shared )'(\w+)'( \+ \d+ <- needs )nobody has arrived at it so far")
WATCHED_TYPES = frozenset(
    [f"{sign}{word}" for sign in ("", "unsigned ", "signed ") for word in ("char", "short", "int", "long long")]
    + ["bool", "float", "double", "weft::bf16", "weft::f16"]
)


def with_checked_scalars(text: str, origins: Sequence[LineOrigin]) -> str:
    """Return a generated kernel's text with its scalar variables as register arrays of one element, which track whether they were written.

    Line numbers stay. Variables of tensors are named T and a number, and no name is both a scalar and something else.
    """
    lines = text.split("\n")
    names: set[str] = set()
    for mark in origins:
        if mark.kind != "scalar" or mark.text not in WATCHED_TYPES:
            continue
        name, line = mark.tensors[0], lines[mark.first_line - 1]
        declared = f"{mark.text} {name}"
        if line.lstrip().startswith(declared):
            indent, value = line.removesuffix(";").split(declared, 1)
            lines[mark.first_line - 1] = f"{indent}weft::Array<{mark.text}, 1> \0{name};" + (f" \0{name}[0]{value};" if value else "")
            names.add(name)
    if not names:
        return text
    return re.sub(r"(?<![\w\0])(T\d\w*)", lambda found: f"{found[1]}[0]" if found[1] in names else found[1], "\n".join(lines)).replace("\0", "")


FIRST_POINTER = r"load_shared|store_shared|store_shared_vector<\d+>|bulk_load|cp_async<\d+>|tensor_load<\d>"
LATER_POINTER = r"load_shared_vector<\d+>\([^,()]*, [^,()]*, |bulk_store\([^,;]*, |tensor_store<\d>\([^,()]*, "


def with_shared_tensors(text: str, names: Sequence[str]) -> str:
    """Return a kernel's text whose pointers into shared memory carry the tensor that they were derived from. names: those of a generated kernel, whose sizes
    the launch gives; without any, those that the text itself declares (WEFT_NAME). Line numbers stay.
    """
    known = {name: f'weft::of({name}, {number}, "{name}")' for number, name in enumerate(names[:SHARED_TENSORS])}
    known = known or {name: f"weft::of({name})" for name in re.findall(r"\bWEFT_NAME\((\w+),", text)}
    if not known:
        return text
    pointer = re.compile(rf"(\b(?:weft::)?(?:(?:{FIRST_POINTER})\(|{LATER_POINTER}))({'|'.join(known)})(?=[,)]| \+ )")
    return pointer.sub(lambda found: found[1] + known[found[2]], text)


SHARED_TENSORS = 64
"""Twin of WEFT_SHARED_TENSORS in abi.h."""


def noted(text: str, origins: Sequence[LineOrigin]) -> str:
    """Return a generated kernel's text with a note before each library call that accesses memory or synchronizes; line numbers stay.

    Findings inside the library then tell which call it was.
    """
    lines = text.split("\n")
    computed = {number: o.text for o in origins if o.kind == "reduction" for number in range(o.first_line, o.last_line + 1)}
    for number, said in {o.first_line: o.text for o in origins if o.kind == "call"}.items():
        quoted = computed.get(number, said).replace("\\", "\\\\").replace('"', '\\"')
        lines[number - 1] = f'WEFT_LINE_NOTE("{quoted}"); {lines[number - 1]}'
    return "\n".join(lines)


def unit_for_emulator(
    text: str, blocks: Iterable[str], origins: Sequence[LineOrigin], *, check_scalars: bool, shared_tensors: Sequence[str] = ()
) -> tuple[str, SourceMap]:  # fmt: skip
    """Return the translation unit of a kernel for the emulator, with its map, which contains the original text."""
    plain = translation_unit(text, blocks)
    watched = noted(with_checked_scalars(text, origins) if check_scalars else text, origins)
    if check_scalars:
        watched = with_shared_tensors(watched, shared_tensors)
    return plain.replace(text.rstrip(), watched.rstrip()), SourceMap.of(plain, text, origins)
