"""Contracts of lowering passes: what a pass requires from earlier passes, and what it establishes for later ones.

Read first: `lowering_pass`, `check_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import InternalError

Function = TypeVar("Function", bound=Callable[..., Any])


class UnknownProperty(InternalError):
    code = "W914"
    what = "the pass {name} must come before {properties}, which no pass gives; given are {given}"
    fix = "name a property that a pass gives"


class PassOutOfOrder(InternalError):
    code = "W912"
    what = "the pass {name} needs {missing}, which no pass before it gives; given so far: {given}"
    fix = "move it in PIPELINE after the pass that gives it"


@dataclass(frozen=True)
class Contract:
    """needs: properties that earlier passes must have established. gives: properties that hold after it. before: properties that no earlier pass may have
    established."""

    needs: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()


def lowering_pass(needs: Iterable[str] = (), gives: Iterable[str] = (), before: Iterable[str] = ()) -> Callable[[Function], Function]:
    """State the contract of a pass."""

    def stated(function: Function) -> Function:
        function.contract = Contract(frozenset(needs), frozenset(gives), frozenset(before))  # type: ignore[attr-defined]  # functions take attributes
        return function

    return stated


def contract_of(function: Callable[..., Any]) -> Contract:
    """Return the contract of a pass; one that states none needs and gives nothing."""
    found: Contract = getattr(function, "contract", Contract())
    return found


def check_order(passes: Iterable[Callable[..., Any]]) -> None:
    """Check that each pass follows those that establish what it needs, and precedes those whose properties it would break.

    Errors: PassOutOfOrder; UnknownProperty, because a misspelt property in `before` would forbid nothing.
    """
    passes = tuple(passes)
    given: frozenset[str] = frozenset()
    for function in passes:
        contract = contract_of(function)
        missing = sorted(contract.needs - given) or [f"the absence of {promise}" for promise in sorted(contract.before & given)]
        if missing:
            raise PassOutOfOrder(name=function.__name__, missing=", ".join(missing), given=", ".join(sorted(given)) or "nothing")
        given |= contract.gives
    for function in passes:
        unknown = contract_of(function).before - given
        if unknown:
            raise UnknownProperty(name=function.__name__, properties=", ".join(sorted(unknown)), given=", ".join(sorted(given)))
