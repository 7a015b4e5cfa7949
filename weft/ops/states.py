"""Monoids whose state has several fields: the online maximum and sum of exponentials, also with the sum of what lies between the elements and the maximum.

Each is one record: what it folds, its fields with their types, its C++, and torch's result. Read first: `StateMonoid` in `monoids.py`, then `MAX_SUM`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import DataType
from ..errors import InternalError
from ..expr import Number
from .monoids import StateMonoid, define_monoid
from .registry import torch


def same(operand: DataType) -> DataType:
    """The type of a field that is of the first operand's type."""
    return operand


def no_text(dtype: DataType) -> str:
    raise InternalError(f"the identity of a state is written by its functor, not for {dtype}")


def no_value(dtype: DataType) -> Number:
    raise InternalError(f"a state of {dtype} is no number")


def at_position(find: Callable[[Any], Any]) -> Callable[[list[Any], list[int], bool], list[Any]]:
    """Return torch's fold of values and their positions, to those of one element. find: its place in each row, with the row's axis kept."""

    def reduce(operands: list[Any], dims: list[int], keepdim: bool) -> list[Any]:
        x, index = torch.broadcast_tensors(*operands)
        kept = [d for d in range(x.dim()) if d not in dims]
        rows, places = (t.permute(*kept, *dims).reshape(*(t.shape[d] for d in kept), -1) for t in (x, index))
        found = find(rows)
        results = [t.gather(-1, found).squeeze(-1) for t in (rows, places)]
        return [t.reshape([1 if d in dims else x.shape[d] for d in range(x.dim())]) for t in results] if keepdim else results

    return reduce


def _max_sum(operands: list[Any], dims: list[int], keepdim: bool) -> list[Any]:
    (x,) = operands
    largest = torch.amax(x, dims, keepdim=True)
    total = torch.exp(x - largest).sum(dims, keepdim=keepdim)
    guarded = torch.exp(x - torch.where(torch.isinf(largest), 0.0, largest)).sum(dims, keepdim=keepdim)
    return [largest if keepdim else largest.squeeze(dims), total, guarded]


MAX_SUM = define_monoid(
    StateMonoid(
        "max_sum", "", no_text, _max_sum, no_value, is_idempotent=False, repeat=lambda o, x, n: x, functor="weft::FoldMaxSum", has_rounding=True,
        needs_elements=True, instructions=7, mufu=1, exchange_factor=3, lane_folds=2, struct="MaxSum", fields={"largest": same, "total": same},
        field_text={"total": "weft::total_below_largest<{T}>({0})", "guarded": "weft::total_below_finite<{T}>({0})"},
        needed_blocks=("math", "reduce"), takes_vectors=True,
        text="""
template <class T> struct MaxSum { T largest, total; };  // the largest of some numbers x, and the sum of exp(x - largest)
WEFT_DEVICE float share_exp(float x) { return narrow_exp(x); }  // of x <= 0; below 1e-38 it is 0
WEFT_DEVICE double share_exp(double x) { return weft::exp(x); }
WEFT_DEVICE float multiply_add(float a, float b, float c) { return ::fmaf(a, b, c); }
WEFT_DEVICE double multiply_add(double a, double b, double c) { return ::fma(a, b, c); }
struct FoldMaxSum {
  template <class T> WEFT_DEVICE MaxSum<T> identity() { return {-infinity<T>(), T(0)}; }
  template <class T> WEFT_DEVICE MaxSum<T> lift(T x) { return {x, T(1)}; }
  // The same bits in either order: only the sum of the smaller one is scaled.
  template <class T> WEFT_DEVICE MaxSum<T> combine(MaxSum<T> a, MaxSum<T> b) {
    const bool is_less = a.largest < b.largest;
    const MaxSum<T> low = is_less ? a : b, high = is_less ? b : a;
    const T scale = low.largest == high.largest ? T(1) : share_exp(low.largest - high.largest);
    return {maximum(a.largest, b.largest), multiply_add(low.total, scale, high.total)};
  }
  // One rescaling for all lanes.
  template <int Width, class T> WEFT_DEVICE MaxSum<T> all_lanes(MaxSum<T> state) {
    const T largest = reduce_lanes<Max, Width>(state.largest);
    const T scale = state.largest == largest ? T(1) : share_exp(state.largest - largest);
    return {largest, reduce_lanes<Sum, Width>(state.total * scale)};
  }
  // One rescaling for N elements.
  template <int N, class T, int M> WEFT_DEVICE MaxSum<T> absorb_vector(same<MaxSum<T>> state, const Array<T, M>& elements, int first) {
    const T* const x = elements.source(first, N);
    T largest = state.largest, total = T(0);
#pragma unroll
    for (int i = 0; i < N; i++) largest = maximum(largest, x[i]);
    const T shift = largest == -infinity<T>() ? T(0) : largest;  // nothing but -infinity so far: exp(-infinity - 0) = 0
#pragma unroll
    for (int i = 0; i < N; i++) total += share_exp(x[i] - shift);
    return {largest, multiply_add(state.total, share_exp(state.largest - shift), total)};
  }
};
// As exp(x - largest) sums up: no number where the largest is infinite.
template <class State> WEFT_DEVICE auto total_below_largest(State state) { return (state.largest - state.largest) + state.total; }
// As exp(x - shift) sums up, where the shift is 0 when the largest is infinite.
template <class State> WEFT_DEVICE auto total_below_finite(State state) {
  return !weft::isinf(state.largest) ? state.total : state.largest > 0 ? state.largest : -1 / state.largest;  // infinity, or 0
}
""",
    )
)
"""The largest of a row and the sum of exp(x - largest), in one pass. Source: Milakov and Gimelshein: Online normalizer calculation for softmax, 2018.

Error: each rescaling of a sum is within 2 units of rounding, and 1 exactly where the maximum stays; a sum is rescaled at most once per vector of its thread and
once per step of the tree of threads."""



