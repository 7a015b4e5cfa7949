"""How many values a thread holds at once that computes one element of everything: a lower bound of the registers of a kernel.

Values are computed in the order of the kernel's text, and loaded where they are first used. What costs nothing to have again (a copy, a broadcast, a wider
cast, a counted position) is no value of its own. The compiler may compute cheap values twice, and so hold fewer; it holds more of those that it finds to be
equal, and a thread with several elements holds more.
Read first: `Pressure`, `live_values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..ir.values import Expr, FullOp, IotaOp, PointwiseOp, TensorView, Val
from .thread_values import COPIES, counted_only

WORD_BITS = 32


@dataclass(frozen=True)
class Pressure:
    """What decides about the registers of a kernel: how many its values hold at once, and how many expressions it has, of which the compiler may keep more."""

    live: int
    exprs: int

    def excess(self, most: "Pressure") -> float:
        """Return how many times as large this is as `most`: in registers or in expressions, whichever is less."""
        return min(self.live / max(1, most.live), self.exprs / max(1, most.exprs))

    def times(self, factor: float) -> "Pressure":
        return Pressure(int(factor * self.live), int(factor * self.exprs))


def pressure_of(order: Sequence[Expr]) -> Pressure:
    """Return the pressure of a kernel that computes these expressions in this order."""
    return Pressure(max(live_values(order), default=0), len(order))


def live_values(order: Sequence[Expr]) -> list[int]:
    """Return how many registers of 32 bits values hold behind each expression, computed in this order."""
    known: dict[Val, bool] = {}
    begin: dict[TensorView, int] = {}
    end: dict[TensorView, int] = {}
    for place, expr in enumerate(order):
        for tensor in (*_roots(expr.tensor_inputs, known), *_roots(expr.tensor_outputs, known)):
            begin.setdefault(tensor, place)
            end[tensor] = place
    changes = [0] * (len(order) + 1)
    for tensor, first in begin.items():
        registers = -(-tensor.dtype().bits // WORD_BITS)
        changes[first] += registers
        changes[end[tensor]] -= registers
    return list(accumulate(changes))[: len(order)]


def _roots(tensors: Iterable[TensorView], known: dict[Val, bool]) -> list[TensorView]:
    """Return the values that tensors are, without those that take no register."""
    found = []
    for tensor in tensors:
        while _costs_nothing(definition := tensor.definition()) and definition.tensor_inputs:  # type: ignore[union-attr]
            tensor = definition.tensor_inputs[0]  # type: ignore[union-attr]
        if not isinstance(tensor.definition(), (FullOp, IotaOp)) and not (tensor.definition() is not None and counted_only(tensor, known)):
            found.append(tensor)
    return found


def _costs_nothing(expr: Expr | None) -> bool:
    if isinstance(expr, PointwiseOp) and expr.op_name == "cast":
        return expr.tensor_inputs[0].dtype().bits <= expr.tensor_outputs[0].dtype().bits <= WORD_BITS
    return isinstance(expr, COPIES)


__all__ = ["Pressure", "live_values", "pressure_of"]
