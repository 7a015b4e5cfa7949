"""Nests that are written twice, under one test: without the bounds that hold in all of it, and as they were.

    for i in n:  if i < m: load;  compute          for i last, and in the last thread:  if (last < m) { for i: load; compute } else { as before }

and where a loop around goes over nothing but these two branches, it is split where the test fails first.

The test has one answer for a block, so barriers and waits may stand in both branches: indices of the loops inside are their last ones, thread indices those
of the last thread, and what is known around the nest stays. A bound goes into it only where its position provably does not fall when an index rises. Bounds
of bare thread indices, that keep out threads a block is padded with, stay with the ops, and what these guard is tested for the last thread let in.
Read first: `unswitch_loops`, `raised`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..expr import (
    FALSE, TRUE, ZERO, Sym, ceildiv, conjunction, conjuncts, less, lower_bound, maximum, minimum, mul, proves_le, rebuild, recombine, sub, terms, var,
    variables,
)  # fmt: skip
from ..ir.enums import BLOCK_TYPES, GRID_TYPES
from .state import BuildState
from .contracts import lowering_pass
from .kernel_ir import Block, If, Kernel, Let, Loop, Nest, Op, Reduce, Statement, Unswitched, copied, is_host_variable, walk
from .kernel_sync import Arrive

GRID_NAMES = {p.value for p in GRID_TYPES}
MONOTONE = ("add", "mul", "floordiv", "ceildiv", "min", "max")


@lowering_pass(needs=["pipelines", "row ends"], gives=["unswitched"], before=["grouped predicates"])
def unswitch_loops(kernel: Kernel, state: BuildState) -> Kernel:
    """Write the nests that the schedule unswitches without bounds where a test finds that all of them hold, else as they are.

    Before: predicates hang on ops; an unswitched loop says so, also one of one iteration.   After: no loop is unswitched, and none of these has one
    iteration. Of unswitched loops inside each other the outermost is tested. A nest without bounds to test, or with an exchange between the blocks of a
    cluster, whose start is prepared in the text once, is written once.
    Here because: loads, waits and barriers have their places, so that both branches have them; bounds are still parts of predicates.
    """
    block = kernel.compute_block or kernel.block
    last_thread = {p.value: sub(threads, 1) for p, threads in zip(BLOCK_TYPES, block)}
    ragged = state.full_rows.sizes if state.full_rows is not None and state.full_rows.is_ragged else frozenset()
    kernel.body = _body(kernel.body, Ranges(frozenset(), {}, last_thread, ragged))
    return kernel


@dataclass(frozen=True)
class Ranges:
    """What the variables of a nest run up to.

    fixed: indices of the loops around the nest. last: index of a loop inside -> its last value. last_thread: name of a thread index -> its last value.
    ragged: sizes whose bounds never hold in all of a nest, and are left where they are.
    """

    fixed: frozenset[Sym]
    last: Mapping[Sym, Sym]
    last_thread: Mapping[str, Sym]
    ragged: frozenset[Sym] = frozenset()

    def largest(self, v: Sym) -> Sym | None:
        """The last value of a variable, which is itself where it has one value in the nest and in the block; None when not known."""
        name = str(v.payload)
        if v in self.last:
            return self.last[v]
        if name in self.last_thread:
            return self.last_thread[name]
        if v in self.fixed or name in GRID_NAMES or is_host_variable(v):
            return v
        return None if v.extent is None else sub(v.extent, 1)

    def is_uniform(self, sym: Sym) -> bool:
        """True for what has one value in the nest and in the block."""
        return all(self.largest(v) is v for v in variables(sym))

    def within(self, loop: Loop) -> "Ranges":
        return replace(self, last={**self.last, loop.index: sub(loop.extent, 1)})

    def where(self, condition: Sym) -> "Ranges":
        """The ranges where `condition` holds: of i + c < n, i is at most n - 1 - c, whatever its loop runs to."""
        last = dict(self.last)
        for atom in conjuncts(condition):
            for v in variables(atom) & self.last.keys() if atom.op == "lt" else ():
                rest = sub(atom.args[0], v)
                if self.is_uniform(rest) and self.is_uniform(atom.args[1]):
                    last[v] = sub(sub(atom.args[1], 1), rest)
        return replace(self, last=last)

    def is_guard(self, atom: Sym) -> bool:
        """True for a bound of a thread index itself: it chooses threads."""
        return atom.op == "lt" and atom.args[0].is_var and str(atom.args[0].payload) in self.last_thread and self.is_uniform(atom.args[1])

    def is_ragged(self, atom: Sym) -> bool:
        """True for a bound of a position in a ragged row."""
        return atom.op == "lt" and bool(variables(atom.args[1])) and variables(atom.args[1]) <= self.ragged

    def guarded(self, predicate: Sym) -> "Ranges":
        """The ranges in the threads that the guards of `predicate` let in."""
        guards = [a for a in conjuncts(predicate) if self.is_guard(a)]
        return replace(self, last_thread={**self.last_thread, **{str(a.args[0].payload): sub(a.args[1], 1) for a in guards}})


def raised(sym: Sym, ranges: Ranges) -> Sym | None:
    """Return `sym` with every variable at its last value, where it provably is the largest there; else None (a remainder, a difference of indices)."""
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


def _body(statements: list[Statement], around: Ranges) -> list[Statement]:
    """Return the statements with their unswitched nests written twice."""
    out: list[Statement] = []
    for s in statements:
        if isinstance(s, Loop) and s.is_unswitched:
            out += _both(s, around)
            continue
        if isinstance(s, Loop):
            s.body = _body(s.body, replace(around, fixed=around.fixed | {s.index}))
        elif isinstance(s, Nest):
            s.body = _body(s.body, around)
        out += _two_loops(s) if isinstance(s, Loop) else [s]
    return out


def _two_loops(loop: Loop) -> list[Statement]:
    """Return a loop over nothing but the two branches as one over the iterations for which the test holds, and one over the rest."""
    nest = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(nest, Unswitched) or loop.start is not ZERO or loop.extent.is_const:
        return [loop]
    fast, slow = nest.branches
    whole = _first_iterations(loop, nest.test)
    if whole is None:
        return [loop]
    end = var(f"whole_{loop.index.payload}")
    first = Loop(loop.index, end, fast.body, label=f"{loop.label}, whole")
    return [Let(end, whole), first, Loop(loop.index, loop.extent, slow.body, label=loop.label, start=end)]


def _first_iterations(loop: Loop, test: Sym) -> Sym | None:
    """Return the number of iterations, from the first on, for which `test` holds; None where it is no sum with a multiple of the loop's index."""
    count = loop.extent
    for atom in conjuncts(test):
        position, end = atom.args
        step = terms(position).get((loop.index,), 0)
        rest = sub(position, mul(loop.index, step))
        if atom.op != "lt" or step < 0 or loop.index in variables(rest) | variables(end):
            return None
        room = maximum(sub(end, rest), 0)
        count = minimum(count, ceildiv(room, step)) if step else mul(minimum(room, 1), count)
    return count


