"""Python code of a graph: a line per call, and what the lines name. Values are freed after their last use.

Knows no regions and no views: `calling` says which lines there are. Read first: `Text`; `steps_of` reads what it has written.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch.fx import Node


@dataclass(eq=False, slots=True)
class Variable:
    """The result of a line. is_dense: it has the traced layout. base: the variable that it is a view of, and the element at which it begins; None if not
    known."""

    name: str
    is_dense: bool = False
    base: "tuple[Variable, int] | None" = None


@dataclass(eq=False, slots=True)
class _Line:
    text: str
    makes: tuple[Variable, ...]
    reads: list[Variable]
    is_optional: bool


@dataclass
class Code:
    """source: of a function forward(owner, arguments). names: its global names. attributes: of the owner."""

    source: str
    names: dict[str, Any] = field(default_factory=dict)
    attributes: list[str] = field(default_factory=list)


class Text:
    """The lines of a function that is being written. taken: names that variables will have."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.variables: dict[Node, Variable] = {}
        self.views: dict[Any, Variable] = {}  # views that exist already, for callers that add lines, so that equal ones are not made again
        self._taken = set(taken)
        self._names: dict[str, Any] = {}
        self._bound: dict[int, str] = {}
        self._lines: list[_Line] = []
        self._arguments: list[Variable] = []
        self._attributes: list[str] = []
        self._owner, self._list = self.new_name("owner"), self.new_name("arguments")

    def new_name(self, wanted: str) -> str:
        """Return an unused name."""
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    # -- lines
    def argument(self, node: Node) -> None:
        """Take the next argument (placeholder)."""
        variable = self.variables[node] = Variable(node.name, is_dense=True)
        self._arguments.append(variable)

    def attribute(self, node: Node) -> None:
        """Write the reading of a constant (get_attr)."""
        path = str(node.target)
        self._attributes.append(path)
        variable = self.variables[node] = Variable(node.name)
        self._lines.append(_Line(f"{node.name} = {self._owner}.{path}", (variable,), [], False))

    def call(self, makes: Variable, function: Callable[..., Any], args: Iterable[Any], keywords: dict[str, Any], *, is_optional: bool = False) -> None:
        """Write a call. is_optional: omitted if nothing reads its result."""
        reads: list[Variable] = []
        texts = [self._value(a, reads) for a in args]
        if function is operator.getitem and not keywords:
            text = f"{texts[0]}[{texts[1]}]"
        else:
            texts += [f"{name}={self._value(a, reads)}" for name, a in keywords.items()] if keywords else ()
            text = f"{self._bind(function)}({', '.join(texts)})"
        self._lines.append(_Line(f"{makes.name} = {text}", (makes,), reads, is_optional))

    def call_of_several(self, makes: tuple[Variable, ...], function: Callable[..., Any], args: list[Variable]) -> None:
        """Write a call whose results are unpacked."""
        names = ", ".join([variable.name for variable in makes])
        text = f"{self._bind(function)}({', '.join([a.name for a in args])})"
        made = f"{names}{'' if len(makes) > 1 else ','} = " if makes else ""
        self._lines.append(_Line(made + text, makes, args, False))

    def method(self, makes: Variable, node: Node) -> None:
        """Write the call of a method of a value (call_method) or of a part of the owner (call_module)."""
        reads: list[Variable] = []
        texts = [self._value(a, reads) for a in node.args] + [f"{name}={self._value(a, reads)}" for name, a in node.kwargs.items()]
        path = f"{texts.pop(0) if node.op == 'call_method' else self._owner}.{node.target}"
        self._lines.append(_Line(f"{makes.name} = {path}({', '.join(texts)})", (makes,), reads, False))

    def end(self, value: Any) -> Code:
        """Return the code of a function that returns a value."""
        reads: list[Variable] = []
        lines = [f"return {self._value(value, reads)}"]
        known = set(reads)
        for line in reversed(self._lines):
            if line.is_optional and not any(made in known for made in line.makes):
                continue
            freed = [made.name for made in line.makes if made not in known]
            for read in line.reads:
                if read not in known:
                    known.add(read)
                    freed.append(read.name)
            lines.append(f"{line.text}; del {', '.join(freed)}" if freed else line.text)
        unused = [a.name for a in self._arguments if a not in known]
        if unused:
            lines.append(f"del {', '.join(unused)}")
        if self._arguments:
            lines += [f"{self._list}.clear()", f"{', '.join([a.name for a in self._arguments])}, = {self._list}"]
        source = "\n    ".join([f"def forward({self._owner}, {self._list}):", *reversed(lines)]) + "\n"
        return Code(source, self._names, self._attributes)

    # -- values
    def _bind(self, value: Any) -> str:
        """Return the global name of an object that exists before the function runs."""
        name = self._bound.get(id(value))
        if name is None:
            name = self.new_name(re.sub(r"[^A-Za-z0-9_]+", "_", _hint(value)[:80]).strip("_") or "constant")
            self._bound[id(value)], self._names[name] = name, value
        return name

    def _value(self, value: Any, reads: list[Variable]) -> str:
        """The text of an argument. reads: gets the variables in it."""
        if isinstance(value, Variable):
            reads.append(value)
            return value.name
        if isinstance(value, Node):
            variable = self.variables[value]
            reads.append(variable)
            return variable.name
        kind = type(value)
        if value is None or kind in (int, bool, str) or kind is float and isfinite(value):
            return repr(value)
        if isinstance(value, (list, tuple)):
            inner = [self._value(v, reads) for v in value]
            if isinstance(value, list):
                return f"[{', '.join(inner)}]"
            text = f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
            return f"{self._bind(kind)}(*{text})" if hasattr(value, "_fields") else text
        if isinstance(value, dict):
            return "{" + ", ".join([f"{k!r}: {self._value(v, reads)}" for k, v in value.items()]) + "}"
        if kind is slice:
            return f"{self._bind(slice)}({', '.join([self._value(v, reads) for v in (value.start, value.stop, value.step)])})"
        return self._bind(value)


