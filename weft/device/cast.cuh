// requires:
// Conversions between every pair of types. To a narrower float: to nearest, ties to even, by way of float (as torch does).
// Float to integer: toward zero, out of range saturates to 32 (or 64) bits and then keeps the low bits; NaN gives 0 in
// 32 bits. To bool: whether it is not zero. Read first: convert.
namespace weft {

template <class T> struct TypeFacts { static constexpr bool half = false, floating = false; };
template <> struct TypeFacts<bf16> { static constexpr bool half = true, floating = false; };
template <> struct TypeFacts<f16> { static constexpr bool half = true, floating = false; };
template <> struct TypeFacts<float> { static constexpr bool half = false, floating = true; };
template <> struct TypeFacts<double> { static constexpr bool half = false, floating = true; };
template <class A, class B> struct SameType { static constexpr bool value = false; };
template <class A> struct SameType<A, A> { static constexpr bool value = true; };

WEFT_DEVICE float magnitude(float a) {
#if defined(WEFT_EMULATOR)
  return __builtin_fabsf(a);
#else
  return fabsf(a);
#endif
}

// ---- 16-bit floats ------------------------------------------------------------------------------------------------

#if defined(WEFT_EMULATOR)
WEFT_DEVICE float float_of_bits(unsigned u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
WEFT_DEVICE unsigned bits_of_float(float f) { unsigned u; __builtin_memcpy(&u, &f, 4); return u; }

WEFT_DEVICE float to_float(bf16 v) { return float_of_bits((unsigned)v.bits << 16); }
WEFT_DEVICE float to_float(f16 v) {
  const unsigned sign = (unsigned)(v.bits & 0x8000) << 16, magnitude = v.bits & 0x7fff;
  const unsigned normal = (magnitude << 13) + 0x38000000u, special = (magnitude << 13) + 0x70000000u;
  const unsigned small = bits_of_float(float_of_bits((magnitude << 13) + 0x38800000u) - 6.103515625e-5f);   // 2^-14
  return float_of_bits(sign | (magnitude >= 0x7c00 ? special : magnitude >= 0x0400 ? normal : small));
}
WEFT_DEVICE bf16 to_bf16(float f) {
  const unsigned u = bits_of_float(f);
  const unsigned short rounded = (unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  return bf16{f != f ? (unsigned short)0x7fff : rounded};
}
WEFT_DEVICE f16 to_f16(float f) {
  const unsigned u = bits_of_float(f), sign = (u >> 16) & 0x8000, magnitude = u & 0x7fffffff;
  const unsigned normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1)) >> 13;
  const unsigned small = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;     // the adder rounds at 2^-24
  const unsigned finite = magnitude < 0x38800000u ? small : normal;
  const unsigned rounded = magnitude >= 0x47800000u ? 0x7c00u : finite;
  return f16{(unsigned short)(f != f ? 0x7fff : sign | rounded)};
}
#else
WEFT_DEVICE float to_float(bf16 v) { return __uint_as_float((unsigned)v.bits << 16); }
WEFT_DEVICE float to_float(f16 v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
  return f;
}
WEFT_DEVICE bf16 to_bf16(float f) {
  bf16 v;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v.bits) : "f"(f));
  return v;
}
WEFT_DEVICE f16 to_f16(float f) {
  f16 v;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v.bits) : "f"(f));
  return v;
}
#endif

// ---- float to integer ---------------------------------------------------------------------------------------------

#if defined(WEFT_EMULATOR)
// What cvt.rzi does: saturates; NaN is 0, except the top bit alone for 64 bits or from double.
template <class To, class From> WEFT_DEVICE To saturate(From v) {
  constexpr int BITS = sizeof(To) * 8;
  constexpr bool SIGNED = (To)-1 < (To)0;
  constexpr To LOWEST = SIGNED ? (To)((To)1 << (BITS - 1)) : (To)0, HIGHEST = (To)~LOWEST;
  if (v != v) return sizeof(To) == 8 || sizeof(From) == 8 ? (To)((unsigned long long)1 << (BITS - 1)) : (To)0;
  if (v >= (From)4.0 * (From)((unsigned long long)1 << (BITS - 2 - SIGNED))) return HIGHEST;
  if (v <= (SIGNED ? (From)-4.0 * (From)((unsigned long long)1 << (BITS - 3)) : (From)0)) return LOWEST;
  return (To)v;
}
#else
template <class To, class From> WEFT_DEVICE To saturate(From v) { return (To)v; }
#endif

template <class To, class From> WEFT_DEVICE To float_to_integer(From v) {
  if constexpr (sizeof(To) < 4) return (To)saturate<int>(v);
  else return saturate<To>(v);
}

// ---- every pair ---------------------------------------------------------------------------------------------------

template <class To, class From> WEFT_DEVICE To convert(From v) {
  if constexpr (SameType<To, From>::value) return v;
  else if constexpr (TypeFacts<From>::half) return convert<To>(to_float(v));
  else if constexpr (SameType<To, bool>::value) return v != (From)0;
  else if constexpr (SameType<To, bf16>::value) return to_bf16((float)v);
  else if constexpr (SameType<To, f16>::value) return to_f16((float)v);
  else if constexpr (TypeFacts<From>::floating && !TypeFacts<To>::floating) return float_to_integer<To>(v);
  else return (To)v;
}
#if defined(WEFT_CHECK_RACES) || !defined(WEFT_EMULATOR)
template <class To, class From> WEFT_DEVICE To convert(Element<From> v) { return convert<To>(v.read()); }
#endif

// ---- vectors ------------------------------------------------------------------------------------------------------

#if !defined(WEFT_EMULATOR)
template <class To> WEFT_DEVICE unsigned convert_pair(float low, float high) {
  unsigned both;
  if constexpr (SameType<To, bf16>::value) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
#endif

// Converts N elements; pairs of floats become 16-bit floats in one instruction. `dst_offset` is a multiple of N.
template <int N, class To, int DstN, class From, int SrcN>
WEFT_DEVICE void convert_vector(Array<To, DstN>& dst, int dst_offset, const Array<From, SrcN>& src, int src_offset) {
#if !defined(WEFT_EMULATOR)
  if constexpr (TypeFacts<To>::half && N % 2 == 0 && !SameType<To, From>::value) {
#pragma unroll
    for (int i = 0; i < N; i += 2)
      dst.words[(dst_offset + i) / 2] = convert_pair<To>(convert<float>(src.get(src_offset + i)), convert<float>(src.get(src_offset + i + 1)));
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) dst[dst_offset + i] = convert<To>(src.get(src_offset + i));
  }
#else
  To* to = dst.target(dst_offset, N);
  const From* from = src.source(src_offset, N);
  for (int i = 0; i < N; i++) to[i] = convert<To>(from[i]);
#endif
}

}  // namespace weft