def _both(loop: Loop, around: Ranges) -> list[Statement]:
    """Return the nest of an unswitched loop with and without bounds, and the test between."""
    nest = _plain([loop])
    if any(isinstance(s, Reduce) and s.is_cluster and s.turn is None for s in walk(nest)):
        return nest
    free = _Free()
    fast = free.body([copied(s, {}) for s in nest], around)
    if not free.tests:
        return fast
    return [Unswitched.of(conjunction(_strongest(list(free.tests))), fast, nest)]


def _plain(statements: list[Statement]) -> list[Statement]:
    """Return the statements with nothing unswitched in them; what stood there for it alone is taken out."""
    out: list[Statement] = []
    for s in statements:
        if isinstance(s, Nest):
            s.body = _plain(s.body)
        if isinstance(s, Loop):
            s.is_unswitched = False
        out += s.body if isinstance(s, Loop) and s.is_once else [s]
    return out


def _strongest(tests: list[Sym]) -> list[Sym]:
    """Return the tests that no other one implies: of positions below the same end the largest."""
    out: list[Sym] = []
    for test in tests:
        same = [t for t in out if t.args[1] is test.args[1]]
        if not any(proves_le(test.args[0], t.args[0]) for t in same):
            out = [t for t in out if t not in same or not proves_le(t.args[0], test.args[0])] + [test]
    return out


class _Free:
    """Takes bounds out of statements. `tests`: what must hold for that."""

    def __init__(self) -> None:
        self.tests: dict[Sym, None] = {}

    def body(self, statements: list[Statement], ranges: Ranges) -> list[Statement]:
        for s in statements:
            if isinstance(s, Loop):
                self.body(s.body, ranges.within(s))
            elif isinstance(s, If):
                self.body(s.body, ranges.where(s.predicate))
            elif isinstance(s, Block):
                if not s.keeps_bounds:
                    self.body(s.body, ranges.where(s.condition))
            elif isinstance(s, Nest):
                self.body(s.body, ranges)
            elif isinstance(s, Op):
                s.predicate = self.without(s.predicate, ranges)
            elif isinstance(s, Arrive):
                s.conditions = tuple(self.without(a, ranges) for a in s.conditions)
        return statements

    def without(self, predicate: Sym, ranges: Ranges) -> Sym:
        """Return what is left of a predicate. A bound that never holds at the last index would make the whole test false, and is left, too."""
        kept = []
        inside = ranges.guarded(predicate)
        for atom in conjuncts(predicate):
            test = None if ranges.is_guard(atom) or ranges.is_ragged(atom) else _test(atom, inside)
            if test is None or test is FALSE:
                kept.append(atom)
            elif test is not TRUE:
                self.tests.setdefault(test)
        return conjunction(kept)


def _test(atom: Sym, ranges: Ranges) -> Sym | None:
    """Return the condition of which a bound follows wherever it is asked; None for what is no bound, or is not known to rise with its indices."""
    if atom.op != "lt" or not ranges.is_uniform(atom.args[1]):
        return None
    position = raised(recombine(atom.args[0]), ranges)
    return None if position is None else less(position, atom.args[1])


__all__ = ["Ranges", "raised", "unswitch_loops"]
