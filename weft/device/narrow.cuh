// requires: cast
// Floats of 8 and 4 bits: types, arrays in registers, accesses of packed elements, conversions.
// To a narrow type: to nearest, ties to even, by way of float; what is too large gives the largest finite value, e8m0 rounds up and drops the sign. NaN gives
// 0x7f, 0xff for e8m0, and 6 for e2m1, which has none. Every chip gives these codes: by instructions where it has them, else by the routines below.
// Source: PTX ISA, cvt with .satfinite; docs/narrow_types.md has the routines' origin. Read first: convert_narrow, convert_narrow_vector.
#if !defined(WEFT_EMULATOR) && __CUDA_ARCH__ >= 890
#define WEFT_HAS_FP8 1
#else
#define WEFT_HAS_FP8 0
#endif
// Of 4 bits, and e8m0: in builds for one chip (sm_100a) or its family (sm_100f), from Blackwell on.
#if !defined(WEFT_EMULATOR) && __CUDA_ARCH__ >= 1000 && (defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM110_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL) || \
    defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__))
#define WEFT_HAS_FP4 1
#else
#define WEFT_HAS_FP4 0
#endif
namespace weft {

struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };
struct e8m0 { unsigned char bits; };
struct e2m1 { unsigned char bits; };       // the code is in the low four bits
struct e2m1_pair { unsigned char bits; };  // a byte of memory: the first element is in the low four bits

template <class T> struct IsNarrow { enum { value = false }; };
template <> struct IsNarrow<e4m3> { enum { value = true }; };
template <> struct IsNarrow<e5m2> { enum { value = true }; };
template <> struct IsNarrow<e8m0> { enum { value = true }; };
template <> struct IsNarrow<e2m1> { enum { value = true }; };
template <class T> struct IsElement { static constexpr bool value = false; };
#if defined(WEFT_CHECK_RACES) || !defined(WEFT_EMULATOR)
template <class T> struct IsElement<Element<T>> { static constexpr bool value = true; };
#endif

#if !defined(WEFT_EMULATOR)
WEFT_DEVICE float float_of_bits(unsigned u) { return __uint_as_float(u); }
WEFT_DEVICE unsigned bits_of_float(float f) { return __float_as_uint(f); }
#endif
// a + b, and a * factor + b where a * factor is exact; never put together with the operation that made a.
WEFT_DEVICE float plain_add(float a, float b) {
#if defined(WEFT_EMULATOR)
  return a + b;
#else
  return __fadd_rn(a, b);
#endif
}
WEFT_DEVICE float exact_fma(float a, float factor, float b) {
#if defined(WEFT_EMULATOR)
  return a * factor + b;
#else
  return __fmaf_rn(a, factor, b);
#endif
}

#if !defined(WEFT_EMULATOR)
template <> struct Packing<e4m3> { enum { bits = 8 }; };
template <> struct Packing<e5m2> { enum { bits = 8 }; };
template <> struct Packing<e8m0> { enum { bits = 8 }; };
template <> struct Packing<e2m1> { enum { bits = 4 }; };
template <int N> struct Array<e4m3, N> : PackedArray<e4m3, N> {};
template <int N> struct Array<e5m2, N> : PackedArray<e5m2, N> {};
template <int N> struct Array<e8m0, N> : PackedArray<e8m0, N> {};
template <int N> struct Array<e2m1, N> : PackedArray<e2m1, N> {};
#endif

// ---- accesses of packed elements ----------------------------------------------------------------------------------

