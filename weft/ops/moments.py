"""The monoid of mean and squared deviations: what var and var_mean compute, in one pass over the elements.

Read first: `MOMENTS`. Who folds with it: `schedule/one_pass_moments.py`.
"""

from __future__ import annotations

from typing import Any

from .monoids import StateMonoid, define_monoid
from .registry import torch
from .states import no_text, no_value, same


def _moments(operands: list[Any], dims: list[int], keepdim: bool) -> list[Any]:
    (x,) = operands
    average = x.mean(dims, keepdim=True)
    squares = (x - average).square().sum(dims, keepdim=keepdim)
    count = torch.ones_like(x).sum(dims, keepdim=keepdim)
    average = average if keepdim else average.squeeze(dims)
    return [count, average, torch.zeros_like(squares), squares, average, squares]


MOMENTS = define_monoid(
    StateMonoid(
        "moments", "", no_text, _moments, no_value, is_idempotent=False, repeat=lambda o, x, n: x, functor="weft::FoldMoments", has_rounding=True,
        instructions=7, exchange_factor=6, struct="Moments", fields={"count": same, "shift": same, "total": same, "from_shift": same},
        field_text={"average": "weft::average_of<{T}>({0})", "squares": "weft::squares_of<{T}>({0})"}, needed_blocks=("math", "reduce"), takes_vectors=True,
        takes_elements=True, takes_runs=True,
        text="""
template <class T> struct Moments { T count, shift, total, from_shift; };  // of numbers x: sums of x - shift and of its squares
WEFT_DEVICE float near_quotient(float a, float b) { return narrow_div(a, b); }  // within 2 units of rounding
WEFT_DEVICE double near_quotient(double a, double b) { return a / b; }
struct FoldMoments {
  template <class T> WEFT_DEVICE Moments<T> identity() { return {T(0), T(0), T(0), T(0)}; }
  template <class T> WEFT_DEVICE Moments<T> lift(T x) { return {T(1), x, T(0), T(0)}; }
  template <class T> WEFT_DEVICE T shift_for(same<Moments<T>> state, T x) {  // without a branch
    const T finite = x - x == T(0) ? x : T(0);
    return state.count == T(0) ? finite : state.shift;
  }
  // One more element: the first one of a thread is its shift, so that nothing is divided here.
  template <class T> WEFT_DEVICE Moments<T> absorb(same<Moments<T>> state, T x) {
    const T shift = shift_for<T>(state, x), d = x - shift;
    return {state.count + T(1), shift, state.total + d, state.from_shift + d * d};
  }
  // N elements one after the other: the first of them asks for the shift and counts them all.
  template <class T, int N> WEFT_DEVICE Moments<T> absorb_run(same<Moments<T>> state, T x, int number) {
    const T shift = number == 0 ? shift_for<T>(state, x) : state.shift, d = x - shift;
    return {number == 0 ? state.count + T(N) : state.count, shift, state.total + d, state.from_shift + d * d};
  }
  template <int N, class T, int M> WEFT_DEVICE Moments<T> absorb_vector(same<Moments<T>> state, const Array<T, M>& elements, int first) {
    const T* const x = elements.source(first, N);
    const T shift = shift_for<T>(state, x[0]);
    T total = state.total, from_shift = state.from_shift;
#pragma unroll
    for (int i = 0; i < N; i++) {
      const T d = x[i] - shift;
      total += d;
      from_shift += d * d;
    }
    return {state.count + T(N), shift, total, from_shift};
  }
  // Sum of the squares of x - mean. No larger error than from_shift has already: the shift is one of the numbers, or their mean.
  template <class T> WEFT_DEVICE T squares_about(Moments<T> state, same<T> mean) {
    const T apart = state.shift - mean, squares = state.from_shift + apart * (T(2) * state.total + state.count * apart);
    return squares < T(0) ? T(0) : squares;
  }
  // The mean of all lanes first, and then squared deviations from it: two sums, and one division, for the two of each pair.
  template <int Width, class T> WEFT_DEVICE Moments<T> all_lanes(Moments<T> state) {
    const T count = reduce_lanes<Sum, Width>(state.count), total = reduce_lanes<Sum, Width>(state.count * state.shift + state.total);
    const T mean = count > T(0) ? total / count : T(0);
    return {count, mean, T(0), reduce_lanes<Sum, Width>(squares_about(state, mean))};
  }
  // The same for states in shared memory.
  template <class T> WEFT_DEVICE Moments<T> all_entries(const Moments<T>* entries, unsigned stride, unsigned entry_count, unsigned lane) {
    T count = T(0), total = T(0), squares = T(0);
    for (unsigned entry = lane; entry < entry_count; entry += 32) {
      const Moments<T> state = load_shared(entries + entry * stride);
      count += state.count;
      total += state.count * state.shift + state.total;
    }
    count = reduce_lanes<Sum, 32>(count), total = reduce_lanes<Sum, 32>(total);
    const T mean = count > T(0) ? total / count : T(0);
    for (unsigned entry = lane; entry < entry_count; entry += 32) squares += squares_about(load_shared(entries + entry * stride), mean);
    return {count, mean, T(0), reduce_lanes<Sum, 32>(squares)};
  }
  // The same for threads that hold N columns each, and as many elements of each column that exists; `Tree` folds numbers. Shares of the mean are added, so that
  // it is finite where the sum of the elements is not; the sum of the deviations from it, by which it is off, is kept.
  template <class Tree, int N, class T> WEFT_DEVICE void all_columns(Moments<T> (&states)[N], Moments<T>* workspace) {
    T* const room = reinterpret_cast<T*>(workspace);
    T count[1] = {states[0].count}, means[N], sums[2 * N];
#pragma unroll
    for (int n = 1; n < N; n++) count[0] = states[n].count > count[0] ? states[n].count : count[0];
    Tree::fold(count, room);
    const T share = count[0] > T(0) ? T(1) / count[0] : T(0);
#pragma unroll
    for (int n = 0; n < N; n++) means[n] = states[n].count * share * states[n].shift + states[n].total * share;
    Tree::fold(means, room);
#pragma unroll
    for (int n = 0; n < N; n++) {
      sums[n] = squares_about(states[n], means[n]);
      sums[N + n] = states[n].total + states[n].count * (states[n].shift - means[n]);
    }
    Tree::fold(sums, room);
#pragma unroll
    for (int n = 0; n < N; n++) states[n] = {count[0], means[n], sums[N + n] - sums[N + n] == T(0) ? sums[N + n] : T(0), sums[n]};
  }
  // The state with its own mean as the shift.
  template <class T> WEFT_DEVICE Moments<T> centered(Moments<T> state) {
    const T mean = state.count > T(0) ? near_quotient(state.total, state.count) : T(0), squares = state.from_shift - mean * state.total;
    return {state.count, state.shift + mean, T(0), squares < T(0) ? T(0) : squares};
  }
  // The same bits in either order: the one of the smaller mean comes first.
  template <class T> WEFT_DEVICE Moments<T> combine(Moments<T> a, Moments<T> b) {
    a = centered(a);
    b = centered(b);
    const bool is_less = a.shift < b.shift;
    const Moments<T> low = is_less ? a : b, high = is_less ? b : a;
    const T count = a.count + b.count, apart = high.shift - low.shift, part = count > T(0) ? near_quotient(high.count, count) : T(0);
    const T half = high.shift * T(0.5) - low.shift * T(0.5), step = half * part;  // of finite numbers whose difference is none
    const T far = half - half == T(0) ? low.shift + step + step : low.shift + high.shift;  // of equal infinities: that one
    const T mean = apart - apart == T(0) ? low.shift + apart * part : far;
    return {count, mean, T(0), a.from_shift + b.from_shift + apart * (low.count * part) * apart};
  }
};
template <class State> WEFT_DEVICE auto average_of(State state) { return FoldMoments::centered(state).shift; }
template <class State> WEFT_DEVICE auto squares_of(State state) { return FoldMoments::centered(state).from_shift; }
""",
    )
)
"""Source: Chan, Golub and LeVeque: Algorithms for computing the sample variance, 1983: data shifted by one of them, and pairwise combination.

Error: of n numbers that one thread folds, at most about n units of rounding of their squared deviations, as for a sum one by one: their own shift is one of
them, so that it is at most n of their variances away from their mean."""

__all__ = ["MOMENTS"]