# ---------------------------------------------------------------- reading what was written
@dataclass(frozen=True)
class Step:
    """A line of a function that `Text` has written. call: the line without its frees. function: the name of the called function, "" for other lines. args: the
    texts of its arguments, if all of them are variables, integers, and lists of integers."""

    text: str
    call: str
    makes: tuple[str, ...]
    function: str
    args: tuple[str, ...]
    freed: tuple[str, ...]


@dataclass(frozen=True)
class Steps:
    """The parts of a source. unused: arguments that no line reads. owner, given: the names of the function's two arguments. returned: its last line."""

    owner: str
    given: str
    arguments: tuple[str, ...]
    unused: tuple[str, ...]
    steps: tuple[Step, ...]
    returned: str


_LINE = re.compile(
    r"(?P<call>(?:(?P<makes>\w+(?:, \w+)*),? = )?(?:(?P<function>\w+)\((?P<args>.*)\)|.*?))(?:; del (?P<freed>\w+(?:, \w+)*))?"
)
"""A line; one without results calls a region that only writes into its inputs."""
_ARGUMENT = re.compile(r"\w+|[(\[](?:-?\d+(?:, -?\d+)*,?)?[)\]]|-?\d+")


def steps_of(source: str) -> Steps:
    """Return the parts of a source that `Text.end` has written."""
    first, *lines, returned = [line.strip() for line in source.rstrip("\n").split("\n")]
    owner, given = first[len("def forward(") : -len("):")].split(", ")
    arguments: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    if len(lines) > 1 and lines[1] == f"{given}.clear()":
        arguments = _names(lines[0].rpartition(" = ")[0])
        lines = lines[2:]
    if lines and lines[0].startswith("del "):
        unused = _names(lines.pop(0)[len("del ") :])
    return Steps(owner, given, arguments, unused, tuple([_step(line) for line in lines]), returned)


def _step(line: str) -> Step:
    found = _LINE.fullmatch(line)
    if found is None:
        return Step(line, line, (), "", (), ())
    texts = tuple(_ARGUMENT.findall(found["args"] or ""))
    is_plain = ", ".join(texts) == found["args"]
    return Step(line, found["call"], _names(found["makes"] or ""), found["function"] or "", texts if is_plain else (), _names(found["freed"] or ""))


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text))


def _hint(value: Any) -> str:
    """The readable part of a value's name."""
    if isinstance(value, torch._ops.OpOverload) or not callable(value):
        return str(value) if type(value) in (torch._ops.OpOverload, torch.dtype, torch.device, torch.layout, torch.memory_format) else type(value).__name__
    module = (getattr(value, "__module__", None) or "torch").rpartition(".")[2].strip("_")
    return f"{module}_{getattr(value, '__name__', type(value).__name__)}"


__all__ = ["Code", "Step", "Steps", "Text", "Variable", "steps_of"]