// p points to the byte of the first of N elements; N is even. There is no store of one element: two threads would share its byte.
#if defined(WEFT_EMULATOR)
template <int N> WEFT_DEVICE void split_pairs(e2m1* to, const e2m1_pair* from) {
  for (int i = 0; i < N; i++) to[i] = e2m1{(unsigned char)(from[i / 2].bits >> i % 2 * 4 & 15)};
}
template <int N> WEFT_DEVICE void join_pairs(e2m1_pair* to, const e2m1* from) {
  for (int i = 0; i < N / 2; i++) to[i] = e2m1_pair{(unsigned char)(from[2 * i].bits | from[2 * i + 1].bits << 4)};
}
template <int N, Cache C = Cache::unspecified, int M>
WEFT_DEVICE void load_global_vector(Array<e2m1, M>& dst, int dst_offset, const e2m1_pair* p, WEFT_LINE) {
  e2m1_pair pairs[N / 2];
  check_access<N / 2, WEFT_READ, VECTOR_BYTES>(p, line);
  copy_bytes(pairs, p, N / 2);
  split_pairs<N>(dst.target(dst_offset, N, line), pairs);
}
template <int N, Cache C = Cache::unspecified, int M>
WEFT_DEVICE void store_global_vector(e2m1_pair* p, const Array<e2m1, M>& src, int src_offset, WEFT_LINE) {
  e2m1_pair pairs[N / 2];
  join_pairs<N>(pairs, src.source(src_offset, N, line));
  check_access<N / 2, WEFT_WRITE, VECTOR_BYTES>(p, line);
  copy_bytes(p, pairs, N / 2);
}
template <int N, int M> WEFT_DEVICE void load_shared_vector(Array<e2m1, M>& dst, int dst_offset, const e2m1_pair* p, WEFT_LINE) {
  e2m1_pair pairs[N / 2];
  check_access<N / 2, WEFT_READ | WEFT_SHARED>(p, line);
  copy_bytes(pairs, p, N / 2);
  split_pairs<N>(dst.target(dst_offset, N, line), pairs);
}
template <int N, int M> WEFT_DEVICE void store_shared_vector(e2m1_pair* p, const Array<e2m1, M>& src, int src_offset, WEFT_LINE) {
  e2m1_pair pairs[N / 2];
  join_pairs<N>(pairs, src.source(src_offset, N, line));
  check_access<N / 2, WEFT_WRITE | WEFT_SHARED>(p, line);
  copy_bytes(p, pairs, N / 2);
}
template <Cache C = Cache::unspecified> WEFT_DEVICE e2m1 load_global_packed(const e2m1_pair* p, long long element, WEFT_LINE) {
  return e2m1{(unsigned char)(load_global<C>(p + element / 2, line).bits >> element % 2 * 4 & 15)};
}
WEFT_DEVICE e2m1 load_shared_packed(const e2m1_pair* p, long long element, WEFT_LINE) {
  return e2m1{(unsigned char)(load_shared(p + element / 2, line).bits >> element % 2 * 4 & 15)};
}
#else
template <int N, Cache C = Cache::unspecified, int M> WEFT_DEVICE void load_global_vector(Array<e2m1, M>& dst, int dst_offset, const e2m1_pair* p) {
  unsigned words[N > 32 ? 8 : 4];
  load_words<N / 2, C>(words, p);
  array_from_words<N>(dst, dst_offset, words);
}
template <int N, Cache C = Cache::unspecified, int M> WEFT_DEVICE void store_global_vector(e2m1_pair* p, const Array<e2m1, M>& src, int src_offset) {
  unsigned words[N > 32 ? 8 : 4];
  words_from_array<N>(words, src, src_offset);
  store_words<N / 2, C>(p, words);
}
template <int N, int M> WEFT_DEVICE void load_shared_vector(Array<e2m1, M>& dst, int dst_offset, const e2m1_pair* p) {
  load_global_vector<N>(dst, dst_offset, p);
}
template <int N, int M> WEFT_DEVICE void store_shared_vector(e2m1_pair* p, const Array<e2m1, M>& src, int src_offset) {
  store_global_vector<N>(p, src, src_offset);
}
template <Cache C = Cache::unspecified> WEFT_DEVICE e2m1 load_global_packed(const e2m1_pair* p, long long element) {
  return e2m1{(unsigned char)(load_global<C>(p + element / 2).bits >> element % 2 * 4 & 15)};
}
WEFT_DEVICE e2m1 load_shared_packed(const e2m1_pair* p, long long element) {
  return e2m1{(unsigned char)(load_shared(p + element / 2).bits >> element % 2 * 4 & 15)};
}
#endif

// ---- from float ---------------------------------------------------------------------------------------------------

