"""Monoids that keep the few largest or smallest values with their positions: topk for a small k.

A state has N values in order, best first, with the position of each; equal values are in the order of their positions, and what is no number counts as the
largest, as in torch's sort. N is a power of two, so that two states merge by N comparisons and a bitonic sort of what is left.
Read first: `few`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import DataType
from .monoids import MONOIDS, StateMonoid, _operand_of, define_monoid
from .registry import torch
from .states import no_text, no_value, same

MOST = 8
"""Values that a state keeps at most: with their positions they take 16 registers of a thread in float32, 24 in float64."""

TYPES = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16, DataType.Int, DataType.Int32)
"""Of which the few largest can be kept; 16-bit floats are compared as Float."""

TEXT = """
template <class T, int N> struct Best { T value[N]; int index[N]; };  // best first; index -1: nothing yet
template <class T> using Best1 = Best<T, 1>;
template <class T> using Best2 = Best<T, 2>;
template <class T> using Best4 = Best<T, 4>;
template <class T> using Best8 = Best<T, 8>;
template <class T, int M> struct Lanes { T x[M]; };
template <bool Largest, int N> struct FoldBest {
  template <class T> WEFT_DEVICE bool is_ahead(T a, int i, T b, int j) {
    if (i < 0 || j < 0) return j < 0 && i >= 0;
    const bool none_a = a != a, none_b = b != b;  // no number
    const bool is_better = none_a != none_b ? none_a == Largest : Largest ? a > b : a < b;
    return is_better || (((none_a && none_b) || a == b) && i < j);
  }
  template <class T> WEFT_DEVICE T farthest() {
    if constexpr (T(0.5) != T(0)) return Largest ? -infinity<T>() : infinity<T>();
    else return Largest ? (T)(1ull << (8 * sizeof(T) - 1)) : (T)~(1ull << (8 * sizeof(T) - 1));
  }
  template <class T> WEFT_DEVICE Best<T, N> identity() {
    Best<T, N> state;
#pragma unroll
    for (int n = 0; n < N; n++) state.value[n] = farthest<T>(), state.index[n] = -1;
    return state;
  }
  template <class T> WEFT_DEVICE Best<T, N> lift(T value, int index) {
    Best<T, N> state = identity<T>();
    state.value[0] = value, state.index[0] = index;
    return state;
  }
  // False for most elements of a row: those behind the last one that is kept.
  template <class T> WEFT_DEVICE bool may_enter(const Best<T, N>& state, T value) {
    return Largest ? !(value < state.value[N - 1]) : !(value > state.value[N - 1]);
  }
  // Those that may enter do so in a loop, whose text stands there once.
  template <int M, class T> WEFT_DEVICE Best<T, N> absorb_lanes(Best<T, N> state, Lanes<T, M> values, Lanes<int, M> indices) {
    unsigned left = 0;
#pragma unroll
    for (int m = 0; m < M; m++) left |= may_enter(state, values.x[m]) ? 1u << m : 0;
    while (left) {
      const unsigned bit = left & (0u - left);
      T value = values.x[0];
      int index = indices.x[0];
#pragma unroll
      for (int m = 1; m < M; m++) value = bit == 1u << m ? values.x[m] : value, index = bit == 1u << m ? indices.x[m] : index;
      state = absorb(state, value, index);
      left ^= bit;
    }
    return state;
  }
  template <class T> WEFT_DEVICE Best<T, N> absorb(Best<T, N> state, T value, int index) {
    if (is_ahead(value, index, state.value[N - 1], state.index[N - 1])) {
#pragma unroll
      for (int n = 0; n < N; n++) {
        const T old = state.value[n];
        const int place = state.index[n];
        const bool is_here = is_ahead(value, index, old, place);
        state.value[n] = is_here ? value : old, state.index[n] = is_here ? index : place;
        value = is_here ? old : value, index = is_here ? place : index;
      }
    }
    return state;
  }
  // Of the first of one and the last of the other the better: these are the N best, falling and then rising.
  template <class T> WEFT_DEVICE Best<T, N> combine(Best<T, N> a, Best<T, N> b) {
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int m = N - 1 - n;
      if (is_ahead(b.value[m], b.index[m], a.value[n], a.index[n])) a.value[n] = b.value[m], a.index[n] = b.index[m];
    }
#pragma unroll
    for (int step = N / 2; step > 0; step /= 2) {
#pragma unroll
      for (int n = 0; n < N; n++) {
        const int m = n + step;
        if ((n & step) == 0 && is_ahead(a.value[m % N], a.index[m % N], a.value[n], a.index[n])) {
          const T value = a.value[n];
          const int index = a.index[n];
          a.value[n] = a.value[m % N], a.index[n] = a.index[m % N], a.value[m % N] = value, a.index[m % N] = index;
        }
      }
    }
    return a;
  }
};
"""


@dataclass(frozen=True)
class BestMonoid(StateMonoid):
    """Keeps `count` values. Its fields are value0, value1 ..., then index0, index1 ..."""

    count: int = 1

    def absorb(self, folded: str, operands: Sequence[Sequence[str]], dtype: DataType) -> str:
        """Return the C++ expression of `folded` with more elements in it: of several, those that may enter do so in a loop."""
        of_type, count = _operand_of(dtype), len(operands)
        if count == 1:
            return f"{self.functor}::absorb<{of_type}>({folded}, {', '.join(operands[0])})"
        values, places = (", ".join(texts) for texts in zip(*operands))
        return f"{self.functor}::absorb_lanes<{count}>({folded}, weft::Lanes<{of_type}, {count}>{{{values}}}, weft::Lanes<int, {count}>{{{places}}})"


def _best(count: int, is_largest: bool) -> Any:
    def reduce(operands: list[Any], dims: list[int], keepdim: bool) -> list[Any]:
        x, index = torch.broadcast_tensors(*operands)
        kept = [d for d in range(x.dim()) if d not in dims]
        rows, places = (t.permute(*kept, *dims).reshape(*(t.shape[d] for d in kept), -1) for t in (x, index))
        order = torch.sort(rows, -1, descending=is_largest, stable=True)[1][..., :count]
        values, places = rows.gather(-1, order), places.gather(-1, order)
        missing = count - order.shape[-1]
        results = [*torch.nn.functional.pad(values, [0, missing]).unbind(-1), *torch.nn.functional.pad(places, [0, missing], value=-1).unbind(-1)]
        return [t.reshape([1 if d in dims else x.shape[d] for d in range(x.dim())]) for t in results] if keepdim else results

    return reduce


def _define(count: int, is_largest: bool) -> None:
    values, places = [f"value{n}" for n in range(count)], [f"index{n}" for n in range(count)]
    define_monoid(
        BestMonoid(
            _kind(count, is_largest), "", no_text, _best(count, is_largest), no_value, is_idempotent=False, repeat=lambda o, x, n: x,
            functor=f"weft::FoldBest<{str(is_largest).lower()}, {count}>", needs_elements=True, instructions=8, exchange_factor=4 * count,
            struct=f"Best{count}", text=TEXT, takes_vectors=True, count=count, needed_blocks=("math", "reduce"),
            fields={**dict.fromkeys(values, same), **{name: lambda operand: DataType.Int32 for name in places}},
            field_text={name: f"(({{T}})({{0}})).{name[:5]}[{name[5:]}]" for name in (*values, *places)},
        )  # fmt: skip
    )


def _kind(count: int, is_largest: bool) -> str:
    return f"{'largest' if is_largest else 'smallest'}{count}"


for _count in (1, 2, 4, MOST):
    for _is_largest in (True, False):
        _define(_count, _is_largest)


def few(count: int, is_largest: bool) -> BestMonoid:
    """Return the monoid that keeps at least `count` values, at most MOST."""
    found = MONOIDS[_kind(1 << (count - 1).bit_length(), is_largest)]
    assert isinstance(found, BestMonoid)
    return found


__all__ = ["MOST", "TYPES", "BestMonoid", "few"]
