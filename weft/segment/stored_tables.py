"""Tables that a kernel would compute again in each of many rows, as the sines and cosines of rotary positions behind a norm: they are stored first.

A value that lacks a loop of its kernel, such as that over samples, is computed in each iteration of it. Where a kernel takes longer for its instructions than
for its bytes, a small table that another kernel stores once may cost less, launch included. Owns the comparison, and the choice of tables. Read first:
`store_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from ..analysis.loop_axes import loop_axes, loop_order
from ..analysis.op_cost import INSTRUCTIONS_PER_BYTE, LAUNCH_BYTES, MUFU_SLOTS, OpCost, cost_of
from ..analysis.precision import wide_tensors
from ..analysis.thread_values import counted_only
from ..dtypes import DataType
from ..expr import Number, Sym, evaluate_int
from ..graph.stored_windows import store
from ..graph.window_places import base_of
from ..ir.fusion import Fusion
from ..ir.graph_ops import BagOp, LookupOp
from ..ir.values import BroadcastOp, Expr, PointwiseOp, RandomOp, ReductionOp, SqueezeOp, TensorView, WelfordOp
from ..ops.build import copy, logical_axes
from .groups import bytes_in_memory, is_free
from .plan import KernelStep, Step
from .search import ACCESS_SLOTS

VECTOR_BYTES = 16
"""Of an access to a table, whose innermost loop is that of the kernel."""
SHARED_ROWS = 8
"""Rows of a thread of a pointwise kernel, which compute together what they have in common (`weft.schedulers.still_rows`); of any kernel, if a loop has no
more: a thread may have all of it."""


def store_tables(fusion: Fusion, steps: Sequence[Step], env: Mapping[Sym, Number]) -> bool:
    """Let tables of `fusion` be in memory, in place, where a kernel of `steps` takes less time then; True if any are now.

    Before: kernels compute them.   After: each is a copy that ends a segment, so that another kernel computes it. Names of tensors stay.
    """
    found: dict[TensorView, None] = {}
    for step in steps:
        if isinstance(step, KernelStep):
            own = {**env, **{mine: evaluate_int(theirs, env) for mine, theirs in step.variables.items()}}
            tables = _Work(step.fusion, own).tables()
            theirs = _of_definition(step) if tables else {}
            found.update((theirs[t], None) for t in tables if t in theirs)
    for tensor in found:
        _store(fusion, tensor)
    return bool(found)


def _store(fusion: Fusion, table: TensorView) -> None:
    """Let a tensor be read from memory, where it has no broadcast axes, so that the loops of tables with and without these are the same."""
    axes = logical_axes(table)
    flags = tuple(axis.is_broadcast() for axis in axes)
    if table.is_fusion_output or not any(flags):
        store(fusion, table)
        return
    made_by = table.definition()
    assert made_by is not None
    computed = fusion.new_tensor([fusion.copy_axis(a) for a in axes], table.dtype())
    fusion.redefine(made_by, table, computed)
    kept = fusion.new_tensor([fusion.copy_axis(a) for a, flag in zip(axes, flags) if not flag], table.dtype())
    fusion.register(SqueezeOp([computed], [kept], op="squeeze", flags=flags))
    fusion.register(BroadcastOp([copy(fusion, kept, segment=True)], [table], op="broadcast", flags=flags))


def _of_definition(step: KernelStep) -> dict[TensorView, TensorView]:
    """Return the tensors of the definition by those of a step's fusion, whose names are those of an equal step."""
    found: dict[TensorView, TensorView] = {}
    stack = list(zip(step.fusion.tensor_outputs(), step.outputs))
    while stack:
        own, theirs = stack.pop()
        made_by, above = own.definition(), theirs.definition()
        if own in found or own.is_fusion_input or made_by is None or type(made_by) is not type(above):
            continue
        found[own] = theirs
        stack += [(a, b) for a, b in zip(made_by.inputs, above.inputs) if isinstance(a, TensorView) and isinstance(b, TensorView)]
    return found


def _slots(costs: Iterable[tuple[OpCost, float]]) -> float:
    """Return the issue slots of ops, each so many times. Special functions have a pipe of their own, beside the others."""
    instructions = mufu = 0.0
    for cost, times in costs:
        instructions, mufu = instructions + cost.instructions * times, mufu + cost.mufu * times
    return max(instructions, MUFU_SLOTS * mufu)


