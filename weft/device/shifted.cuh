// requires: cast
// Vectors that begin at any element, of arrays that begin with a word of 32 bits. Read first: load_global_shifted.
namespace weft {

// The 32 bits from bit `shift` (0 or 16) of low on, followed by those of high.
WEFT_DEVICE unsigned funnel_right(unsigned low, unsigned high, unsigned shift) {
#if defined(WEFT_EMULATOR)
  return shift ? low >> shift | high << (32 - shift) : low;
#else
  return __funnelshift_r(low, high, shift);
#endif
}

// Loads N elements. Floats of 16 bits: in words, each put together from two neighbours when p is in the middle of one, which `is_odd` says. No element but
// these is touched, except the one in front of p in its word.
template <int N, Cache C = Cache::unspecified, class T, int M>
WEFT_DEVICE void load_global_shifted(Array<T, M>& dst, int dst_offset, const T* p, bool is_odd) {
  if constexpr (TypeFacts<T>::half && N % 2 == 0) {
    const T* const start = p - is_odd;
    unsigned words[N / 2 + 1];
#pragma unroll
    for (int i = 0; i < N / 2; i++) words[i] = load_global<C>(reinterpret_cast<const unsigned*>(start) + i);
    words[N / 2] = 0;
    if (is_odd) words[N / 2] = bit_cast<unsigned short>(load_global<C>(start + N));
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const unsigned both = funnel_right(words[i], words[i + 1], is_odd ? 16 : 0);
#if defined(WEFT_EMULATOR)
      T* const to = dst.target(dst_offset + 2 * i, 2);
      to[0] = bit_cast<T>((unsigned short)both);
      to[1] = bit_cast<T>((unsigned short)(both >> 16));
#else
      dst.words[dst_offset / 2 + i] = both;
#endif
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) dst[dst_offset + i] = load_global<C>(p + i);
  }
}

}  // namespace weft