def _max_sum_below(operands: list[Any], dims: list[int], keepdim: bool) -> list[Any]:
    (x,) = operands
    largest = torch.amax(x, dims, keepdim=True)
    below = x - largest
    count = torch.ones_like(x).sum(dims, keepdim=keepdim)
    return [largest if keepdim else largest.squeeze(dims), torch.exp(below).sum(dims, keepdim=keepdim), below.sum(dims, keepdim=keepdim), count]


MAX_SUM_BELOW = define_monoid(
    StateMonoid(
        "max_sum_below", "", no_text, _max_sum_below, no_value, is_idempotent=False, repeat=lambda o, x, n: x, functor="weft::FoldMaxSumBelow",
        has_rounding=True, needs_elements=True, instructions=11, mufu=1, exchange_factor=5, lane_folds=4, struct="MaxSumBelow",
        fields={"largest": same, "total": same, "below": same, "count": same},
        field_text={"total": "weft::total_below_largest<{T}>({0})", "below": "weft::sum_below_largest<{T}>({0})"},
        needed_blocks=("math", "reduce"), takes_vectors=True,
        text=MAX_SUM.text + """
// The largest of some numbers x, the sum of exp(x - largest), that of x - largest, and how many there are.
template <class T> struct MaxSumBelow { T largest, total, below, count; };
struct FoldMaxSumBelow {
  template <class T> WEFT_DEVICE MaxSumBelow<T> identity() { return {-infinity<T>(), T(0), T(0), T(0)}; }
  template <class T> WEFT_DEVICE MaxSumBelow<T> lift(T x) { return {x, T(1), T(0), T(1)}; }
  // What the sum below the largest grows by when the largest becomes `largest`: nothing where there is no number yet, or it stays.
  template <class T> WEFT_DEVICE T lowered(MaxSumBelow<T> state, T largest) {
    return state.count == T(0) || state.largest == largest ? T(0) : state.count * (state.largest - largest);
  }
  // The same bits in either order: only the sums of the smaller one change.
  template <class T> WEFT_DEVICE MaxSumBelow<T> combine(MaxSumBelow<T> a, MaxSumBelow<T> b) {
    const bool is_less = a.largest < b.largest;
    const MaxSumBelow<T> low = is_less ? a : b, high = is_less ? b : a;
    const T scale = low.largest == high.largest ? T(1) : share_exp(low.largest - high.largest);
    const T below = (low.below + lowered(low, high.largest)) + high.below;
    return {maximum(a.largest, b.largest), multiply_add(low.total, scale, high.total), below, low.count + high.count};
  }
  // One rescaling for all lanes.
  template <int Width, class T> WEFT_DEVICE MaxSumBelow<T> all_lanes(MaxSumBelow<T> state) {
    const T largest = reduce_lanes<Max, Width>(state.largest);
    const T scale = state.largest == largest ? T(1) : share_exp(state.largest - largest);
    const T below = state.below + lowered(state, largest);
    return {largest, reduce_lanes<Sum, Width>(state.total * scale), reduce_lanes<Sum, Width>(below), reduce_lanes<Sum, Width>(state.count)};
  }
  // One rescaling for N elements.
  template <int N, class T, int M> WEFT_DEVICE MaxSumBelow<T> absorb_vector(same<MaxSumBelow<T>> state, const Array<T, M>& elements, int first) {
    const T* const x = elements.source(first, N);
    T largest = state.largest, total = T(0), below = T(0);
#pragma unroll
    for (int i = 0; i < N; i++) largest = maximum(largest, x[i]);
    const T shift = largest == -infinity<T>() ? T(0) : largest;  // nothing but -infinity so far: exp(-infinity - 0) = 0
#pragma unroll
    for (int i = 0; i < N; i++) {
      const T difference = x[i] - shift;
      total += share_exp(difference);
      below += difference;
    }
    const T before = state.below + lowered(state, largest);
    return {largest, multiply_add(state.total, share_exp(state.largest - shift), total), before + below, state.count + T(N)};
  }
};
// As x - largest sums up: no number where the largest is infinite.
template <class State> WEFT_DEVICE auto sum_below_largest(State state) { return (state.largest - state.largest) + state.below; }
""",
    )
)
"""The same with the sum of x - largest, which log probabilities sum up to: sum(x) - n * largest would lose the digits that x and its largest share.

Error: every term of that sum is at most 0, and so is what it grows by when the largest does, so nothing cancels: as a sum of n terms of one sign."""

__all__ = ["MAX_SUM", "MAX_SUM_BELOW"]
