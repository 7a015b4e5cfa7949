"""Fast path of `weft.nn.functional` for repeated calls: one guard checks the tensors, one comparison each the other arguments.

Owns the text of the function that users call, and of one attempt per remembered call. What a call comes to, `Differentiable.quick_call` says; the function
itself, with its checks and its choice of definition, runs when no attempt fits.

What an attempt calls asks no guard again. What it costs: docs/executors.md.
A guard also compares what torch's dispatcher would do with the tensors: autocast, inference mode, transforms of torch.func, subclasses. It does not see grad
mode, nor tangents of forward mode.
Read first: `quick`.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

from ..errors import UserError, WeftError
from ..runtime.argument_kinds import EXPLAINED, check_call, check_kind, explain
from ..runtime.binding import SizesDiffer
from ..runtime.warm_path import guard_of, written

P = ParamSpec("P")
R = TypeVar("R")

MOST_ATTEMPTS = 8
"""Calls that a function remembers; each that does not fit costs time (docs/executors.md)."""

MISS = object()
COMPARED = (bool, int, float, str, torch.dtype, tuple, list)


class SizesDoNotFit(UserError, ValueError):
    code = "W161"
    what = "{function}: the sizes of its tensors do not fit together: {sizes}"
    fix = "make the sizes of each axis equal, or 1, counted from the last axis (broadcasting)"


CHECKED = ("Tensor", "Tensor | None", "int", "float", "float | None")
"""Annotations of what is checked before a function runs: a wrong one of these may work by chance."""


class _Told(threading.local):
    """What a family was last called with in this thread, and what it returned: (tensors, its Differentiable, the result)."""

    call: tuple[Sequence[Any], Any, Any] | None = None


TOLD = _Told()


def quick(function: Callable[P, R]) -> Callable[P, R]:
    """Let repeated calls of a function go without its checks. It must have no effect but to call one family, whose result it returns.

    Only calls whose tensors go to the family as they are are remembered; others always run `function`.
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    made = written(_text_of_call(function.__name__, parameters, required), {})

    def slow(*values: Any) -> Any:
        if torch.compiler.is_compiling():  # by torch.export, say, whose tensors no attempt fits
            return made["call"](function, values)
        _check_kinds(function, names, values)
        TOLD.call = None
        try:
            result = made["call"](function, values)
        except SizesDiffer as error:
            sizes = ", ".join(f"{name} {list(v.shape)}" for name, v in zip(names, values) if isinstance(v, torch.Tensor))
            raise SizesDoNotFit(function=function.__name__, sizes=sizes) from error
        except WeftError:
            raise
        except EXPLAINED as error:
            explain(function, dict(zip(names, values)), error)
            raise
        told, TOLD.call = TOLD.call, None
        if told is not None and told[2] is result and forward_ad._current_level < 0:
            attempt = _attempt(names, values, told[0], told[1], attempts[1])
            if attempt is not None:
                kept = (attempt, *attempts[0][: MOST_ATTEMPTS - 1])
                kept[-1].__globals__["otherwise"] = slow
                attempts[:] = [kept, attempt]
        return result

    attempts: list[Any] = [(), slow]  # those that are remembered, and the one that is called first, which calls the next where it does not fit

    def refuse(more: Sequence[Any], unknown: dict[str, Any], values: Sequence[Any]) -> None:
        given = {name: value for name, value in zip(names, values) if value is not MISS}
        places = [n for n in names if n in given and parameters[n].kind is not inspect.Parameter.KEYWORD_ONLY]
        keywords = {n: v for n, v in given.items() if n not in places}
        if more or unknown:
            check_call(function, [*(given[n] for n in places), *more], {**keywords, **unknown})
        check_call(function, [], {**given, **unknown})

    outer = made["make"](torch.compiler.is_dynamo_compiling, attempts, function, MISS, refuse)
    outer.__defaults__ = (*(MISS for _ in required), *(function.__defaults__ or ()))
    outer.__kwdefaults__ = function.__kwdefaults__
    return functools.wraps(function)(outer)