// A float of 8 bits with MANTISSA of them behind the point. Below the smallest normal number the adder rounds: TINY's last bit is the smallest subnormal.
template <int MANTISSA, unsigned LARGEST> WEFT_DEVICE unsigned char encode_small(float f, float tiny, float smallest_normal, unsigned rebias) {
  const unsigned u = bits_of_float(f), magnitude = u & 0x7fffffffu;
  constexpr int CUT = 23 - MANTISSA;
  const float a = float_of_bits(magnitude);
  const unsigned rounded = ((magnitude + (1u << (CUT - 1)) - 1 + (magnitude >> CUT & 1)) >> CUT) - rebias;
  const unsigned subnormal = bits_of_float(plain_add(a, tiny)) - bits_of_float(tiny), normal = rounded < LARGEST ? rounded : LARGEST;
  const unsigned code = a < smallest_normal ? subnormal : normal;  // both are computed: equal calls stay equal for the compiler only without branches
  return (unsigned char)(magnitude > 0x7f800000u ? 0x7f : code | u >> 24 & 0x80);
}
WEFT_DEVICE unsigned char encode_e4m3(float f) { return encode_small<3, 0x7e>(f, 16384.f, 0.015625f, 960); }
WEFT_DEVICE unsigned char encode_e5m2(float f) { return encode_small<2, 0x7b>(f, 128.f, 6.103515625e-5f, 448); }
// Of finite numbers `up` is at most 255, which stands for 254 as that of infinity does; of NaN it is 256 and more.
WEFT_DEVICE unsigned char encode_e8m0(float f) {
  const unsigned magnitude = bits_of_float(f) & 0x7fffffffu, up = (magnitude + 0x7fffffu) >> 23;
  return (unsigned char)(magnitude <= 0x400000u ? 0 : up - ((up + 1) >> 8));
}
// Where the last bit of a sum is the half unit of an octave, the adder rounds to that octave's grid; the smallest of three sums, of which two have the codes of
// the coarser octaves built in, is that of the right octave: 0x4a800000 and the code, which is beyond 7 where the number is too large, or NaN.
WEFT_DEVICE int e2m1_sum(float x) {
  const float a = magnitude(x);
  const int fine = (int)bits_of_float(plain_add(a, 4194304.f));
  const int middle = (int)bits_of_float(exact_fma(a, 0.5f, 4194305.f)), coarse = (int)bits_of_float(exact_fma(a, 0.25f, 4194306.f));
  const int both = fine < middle ? fine : middle;
  return both < coarse ? both : coarse;
}
// N floats to words of eight 4-bit floats.
template <int N> WEFT_DEVICE void encode_e2m1_words(unsigned* words, const float* x) {
  int largest = 0;
#pragma unroll
  for (int w = 0; w < N / 8; w++) {
    unsigned codes = 0;
#pragma unroll
    for (int i = 8 * w + 7; i >= 8 * w; i--) {
      const int sum = e2m1_sum(x[i]);
      largest = largest > sum ? largest : sum;
#if defined(WEFT_EMULATOR)
      codes = codes << 1 | bits_of_float(x[i]) >> 31;
#else
      codes = __funnelshift_l(bits_of_float(x[i]), codes, 1);
#endif
      codes = codes * 8 + (unsigned)sum;
    }
    words[w] = codes - 0x72800000u;  // eight times 0x4a800000, each in its place
  }
  if (largest > 0x4a800007) {  // seldom behind a scale: so the limit is no part of what is done for each element. NaN has no sign
#pragma unroll
    for (int w = 0; w < N / 8; w++) {
      unsigned codes = 0;
#pragma unroll
      for (int i = 8 * w + 7; i >= 8 * w; i--) {
        const unsigned code = (unsigned)(e2m1_sum(x[i]) - 0x4a800000);
        codes = codes * 16 + (x[i] != x[i] ? 7u : (code < 7 ? code : 7u) | (bits_of_float(x[i]) >> 28 & 8));
      }
      words[w] = codes;
    }
  }
}
WEFT_DEVICE unsigned char encode_e2m1(float f) {
  const unsigned code = (unsigned)(e2m1_sum(f) - 0x4a800000);
  return (unsigned char)(f != f ? 7u : (code < 7 ? code : 7u) | bits_of_float(f) >> 28 & 8);
}

