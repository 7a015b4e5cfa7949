"""What the lookups of a thread with neighbouring results take: elements that it loads, lines of memory that a warp touches, and clocks of L1's banks.

Lanes of a warp lie a vector apart: with 8 results per thread, windows in steps of two elements of 16 bits begin 32 bytes apart, so all lanes want words of four
of the 32 banks, which takes 8 clocks. Places are computed for the lanes of a few warps. Rows of a thread whose
lookups are vectors share these, too (`row_sharing`). Read first: `LookupWork`, `lookup_work`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch import LINE_BYTES, WARP_THREADS
from ..expr import Sym, evaluate_int, variables
from ..ir.graph_ops import Along, At, Fixed, LookupOp
from ..ir.values import Expr, FullOp, IotaOp, IterDomain, PointwiseOp, ReductionOp, Scalar, TensorView, Val, no_reductions
from .loop_axes import LoopAxes
from .thread_values import COPIES, ThreadValues, counted_only, without_constant

BANK_BYTES = 4
"""Width of the 32 banks of L1 and shared memory (CUDA C++ Programming Guide, shared memory, 9.0)."""
SAMPLED_WARPS, SPREAD = 16, (5**0.5 - 1) / 2
"""Warps whose places are computed, and the fraction of all warps between one and the next, round and round: none of them begin alike in every row."""
FEWEST_OF_A_WINDOW = 3
"""Lookups at positions that a kernel computes, from which it is asked what neighbouring rows share of them."""


@dataclass(frozen=True, slots=True)
class LookupWork:
    """Of a thread with so many neighbouring results.

    loads: elements that it looks up, those that results share once. addresses: number of those that do not differ by a constant. lines: of memory that a warp
    touches in all of its loads; bank_clocks: of L1 for these loads, one for each word that a warp wants of the same bank. operations: as
    `OpCost.instructions`, of everything that the thread computes, what results share once. divisions: of positions. row_operations, row_divisions: the same for
    what does not depend on loops right of the break position. crosses: the loops' indices at each element are divided, because vectors cross the ends of loops.
    """

    loads: int
    addresses: int
    lines: float
    bank_clocks: float
    operations: int
    divisions: int
    row_operations: int
    row_divisions: int
    crosses: bool


def computed_lookups(tensors: Iterable[TensorView]) -> list[TensorView]:
    """Return the results of lookups whose positions the kernel computes, without reading index tensors."""
    known: dict[Val, bool] = {}
    out = []
    for tensor in tensors:
        lookup = tensor.definition()
        if type(lookup) is LookupOp:
            places = [lookup.inputs[p.operand] for p in lookup.positions if isinstance(p, At)]
            out += [tensor] if all(counted_only(v, known) for v in places) else []
    return out


def lookup_work(
    axes: LoopAxes, order: Sequence[int], singles: Sequence[TensorView], env: Mapping[Sym, int], elems: int, phased: int = 0
) -> list[LookupWork]:  # fmt: skip
    """Return the work of a thread with `elems` neighbouring results along the loops, for every break position. singles: computed lookups that are read element
    by element."""
    thread = ThreadValues(axes, order, env, elems, phased)
    folded = [t for e in axes.fusion.tensor_exprs() if isinstance(e, ReductionOp) for t in e.tensor_inputs]
    for output in (*axes.fusion.tensor_outputs(), *folded):
        for element in range(elems):
            thread.value(output, element)
    places = _Places(axes, order, env, elems)
    clocks, touched = 0, dict[int, list[np.ndarray]]()
    looked_up = set(singles)
    loads = {key: found for key, found in thread.loads.items() if found[0].outputs[0] in looked_up}
    for (source, _), (lookup, element) in loads.items():
        at_bytes, elem_bytes = places.of(lookup)[:, :, element] * lookup.source.dtype().bits // 8, lookup.source.dtype().bits // 8
        clocks += _bank_clocks(at_bytes, max(BANK_BYTES, elem_bytes))
        touched.setdefault(source, []).append(at_bytes // LINE_BYTES)
    warps = len(places.warps)
    lines = sum(_distinct(np.concatenate(found, 1)) for found in touched.values())
    addresses = len({(source, without_constant(address)) for source, address in loads})
    counts = [(sum(of[at + 1 :]), sum(of[: at + 1])) for at in range(len(order)) for of in (thread.operations, thread.divisions)]
    pairs = zip(counts[::2], counts[1::2])
    seen = len(loads), addresses, lines / warps, clocks / warps
    return [LookupWork(*seen, operations, divisions, rows, of_rows, thread.crosses) for (operations, rows), (divisions, of_rows) in pairs]


@dataclass(frozen=True, slots=True)
class RowSharing:
    """What neighbouring rows of a thread have in common where each looks up a window of rows. loads: that a row needs not do, because another one does.
    operations: the part of those of rows by themselves that remains."""

    loads: float
    operations: float


ALONE = RowSharing(0.0, 1.0)


def row_sharing(axes: LoopAxes, order: Sequence[int], env: Mapping[Sym, int], rows: int) -> RowSharing:
    """Return what `rows` neighbouring indices of the innermost of the loops in `order` share of lookups in vectors along the loops behind. Masked ones are
    loaded in branches, which share nothing."""
    one, several = (ThreadValues(axes, order, env, count) for count in (1, rows))
    for thread in (one, several):
        for output in axes.fusion.tensor_outputs():
            for row in range(thread.elems):
                thread.value(output, row)
    if any(lookup.is_masked for lookup, _ in one.loads.values()):
        return ALONE
    whole = rows * sum(one.operations)
    return RowSharing(len(one.loads) - len(several.loads) / rows, sum(several.operations) / whole if whole else 1.0)


def _distinct(lines: np.ndarray) -> int:
    """Return how many lines each warp touches, in total. lines: [warp, access]."""
    ordered = np.sort(lines, 1)
    return len(lines) + int(np.count_nonzero(ordered[:, 1:] != ordered[:, :-1]))


def _bank_clocks(at_bytes: np.ndarray, word_bytes: int) -> int:
    """Return the clocks of L1 for an access, in total: in each it gives a word of every bank. at_bytes: [warp, lane]."""
    words = np.sort(at_bytes // word_bytes, 1)
    is_first = np.concatenate((np.ones_like(words[:, :1], bool), words[:, 1:] != words[:, :-1]), 1)
    wanted = np.zeros((len(words), LINE_BYTES // word_bytes), int)
    np.add.at(wanted, (np.arange(len(words))[:, None], words % wanted.shape[1]), is_first)
    return int(wanted.max(1).sum())


class _Places:
    """Where the lanes of a few warps look up: arrays [warp, lane, element]."""

    def __init__(self, axes: LoopAxes, order: Sequence[int], env: Mapping[Sym, int], elems: int) -> None:
        self.axes, self.env = axes, env
        extents = axes.extents_elems(env)
        total, in_warp = math.prod(extents[n] for n in order), WARP_THREADS * elems
        self.warps = np.unique((np.arange(SAMPLED_WARPS) * SPREAD % 1 * max(1, total // in_warp)).astype(np.int64))
        first = self.warps[:, None, None] * in_warp + np.arange(WARP_THREADS)[None, :, None] * elems + np.arange(elems)
        self.indices, left = dict[int, np.ndarray](), np.minimum(first, total - 1)
        for n in reversed(order):
            self.indices[n], left = left % max(1, extents[n]), left // max(1, extents[n])  # a call without elements looks up nothing
        self._known: dict[Val, Any] = {}

    def of(self, lookup: LookupOp) -> np.ndarray:
        """Return the places in memory of what is looked up, in elements."""
        strides, place = lookup.source.strides(), np.zeros_like(next(iter(self.indices.values())))
        axes = no_reductions(lookup.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
        for axis, position in zip(no_reductions(lookup.source.get_logical_domain()), lookup.positions):
            if not axis.is_broadcast() and axis in strides:
                place = place + self._position(lookup, position, axes) * self._number(strides[axis])
        return place

    def _position(self, lookup: LookupOp, position: object, axes: Sequence[Any]) -> Any:
        if isinstance(position, Along):
            return self._index(axes[position.axis]) + self._number(position.offset)
        if isinstance(position, At):
            return self.value(lookup.inputs[position.operand])
        assert isinstance(position, Fixed)
        return self._number(position.position)

    def _number(self, sym: Sym) -> Any:
        """Return the value of a scalar; 0 for one that is not known when a kernel is chosen."""
        if sym.is_const:
            return sym.value
        return evaluate_int(sym, self.env) if all(v in self.env for v in variables(sym)) else 0

    def _index(self, axis: IterDomain) -> Any:
        n = self.axes.of(axis)
        return 0 if n is None else self.indices.get(n, 0)

    def value(self, value: Val) -> Any:
        """Return an integer or a condition at each element; 0 for what ops give that are not known here."""
        if isinstance(value, Scalar):
            return self._number(value.sym)
        if value not in self._known:
            self._known[value] = self._of(value.definition(), value)  # type: ignore[arg-type]
        return self._known[value]

    def _of(self, expr: Expr | None, value: TensorView) -> Any:
        if isinstance(expr, IotaOp):
            start, step = (self.value(v) for v in expr.inputs[1:3])
            return start + step * self._counted(value)
        if isinstance(expr, (*COPIES, FullOp)):
            return self.value(expr.inputs[0])
        rule = _RULES.get(expr.op_name) if isinstance(expr, PointwiseOp) else None
        return rule(*map(self.value, expr.inputs)) if rule is not None else 0  # type: ignore[union-attr]

    def _counted(self, value: TensorView) -> Any:
        place: Any = 0
        for axis in no_reductions(value.get_logical_domain()):
            if not axis.is_broadcast():
                place = place * self._number(axis.logical_extent) + self._index(axis)
        return place


def _quotient(a: Any, b: Any) -> Any:
    return np.sign(a) * (abs(a) // np.maximum(1, b))


_RULES: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "minimum": np.minimum, "maximum": np.maximum, "neg": np.negative, "abs": np.abs,
    "cast": lambda a: a, "div": _quotient, "remainder": lambda a, b: a % np.maximum(1, b), "fmod": lambda a, b: a - _quotient(a, b) * b,
    "where": np.where, "clamp": np.clip, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    **dict.fromkeys(("bitwise_and", "logical_and"), np.logical_and), **dict.fromkeys(("bitwise_or", "logical_or"), np.logical_or),
}  # fmt: skip
"""Integer arithmetic by the names of ops."""

__all__ = ["FEWEST_OF_A_WINDOW", "LookupWork", "RowSharing", "computed_lookups", "lookup_work", "row_sharing"]