class _Work:
    """What a kernel computes how often."""

    def __init__(self, fusion: Fusion, env: Mapping[Sym, Number]) -> None:
        self.fusion, self.env, self.axes = fusion, env, loop_axes(fusion)
        self.exprs = fusion.tensor_exprs()
        self.is_pointwise = not any(isinstance(e, (ReductionOp, WelfordOp)) for e in self.exprs)
        self.wide = wide_tensors(fusion)
        folds = (t for e in self.exprs if isinstance(e, (ReductionOp, WelfordOp)) for t in e.tensor_outputs)
        self.folded = [self.axes.concrete(t) - self.axes.stored(t) for t in folds]
        self.extents = self.axes.extents_elems(env)  # type: ignore[arg-type]
        longest = max(self.axes.tensors, key=lambda t: len(self.axes.logical_order(t)))
        self.order = loop_order(self.axes, self.axes.logical_order(longest), (*fusion.tensor_inputs(), *fusion.tensor_outputs()))
        self.moved = sum(bytes_in_memory(t, env) for t in (*fusion.tensor_inputs(), *fusion.tensor_outputs()))

    def tables(self) -> list[TensorView]:
        """Return what to store: of what lacks loops, all that pays beside the others."""
        if self.axes.conflict is not None or self.takes(())[1] <= self.moved + LAUNCH_BYTES:
            return []
        chosen = list(dict.fromkeys(base_of(t) for t in self._candidates()))
        for table in sorted(chosen, key=lambda t: -bytes_in_memory(t, self.env)):
            without = [t for t in chosen if t is not table]
            if sum(self.takes(without)) <= sum(self.takes(chosen)):  # bytes hide instructions in part only, so what is stored beside others saves them
                chosen = without
        return chosen if self.time(chosen) < self.time(()) else []

    def time(self, tables: Collection[TensorView]) -> float:
        """Return the time of the kernel and of one that stores `tables`, as bytes that move meanwhile."""
        first = 0.0
        if tables:
            above = self._above(tables)
            moved = {*tables, *(t for e in above for t in e.tensor_inputs if t.is_fusion_input)}
            slots = _slots((cost_of([e], self.wide), self._elems(e.tensor_outputs[0])) for e in above)
            first = LAUNCH_BYTES * self._kernels(tables) + max(sum(bytes_in_memory(t, self.env) for t in moved), slots / INSTRUCTIONS_PER_BYTE)
        return first + max(self.takes(tables))

    def _kernels(self, tables: Collection[TensorView]) -> int:
        """Return how many kernels compute tables: one for those with equal loops that are computed from the same, or from positions alone."""
        found = list[tuple[list[int], set[TensorView]]]()
        for table in tables:
            loops = [self.extents[loop] for loop in self.axes.memory_order(table)]
            parts = {t for e in self._above([table]) for t in (*e.tensor_inputs, *e.tensor_outputs)}
            is_counted = parts.isdisjoint(self.fusion.inputs())
            alike = [of for of in found if of[0] == loops and (not of[1].isdisjoint(parts) or is_counted and of[1].isdisjoint(self.fusion.inputs()))]
            found = [of for of in found if of not in alike] + [(loops, parts.union(*(of[1] for of in alike)))]
        return len(found)

    def takes(self, tables: Collection[TensorView]) -> tuple[float, float]:
        """Return the bytes that the kernel moves if it reads `tables`, and those that would move while it executes its instructions."""
        accesses = sum(self.times(t) * t.dtype().bits / 8 / VECTOR_BYTES for t in tables)
        moved = self.moved + sum(bytes_in_memory(t, self.env) for t in tables if not t.is_fusion_output)
        return moved, (self.slots(tables) + accesses * ACCESS_SLOTS) / INSTRUCTIONS_PER_BYTE

    def slots(self, tables: Collection[TensorView]) -> float:
        """Return the issue slots of what is computed if `tables` are read. Outputs on the way to these are written with them."""
        elsewhere = {t for e in self._above(tables) for t in e.tensor_outputs}
        left = [t for t in self.fusion.tensor_outputs() if t not in elsewhere]
        return _slots((cost_of([e], self.wide), self.times(e.tensor_outputs[0])) for e in self._above(left, tables))

    def times(self, tensor: TensorView) -> float:
        """Return how many elements of a tensor threads compute: in each iteration of its innermost loop and of all loops around that. A thread that folds whole
        columns computes once what does not vary along them."""
        stored = self.axes.concrete(tensor)
        places = [n for n, loop in enumerate(self.order) if loop in stored]
        if not places:
            return 1.0
        once = set().union(*(loops for loops in self.folded if loops.isdisjoint(stored)))
        around = [n for n, loop in enumerate(self.order[: places[-1] + 1]) if loop not in once]
        rows = next((self.extents[self.order[n]] for n in reversed(around) if n not in places), 1)
        shared = min(SHARED_ROWS, rows) if self.is_pointwise or rows <= SHARED_ROWS else 1
        return math.prod(self.extents[self.order[n]] for n in around) / shared

    def _elems(self, tensor: TensorView) -> float:
        return math.prod(self.extents[loop] for loop in self.axes.stored(tensor))

    def _above(self, tensors: Collection[TensorView], ends: Collection[TensorView] = ()) -> list[Expr]:
        """Return what computes tensors, from `ends` and inputs."""
        found: dict[Expr, None] = {}
        stack = [e for t in tensors if t not in ends and (e := t.definition()) is not None]
        while stack:
            expr = stack.pop()
            if expr not in found:
                found[expr] = None
                stack += [e for t in expr.tensor_inputs if t not in ends and (e := t.definition()) is not None]
        return list(found)

    def _candidates(self) -> list[TensorView]:
        """Return what is computed for fewer loops than what reads it, element by element from inputs and positions."""
        plain: set[TensorView] = set(self.fusion.tensor_inputs())
        out = list[TensorView]()
        for expr in self.exprs:
            if isinstance(expr, RandomOp) or not (is_free(expr) or isinstance(expr, (PointwiseOp, LookupOp))) or isinstance(expr, BagOp):
                continue
            if not plain.issuperset(expr.tensor_inputs):
                continue
            plain.update(expr.tensor_outputs)
            table = expr.tensor_outputs[0]
            is_repeated = table.is_fusion_output and self.times(table) > self._elems(table)
            is_plain = not any(axis.expanded_extent is not None for axis in logical_axes(table)) and table not in self.fusion.aliases
            is_plain = is_plain and table.dtype() is not DataType.Bool  # what a mask leaves out is known from its positions
            if isinstance(expr, PointwiseOp) and is_plain and not counted_only(table) and (is_repeated or self._is_spread(table)):
                out.append(table)
        return out

    def _is_spread(self, table: TensorView) -> bool:
        """Tell whether something with more loops is computed from a tensor."""
        own = self.axes.stored(table)
        return any(own < self.axes.concrete(t) or is_free(use) and self._is_spread(t) for use in table.uses() for t in use.tensor_outputs)


__all__ = ["store_tables"]