#if WEFT_HAS_FP8
#define WEFT_ENCODE_PAIR(T)                                                                                             \
  WEFT_DEVICE unsigned encode_pair_##T(float low, float high) {                                                         \
    unsigned short both;                                                                                                \
    asm("cvt.rn.satfinite." #T "x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));                                \
    return both;                                                                                                        \
  }
WEFT_ENCODE_PAIR(e4m3)
WEFT_ENCODE_PAIR(e5m2)
#undef WEFT_ENCODE_PAIR
#endif
// Codes of four floats, as the bytes of a word.
WEFT_DEVICE unsigned encode_word_e5m2(float a, float b, float c, float d) {
#if WEFT_HAS_FP8
  return encode_pair_e5m2(a, b) | encode_pair_e5m2(c, d) << 16;
#else
  return encode_e5m2(a) | (unsigned)encode_e5m2(b) << 8 | (unsigned)encode_e5m2(c) << 16 | (unsigned)encode_e5m2(d) << 24;
#endif
}
// Rounds the magnitude of x * 2^-8 to a 4-bit float, times 2^-14; what is too large, or NaN, gives no such number. `high` is the magnitude of x, at least a
// little above 2^8. In high - x * 2^-22 the last bit is the half unit of x * 2^-8 in its octave, or of 1; taken from `high`, what is left is x, rounded there.
WEFT_DEVICE float round_e2m1(float x) {
  const float a = magnitude(x);
#if defined(WEFT_EMULATOR)
  const float high = a > 256.000244140625f ? a : 256.000244140625f;
#else
  const float high = fmaxf(a, 256.000244140625f);
#endif
  return plain_add(high, -exact_fma(a, -2.384185791015625e-07f, high));
}
// The signs of eight floats, in the places of those of their codes of 4 bits. NaN has none.
WEFT_DEVICE unsigned sign_codes(const float* x) {
  const unsigned even = encode_word_e5m2(x[0], x[2], x[4], x[6]), odd = encode_word_e5m2(x[1], x[3], x[5], x[7]);
  return ((even >> 4 & 0x0f0f0f0fu) | (odd & 0xf0f0f0f0u)) & 0x88888888u;
}
// N floats times 2^-8 to words of eight 4-bit floats. Returns whether one is too large, or NaN, so that the words mean nothing.
template <int N> WEFT_DEVICE bool encode_small_e2m1(unsigned* words, const float* x) {
  unsigned all = 0;
#pragma unroll
  for (int w = 0; w < N / 8; w++) {
    const float* y = x + 8 * w;
    float r[8];
#pragma unroll
    for (int i = 0; i < 8; i++) r[i] = round_e2m1(y[i]);
    const unsigned even = encode_word_e5m2(r[0], r[2], r[4], r[6]), odd = encode_word_e5m2(r[1], r[3], r[5], r[7]);  // twice their codes
    all |= even | odd;
    words[w] = (even + odd * 16) >> 1 | sign_codes(y);
  }
  return all & 0xf0f0f0f0u;
}
// N floats, times a factor, to words of eight 4-bit floats. Seldom is a product too large behind a scale, so that the limit is no part of what is done for each.
// The factor of a block of zeros is the largest float, which times 2^8 is infinite: their codes are signs.
template <int N> WEFT_DEVICE void encode_scaled_e2m1(unsigned* words, const float* x, float factor) {
  float y[N];
#pragma unroll
  for (int i = 0; i < N; i++) y[i] = x[i] * (factor * 256.f);
  if (!encode_small_e2m1<N>(words, y)) return;
  unsigned all = 0;
#pragma unroll
  for (int i = 0; i < N; i++) all |= bits_of_float(x[i]);
  if (all << 1 == 0 && factor > 0.f && factor <= 3.4028234663852886e38f) {
#pragma unroll
    for (int w = 0; w < N / 8; w++) words[w] = sign_codes(x + 8 * w);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float product = x[i] * factor;
#if defined(WEFT_EMULATOR)
    const float low = product < 6.f ? product : 6.f;
    y[i] = (low > -6.f ? low : -6.f) * 256.f;
#else
    y[i] = fmaxf(fminf(product, 6.f), -6.f) * 256.f;  // NaN gives 6
#endif
  }
  encode_small_e2m1<N>(words, y);
}

