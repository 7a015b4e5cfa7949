// requires:
// Scalar mathematics: the pointwise ops that are more than one operator. Functions of float and double are overloads, those of integers are templates
// with the type named by the caller (an argument may be a proxy that converts to it). Special values follow torch.
// Read first: reciprocal, tanh(float), int_div.
#ifndef WEFT_DEVICE
#ifdef WEFT_EMULATOR
#define WEFT_DEVICE static inline
#else
#define WEFT_DEVICE static __device__ __forceinline__
#endif
#endif

#ifdef WEFT_EMULATOR
#define WEFT_CALLED static inline
#else
#define WEFT_CALLED static __device__ __noinline__
#endif

#ifndef WEFT_EMULATOR
#pragma nv_diag_suppress 177  // a kernel uses few of these functions
#endif

#ifdef WEFT_EMULATOR
#define WEFT_LIBM1(name) float name##f(float); double name(double);
#define WEFT_LIBM2(name) float name##f(float, float); double name(double, double);
extern "C" {
WEFT_LIBM1(exp) WEFT_LIBM1(exp2) WEFT_LIBM1(expm1) WEFT_LIBM1(log) WEFT_LIBM1(log10) WEFT_LIBM1(log1p) WEFT_LIBM1(log2) WEFT_LIBM1(sqrt)
WEFT_LIBM1(sin) WEFT_LIBM1(cos) WEFT_LIBM1(tan) WEFT_LIBM1(asin) WEFT_LIBM1(acos) WEFT_LIBM1(atan) WEFT_LIBM1(sinh) WEFT_LIBM1(cosh) WEFT_LIBM1(tanh)
WEFT_LIBM1(asinh) WEFT_LIBM1(acosh) WEFT_LIBM1(atanh) WEFT_LIBM1(erf) WEFT_LIBM1(erfc) WEFT_LIBM1(lgamma) WEFT_LIBM1(fabs) WEFT_LIBM1(floor)
WEFT_LIBM1(ceil) WEFT_LIBM1(trunc) WEFT_LIBM1(rint) WEFT_LIBM2(pow) WEFT_LIBM2(atan2) WEFT_LIBM2(fmod) WEFT_LIBM2(nextafter) WEFT_LIBM2(copysign)
WEFT_LIBM2(hypot)
float fmaf(float, float, float);
double fma(double, double, double);
}
#undef WEFT_LIBM1
#undef WEFT_LIBM2
#endif

