"""Monoids of scans whose state has several fields: running extrema with their positions, scaled sums of exponentials, linear recurrences.

Each is one record: its fields with their types and its C++. A scan combines each state with the one right after it; where the functor has `follow`, by that.
Read first: `RUNNING_POSITIONS`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import DataType
from ..errors import InternalError
from .monoids import StateMonoid, define_monoid
from .registry import torch
from .states import at_position, no_text, no_value, same

TEXT = """
template <class T> struct ValueAt { T value; int index; };  // index -1: nothing yet
// The largest (or smallest) value so far and the last position that has it; one that is no number comes before all others. `combine` takes the states in any
// order, `follow` in the order of their positions: before the first element the value is the worst of its type, which any other one takes the place of.
template <bool Largest> struct LastExtremum {
  template <class T> WEFT_DEVICE T worst() {
    if constexpr (T(0.5) != T(0)) return Largest ? -infinity<T>() : infinity<T>();
    else return Largest ? T(1) << (8 * sizeof(T) - 1) : ~(T(1) << (8 * sizeof(T) - 1));
  }
  template <class T> WEFT_DEVICE ValueAt<T> identity() { return {worst<T>(), -1}; }
  template <class T> WEFT_DEVICE ValueAt<T> lift(T value, int index) { return {value, index}; }
  template <class T> WEFT_DEVICE ValueAt<T> follow(ValueAt<T> before, ValueAt<T> after) {
    const bool is_new = (Largest ? after.value >= before.value : after.value <= before.value) || after.value != after.value;
    return {is_new ? after.value : before.value, is_new ? after.index : before.index};
  }
  template <class T> WEFT_DEVICE ValueAt<T> combine(ValueAt<T> a, ValueAt<T> b) { return a.index <= b.index ? follow(a, b) : follow(b, a); }
};
"""


def _last_extremum(is_largest: bool) -> Any:
    return at_position(lambda rows: (torch.cummax if is_largest else torch.cummin)(rows, -1)[1][..., -1:])


def _log_sum(operands: list[Any], dims: list[int], keepdim: bool) -> list[Any]:
    (x,) = operands
    shift = torch.amax(x, dims, keepdim=True).nan_to_num()
    return [shift if keepdim else shift.squeeze(dims), torch.exp(x - shift).sum(dims, keepdim=keepdim)]


RUNNING_POSITIONS = {
    name: define_monoid(
        StateMonoid(
            f"running_{name}", "", no_text, _last_extremum(is_largest), no_value, is_idempotent=True, functor=f"weft::LastExtremum<{str(is_largest).lower()}>",
            needs_elements=True, instructions=5, exchange_factor=3, struct="ValueAt", text=TEXT, of_one=(0, 1),
            fields={"value": same, "index": lambda operand: DataType.Int32},
        )  # fmt: skip
    )
    for name, is_largest in (("max", True), ("min", False))
}
"""By the monoid of the values alone. Ties and values that are no number are as in torch.cummax: the last of equal values, the last that is no number."""

RUNNING_LOGSUMEXP = define_monoid(
    StateMonoid(
        "running_logsumexp", "", no_text, _log_sum, no_value, is_idempotent=False, repeat=lambda o, x, n: x, functor="weft::ScaledSum", has_rounding=True,
        instructions=10, mufu=1, exchange_factor=3, struct="SumAt", fields={"shift": same, "sum": same},
        field_text={"log": "weft::log_of({0})"}, needed_blocks=("running_logs",), of_one=(0,),
    )  # fmt: skip
)
"""The logarithm of a running sum of exponentials, as a sum that is scaled by the exponential of the largest element. Infinities never are a shift, so no two
shifts need to be compared with infinity when states are combined."""

STEPS = """
// What some elements in a row do to the value before them: y -> factor * y + value.
template <class T> struct LinearSteps { T factor, value; };
// A value of 0 stays 0 whatever the factor is, so that products of gates may overflow before the first value.
struct ComposedSteps {
  static constexpr bool is_ordered = true;
  template <class T> WEFT_DEVICE LinearSteps<T> identity() { return {T(1), T(0)}; }
  template <class T> WEFT_DEVICE LinearSteps<T> lift(T gate, T x) { return {gate, x}; }
  template <class T> WEFT_DEVICE LinearSteps<T> combine(LinearSteps<T> before, LinearSteps<T> after) {
    const T value = after.factor * before.value + after.value;
    return {after.factor * before.factor, before.value == T(0) ? after.value : value};
  }
};
"""


def _no_fold(operands: list[Any], dims: list[int], keepdim: bool) -> list[Any]:
    raise InternalError("linear recurrences are for scans: their steps have an order")


LINEAR_RECURRENCE = define_monoid(
    StateMonoid(
        "linear_recurrence", "", no_text, _no_fold, no_value, is_idempotent=False, repeat=lambda o, x, n: x, functor="weft::ComposedSteps", has_rounding=True,
        instructions=4, exchange_factor=2, is_ordered=True, struct="LinearSteps", fields={"factor": same, "value": same}, text=STEPS,
        needed_blocks=("scan",), of_one=(0, 1),
    )  # fmt: skip
)
"""y[k] = gate[k] * y[k-1] + x[k], as a composition of such steps. Source: Blelloch, Prefix sums and their applications, 1990."""

__all__ = ["LINEAR_RECURRENCE", "RUNNING_LOGSUMEXP", "RUNNING_POSITIONS"]