#if WEFT_HAS_FP4
WEFT_DEVICE unsigned encode_pair_e8m0(float low, float high) {
  unsigned short both;
  asm("cvt.rp.satfinite.ue8m0x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
  return both;
}
WEFT_DEVICE unsigned encode_word_e2m1(const float* x) {
  unsigned word;
  asm("{\n\t.reg .b8 a, b, c, d;\n\tcvt.rn.satfinite.e2m1x2.f32 a, %2, %1;\n\tcvt.rn.satfinite.e2m1x2.f32 b, %4, %3;\n\t"
      "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5;\n\tcvt.rn.satfinite.e2m1x2.f32 d, %8, %7;\n\tmov.b32 %0, {a, b, c, d};\n\t}"
      : "=r"(word) : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
  return word;
}
#endif
// N floats, a multiple of eight, to words of eight 4-bit floats, by what the chip has.
template <int N> WEFT_DEVICE void encode_e2m1_vector(unsigned* words, const float* x) {
#if WEFT_HAS_FP4
#pragma unroll
  for (int first = 0; first < N; first += 8) words[first / 8] = encode_word_e2m1(x + first);
#else
  encode_e2m1_words<N>(words, x);
#endif
}

template <class To> WEFT_DEVICE To encode(float f) {
#if WEFT_HAS_FP8
  if constexpr (SameType<To, e4m3>::value) return To{(unsigned char)encode_pair_e4m3(f, 0.f)};
  else if constexpr (SameType<To, e5m2>::value) return To{(unsigned char)encode_pair_e5m2(f, 0.f)};
#else
  if constexpr (SameType<To, e4m3>::value) return To{encode_e4m3(f)};
  else if constexpr (SameType<To, e5m2>::value) return To{encode_e5m2(f)};
#endif
  else if constexpr (SameType<To, e8m0>::value) return To{encode_e8m0(f)};
  else return To{encode_e2m1(f)};
}

// ---- to float -----------------------------------------------------------------------------------------------------

// The code's exponent and mantissa in the places of a float's, times a power of two: exact, subnormal codes too.
WEFT_DEVICE float decode(e4m3 v) {
  const unsigned magnitude = v.bits & 0x7f, sign = (unsigned)(v.bits & 0x80) << 24;
  const float a = float_of_bits(magnitude << 20) * 1.329227995784916e36f;  // 2^120
  return float_of_bits(sign | (magnitude == 0x7f ? 0x7fffffffu : bits_of_float(a)));
}
WEFT_DEVICE float decode(e5m2 v) { return to_float(f16{(unsigned short)(v.bits << 8)}); }  // the upper half of a float of 16 bits
WEFT_DEVICE float decode(e8m0 v) { return float_of_bits(v.bits == 255 ? 0x7fffffffu : v.bits ? (unsigned)v.bits << 23 : 0x400000u); }
// 1 / decode(v), without a division.
WEFT_DEVICE float inverse_scale(e8m0 v) {
  const int bits = (254 - (int)v.bits) << 23;
  return float_of_bits(v.bits == 255 ? 0x7fffffffu : (unsigned)(bits > 0x400000 ? bits : 0x400000));
}
// Of the largest magnitude of a block of 4-bit floats, its scale of type e4m3 before it is rounded: a sixth, at most 500, which saturates, too.
WEFT_DEVICE float e2m1_scale(float amax) {
#if defined(WEFT_EMULATOR)
  return (amax < 3000.f ? amax : 3000.f) / 6.f;
#else
  const float a = fminf(amax, 3000.f), sixth = 0.16666667f, q = __fmul_rn(a, sixth);
  return __fmaf_rn(__fmaf_rn(-6.f, q, a), sixth, q);  // what a division does, without its branch for what is too small or large
#endif
}
WEFT_DEVICE float decode(e2m1 v) {
  const float a = float_of_bits((unsigned)(v.bits & 7) << 22) * 8.507059173023462e37f;  // 2^126
  return float_of_bits(bits_of_float(a) | (unsigned)(v.bits & 8) << 28);
}

#if WEFT_HAS_FP8
#define WEFT_DECODE_PAIR(T)                                                                 \
  WEFT_DEVICE unsigned decode_pair(T, unsigned codes) {                                     \
    unsigned halves;                                                                        \
    asm("cvt.rn.f16x2." #T "x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)codes));       \
    return halves;                                                                          \
  }
WEFT_DECODE_PAIR(e4m3)
WEFT_DECODE_PAIR(e5m2)
#undef WEFT_DECODE_PAIR
#if WEFT_HAS_FP4
WEFT_DEVICE unsigned decode_pair(e2m1, unsigned codes) {
  unsigned halves;
  asm("{\n\t.reg .b8 pair, rest;\n\tmov.b16 {pair, rest}, %1;\n\tcvt.rn.f16x2.e2m1x2 %0, pair;\n\t}" : "=r"(halves) : "h"((unsigned short)codes));
  return halves;
}
#endif
template <class T> struct HasDecodePair {
  static constexpr bool value = SameType<T, e4m3>::value || SameType<T, e5m2>::value || WEFT_HAS_FP4 && SameType<T, e2m1>::value;
};
#else
WEFT_DEVICE unsigned decode_pair(e4m3, unsigned) { return 0; }
template <class T> struct HasDecodePair { static constexpr bool value = false; };
#endif

#if !defined(WEFT_EMULATOR)
// Codes of 4 bits in the upper ends of both halves of a word, as floats of 16 bits: exponent and mantissa in their places, times 2^14.
WEFT_DEVICE unsigned decode_apart(unsigned word) {
  unsigned halves;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"((word & 0x80008000u) | (word >> 3 & 0x0e000e00u)), "r"(0x74007400u));
  return halves;
}
#endif

// ---- every pair ---------------------------------------------------------------------------------------------------

// The float that one code stands for.
template <class T> WEFT_DEVICE float decode_one(T v) {
  if constexpr (HasDecodePair<T>::value) return to_float(f16{(unsigned short)decode_pair(v, v.bits)});
  else return decode(v);
}

// 1 / v of a scale, at most the largest finite float, which zero and NaN give, too. A scale has no sign. No branch: what e4m3 holds has a plain reciprocal.
WEFT_DEVICE float inverse_scale(e4m3 v) {
  constexpr float LARGEST = 3.4028234663852886e38f;
  const float scale = decode_one(v);
#if defined(WEFT_EMULATOR)
  const float inverse = 1.f / scale;
  return inverse < LARGEST ? inverse : LARGEST;
#else
  float rough;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(rough) : "f"(scale));
  return fminf(__fmaf_rn(rough, __fmaf_rn(-scale, rough, 1.f), rough), LARGEST);  // the step makes it the nearest float; NaN of zero
#endif
}

// Between a narrow float and Float, Double, or a float of 16 bits.
template <class To, class From> WEFT_DEVICE To convert_narrow(From v) {
  if constexpr (IsElement<From>::value) return convert_narrow<To>(v.read());
  else if constexpr (SameType<To, From>::value) return v;
  else if constexpr (IsNarrow<From>::value) return convert<To>(decode_one(v));
  else return encode<To>(convert<float>(v));
}

// Converts N elements. `dst_offset` and `src_offset` are multiples of N.
template <int N, class To, int DstN, class From, int SrcN>
WEFT_DEVICE void convert_narrow_vector(Array<To, DstN>& dst, int dst_offset, const Array<From, SrcN>& src, int src_offset) {
#if defined(WEFT_EMULATOR)
  To* to = dst.target(dst_offset, N);
  const From* from = src.source(src_offset, N);
  if constexpr (SameType<To, e2m1>::value && N % 8 == 0) {
    float values[N];
    unsigned words[N / 8];
    for (int i = 0; i < N; i++) values[i] = convert<float>(from[i]);
    encode_e2m1_words<N>(words, values);
    for (int i = 0; i < N; i++) to[i] = e2m1{(unsigned char)(words[i / 8] >> i % 8 * 4 & 15)};
  } else {
    for (int i = 0; i < N; i++) to[i] = convert_narrow<To>(from[i]);
  }
#else
  if constexpr (SameType<To, e2m1>::value && N % 8 == 0) {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = convert<float>(src.get(src_offset + i));
    encode_e2m1_vector<N>(dst.words + dst_offset / 8, values);
  } else if constexpr (IsNarrow<To>::value && Packing<To>::bits == 8 && N % 4 == 0 && (WEFT_HAS_FP8 && !SameType<To, e8m0>::value || WEFT_HAS_FP4 && SameType<To, e8m0>::value)) {
#pragma unroll
    for (int first = 0; first < N; first += 4) {
      unsigned half[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float low = convert<float>(src.get(src_offset + first + 2 * i)), high = convert<float>(src.get(src_offset + first + 2 * i + 1));
#if WEFT_HAS_FP8
        if constexpr (SameType<To, e4m3>::value) half[i] = encode_pair_e4m3(low, high);
        if constexpr (SameType<To, e5m2>::value) half[i] = encode_pair_e5m2(low, high);
#endif
#if WEFT_HAS_FP4
        if constexpr (SameType<To, e8m0>::value) half[i] = encode_pair_e8m0(low, high);
#endif
      }
      dst.words[(dst_offset + first) / 4] = half[0] | half[1] << 16;
    }
  } else if constexpr (HasDecodePair<From>::value && N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      constexpr int BITS = Packing<From>::bits, PER_WORD = 32 / BITS;
      const unsigned halves = decode_pair(From{}, src.words[(src_offset + i) / PER_WORD] >> (src_offset + i) % PER_WORD * BITS);
      const f16 low{(unsigned short)halves}, high{(unsigned short)(halves >> 16)};
      if constexpr (SameType<To, f16>::value) {
        dst.words[(dst_offset + i) / 2] = halves;
      } else if constexpr (TypeFacts<To>::half) {
        dst.words[(dst_offset + i) / 2] = convert_pair<To>(to_float(low), to_float(high));
      } else {
        dst[dst_offset + i] = convert<To>(to_float(low));
        dst[dst_offset + i + 1] = convert<To>(to_float(high));
      }
    }
  } else if constexpr (SameType<From, e2m1>::value && SameType<To, float>::value && N % 8 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 8) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const unsigned halves = decode_apart(src.words[(src_offset + i) / 8] << (12 - 4 * j));
        dst[dst_offset + i + j] = to_float(f16{(unsigned short)halves});
        dst[dst_offset + i + j + 4] = to_float(f16{(unsigned short)(halves >> 16)});
      }
    }
  } else if constexpr (TypeFacts<To>::half && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2)
      dst.words[(dst_offset + i) / 2] = convert_pair<To>(decode(src.get(src_offset + i)), decode(src.get(src_offset + i + 1)));
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) dst[dst_offset + i] = convert_narrow<To>(src.get(src_offset + i));
  }
#endif
}

// N elements, a multiple of eight, STEP places apart, times a factor that they share, to floats of 4 bits.
template <int N, int STEP = 1, int DstN, class From, int SrcN>
WEFT_DEVICE void convert_scaled_vector(Array<e2m1, DstN>& dst, int dst_offset, const Array<From, SrcN>& src, int src_offset, float factor) {
  float values[N];
#pragma unroll
  for (int i = 0; i < N; i++) values[i] = convert<float>(src.get(src_offset + i * STEP));
#if defined(WEFT_EMULATOR)
  e2m1* to = dst.target(dst_offset, N);
  unsigned words[N / 8];
  encode_scaled_e2m1<N>(words, values, factor);
  for (int i = 0; i < N; i++) to[i] = e2m1{(unsigned char)(words[i / 8] >> i % 8 * 4 & 15)};
#elif WEFT_HAS_FP8 && !WEFT_HAS_FP4
  encode_scaled_e2m1<N>(dst.words + dst_offset / 8, values, factor);
#else
#pragma unroll
  for (int i = 0; i < N; i++) values[i] *= factor;
  encode_e2m1_vector<N>(dst.words + dst_offset / 8, values);
#endif
}

}  // namespace weft
