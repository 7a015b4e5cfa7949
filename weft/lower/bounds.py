"""Finds bounds that hold in a whole loop nest, or in the first iterations of a loop, and removes their checks there.

A bound is an atom `position < end` of a predicate. It holds everywhere where it holds at the largest position, which is known where the position provably does
not fall when an index rises. What must hold for that is a test: of the host (`weft.lower.peel`), or of a block in the kernel (`weft.lower.unswitch`).
Read first: `Freed`, `raised`, `first_iterations`; `in_two` splits a loop there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ..expr import FALSE, TRUE, Sym, ceildiv, conjunction, conjuncts, less, lower_bound, maximum, minimum, mul, rebuild, recombine, sub, terms, variables
from ..ir.enums import GRID_TYPES
from .kernel_ir import Block, If, Loop, Nest, Op, Statement, is_host_variable
from .kernel_sync import Arrive

GRID_NAMES = {p.value for p in GRID_TYPES}
MONOTONE = ("add", "mul", "floordiv", "ceildiv", "min", "max")


@dataclass(frozen=True)
class Ranges:
    """The largest values of the variables of a nest. fixed: indices of the loops around the nest. last: index of a loop inside -> its last value. last_thread:
    name of a thread index -> its last value. is_of_block: the answer may differ between blocks; otherwise block indices have their last values, too.
    """

    fixed: frozenset[Sym]
    last: Mapping[Sym, Sym]
    last_thread: Mapping[str, Sym]
    is_of_block: bool = True

    def largest(self, v: Sym) -> Sym | None:
        """The largest value of a variable; the variable itself if it is uniform (see `is_uniform`); None if not known."""
        name = str(v.payload)
        if v in self.last:
            return self.last[v]
        if name in self.last_thread:
            return self.last_thread[name]
        if v in self.fixed or self.is_of_block and name in GRID_NAMES or is_host_variable(v):
            return v
        return None if v.extent is None else sub(v.extent, 1)

    def is_uniform(self, sym: Sym) -> bool:
        """True for an expression with one value in the nest and the block, or, without is_of_block, in the whole kernel."""
        return all(self.largest(v) is v for v in variables(sym))

    def within(self, loop: Loop) -> "Ranges":
        return replace(self, last={**self.last, loop.index: sub(loop.extent, 1)})

    def where(self, condition: Sym) -> "Ranges":
        """The ranges under `condition`: with i + c < n, i is at most n - 1 - c, whatever the extent of its loop."""
        last = dict(self.last)
        for atom in conjuncts(condition):
            for v in variables(atom) & self.last.keys() if atom.op == "lt" else ():
                rest = sub(atom.args[0], v)
                if self.is_uniform(rest) and self.is_uniform(atom.args[1]):
                    last[v] = sub(sub(atom.args[1], 1), rest)
        return replace(self, last=last)

    def is_guard(self, atom: Sym) -> bool:
        """True for a bound of a thread index alone, which selects threads."""
        return atom.op == "lt" and atom.args[0].is_var and str(atom.args[0].payload) in self.last_thread and self.is_uniform(atom.args[1])

    def guarded(self, predicate: Sym) -> "Ranges":
        """The ranges in the threads that the guards of `predicate` select."""
        guards = [a for a in conjuncts(predicate) if self.is_guard(a)]
        return replace(self, last_thread={**self.last_thread, **{str(a.args[0].payload): sub(a.args[1], 1) for a in guards}})


def raised(sym: Sym, ranges: Ranges) -> Sym | None:
    """Return `sym` with every variable at its last value if that is provably its maximum; else None (a remainder, a difference of indices)."""
    if sym.is_var:
        return ranges.largest(sym)
    if ranges.is_uniform(sym):
        return sym
    if sym.op not in MONOTONE:
        return None
    if sym.op in ("floordiv", "ceildiv") and not ranges.is_uniform(sym.args[1]):
        return None
    if sym.op in ("mul", "floordiv", "ceildiv") and any(lower_bound(a) < 0 for a in sym.args):
        return None
    args = [raised(a, ranges) for a in sym.args]
    return None if None in args else rebuild(sym, args)  # type: ignore[arg-type]


def test_of(atom: Sym, ranges: Ranges) -> Sym | None:
    """Return a condition that implies a bound in the whole nest; None if it is not a bound, or not known to be monotonic in its indices."""
    if atom.op != "lt" or not ranges.is_uniform(atom.args[1]):
        return None
    position = raised(recombine(atom.args[0]), ranges)
    return None if position is None else less(position, atom.args[1])


def is_bound_in(atom: Sym, sizes: frozenset[Sym]) -> bool:
    """True for a bound of a position by sizes that are all in `sizes`."""
    return atom.op == "lt" and bool(variables(atom.args[1])) and variables(atom.args[1]) <= sizes


class Freed:
    """Removes bounds from statements. goes: which bounds may be removed. tests: conditions that imply the removed ones. enters_ahead: also in statements for
    another iteration, if a bound is the same in each.
    """

    def __init__(self, goes: Callable[[Sym], bool], *, enters_ahead: bool = False) -> None:
        self.goes, self.enters_ahead = goes, enters_ahead
        self.tests: dict[Sym, None] = {}

    def body(self, statements: list[Statement], ranges: Ranges) -> list[Statement]:
        """Remove the bounds from `statements`, whose variables have the ranges `ranges`; return the statements."""
        for s in statements:
            if isinstance(s, Loop):
                self.body(s.body, ranges.within(s))
            elif isinstance(s, If):
                self.body(s.body, ranges.where(s.predicate))
            elif isinstance(s, Block):
                if self.enters_ahead or not s.keeps_bounds:
                    self.body(s.body, ranges.where(s.condition))
            elif isinstance(s, Nest):
                self.body(s.body, ranges)
            elif isinstance(s, Op):
                s.predicate = self.without(s.predicate, ranges)
            elif isinstance(s, Arrive):
                s.conditions = tuple(self.without(a, ranges) for a in s.conditions)
        return statements

    def without(self, predicate: Sym, ranges: Ranges) -> Sym:
        """Return the rest of a predicate. A bound that never holds at the last index would make the whole test false, so it stays."""
        kept = []
        inside = ranges.guarded(predicate)
        for atom in conjuncts(predicate):
            test = test_of(atom, inside) if self.goes(atom) and not ranges.is_guard(atom) else None
            if test is None or test is FALSE:
                kept.append(atom)
            elif test is not TRUE:
                self.tests.setdefault(test)
        return conjunction(kept)


def first_iterations(index: Sym, extent: Sym, bounds: Iterable[Sym]) -> Sym | None:
    """Return in how many iterations of a loop, from the first one, `bounds` hold; None if a position is not a sum with a multiple of its index."""
    count = extent
    for atom in bounds:
        position, end = atom.args
        step = terms(position).get((index,), 0)
        rest = sub(position, mul(index, step))
        if atom.op != "lt" or step < 0 or index in variables(rest) | variables(end):
            return None
        room = maximum(sub(end, rest), 0)
        count = minimum(count, ceildiv(room, step)) if step else mul(minimum(room, 1), count)
    return count


def in_two(loop: Loop, end: Sym, first: list[Statement], rest: list[Statement]) -> list[Statement]:
    """Split a loop into one over the iterations before `end`, and one over the rest, each with its own body."""
    return [
        Loop(loop.index, end, first, label=f"{loop.label}, whole", start=loop.start),
        Loop(loop.index, loop.extent, rest, label=f"{loop.label}, the rest", start=end),
    ]
