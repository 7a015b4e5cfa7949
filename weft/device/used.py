"""Leaving out of the device library what a kernel does not use: the compiler reads 50 KB of it in 5 to 7 ms, a tenth of a small kernel's time.

Owns the cutting of library text into declarations, and which of them a text needs. A declaration is kept when one of its names is mentioned by the kernel or
by a declaration that is kept; lines of the preprocessor are all kept. So too much may stay, and nothing that is needed goes.
Read first: `only_used`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.errors import InternalError

_TOKEN = re.compile(
    r"""(?P<directive>^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*\n?) | //[^\n]* | /\*.*?\*/ | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)+' | (?P<mark>[{};])""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SILENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINE = re.compile(r"\s*#\s*define\s+(\w+)(?:\(([^()]*)\))?")
_TYPE = re.compile(r"(?:template\s*<[^<>]*>\s*)?(?:struct|class|union|enum(?:\s+class)?)\s+(?:alignas\s*\([^()]*\)\s*)?(\w+)")
_FUNCTION = re.compile(r"(?:template\s*<[^<>]*>\s*)?WEFT_(?:DEVICE|CALLED)\s[^()=]*?\b(\w+)\s*(?:<[^<>()]*>)?\s*\(")
_CALL = re.compile(r"\s*\b([A-Z][A-Z0-9_]*)\((?:[^()]|\([^()]*\))*\)")
_CALLABLE = re.compile(r"(?<![\w#])([A-Za-z_]\w*)\s*\(")
_KEYWORDS = frozenset(
    "alignas auto bool break case char class const constexpr continue default delete do double else enum extern false float for friend if inline int long "
    "namespace new operator return short signed sizeof static static_assert struct switch template this true typedef typename union unsigned using void "
    "volatile while".split()
)
_OPENING = re.compile(r"\s*(?:namespace\s+\w+|extern\s+\"C\")\s*\{\Z")


ALWAYS = ""
"""Stands for the names of declarations that are always kept."""


class UnbalancedLibrary(InternalError):
    code = "W432"
    what = "the device library's text ends inside a declaration that begins with {begin!r}"
    fix = "balance the braces of each declaration, whatever the preprocessor chooses"


@dataclass(frozen=True)
class Declaration:
    """A piece of library text.

    names: it is needed when one of them is; without any, always. mentions: the words of its text. is_line: it is the preprocessor's, and stays.
    """

    text: str
    names: frozenset[str] = frozenset()
    mentions: frozenset[str] = frozenset()
    is_line: bool = False


def only_used(parts: Sequence[str], text: str) -> list[str]:
    """Return the parts of the library with those declarations only that `text` needs.

    Errors: UnbalancedLibrary.
    """
    cut = [declarations(part) for part in parts]
    by_name: dict[str, list[Declaration]] = {}
    for declaration in itertools.chain(*cut):
        for name in declaration.names or [ALWAYS]:
            by_name.setdefault(name, []).append(declaration)
    kept: set[int] = set()
    seen: set[str] = set()
    pending = [ALWAYS, *_words(text)]
    while pending:
        word = pending.pop()
        if word not in seen:
            seen.add(word)
            for declaration in by_name.get(word, ()):
                if id(declaration) not in kept:
                    kept.add(id(declaration))
                    pending += declaration.mentions
    return ["".join(d.text for d in part if id(d) in kept or d.is_line) for part in cut]


@functools.lru_cache(maxsize=64)
def declarations(library: str) -> tuple[Declaration, ...]:
    """Cut a text into declarations; put together they are the text. Namespaces are open: their first and last lines are pieces that are always kept.

    Errors: UnbalancedLibrary.
    """
    return tuple(_Cutter(library).cut())


class _Cutter:
    """Goes through a text once. start: where the piece begins that is being read; macros: functions that the bodies of macros declare or call."""

    def __init__(self, library: str) -> None:
        self.library, self.start = library, 0
        self.found: list[Declaration] = []
        self.macros: dict[str, frozenset[str]] = {}

    def cut(self) -> list[Declaration]:
        depth = 0
        for match in _TOKEN.finditer(self.library):
            mark, end = match["mark"], match.end()
            if depth == 0 and (match["directive"] or mark == "}"):
                self._calls(match.start())
            if match["directive"]:
                if depth == 0 and not _words(self.library[self.start : match.start()]):
                    self._take(end, self._line)
            elif mark == "{":
                if depth == 0 and _OPENING.match(_COMMENT.sub("", self.library[self.start : end])):
                    self._take(end, Declaration)
                else:
                    depth += 1
            elif mark == "}" and depth == 0:
                if _words(self.library[self.start : end]):
                    raise UnbalancedLibrary(begin=self.library[self.start : end].strip()[:60])
                self._take(end, Declaration)  # the end of a namespace
            elif mark == "}":
                depth -= 1
                if depth == 0 and not _goes_on(self.library[self.start : end]):
                    self._declaration(end)
            elif mark == ";" and depth == 0:
                self._declaration(end)
        self._calls(len(self.library))
        rest = self.library[self.start :]
        if depth or _words(rest):
            raise UnbalancedLibrary(begin=rest.strip()[:60])
        return [*self.found, Declaration(rest)]

    def _take(self, end: int, make: Callable[[str], Declaration]) -> None:
        self.found.append(make(self.library[self.start : end]))
        self.start = end

    def _line(self, text: str) -> Declaration:
        """A line of the preprocessor. It stays; what a macro mentions is needed where the macro is."""
        macro = _DEFINE.match(_COMMENT.sub(" ", text))
        if macro is None:
            return Declaration(text, is_line=True)
        words = _words(text)
        names = frozenset(_CALLABLE.findall(_SILENT.sub(" ", text))) - _words(macro[2] or "")
        self.macros[macro[1]] = self.macros.get(macro[1], frozenset()) | names
        return Declaration(text, frozenset([macro[1]]), words, is_line=True)

    def _calls(self, end: int) -> None:
        """Take the calls of macros that the piece begins with, each by itself: they declare what their arguments and the macros' bodies name."""
        text = _SILENT.sub(lambda silent: " " * len(silent[0]), self.library[self.start : end])
        begin, place = self.start, 0
        while call := _CALL.match(text, place):
            place = call.end()
            words = frozenset(_WORD.findall(call[0]))
            names = words.union(self.macros.get(call[1], ())) - _KEYWORDS - {call[1]}
            self._take(begin + place, functools.partial(Declaration, names=names, mentions=words))

    def _declaration(self, end: int) -> None:
        """Take a declaration under its name: a type's, a function's, or, for what is neither in a plain form, under all its words."""
        self._calls(end)
        body = _SILENT.sub(" ", self.library[self.start : end])
        head, words = body.partition("{")[0].lstrip(), frozenset(_WORD.findall(body))
        plain = _TYPE.match(head) or _FUNCTION.match(head)
        names = frozenset() if "operator" in head else frozenset([plain[1]]) if plain else words - _KEYWORDS
        self._take(end, functools.partial(Declaration, names=names, mentions=words))


def _words(text: str) -> frozenset[str]:
    """The identifiers of a text, without those in comments and literals."""
    return frozenset(_WORD.findall(_SILENT.sub(" ", text)))


def _goes_on(text: str) -> bool:
    """Tell whether a `}` leaves the declaration open until a semicolon: after a type's body, and after an initializer."""
    head = _SILENT.sub(" ", text).lstrip().partition("{")[0]
    return bool(_TYPE.match(head)) or head.rstrip().endswith("=")
