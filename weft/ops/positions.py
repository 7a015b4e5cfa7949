"""Where an extremum is: argmax and argmin, as monoids of a value with its position.

Ties and values that are no number as torch: the first of equal values, and the first that is no number before all others. Read first: `argmax`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from . import build, reductions, shapes
from .arguments import boolean, integer, tensor
from .calls import Calls
from .composites import composite, wide
from .monoids import StateMonoid, define_monoid
from .promotion import WrongDtype
from .registry import torch
from .states import at_position, no_text, no_value, same

TEXT = """
template <class T> struct WithIndex { T value; int index; };  // index -1: nothing yet
template <bool Largest> struct FoldWithIndex {
  template <class T> WEFT_DEVICE WithIndex<T> identity() { return {T(0), -1}; }
  template <class T> WEFT_DEVICE WithIndex<T> lift(T value, int index) { return {value, index}; }
  template <class T> WEFT_DEVICE WithIndex<T> combine(WithIndex<T> a, WithIndex<T> b) {
    const bool none_a = a.value != a.value, none_b = b.value != b.value;  // no number
    const bool is_better = none_a != none_b ? none_a : Largest ? a.value > b.value : a.value < b.value;
    const bool is_equal = (none_a && none_b) || a.value == b.value;
    return b.index < 0 || (a.index >= 0 && (is_better || (is_equal && a.index < b.index))) ? a : b;
  }
};
"""


def _with_index(is_largest: bool) -> Any:
    return at_position(lambda rows: (torch.argmax if is_largest else torch.argmin)(rows, -1, keepdim=True))


MAX_INDEX, MIN_INDEX = (
    define_monoid(
        StateMonoid(
            f"{name}_index", "", no_text, _with_index(is_largest), no_value, is_idempotent=True, functor=f"weft::FoldWithIndex<{str(is_largest).lower()}>",
            needs_elements=True, instructions=8, exchange_factor=3, struct="WithIndex", text=TEXT, of_one=(0, 1),
            fields={"value": same, "index": lambda operand: DataType.Int32},
        )  # fmt: skip
    )
    for name, is_largest in (("max", True), ("min", False))
)


def _position(op: str, monoid: StateMonoid, fusion: Fusion, arg: Any, dim: Any, keepdim: Any) -> TensorView:
    x, o, is_kept = tensor(op, "argument 1", arg), Calls(fusion), boolean(op, "keepdim", keepdim)
    if x.dtype().is_complex or x.dtype().is_bool:
        raise WrongDtype(op=op, allowed="real numbers", dtype=x.dtype())
    rank = x.ndim
    if dim is None and rank != 1:
        x = o.reshape(x, [-1])
    at = 0 if dim is None else shapes.normalize_dim(integer(op, "dim", dim), rank, op, x)
    x = wide(x)
    if build.logical_axes(x)[at].is_broadcast():
        rest = shapes.squeeze(fusion, x, [at], squeeze_expanded=True)
        found = o.full([rest.size(d) for d in range(rest.ndim)], 0, dtype=DataType.Int)
    else:
        places = o.broadcast(o.iota(x.size(at), dtype=DataType.Int32), [d != at for d in range(x.ndim)])
        found = o.cast(reductions.fold_state(fusion, monoid, [x, places], [at])[1], DataType.Int)
    if not is_kept:
        return found
    return o.broadcast(found, [True] * rank) if dim is None else o.broadcast(found, [d == at for d in range(rank)])


@composite
def argmax(fusion: Fusion, x: Any, dim: Any = None, keepdim: bool = False) -> TensorView:
    """Return the position of the largest element along dim, in the flattened tensor unless given; the first of equal ones: torch.argmax."""
    return _position("argmax", MAX_INDEX, fusion, x, dim, keepdim)


@composite
def argmin(fusion: Fusion, x: Any, dim: Any = None, keepdim: bool = False) -> TensorView:
    """Return the position of the smallest element along dim, in the flattened tensor unless given; the first of equal ones: torch.argmin."""
    return _position("argmin", MIN_INDEX, fusion, x, dim, keepdim)
