"""Expressions of whole graphs: views, lookups, scans, scatters, and ops that torch runs.

A user's definition holds all of them. The graph passes (`weft.graph`) rewrite what they can into the nodes that kernels have: a reshape vanishes
(its axes are factored until both sides have the same ones), slice, pad and cat become lookups and selections, and a lookup moves up to a tensor
in global memory, a rotation to one or to a result. What is left ends a segment (`weft.segment`). Kernels see `LookupOp`, `ScanOp` and `ScatterStoreOp` only.
Read first: `LookupOp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from ..expr import ZERO, Sym
from .values import Expr, IterDomain, LoadStoreOp, Roll, TensorView, Val


class ReshapeOp(Expr):
    """The same elements in row-major order, with another shape. If the sizes are constants, the output has a root domain (a copy of the input's axes) whose
    splits and merges give its logical axes; otherwise its axes are independent until sizes are known."""


@dataclass(frozen=True)
class Along:
    """The source position is the index along axis `axis` of the output, plus `offset` (elements; may be negative)."""

    axis: int
    offset: Sym = ZERO


@dataclass(frozen=True)
class At:
    """The source position is the value of the index tensor `inputs[operand]` at the output's position."""

    operand: int

    @property
    def operands(self) -> tuple[int, ...]:
        """All inputs that the position depends on."""
        return (self.operand,)


@dataclass(frozen=True)
class InBag(At):
    """All source positions order[k], for k from first up to, not including, end: the values of index tensors at the output's position. `operand` is first;
    `order` is the input with one axis, None if k itself is the position; `weights` that with a factor for each k, None if there are none."""

    end: int
    order: int | None
    weights: int | None = None

    @property
    def listed(self) -> tuple[int, ...]:
        """Inputs with one axis, of which k is the position."""
        return tuple(n for n in (self.order, self.weights) if n is not None)

    @property
    def operands(self) -> tuple[int, ...]:
        return (self.operand, self.end, *self.listed)


@dataclass(frozen=True)
class Fixed:
    """The source position is a scalar, the same for the whole output."""

    position: Sym


Position = Union[Along, At, Fixed]


class LookupOp(Expr):
    """output[i, j, ...] = source[p0, p1, ...]: one element of `inputs[0]` per element of the output, at positions that need not be its own.

    slice, pad, select, index_select, gather, take_along_axis and embedding are lookups; `op` says which the user wrote.
    inputs: the source; index tensors, each of the output's rank, with broadcast axes where it does not vary; last the fill when `is_masked`.
    attributes: positions - one `Position` per logical axis of the source;
        is_discarded (if present: True) - results for positions outside are not used;
        reading (if present) - a number; readings of one source with different numbers run along different axes;
        is_masked - a position outside of the source gives the fill, a scalar or the tensor's element there; otherwise it must not occur (values of index
        tensors are checked in the emulator, and on the GPU with the setting `bounds`; there is never an access outside).
    In a kernel the source is in global memory.
    """

    @property
    def source(self) -> TensorView:
        return self.inputs[0]  # type: ignore[return-value]

    @property
    def whole_places(self) -> frozenset[int]:
        return frozenset({0})

    @property
    def positions(self) -> tuple[Position, ...]:
        positions: tuple[Along | At | Fixed, ...] = self.attributes["positions"]
        return positions

    @property
    def is_masked(self) -> bool:
        return bool(self.attributes["is_masked"])


class BagOp(LookupOp):
    """output[v, j, ...] = the sum of source[order[k], j, ...] * weights[k] for k from first[v] up to, not including, end[v]; 0 if there are none. As torch's
    `embedding_bag` with mode "sum". The terms are added in this order, floats of 16 bits in float32, which is then the output's type.

    inputs: source, first, end; order if there is one (else the position is k itself); weights if there are any. One position is an `InBag`: the user's first,
    any in a source whose axes a rewrite has put in another order. In a kernel, source, order and weights are in global memory.
    """

    @property
    def whole_places(self) -> frozenset[int]:
        return frozenset((0, *self.bag.listed))

    @property
    def bag(self) -> InBag:
        """The position along the axis that is summed."""
        place = self.positions[self.bag_axis]
        assert isinstance(place, InBag)
        return place

    @property
    def bag_axis(self) -> int:
        """The axis of the source that is summed."""
        return next(n for n, place in enumerate(self.positions) if isinstance(place, InBag))

    @property
    def counted_axes(self) -> list[tuple[int, int]]:
        """The axes that k is a position along, as (input, axis): of order and weights, and of the source if there is no order."""
        own = [(0, self.bag_axis)] if self.bag.order is None else []
        return [*((n, 0) for n in self.bag.listed), *own]


def position_syms(expr: Expr) -> list[Sym]:
    """Return the scalars in the positions of a lookup: values that the expression depends on although they are not its inputs."""
    if not isinstance(expr, LookupOp):
        return []
    return [p.offset if isinstance(p, Along) else p.position for p in expr.positions if not isinstance(p, At)]


class RollOp(Expr):
    """output[i] = input[(i + offset) modulo extent], for each `Roll` of the attribute `rolls`. A kernel has none: it reads an input, or writes an output, at
    rotated places (`TensorDomain.rolled`)."""

    @property
    def rolls(self) -> tuple[Roll, ...]:
        rolls: tuple[Roll, ...] = self.attributes["rolls"]
        return rolls


class CatOp(Expr):
    """The inputs concatenated along axis `dim`; all other extents agree."""


class ScanOp(Expr):
    """A scan (running fold) along axis `dim` with the monoid `kind`: sum, prod, max, min, logsumexp, linear_recurrence. Shape: the input's.

    inputs: what is folded (for linear_recurrence gates and values), and last the start value, a scalar, if there is one. outputs: the result; with the
    attribute `positions` (True) also the position of each running maximum or minimum, Int. With the attribute `reverse` (True) elements are folded from the
    last one on (`graph.reversed_scans`).
    In a kernel `kind` may be a monoid whose state has several fields (`schedule.scan_states`): all inputs but the start value are lifted to states, and the
    output is of that type.
    """

    @property
    def elements(self) -> list[TensorView]:
        """The tensors that are folded: one, or those that a state is lifted from."""
        return self.tensor_inputs

    @property
    def start(self) -> Val | None:
        """The start value, if there is one."""
        last = self.inputs[-1]
        return None if isinstance(last, TensorView) else last


class ScatterOp(Expr):
    """inputs: base, index, source. A copy of the base in which element index[i] along `dim` is replaced by source[i] (`kind` "set"), or combined with it
    (`kind`: a monoid's name).

    With the attribute `places` (a number from 1 on) whole rows are combined: the axes from `dim` on, so many, of index and source are places; the others are
    those of the base, and the index has one element along those that it does not vary along. With `skips` (True) nothing happens at positions outside. With
    `named` (a number from 2 on) positions are counted over so many axes of the base, from `dim` on, as if they were one.
    """

    @property
    def has_rows(self) -> bool:
        return "places" in self.attributes

    def target_axis(self, dim: int) -> int | None:
        """Return the axis of the base that axis `dim` of the source belongs to; None for places."""
        return target_axis(self, dim)


class ScatterStoreOp(LoadStoreOp):
    """inputs: value, index, memory. Each value is stored in `memory` at its own position, except index[i] along `dim`: it replaces the element there (`kind`
    "set"), or is combined with it atomically ("sum", "max", "min"). The output has the axes of the value, and no memory. `places`, `skips`, `named`: as in
    `ScatterOp`."""

    @property
    def whole_places(self) -> frozenset[int]:
        return frozenset((2,))

    def target_axis(self, dim: int) -> int | None:
        """Return the axis of the memory that axis `dim` of the value belongs to; None for places."""
        return target_axis(self, dim)

    @property
    def memory(self) -> TensorView:
        """The tensor that is written."""
        return self.inputs[2]  # type: ignore[return-value]


def target_axis(expr: ScatterOp | ScatterStoreOp, dim: int) -> int | None:
    """Return the axis of what is written that axis `dim` of the values belongs to; None for places."""
    first, places = expr.attributes["dim"], expr.attributes.get("places", 1)
    return dim if dim < first else None if dim < first + places else dim - places + expr.attributes.get("named", 1)


def named_axes(expr: ScatterOp | ScatterStoreOp, axes: list[IterDomain]) -> list[IterDomain]:
    """Return those of the axes of what is written over which positions are counted."""
    first = expr.attributes["dim"]
    return axes[first : first + expr.attributes.get("named", 1)]


class WrittenOp(Expr):
    """inputs: memory, and the output of a ScatterStoreOp into it. The output is the content of the memory afterwards."""

    @property
    def whole_places(self) -> frozenset[int]:
        return frozenset((0, 1))


class JoinedOp(Expr):
    """The inputs concatenated along axis `dim`, as in `CatOp`. Each of them is stored by its own kernel at its place in the output's memory: nothing runs."""

    @property
    def whole_places(self) -> frozenset[int]:
        return frozenset(range(len(self.inputs)))


def joined_of(tensor: TensorView) -> JoinedOp | None:
    """Return the op in whose output's memory a tensor lies, or None if it has memory of its own."""
    return next((use for use in tensor.uses() if isinstance(use, JoinedOp)), None)


class TorchOp(Expr):
    """An op that torch runs as a separate segment (matmul, linear, attention, sorting ...). `op` names an entry of the table of such ops."""


__all__ = [
    "Along", "At", "BagOp", "CatOp", "Fixed", "InBag", "JoinedOp", "LookupOp", "Position", "ReshapeOp", "RollOp", "ScanOp", "ScatterOp", "ScatterStoreOp",
    "TorchOp", "WrittenOp", "joined_of", "named_axes", "position_syms",
]  # fmt: skip
