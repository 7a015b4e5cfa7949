// requires: scan, math
// Running sums of exponentials, whose logarithms are wanted: sums that are scaled, so that they neither overflow nor vanish. Read first: ScaledSum, ScanSteps.
namespace weft {

// sum * exp(shift). The shift is finite, and about the largest element: of a row so far that has a number, the sum is 1 at least. Not yet settled: an element x as
// {x, 1}, which may be infinite or no number.
template <class T> struct SumAt { T shift, sum; };

WEFT_DEVICE float largest_of(float) { return 3.402823466e38f; }
WEFT_DEVICE double largest_of(double) { return 1.7976931348623157e308; }
WEFT_DEVICE float scale_exp(float x) { return narrow_exp(x); }
WEFT_DEVICE double scale_exp(double x) { return ::exp(x); }
WEFT_DEVICE float times_plus(float a, float b, float c) { return ::fmaf(a, b, c); }
WEFT_DEVICE double times_plus(double a, double b, double c) { return ::fma(a, b, c); }
#ifdef WEFT_EMULATOR
WEFT_DEVICE float log2_of_sum(float x) { return ::log2f(x); }
#else
WEFT_DEVICE float log2_of_sum(float x) {  // which is no denormal
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
WEFT_DEVICE float log_of(SumAt<float> s) { return ::fmaf(log2_of_sum(s.sum), 0.69314718f, s.shift); }
WEFT_DEVICE double log_of(SumAt<double> s) { return ::log(s.sum) + s.shift; }

struct ScaledSum {
  static constexpr int above = 4;  // how far an element may be above a shift that stays: sums grow by a factor of e^4, and their logarithms lose 3 bits at most
  template <class T> WEFT_DEVICE SumAt<T> identity() { return {-largest_of(T()), T(0)}; }
  template <class T> WEFT_DEVICE SumAt<T> lift(T x) { return {x, T(1)}; }
  // Of an element: -infinity is nothing at all, infinity an infinite sum, and what is no number such a sum.
  template <class T> WEFT_DEVICE SumAt<T> settled(SumAt<T> element) {
    const T x = element.shift, most = largest_of(x), shift = x > most ? most : x > -most ? x : -most, rest = x - shift;
    return {shift, element.sum * (rest < T(0) ? T(0) : T(1) + rest)};
  }
  template <class T> WEFT_DEVICE SumAt<T> combine(SumAt<T> a, SumAt<T> b) {
    const T apart = a.shift - b.shift;
    const bool is_less = apart < T(0);
    const T scale = scale_exp(is_less ? apart : -apart);
    return {is_less ? b.shift : a.shift, times_plus(is_less ? a.sum : b.sum, scale, is_less ? b.sum : a.sum)};
  }
  template <class T> WEFT_DEVICE SumAt<T> follow(SumAt<T> a, SumAt<T> b) { return a.shift == b.shift ? SumAt<T>{a.shift, a.sum + b.sum} : combine(a, b); }
  // Whether the sum of what was before, at its own shift, has room for an element.
  template <class T> WEFT_DEVICE bool is_near(SumAt<T> before, SumAt<T> element) { return element.shift <= before.shift + T(above); }
  template <class T> WEFT_DEVICE bool has_shift(SumAt<T> before) { return before.shift > -largest_of(T()); }
};

// Where all elements of a warp are near the shift that is carried along, they are folded as plain sums at that shift.
template <class T> struct ScanSteps<SumAt<T>> {
  template <class Op, int N, int V, int Stride> WEFT_DEVICE bool own(SumAt<T> (&values)[N * V], const Carry<SumAt<T>, V>& carry) {
    bool is_near = true;
#pragma unroll
    for (int v = 0; v < V; v++) is_near = is_near && Op::has_shift(carry.value[v]);
#pragma unroll
    for (int i = 0; i < N * V; i++) is_near = is_near && Op::is_near(carry.value[i % V], values[i]);
    if (Stride < 32) is_near = ballot(!is_near) == 0;
    if (is_near) {
#pragma unroll
      for (int i = 0; i < N * V; i++) {
        const T own = scale_exp(values[i].shift - carry.value[i % V].shift);
        values[i] = {carry.value[i % V].shift, i < V ? own : values[i < V ? 0 : i - V].sum + own};
      }
    } else {
#pragma unroll
      for (int i = 0; i < N * V; i++) values[i] = i < V ? Op::settled(values[i]) : Op::combine(values[i < V ? 0 : i - V], Op::settled(values[i]));
    }
    return is_near;
  }
  template <class Op, int Stride, int Lanes, int V> WEFT_DEVICE void totals(SumAt<T> (&totals)[V], unsigned lane, bool is_near) {
    if (is_near) {
      T sums[V];
#pragma unroll
      for (int v = 0; v < V; v++) sums[v] = totals[v].sum;
      scan_lanes<Sum, Stride, Lanes>(sums, lane);
#pragma unroll
      for (int v = 0; v < V; v++) totals[v].sum = sums[v];
    } else {
      scan_lanes<Op, Stride, Lanes>(totals, lane);
    }
  }
  template <class Op, int N, int V> WEFT_DEVICE void behind(const SumAt<T> (&before)[V], SumAt<T> (&values)[N * V], bool is_near) {
#pragma unroll
    for (int v = 0; v < V; v++) is_near = is_near && before[v].shift == values[v].shift;
    if (is_near) {
#pragma unroll
      for (int i = 0; i < N * V; i++) values[i].sum = before[i % V].sum + values[i].sum;
    } else {
#pragma unroll
      for (int i = 0; i < N * V; i++) values[i] = Op::combine(before[i % V], values[i]);
    }
  }
  template <class Op, int N, int V> WEFT_DEVICE void fold(const SumAt<T> (&values)[N * V], SumAt<T> (&totals)[V]) {
    bool is_near = true;
#pragma unroll
    for (int v = 0; v < V; v++) is_near = is_near && Op::has_shift(totals[v]);
#pragma unroll
    for (int i = 0; i < N * V; i++) is_near = is_near && Op::is_near(totals[i % V], values[i]);
#pragma unroll
    for (int i = 0; i < N * V; i++) {
      if (is_near) totals[i % V].sum += scale_exp(values[i].shift - totals[i % V].shift);
      else totals[i % V] = Op::combine(totals[i % V], Op::settled(values[i]));
    }
  }
};

}  // namespace weft
