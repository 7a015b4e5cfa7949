// requires: lookup
// Writes at positions that index tensors give. Read first: is_position.
namespace weft {

// Whether element `at` of an axis exists. Nothing is written for one that does not, and what looks positions up says so where it does.
template <class T> WEFT_DEVICE bool is_position(T at, long long extent) {
  if ((unsigned long long)(long long)at < (unsigned long long)extent) return true;
  position<long long>(at, extent);
  return false;
}

// The same for positions of which some are to be left out.
template <class T> WEFT_DEVICE bool is_inside(T at, long long extent) { return (unsigned long long)(long long)at < (unsigned long long)extent; }

// Of several values for one element the last one stays, in no order.
template <class T> WEFT_DEVICE void scatter_set(T* p, same<T> v) {
#if defined(WEFT_EMULATOR)
  store_strong(p, (T)v, 0, __builtin_LINE());  // also of 16 bytes
#else
  store_global(p, v);
#endif
}
template <int N, class T, int M> WEFT_DEVICE void scatter_set_vector(T* p, const Array<T, M>& src, int src_offset) {
#if defined(WEFT_EMULATOR)
  for (int lane = 0; lane < N; ++lane) store_strong(p + lane, src[src_offset + lane], 0, __builtin_LINE());
#else
  store_global_vector<N>(p, src, src_offset);
#endif
}
template <class T> WEFT_DEVICE void scatter_add(T* p, same<T> v) { atomic_add(p, v); }
WEFT_DEVICE void scatter_add(long long* p, long long v) { atomic_add(reinterpret_cast<unsigned long long*>(p), (unsigned long long)v); }
template <int N, int M> WEFT_DEVICE void scatter_add_vector(float* p, const Array<float, M>& src, int src_offset) { atomic_add_vector<N>(p, src, src_offset); }

WEFT_DEVICE void scatter_max(int* p, int v) { atomic_max(p, v); }
WEFT_DEVICE void scatter_min(int* p, int v) { atomic_min(p, v); }
WEFT_DEVICE void scatter_max(long long* p, long long v) { atomic_max(p, v); }
WEFT_DEVICE void scatter_min(long long* p, long long v) { atomic_min(p, v); }
// The bits of floats are ordered like integers: without a sign as signed ones, with it in the other order as unsigned ones; and those without a sign come
// before all others. A NaN stays: as a maximum without a sign, as a minimum with it. The memory has no other NaNs.
#define WEFT_SCATTER_EXTREMA(T, Signed, Bits, SIGN, INFINITY_BITS)                               \
  WEFT_DEVICE void scatter_max(T* p, T v) {                                                      \
    const Bits bits = (Bits)to_bits(v);                                                          \
    const bool is_nan = (bits & ~(SIGN)) > (INFINITY_BITS);                                      \
    if (is_nan || !(bits & (SIGN))) atomic_max(reinterpret_cast<Signed*>(p), (Signed)(bits & ~(SIGN))); \
    else atomic_min(reinterpret_cast<Bits*>(p), bits);                                           \
  }                                                                                              \
  WEFT_DEVICE void scatter_min(T* p, T v) {                                                      \
    const Bits bits = (Bits)to_bits(v);                                                          \
    const bool is_nan = (bits & ~(SIGN)) > (INFINITY_BITS);                                      \
    if (is_nan || (bits & (SIGN))) atomic_max(reinterpret_cast<Bits*>(p), bits | (SIGN));        \
    else atomic_min(reinterpret_cast<Signed*>(p), (Signed)bits);                                 \
  }
// What a scatter of extrema begins with. A NaN is a constant here: arithmetic of the GPU, and its absolute value of doubles is some, drops a NaN's sign.
WEFT_DEVICE float nan_without_sign(float x) { return x != x ? bit_cast<float>(0x7fc00000u) : x; }
WEFT_DEVICE float nan_with_sign(float x) { return x != x ? bit_cast<float>(0xffc00000u) : x; }
WEFT_DEVICE double nan_without_sign(double x) { return x != x ? bit_cast<double>(0x7ff8000000000000ull) : x; }
WEFT_DEVICE double nan_with_sign(double x) { return x != x ? bit_cast<double>(0xfff8000000000000ull) : x; }
WEFT_SCATTER_EXTREMA(float, int, unsigned, 0x80000000u, 0x7f800000u)
WEFT_SCATTER_EXTREMA(double, long long, unsigned long long, 0x8000000000000000ull, 0x7ff0000000000000ull)
#undef WEFT_SCATTER_EXTREMA

}  // namespace weft