def _text_of_call(name: str, parameters: Mapping[str, inspect.Parameter], required: Sequence[str]) -> str:
    """Return the text of `make`, which makes the function that users call, and of `call`, which passes values to the function that it stands for."""
    names = list(parameters)
    shown, bar = [], False
    for parameter in parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not bar:
            shown.append("*more")
            bar = True
        shown.append(f"{parameter.name}=None")
    shown += ["**unknown"] if bar else ["*more", "**unknown"]
    wrong = " or ".join(["more", "unknown", *(f"{name} is miss" for name in required)])
    passed = ", ".join(f"{n}={n}" if parameters[n].kind is inspect.Parameter.KEYWORD_ONLY else n for n in names)
    return f"""
def make(is_traced, attempts, plain, miss, refuse):
    def {name}({", ".join(shown)}):
        if {wrong}:
            refuse(more, unknown, [{", ".join(names)}])
        if is_traced():
            return plain({passed})
        return attempts[1]({", ".join(names)})
    return {name}

def call(plain, values):
    [{", ".join(names)}] = values
    return plain({passed})
"""


def _check_kinds(function: Callable[..., Any], names: Sequence[str], values: Sequence[Any]) -> None:
    """Errors: NotATensor, NotANumber for an argument that is annotated as a tensor or a number but is not one."""
    for name, value in zip(names, values):
        annotation = str(function.__annotations__.get(name, ""))
        has_sizes = isinstance(value, torch.Tensor) and not value.is_nested
        if annotation in CHECKED and not ("Tensor" in annotation and has_sizes):
            check_kind(function.__name__, name, value, annotation)


def _attempt(names: Sequence[str], values: Sequence[Any], tensors: Sequence[Any], differentiable: Any, otherwise: Callable[..., Any]) -> Any:
    """Return a function of the arguments that returns the result if they are like `values`, and else calls `otherwise`; None where that cannot be known."""
    given = [t for t in tensors if t is not None]
    own = {id(v): name for name, v in zip(names, values) if isinstance(v, torch.Tensor)}
    distinct = len({id(t) for t in given}) == len(given) == sum(isinstance(v, torch.Tensor) for v in values)
    if not distinct or {id(t) for t in given} != set(own) or not given:
        return None  # a tensor that is given twice: no guard passes it
    constants: dict[str, Any] = {}
    kinds = []
    for name, value in zip(names, values):
        if isinstance(value, torch.Tensor):
            kinds.append("tensor")
        elif value is None:
            kinds.append("none")
        elif isinstance(value, COMPARED):
            kinds.append("value")
            constants[f"c_{name}"] = list(value) if isinstance(value, list) else value
        else:
            return None
    found = differentiable.quick_call(given)
    constants |= {"check": guard_of([v for v in values if isinstance(v, torch.Tensor)]), "run": found.run, "otherwise": otherwise, "tangents": forward_ad}
    constants["is_grad_enabled"] = torch.is_grad_enabled
    arguments = tuple(own[id(t)] for t in given)
    mode = ""  # of gradients, which a guard does not see
    if any(t.requires_grad for t in given):
        mode = "is_grad_enabled()" if torch.is_grad_enabled() else "not is_grad_enabled()"
    text = _attempt_text(tuple(names), tuple(kinds), arguments, found.takes_each, found.count, found.whole, mode)
    return written(text, constants)["attempt"]


@functools.lru_cache(maxsize=1024)
def _attempt_text(
    names: tuple[str, ...], kinds: tuple[str, ...], arguments: tuple[str, ...], takes_each: bool, count: int, whole: bool, mode: str
) -> str:
    tensors = [name for name, kind in zip(names, kinds) if kind == "tensor"]
    tests = [f"{name} is None" for name, kind in zip(names, kinds) if kind == "none"]
    tests += [f"not {name}.is_nested" for name in tensors]  # a guard asks a nested tensor for its strides, which ends the process (torch 2.13)
    tests += [f"check({', '.join(tensors)})", "tangents._current_level < 0"]
    tests += [mode] if mode else []
    tests += [f"{name} == c_{name}" for name, kind in zip(names, kinds) if kind == "value"]
    given = ", ".join(arguments)
    if takes_each:
        result = f"run({given})" + ("" if whole else "[0]" if count == 1 else f"[:{count}]")
    else:
        result = f"run([{given}])[0]" if count == 1 else f"tuple(run([{given}]))"
    return f"""
def attempt({", ".join(names)}):
    try:
        fits = {" and ".join(tests)}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        fits = False
    if fits:
        return {result}
    return otherwise({", ".join(names)})
"""
