"""Loop unswitching: generates a loop nest twice under one test, without the bounds checks that hold everywhere, and with them.

    for i in n:  if i < m: load;  compute          for i last, and in the last thread:  if (last < m) { for i: load; compute } else { as before }

and where a loop around goes over nothing but these two branches, it is split where the test fails first.

The test has one answer for a block, so barriers and waits may stand in both branches: indices of the loops inside are their last ones, thread indices those
of the last thread, and what is known around the nest stays. A bound goes into it only where its position provably does not fall when an index rises. Bounds
of bare thread indices, that keep out threads a block is padded with, stay with the ops, and what these guard is tested for the last thread let in.
Read first: `unswitch_loops`; `weft.lower.bounds` finds the tests.
"""

from __future__ import annotations

from dataclasses import replace

from ..expr import ZERO, Sym, conjunction, conjuncts, proves_le, sub, var
from ..ir.enums import BLOCK_TYPES
from .bounds import Freed, Ranges, first_iterations, in_two, is_bound_in
from .contracts import lowering_pass
from .kernel_ir import Kernel, Let, Loop, Nest, Reduce, Statement, Unswitched, copied, walk
from .state import BuildState


@lowering_pass(needs=["pipelines", "peeled rows"], gives=["unswitched"], before=["grouped predicates"])
def unswitch_loops(kernel: Kernel, state: BuildState) -> Kernel:
    """Generate unswitched nests twice: without bounds checks, if one test shows that all bounds hold, and unchanged otherwise.

    Before: predicates belong to ops; unswitched loops are marked, also those of one iteration. After: no loop is marked, and none has one iteration. Of nested
    unswitched loops the outermost is tested. A nest is generated once if it has no bounds to test, or an exchange between the blocks of a cluster, which may
    occur only once in the text.
    Here because: loads, waits and barriers have their places, so that both branches have them; bounds are still parts of predicates.
    """
    block = kernel.compute_block or kernel.block
    last_thread = {p.value: sub(threads, 1) for p, threads in zip(BLOCK_TYPES, block)}
    ragged = frozenset() if state.peel is None else state.peel.ragged
    kernel.body = _body(kernel.body, Ranges(frozenset(), {}, last_thread), ragged)
    return kernel


def _body(statements: list[Statement], around: Ranges, ragged: frozenset[Sym]) -> list[Statement]:
    """Return the statements with their unswitched nests generated twice. ragged: sizes whose bounds are not tested."""
    out: list[Statement] = []
    for s in statements:
        if isinstance(s, Loop) and s.is_unswitched:
            out += _both(s, around, ragged)
            continue
        if isinstance(s, Loop):
            s.body = _body(s.body, replace(around, fixed=around.fixed | {s.index}), ragged)
        elif isinstance(s, Nest):
            s.body = _body(s.body, around, ragged)
        out += _two_loops(s) if isinstance(s, Loop) else [s]
    return out


def _two_loops(loop: Loop) -> list[Statement]:
    """Split a loop that contains only the two branches into one over the iterations in which the test holds, and one over the rest."""
    nest = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(nest, Unswitched) or loop.start is not ZERO or loop.extent.is_const:
        return [loop]
    fast, slow = nest.branches
    whole = first_iterations(loop.index, loop.extent, conjuncts(nest.test))
    if whole is None:
        return [loop]
    end = var(f"whole_{loop.index.payload}")
    return [Let(end, whole), *in_two(loop, end, fast.body, slow.body)]


def _both(loop: Loop, around: Ranges, ragged: frozenset[Sym]) -> list[Statement]:
    """Return the nest of an unswitched loop with and without bounds, and the test between."""
    nest = _plain([loop])
    if any(isinstance(s, Reduce) and s.is_cluster and s.turn is None for s in walk(nest)):
        return nest
    free = Freed(lambda atom: not is_bound_in(atom, ragged))
    fast = free.body([copied(s, {}) for s in nest], around)
    if not free.tests:
        return fast
    return [Unswitched.of(conjunction(_strongest(list(free.tests))), fast, nest)]


def _plain(statements: list[Statement]) -> list[Statement]:
    """Return the statements without unswitched loops; statements that were there only for these are removed."""
    out: list[Statement] = []
    for s in statements:
        if isinstance(s, Nest):
            s.body = _plain(s.body)
        if isinstance(s, Loop):
            s.is_unswitched = False
        out += s.body if isinstance(s, Loop) and s.is_once else [s]
    return out


def _strongest(tests: list[Sym]) -> list[Sym]:
    """Return the tests that no other one implies: of several positions with the same end, the largest."""
    out: list[Sym] = []
    for test in tests:
        same = [t for t in out if t.args[1] is test.args[1]]
        if not any(proves_le(test.args[0], t.args[0]) for t in same):
            out = [t for t in out if t not in same or not proves_le(t.args[0], test.args[0])] + [test]
    return out


__all__ = ["unswitch_loops"]