namespace weft {

// ---- bits and limits
#ifdef WEFT_EMULATOR
WEFT_DEVICE unsigned float_bits(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
WEFT_DEVICE float bits_float(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); return x; }
WEFT_DEVICE unsigned long long double_bits(double x) { unsigned long long u; __builtin_memcpy(&u, &x, 8); return u; }
WEFT_DEVICE double bits_double(unsigned long long u) { double x; __builtin_memcpy(&x, &u, 8); return x; }
#else
WEFT_DEVICE unsigned float_bits(float x) { return __float_as_uint(x); }
WEFT_DEVICE float bits_float(unsigned u) { return __uint_as_float(u); }
WEFT_DEVICE unsigned long long double_bits(double x) { return static_cast<unsigned long long>(__double_as_longlong(x)); }
WEFT_DEVICE double bits_double(unsigned long long u) { return __longlong_as_double(static_cast<long long>(u)); }
#endif
// A product that is rounded by itself: no compiler makes it and a sum that reads it one instruction, so that it has the same bits in every kernel.
#ifdef WEFT_EMULATOR
WEFT_DEVICE float rounded_mul(float a, float b) { volatile float product = a * b; return product; }
WEFT_DEVICE double rounded_mul(double a, double b) { volatile double product = a * b; return product; }
#else
WEFT_DEVICE float rounded_mul(float a, float b) { return __fmul_rn(a, b); }
WEFT_DEVICE double rounded_mul(double a, double b) { return __dmul_rn(a, b); }
#endif
template <class T> struct Limits;
template <> struct Limits<float> {
  WEFT_DEVICE float infinity() { return bits_float(0x7f800000u); }
  WEFT_DEVICE float quiet_nan() { return bits_float(0x7fc00000u); }
};
template <> struct Limits<double> {
  WEFT_DEVICE double infinity() { return bits_double(0x7ff0000000000000ull); }
  WEFT_DEVICE double quiet_nan() { return bits_double(0x7ff8000000000000ull); }
};
template <class T> WEFT_DEVICE T infinity() { return Limits<T>::infinity(); }
template <class T> WEFT_DEVICE T quiet_nan() { return Limits<T>::quiet_nan(); }

// ---- approximations of the special function unit; denormals are flushed to zero
#ifdef WEFT_EMULATOR
// 2^x = 2^n * 2^r with |r| <= 1/2: the Taylor polynomial of 2^r (its error is 5e-9) and an addition to the exponent; a third of the time of exp2f.
WEFT_DEVICE float approximate_exp2(float x) {
  const float inside = x > -126.f ? x < 128.f ? x : 128.f : -126.f, n = __builtin_rintf(inside), r = inside - n;
  float p = ::fmaf(r, 1.5252734e-5f, 1.5403530e-4f);
  p = ::fmaf(p, r, 1.3333558e-3f);
  p = ::fmaf(p, r, 9.6181291e-3f);
  p = ::fmaf(p, r, 5.5504109e-2f);
  p = ::fmaf(p, r, 2.4022651e-1f);
  p = ::fmaf(p, r, 6.9314718e-1f);
  p = ::fmaf(p, r, 1.f);
  const float result = bits_float(float_bits(p) + ((unsigned)(int)n << 23));
  return x >= 128.f ? infinity<float>() : x > -126.f ? result : x != x ? x : 0.f;
}
WEFT_DEVICE float approximate_reciprocal(float x) { return 1.f / x; }
#else
WEFT_DEVICE float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
WEFT_DEVICE float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// ---- functions that are one call of the CUDA or C mathematics library
#define WEFT_CALL1(name, callee)                             \
  WEFT_DEVICE float name(float x) { return ::callee##f(x); } \
  WEFT_DEVICE double name(double x) { return ::callee(x); }
#define WEFT_CALL2(name, callee)                                         \
  WEFT_DEVICE float name(float a, float b) { return ::callee##f(a, b); } \
  WEFT_DEVICE double name(double a, double b) { return ::callee(a, b); }
WEFT_CALL1(exp, exp) WEFT_CALL1(exp2, exp2) WEFT_CALL1(expm1, expm1) WEFT_CALL1(log, log) WEFT_CALL1(log10, log10) WEFT_CALL1(log1p, log1p)
WEFT_CALL1(log2, log2) WEFT_CALL1(sqrt, sqrt) WEFT_CALL1(sin, sin) WEFT_CALL1(cos, cos) WEFT_CALL1(tan, tan) WEFT_CALL1(asin, asin)
WEFT_CALL1(acos, acos) WEFT_CALL1(atan, atan) WEFT_CALL1(sinh, sinh) WEFT_CALL1(cosh, cosh) WEFT_CALL1(asinh, asinh) WEFT_CALL1(acosh, acosh)
WEFT_CALL1(atanh, atanh) WEFT_CALL1(erf, erf) WEFT_CALL1(erfc, erfc) WEFT_CALL1(lgamma, lgamma) WEFT_CALL1(abs, fabs) WEFT_CALL1(floor, floor)
WEFT_CALL1(ceil, ceil) WEFT_CALL1(trunc, trunc) WEFT_CALL1(round, rint) WEFT_CALL2(pow, pow) WEFT_CALL2(atan2, atan2) WEFT_CALL2(fmod, fmod)
WEFT_CALL2(nextafter, nextafter) WEFT_CALL2(copysign, copysign) WEFT_CALL2(hypot, hypot)
WEFT_DEVICE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
WEFT_DEVICE double fma(double a, double b, double c) { return ::fma(a, b, c); }
#ifndef WEFT_EMULATOR
WEFT_CALL1(rsqrt, rsqrt) WEFT_CALL1(erfinv, erfinv) WEFT_CALL1(erfcinv, erfcinv)
#endif
#undef WEFT_CALL1
#undef WEFT_CALL2

#ifdef WEFT_EMULATOR
WEFT_DEVICE float rsqrt(float x) { return 1.f / ::sqrtf(x); }
WEFT_DEVICE double rsqrt(double x) { return 1. / ::sqrt(x); }
// Winitzki's approximation of erfinv as a start (log_product = log(1 - x^2)), then Halley's iteration on erfc, or on erf where erfc loses digits.
WEFT_DEVICE double erfinv_start(double log_product) {
  const double b = 2. / (3.141592653589793 * .147) + log_product / 2.;
  return ::sqrt(::sqrt(b * b - log_product / .147) - b);
}
WEFT_DEVICE double erfinv_near_zero(double y) {
  double x = .8862269254527580 * y;
  for (int i = 0; i < 6; i++) x -= (::erf(x) - y) / (1.1283791670955126 * ::exp(-x * x));
  return x;
}
WEFT_DEVICE double erfcinv(double y) {
  if (!(y > 0. && y < 2.)) return y == 0. ? infinity<double>() : y == 2. ? -infinity<double>() : quiet_nan<double>();
  const double small = y > 1. ? 2. - y : y;
  if (small > .5) return erfinv_near_zero(1. - y);
  double x = erfinv_start(::log(small * (2. - small)));
  for (int i = 0; i < 5; i++) {
    const double step = (::erfc(x) - small) / (1.1283791670955126 * ::exp(-x * x));
    x += step / (1. - x * step);
  }
  return y > 1. ? -x : x;
}
WEFT_DEVICE double erfinv(double y) {
  const double size = ::fabs(y);
  return size < .5 ? erfinv_near_zero(y) : ::copysign(erfcinv(1. - size), y);
}
WEFT_DEVICE float erfinv(float y) { return static_cast<float>(erfinv(static_cast<double>(y))); }
WEFT_DEVICE float erfcinv(float y) { return static_cast<float>(erfcinv(static_cast<double>(y))); }
#endif

// ---- digamma and trigamma (first and second derivative of lgamma): x grows by 1 until the asymptotic series has all digits; negative x are reflected.
// Coefficients are the Bernoulli numbers B(2k) / 2k and B(2k).
WEFT_DEVICE float digamma_series(float y) { return y * (1 / 12.f - y * (1 / 120.f - y * (1 / 252.f - y * (1 / 240.f)))); }
WEFT_DEVICE double digamma_series(double y) {
  return y * (1 / 12. - y * (1 / 120. - y * (1 / 252. - y * (1 / 240. - y * (1 / 132. - y * (691 / 32760. - y * (1 / 12. - y * (3617 / 8160.))))))));
}
WEFT_DEVICE float trigamma_series(float y) { return y * (1 / 6.f - y * (1 / 30.f - y * (1 / 42.f - y * (1 / 30.f - y * (5 / 66.f))))); }
WEFT_DEVICE double trigamma_series(double y) {
  return y * (1 / 6. - y * (1 / 30. - y * (1 / 42. - y * (1 / 30. - y * (5 / 66. - y * (691 / 2730. - y * (7 / 6. - y * (3617 / 510.))))))));
}
template <typename T> WEFT_DEVICE T digamma_of(T x) {
  const T enough = sizeof(T) == 4 ? T(6) : T(12), pi = T(3.14159265358979323846);
  if (x == T(0)) return copysign(infinity<T>(), -x);
  T sum = T(0);
  if (x < T(0)) {
    const T part = x - trunc(x);
    if (part == T(0) || x == -infinity<T>()) return quiet_nan<T>();
    const T turn = abs(part) > T(.5) ? part - copysign(T(1), part) : part;  // tan has the period pi
    sum = -pi / tan(pi * turn);
    x = T(1) - x;
  }
  for (; x < enough; x += T(1)) sum -= T(1) / x;
  if (x == infinity<T>()) return x;
  return sum + (log(x) - T(.5) / x - digamma_series(T(1) / (x * x)));
}
template <typename T> WEFT_DEVICE T trigamma_of(T x) {
  const T enough = sizeof(T) == 4 ? T(6) : T(12), pi = T(3.14159265358979323846);
  T sum = T(0), sign = T(1);
  if (x < T(.5)) {
    const T part = x - trunc(x);
    if (part == T(0)) return infinity<T>();
    const T wave = sin(pi * (abs(part) > T(.5) ? part - copysign(T(1), part) : part));
    sum = -(pi * pi) / (wave * wave);
    x = T(1) - x;
    sign = T(-1);
  }
  for (; x < enough; x += T(1)) sum += T(1) / (x * x);
  if (x == infinity<T>()) return sign * sum;
  const T inverse = T(1) / x;
  return sign * (sum + inverse * (T(1) + T(.5) * inverse + trigamma_series(inverse * inverse)));
}
WEFT_DEVICE float digamma(float x) { return digamma_of(x); }
WEFT_DEVICE double digamma(double x) { return digamma_of(x); }
WEFT_DEVICE float trigamma(float x) { return trigamma_of(x); }
WEFT_DEVICE double trigamma(double x) { return trigamma_of(x); }

// ---- 1 / x: one Newton step on the approximation, branch-free; the select keeps the right answer at 0, infinity and NaN, where the step makes NaN.
// Denormal arguments are scaled into range; denormal results are flushed to zero.
WEFT_DEVICE float reciprocal(float x) {
#ifdef WEFT_EMULATOR
  return 1.f / x;
#else
  const float scale = ::fabsf(x) < 1.17549435e-38f ? 16777216.f : 1.f, scaled = x * scale;
  const float start = approximate_reciprocal(scaled);
  const float rest = ::fmaf(-scaled, start, 1.f);
  return (::fabsf(rest) < .5f ? ::fmaf(start, rest, start) : start) * scale;
#endif
}
WEFT_DEVICE double reciprocal(double x) { return 1. / x; }

// The approximation alone is within 1 ulp, exact at 1, and right at infinity.
WEFT_DEVICE float sigmoid(float x) { return approximate_reciprocal(1.f + ::expf(-x)); }
WEFT_DEVICE double sigmoid(double x) { return 1. / (1. + ::exp(-x)); }
WEFT_DEVICE float silu(float x) { return x * sigmoid(x); }
WEFT_DEVICE double silu(double x) { return x / (1. + ::exp(-x)); }

// Below 0.55 an odd minimax polynomial (relative error 3.7e-8), else 1 - 2 / (exp(2 x) + 1); both sides are computed, so there is no branch.
WEFT_DEVICE float tanh(float x) {
  const float size = ::fabsf(x), square = x * x;
  const float far = ::copysignf(::fmaf(approximate_reciprocal(approximate_exp2(size * 2.8853900818f) + 1.f), -2.f, 1.f), x);
  float near = ::fmaf(square, 0.016437583f, -0.052671812f);
  near = ::fmaf(near, square, 0.13320725f);
  near = ::fmaf(near, square, -0.33332947f);
  near = ::fmaf(near * square, x, x);
  return size < .55f ? near : far;
}
WEFT_DEVICE double tanh(double x) { return ::tanh(x); }

// ---- tests of floats
WEFT_DEVICE bool isnan(float x) { return x != x; }
WEFT_DEVICE bool isnan(double x) { return x != x; }
WEFT_DEVICE bool isinf(float x) { return ::fabsf(x) == infinity<float>(); }
WEFT_DEVICE bool isinf(double x) { return ::fabs(x) == infinity<double>(); }
WEFT_DEVICE bool isfinite(float x) { return ::fabsf(x) < infinity<float>(); }
WEFT_DEVICE bool isfinite(double x) { return ::fabs(x) < infinity<double>(); }
WEFT_DEVICE bool isposinf(float x) { return x == infinity<float>(); }
WEFT_DEVICE bool isposinf(double x) { return x == infinity<double>(); }
WEFT_DEVICE bool isneginf(float x) { return x == -infinity<float>(); }
WEFT_DEVICE bool isneginf(double x) { return x == -infinity<double>(); }
WEFT_DEVICE bool signbit(float x) { return float_bits(x) >> 31; }
WEFT_DEVICE bool signbit(double x) { return double_bits(x) >> 63; }
template <class T, class Any> WEFT_DEVICE T zero_of(const Any&) { return T(0); }
template <bool Value, class T> WEFT_DEVICE bool constant_of(const T&) { return Value; }

// ---- sign, fraction, extrema (NaN propagates), remainder (the sign of the divisor)
template <class T> WEFT_DEVICE T sign(T x) { return static_cast<T>((T(0) < x) - (x < T(0))); }
WEFT_DEVICE float frac(float x) { return x - ::truncf(x); }
WEFT_DEVICE double frac(double x) { return x - ::trunc(x); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !defined(WEFT_EMULATOR)
WEFT_DEVICE float maximum(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
WEFT_DEVICE float minimum(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#else  // of two zeros, as the instructions have it
WEFT_DEVICE float maximum(float a, float b) { return a != a || a > b || (a == b && !signbit(a)) ? a : b; }
WEFT_DEVICE float minimum(float a, float b) { return a != a || a < b || (a == b && signbit(a)) ? a : b; }
#endif
WEFT_DEVICE double maximum(double a, double b) { return a != a || a > b ? a : b; }
WEFT_DEVICE double minimum(double a, double b) { return a != a || a < b ? a : b; }
WEFT_DEVICE float relu(float x) { return maximum(x, 0.f); }
WEFT_DEVICE double relu(double x) { return maximum(x, 0.); }
WEFT_DEVICE float remainder(float a, float b) {
  const float rest = ::fmodf(a, b);
  return rest != 0.f && (b < 0.f) != (rest < 0.f) ? rest + b : rest;
}
WEFT_DEVICE double remainder(double a, double b) {
  const double rest = ::fmod(a, b);
  return rest != 0. && (b < 0.) != (rest < 0.) ? rest + b : rest;
}

// ---- for results that are seen in 16 bits at most (half a unit in the last place is 2.4e-4 of a half, 2e-3 of a bfloat16).
// The product is rounded, so that the relative error grows to 5.3e-6 where exp(x) leaves the range of float (|x| = 88); denormals are flushed to zero.
// Two instructions for eight.
WEFT_DEVICE float narrow_exp(float x) { return approximate_exp2(x * 1.4426950408889634f); }
WEFT_DEVICE float narrow_exp2(float x) { return approximate_exp2(x); }
// Within 2 ulp, right at 0, infinity and NaN, and without the branch of a division that rounds.
WEFT_DEVICE float narrow_div(float a, float b) {
#ifdef WEFT_EMULATOR
  return a / b;
#else
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
#endif
}
// To multiply by in place of dividing by b. Below 2^-128 it would be infinite and is the largest float instead.
WEFT_DEVICE float narrow_inverse(float b) {
#ifdef WEFT_EMULATOR
  const float inverse = 1.f / b;
#else
  float inverse;
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(b));
#endif
  return b != 0.f && ::fabsf(inverse) > 3.4028234663852886e38f ? ::copysignf(3.4028234663852886e38f, b) : inverse;
}
// a * b / b without overflow: a, or NaN where b is 0, infinite or NaN.
WEFT_DEVICE float cancelled(float a, float b) { return ::fabsf(b) > 0.f && ::fabsf(b) <= 3.4028234663852886e38f ? a : quiet_nan<float>(); }
// A factor of a divisor, so that its reciprocal is finite: 2^64 below 2^-100.
WEFT_DEVICE float row_scale(float b) { return ::fabsf(b) < 7.8886091e-31f ? 1.8446744073709552e19f : 1.f; }
// log(p) of p = exp(t) / b, where b is a sum of such exponentials: exact where p is denormal. p decides where it is 0 or no number.
WEFT_DEVICE float log_of_share(float p, float t, float log_b) { return p < 0.f || p > 0.f ? t - log_b : p - infinity<float>(); }
WEFT_DEVICE float narrow_sigmoid(float x) { return approximate_reciprocal(1.f + narrow_exp(-x)); }
WEFT_DEVICE float narrow_silu(float x) { return x * narrow_sigmoid(x); }

// The units for special functions again, with denormals: the logarithm's error is 2^-22 between 1/2 and 2, and relative outside; the others are within 1 ulp.
#ifdef WEFT_EMULATOR
WEFT_DEVICE float approximate_log2(float x) { return ::log2f(x); }
WEFT_DEVICE float narrow_sqrt(float x) { return ::sqrtf(x); }
WEFT_DEVICE float narrow_reciprocal(float x) { return 1.f / x; }
#else
WEFT_DEVICE float approximate_log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
WEFT_DEVICE float narrow_sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
WEFT_DEVICE float narrow_reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
// log(1 + t): near 0 a minimax polynomial (relative error 3.5e-6 up to 0.1), beyond it the logarithm of a sum whose rounding no longer shows.
WEFT_DEVICE float narrow_log_beside(float t, float sum) {
  float near = ::fmaf(t, -0.25178444f, 0.33500055f);
  near = ::fmaf(near, t, -0.49999721f);
  near = ::fmaf(near, t, 1.f) * t;
  return ::fabsf(t) < .1f ? near : approximate_log2(sum) * 0.69314718f;
}
WEFT_DEVICE float narrow_log(float x) { return narrow_log_beside(x - 1.f, x); }
WEFT_DEVICE float narrow_log2(float x) { return narrow_log(x) * 1.4426950f; }
WEFT_DEVICE float narrow_log10(float x) { return narrow_log(x) * 0.43429448f; }
WEFT_DEVICE float narrow_log1p(float x) { return narrow_log_beside(x, 1.f + x); }
// log(exp(a) + exp(b)), also of two equal infinities.
WEFT_DEVICE float logaddexp(float a, float b) { return maximum(a, b) + ::log1pf(::expf(a == b ? 0.f : -::fabsf(a - b))); }
WEFT_DEVICE double logaddexp(double a, double b) { return maximum(a, b) + ::log1p(::exp(a == b ? 0. : -::fabs(a - b))); }
// Up to 0.2 a minimax polynomial (relative error 2.3e-6).
WEFT_DEVICE float narrow_expm1(float x) {
  float near = ::fmaf(x, 0.041647670f, 0.16694285f);
  near = ::fmaf(near, x, 0.50000184f);
  near = ::fmaf(near, x, 1.f) * x;
  return ::fabsf(x) < .2f ? near : narrow_exp(x) - 1.f;
}
// a to the power of a number that is not 0: its logarithm's error is multiplied by it, so that the relative error is up to 2.2e-5 at the ends of the range of
// float, 3e-6 within that of half, for exponents up to 8. A negative base has a power with whole exponents alone.
WEFT_DEVICE float narrow_pow(float a, float b) {
  const float size = approximate_exp2(approximate_log2(::fabsf(a)) * b);
  const bool is_whole = ::rintf(b) == b, is_odd = is_whole && ::rintf(b * .5f) != b * .5f;
  if (is_odd) return ::copysignf(size, a);
  return is_whole || !(a < 0.f) || a == -infinity<float>() ? size : quiet_nan<float>();
}
// erfc(x) = 2^(-x Q(x)), with an error of 7e-6 of erfc(x) where that is large; near 0, where 1 - erfc(x) loses digits, a minimax polynomial (1.3e-6 up to 0.1).
WEFT_DEVICE float narrow_erf(float x) {
  const float size = minimum(::fabsf(x), 4.f);
  float power = ::fmaf(size, -0.00021590019f, 0.0039947122f);
  power = ::fmaf(power, size, -0.031364784f);
  power = ::fmaf(power, size, 0.14990770f);
  power = ::fmaf(power, size, 0.91817445f);
  power = ::fmaf(power, size, 1.6279147f);
  const float far = ::copysignf(1.f - approximate_exp2(-size * power), x);
  const float near = x * ::fmaf(x * x, -0.37500030f, 1.1283778f);
  return size < .1f ? near : far;
}
// Up to 0.2 a minimax polynomial (relative error 1.3e-7), else 1 - 2 / (exp(2 x) + 1).
WEFT_DEVICE float narrow_tanh(float x) {
  const float size = ::fabsf(x), square = x * x;
  const float far = ::copysignf(::fmaf(approximate_reciprocal(approximate_exp2(size * 2.8853900818f) + 1.f), -2.f, 1.f), x);
  const float near = ::fmaf(::fmaf(square, 0.13038027f, -0.33329698f), square, 1.f) * x;
  return size < .2f ? near : far;
}
// sin(pi * (n + r)): pi in three parts, the first two of which times n are exact up to |x| of 10^5, then a minimax polynomial on +-pi/2 (relative error 1.1e-6).
// Beyond 10^5 and for infinity and NaN the library's function, called: it is rare, and long. The sine of -0 is +0.
WEFT_CALLED float far_sin(float x) { return ::sinf(x); }
WEFT_CALLED float far_cos(float x) { return ::cosf(x); }
WEFT_DEVICE float narrow_sin_beside(float x, float multiple, bool is_odd) {
  float rest = ::fmaf(multiple, -3.14159250f, x);
  rest = ::fmaf(multiple, -1.50995788e-7f, rest);
  rest = ::fmaf(multiple, -1.07806051e-14f, rest);
  const float square = rest * rest;
  float p = ::fmaf(square, -0.00018542f, 0.00831427f);
  p = ::fmaf(p, square, -0.16665853f);
  const float value = ::fmaf(p, square, 1.f) * rest;
  return is_odd ? -value : value;
}
WEFT_DEVICE float narrow_sin(float x) {
  if (!(::fabsf(x) < 1e5f)) return far_sin(x);
  const float multiple = ::rintf(x * 0.31830989f);
  return narrow_sin_beside(x, multiple, static_cast<int>(multiple) & 1);
}
WEFT_DEVICE float narrow_cos(float x) {
  if (!(::fabsf(x) < 1e5f)) return far_cos(x);
  const float below = ::rintf(::fmaf(x, 0.31830989f, -.5f));
  return narrow_sin_beside(x, below + .5f, !(static_cast<int>(below) & 1));
}

template <class T> WEFT_DEVICE T square(T x) { return x * x; }
template <class T> WEFT_DEVICE T cube(T x) { return x * x * x; }
template <class T> WEFT_DEVICE T fourth(T x) { return square(square(x)); }
// x^N by squaring: the relative error is below N / 2 units in the last place.
template <int N, class T> WEFT_DEVICE T whole_power(T x) {
  if constexpr (N == 1) return x;
  else if constexpr (N % 2) return square(whole_power<N / 2, T>(x)) * x;
  else return square(whole_power<N / 2, T>(x));
}
// x^1.5, which is infinite for minus infinity, where the root is NaN.
WEFT_DEVICE float power_3_2(float x) { return x == -infinity<float>() ? -x : x * ::sqrtf(x); }
WEFT_DEVICE double power_3_2(double x) { return x == -infinity<double>() ? -x : x * ::sqrt(x); }

// ---- three operands
template <class T> WEFT_DEVICE T select(bool condition, T a, T b) { return condition ? a : b; }
template <class T> WEFT_DEVICE T threshold(T x, T limit, T value) { return x <= limit ? value : x; }
WEFT_DEVICE float lerp(float a, float b, float weight) {
  const float span = b - a;
  return ::fabsf(weight) < .5f ? a + weight * span : b - span * (1.f - weight);
}
WEFT_DEVICE double lerp(double a, double b, double weight) {
  const double span = b - a;
  return ::fabs(weight) < .5 ? a + weight * span : b - span * (1. - weight);
}

// ---- integers. Division by 0 gives 0, and the smallest number divided by -1 wraps: neither traps on any machine.
template <class T> struct UnsignedOf { using type = T; };
template <> struct UnsignedOf<int> { using type = unsigned; };
template <> struct UnsignedOf<long long> { using type = unsigned long long; };
template <class T> WEFT_DEVICE bool is_minus_one(T b) { return T(-1) < T(0) && b == T(-1); }
template <class T> WEFT_DEVICE T wrapped_neg(T x) { return static_cast<T>(0 - static_cast<typename UnsignedOf<T>::type>(x)); }
// ptxas of CUDA 13.0 folds negations of 32 bits into the minimum of three of sm_90 and loses that of the second operand; a complement it leaves alone.
template <class T> WEFT_DEVICE T int_neg(T x) {
#if !defined(WEFT_EMULATOR)
  if constexpr (sizeof(T) == 4) {
    unsigned flipped;
    asm("not.b32 %0, %1;" : "=r"(flipped) : "r"(static_cast<unsigned>(x)));
    return static_cast<T>(flipped + 1u);
  }
#endif
  return wrapped_neg<T>(x);
}
template <class T> WEFT_DEVICE T int_abs(T x) { return x < T(0) ? wrapped_neg<T>(x) : x; }
template <class T> WEFT_DEVICE bool int_signbit(T x) { return x < T(0); }
template <class T> WEFT_DEVICE T int_relu(T x) { return x < T(0) ? T(0) : x; }
template <class T> WEFT_DEVICE T int_max(T a, T b) { return a < b ? b : a; }
template <class T> WEFT_DEVICE T int_min(T a, T b) { return b < a ? b : a; }
template <class T> WEFT_DEVICE T int_div(T a, T b) { return b == T(0) ? T(0) : is_minus_one<T>(b) ? wrapped_neg<T>(a) : a / b; }
template <class T> WEFT_DEVICE T int_mod(T a, T b) { return b == T(0) || is_minus_one<T>(b) ? T(0) : a % b; }
template <class T> WEFT_DEVICE T int_remainder(T a, T b) {
  const T rest = int_mod<T>(a, b);
  return rest != T(0) && (b < T(0)) != (rest < T(0)) ? rest + b : rest;
}
template <class T> WEFT_DEVICE T int_pow(T a, T b) {
  if (b < T(0)) return a == T(1) ? T(1) : is_minus_one<T>(a) ? (b % 2 ? T(-1) : T(1)) : T(0);
  typename UnsignedOf<T>::type out = 1, square = a;
  for (; b != T(0); b = b / 2) {
    if (b % 2) out *= square;
    square *= square;
  }
  return static_cast<T>(out);
}
template <class T> WEFT_DEVICE T gcd(T a, T b) {
  using U = typename UnsignedOf<T>::type;
  U x = int_abs<T>(a), y = int_abs<T>(b);
  while (y != 0) {
    const U rest = x % y;
    x = y;
    y = rest;
  }
  return static_cast<T>(x);
}
template <class T> WEFT_DEVICE bool is_shift(T count) { return count >= T(0) && count < T(8 * sizeof(T)); }
template <class T> WEFT_DEVICE T shift_left(T a, T count) { return is_shift<T>(count) ? static_cast<T>(static_cast<typename UnsignedOf<T>::type>(a) << count) : T(0); }
template <class T> WEFT_DEVICE T shift_right(T a, T count) { return is_shift<T>(count) ? a >> count : a < T(0) ? T(-1) : T(0); }
template <class T> WEFT_DEVICE T shift_right_logical(T a, T count) {
  return is_shift<T>(count) ? static_cast<T>(static_cast<typename UnsignedOf<T>::type>(a) >> count) : T(0);
}

}  // namespace weft
