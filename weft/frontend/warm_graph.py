"""Warm calls of a graph as one generated function: it contains the statements of each region's prepared call, and checks all inputs once.

The question is what `execute` of every region asks by itself: kinds, sizes, strides and addresses of tensors, settings, gradients, profilers. What regions and
products make lies as it was traced, and is not asked again. A region is called as ever where a tensor is not like the noted one, and where anything fails.
Read first: `WarmGraph`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, SimpleNamespace
from typing import Any

import torch
from torch.autograd import forward_ad, profiler

from ..options import in_block
from ..runtime import profile
from ..runtime.binding import span_elems
from ..runtime.call_state import settings_and_gradients
from ..runtime.storage_check import checker
from ..runtime.warm_path import ALIGNED, guard_of, written
from .calling import PRODUCTS, REINTERPRET, VIEWS
from .graph_text import Step, steps_of
from .region_call import RegionCall

Forward = Callable[[list[Any]], Any]


class Misfit(Exception):
    """A tensor differs from the one of the recorded call."""


@dataclass(eq=False)
class _Noted:
    """The prepared call of a region. run: its function. guard: for the inputs whose layout is not known, `unknown`."""

    run: Any
    unknown: list[str]
    guard: Callable[..., bool]


@dataclass(eq=False)
class _Chain:
    """A chain of views of a tensor whose layout is not known, each read only by the next. steps: their numbers. place: sizes, strides and offset of the last
    one in a tensor that passes `guard`, as texts."""

    steps: list[int]
    guard: Callable[..., bool] | None = None
    begin: int = 0
    place: str = ""


class WarmGraph:
    """One call that records the prepared calls of a graph's regions (`note`), and the function that is written from them (`function`).

    source, names: of the graph's function. plain: calls that function with a list of arguments.
    """

    def __init__(self, source: str, names: dict[str, Any], plain: Forward) -> None:
        self.text = steps_of(source)
        self.names, self.plain = names, plain
        regions = {name for name, value in names.items() if isinstance(value, RegionCall)}
        self._regions = [n for n, step in enumerate(self.text.steps) if step.function in regions]
        self._known = self._dense()
        self._chains = self._chains_of_views()
        self._noted: dict[int, _Noted] = {}
        self._spans: dict[str, tuple[int, int]] = {}  # arguments that regions read: total bytes, and bytes of an element
        self._seen: dict[str, int] = {}
        self._guard: Callable[..., bool] | None = None
        self._options: Any = None

    @property
    def is_wanted(self) -> bool:
        """Whether there are regions, and no conflicts with names that the function uses."""
        is_read = not any("(" in step.text and not step.function for step in self.text.steps)
        return is_read and bool(self._regions and self.text.arguments) and not any(re.match(r"w\d*_", n) for step in self.text.steps for n in step.makes)

    def _dense(self) -> set[str]:
        """The variables with the traced layout: results of regions and products, views of these and of arguments."""
        known: set[str] = set()
        for number, step in enumerate(self.text.steps):
            function = self.names.get(step.function)
            is_view = function is REINTERPRET and bool(step.args) and (step.args[0] in known or step.args[0] in self.text.arguments)
            if number in self._regions or is_view or any(function is product for product in PRODUCTS.values()):
                known.update(step.makes)
        return known

    def _chains_of_views(self) -> list[_Chain]:
        out: dict[str, list[int]] = {}  # by the result of the last step
        for number, step in enumerate(self.text.steps):
            function = self.names.get(step.function)
            if not step.args or not any(function is view for view in VIEWS.values()):  # no arguments are noted where sizes are variables
                continue
            if step.freed == step.args[:1] and not any(a.isidentifier() for a in step.args[1:]):
                out[step.makes[0]] = [*out.pop(step.args[0], []), number]
        returned = re.findall(r"\w+", self.text.returned)
        return [_Chain(numbers) for made, numbers in out.items() if len(numbers) > 1 and made not in returned]

    # -- noting
    def note(self, forward: FunctionType, owner: Any, arguments: list[Any]) -> Any:
        """Run the graph once, and record the prepared calls of its regions. forward: its function."""
        read = {name for number in self._regions for name in self.text.steps[number].args}
        values = {name: value for name, value in zip(self.text.arguments, arguments) if name in read}
        if all(isinstance(value, torch.Tensor) for value in arguments):  # symbolic sizes are numbers among the arguments
            self._guard = guard_of(list(values.values()))
            self._seen = {name: value.data_ptr() for name, value in values.items()}
        del values
        noted_functions = {self.text.steps[n].function for n in (*self._regions, *(n for chain in self._chains for n in chain.steps))}
        number = iter([n for n, step in enumerate(self.text.steps) if step.function in noted_functions])

        def noting(function: Any) -> Callable[..., Any]:
            def noted(*inputs: Any) -> Any:
                made = function(*inputs)
                self._note_call(next(number), function, inputs, made)
                return made

            return noted

        replaced = {name: noting(self.names[name]) for name in noted_functions}
        return FunctionType(forward.__code__, {**forward.__globals__, **replaced})(owner, arguments)

    def _note_call(self, number: int, call: Any, inputs: Sequence[Any], made: Any) -> None:
        step = self.text.steps[number]
        if not isinstance(call, RegionCall):
            for chain in self._chains:
                if number == chain.steps[0]:
                    chain.guard, chain.begin = guard_of([inputs[0]]), inputs[0].storage_offset()
                if number == chain.steps[-1]:
                    chain.place = f"{tuple(made.shape)}, {made.stride()}, {made.storage_offset() - chain.begin}"
            return
        warm = call.warm(inputs) if self._guard is not None and len(step.args) == len(inputs) else None
        if warm is None or warm.settings not in (in_block, settings_and_gradients) or not _is_plain(warm.run, step):
            return
        self._options = self._options or in_block()  # the guard checks for gradients separately
        self._spans.update({name: span for name, span in zip(step.args, warm.fits.spans, strict=True) if name in self._seen})  # type: ignore[attr-defined]
        unknown = {name: value for name, value in zip(step.args, inputs) if name not in self._known and name not in self._seen}
        self._noted[number] = _Noted(warm.run, list(unknown), guard_of(list(unknown.values())))

    # -- writing
    def function(self, owner: Any) -> Forward | None:
        """Return the function; None if sizes are symbolic, or no region was prepared in a form that can be inlined. owner: of constants."""
        if not self._noted:
            return None
        names: dict[str, Any] = {name: _bare(value) for name, value in self.names.items()} | {
            "w_plain": self.plain, "w_settings": in_block, "w_options": self._options, "w_profiling": profile.active, "w_profiler": profiler,
            "w_tangents": forward_ad, "w_gradients": torch.is_grad_enabled, "w_guard": self._guard, "w_misfit": Misfit,
        }  # fmt: skip
        lines = self._question(names)
        if self._has_one_stream():
            found = next(iter(self._noted.values())).run.names
            names.update(w_reader=found["stream"], w_device=found["device"])
            names["w_stream"] = None  # the function has a variable of this name
            lines.append("w_stream = w_reader(w_device)")
        addresses, views = set(self._spans), self._views()
        chains = {number: chain for chain in self._chains for number in chain.steps}
        for number, step in enumerate(self.text.steps):
            if number in chains:
                lines += self._chain(chains[number], names) if number == chains[number].steps[-1] else []
            elif number in self._noted:
                lines += self._region(number, addresses, {name: views[name] for name in step.makes if name in views}, names)
            elif not any(step is view for view in views.values()):
                lines.append(step.text)
        body = _deeper(_deeper([*lines, self.text.returned]))
        text = "\n".join([f"def make({self.text.owner}):", f"    def forward({self.text.given}):", *body, "    return forward", ""])
        made: Forward = written(text, names)["make"](owner)
        return made

    def _has_one_stream(self) -> bool:
        """True if all regions run on one GPU, and no function between them could select another stream."""
        devices = {noted.run.names.get("device") for noted in self._noted.values()}
        ops = [value for value in self.names.values() if callable(value) and not isinstance(value, (RegionCall, type, *_OF_TORCH))]
        return len(devices) == 1 and None not in devices and all(isinstance(op, torch._ops.OpOverload) and op.namespace in ("aten", "prims") for op in ops)

    def _question(self, names: dict[str, Any]) -> list[str]:
        """The lines that check that a call is like the recorded one, and unpack the arguments."""
        checked, given, every = list(self._spans), self.text.given, ", ".join(self.text.arguments)
        other = "w_settings() is not w_options or w_profiling or w_profiler._is_profiler_enabled or w_tangents._current_level >= 0 or w_gradients()"
        lines = [f"if {other}: return w_plain({given})", f"{every}, = {given}"]
        if checked:
            pointers = f"({' '.join([f'{_address(name)},' for name in checked])})"
            names["w_seen"] = [tuple([self._seen[name] for name in checked])]
            wanted: list[Any] = [(n, SimpleNamespace(name=n), *self._spans[name]) for n, name in enumerate(checked)]
            names["w_fits"] = checker(wanted)
            lines += [
                "try:",
                f"    if not w_guard({', '.join(self._seen)}): raise w_misfit",
                f"    {'; '.join([f'{_address(name)} = {name}.data_ptr()' for name in checked])}",
                f"    if {pointers} != w_seen[0]:",
                f"        if ({' | '.join([_address(name) for name in checked])}) & {ALIGNED}: raise w_misfit",
                f"        w_fits({', '.join(checked)}, *{pointers}, *w_seen[0])",
                f"        w_seen[0] = {pointers}",
                "except Exception:",
                f"    del {every}",
                f"    return w_plain({given})",
            ]
        return [*lines, f"{given}.clear()", *([f"del {', '.join(self.text.unused)}"] if self.text.unused else [])]

    def _region(self, number: int, addresses: set[str], views: dict[str, Step], names: dict[str, Any]) -> list[str]:
        """The lines of a region: its inlined prepared call, or an ordinary call. addresses: variables whose addresses are known; those of its inputs are added.
        views: result -> the only line that reads it, a view; the result is allocated with the layout of this view."""
        step, noted = self.text.steps[number], self._noted[number]
        asked = [name for name in dict.fromkeys(step.args) if name not in addresses]
        addresses.update(asked)
        tests = [f"({' | '.join([_address(name) for name in asked])}) & {ALIGNED}"] if asked else []
        if noted.unknown:
            names[f"w{number}_guard"] = noted.guard
            tests.append(f"not w{number}_guard({', '.join(noted.unknown)})")
        prepared, constants = _written_out(noted.run, number, step, views)
        if "w_stream" in names:
            prepared = [line.replace(f"w{number}_stream(w{number}_device)", "w_stream") for line in prepared]
        names.update(constants)
        instead = "; ".join([step.call, *(view.text for view in views.values())])
        freed = [name for name in step.freed if name not in views]
        return [
            *(f"{_address(name)} = {name}.data_ptr()" for name in asked),
            "try:",
            *([f"    if {' or '.join(tests)}: raise w_misfit"] if tests else []),
            *_deeper(prepared),
            f"except Exception: {instead}",
            *([f"del {', '.join(freed)}"] if freed else []),
        ]

    def _chain(self, chain: _Chain, names: dict[str, Any]) -> list[str]:
        """The lines of a chain of views: a single one, if its tensor is like the recorded one."""
        steps = [self.text.steps[number] for number in chain.steps]
        base, last = steps[0].args[0], steps[-1].makes[0]
        names.update({"w_view": REINTERPRET, f"w{chain.steps[-1]}_like": chain.guard})
        return [
            f"if w{chain.steps[-1]}_like({base}): {last} = w_view({base}, {chain.place})",
            f"else: {'; '.join([steps[0].call, *(step.text for step in steps[1:])])}",
            f"del {base}",
        ]

    def _views(self) -> dict[str, Step]:
        """Return result of a region -> line of its view, for results that are read only by one view of the same elements."""
        reads = [name for step in self.text.steps for name in re.findall(r"\w+", step.call.partition(" = ")[2])] + re.findall(r"\w+", self.text.returned)
        out: dict[str, Step] = {}
        for step in self.text.steps:
            if self.names.get(step.function) is REINTERPRET and step.args[-1] == "0" and step.freed == step.args[:1] and reads.count(step.args[0]) == 1:
                out[step.args[0]] = step
        return {
            made: out[made] for number, noted in self._noted.items() for made, result in zip(self.text.steps[number].makes, noted.run.parts.returned)
            if made in out and _can_be_laid_out(noted.run, result, out[made])
        }  # fmt: skip


_OF_TORCH = (BuiltinFunctionType, MethodDescriptorType)
# ---------------------------------------------------------------- prepared calls
_SHARED = ("prepared", "values", "config", "arguments", "slots", "_", "status", "queue")
"""Temporary variables of prepared calls, which all regions share."""
_CAREFUL = re.compile(r"return careful\(.*\)")
"""The call of a function for overlapping inputs; in a graph it becomes the ordinary call of the region."""
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w|=[^=])")
"""A name that is neither an attribute nor a keyword."""


def _is_plain(run: Any, step: Step) -> bool:
    """True if the statements of a prepared call can be inlined: they run to their end (or to the call of another function, if a written input overlaps another
    one), and contain no string literals."""
    parts = getattr(run, "parts", None)
    if parts is None or len(parts.returned) != len(step.makes) or len(parts.arguments) != 2 * len(step.args):
        return False
    return not any("return" in _CAREFUL.sub("", line) or "'" in line or '"' in line for line in run.lines)


def _can_be_laid_out(run: Any, result: str, view: Step) -> bool:
    """True if a prepared call allocates a result by itself, uses only its address, and a view covers the same elements."""
    number = result[1:]
    size, stride = run.names.get(f"size{number}"), run.names.get(f"stride{number}")
    text = "\n".join(run.lines)
    uses = len(re.findall(rf"\b{result}\b", text))
    once = all(len(re.findall(rf"\b{name}{number}\b", text)) == 1 for name in ("size", "stride"))
    if not re.fullmatch(r"o\d+", result) or size is None or not once or uses != 1 + text.count(f"{result}.data_ptr()") or not text.count(f"{result} = "):
        return False
    if run.parts.returned.count(result) != 1:
        return False
    return span_elems(size, stride) == span_elems(*[[int(n) for n in re.findall(r"\d+", text)] for text in view.args[1:3]])


def _written_out(run: Any, number: int, step: Step, views: dict[str, Step]) -> tuple[list[str], dict[str, Any]]:
    """Return the statements of a prepared call with the variables of a graph, and the constants that they use. views: as in `WarmGraph._region`."""
    parts, inputs = run.parts, len(step.args)
    new = {name: f"w_{name}" if name in _SHARED else f"w{number}_{name}" for name in (*run.__code__.co_varnames, *run.names)}
    new.update(zip(parts.arguments, [*step.args, *(_address(name) for name in step.args)]))
    constants = {new[name]: value for name, value in run.names.items()}
    made = [views[name].makes[0] if name in views else name for name in step.makes]
    placed = {result: name for name, result in reversed(list(zip(made, parts.returned))) if re.fullmatch(r"o\d+", result)}
    left = [new[name] for name in run.__code__.co_varnames[2 * inputs :] if name not in _SHARED and name not in placed]
    new.update(placed)
    for name, result in zip(step.makes, parts.returned):
        if name in views:
            new.update({f"size{result[1:]}": views[name].args[1], f"stride{result[1:]}": views[name].args[2]})

    def renamed(text: str) -> str:
        return _WORD.sub(lambda found: new.get(found[0], found[0]), text)

    lines = [renamed(_CAREFUL.sub("raise w_misfit", line)) for line in run.lines]
    lines += [f"{name} = {renamed(result)}" for name, result in zip(made, parts.returned) if placed.get(result) != name]
    if left:
        lines.append(" = ".join([*left, "None"]))  # frees memory between kernels
    return lines, constants


def _bare(value: Any) -> Any:
    """The underlying function of an op; other values unchanged."""
    return getattr(value, "_op", value) if type(value) is torch._ops.OpOverload else value


def _address(name: str) -> str:
    return f"w_at_{name}"


def _deeper(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


__all__ = ["WarmGraph"]
