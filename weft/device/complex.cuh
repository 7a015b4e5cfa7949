// requires: cast, math
// Complex numbers: arithmetic, conversions and the functions that torch has for them. Branch cuts, and what infinities and NaNs give, are C's (Annex G).
// Read first: complex, then complex_math.
namespace weft {

template <class T> struct alignas(2 * sizeof(T)) complex {
  T re, im;
  complex() = default;
  __device__ __forceinline__ complex(T real, T imag = T(0)) : re(real), im(imag) {}
  friend __device__ __forceinline__ complex operator+(complex a, complex b) { return complex(a.re + b.re, a.im + b.im); }
  friend __device__ __forceinline__ complex operator-(complex a, complex b) { return complex(a.re - b.re, a.im - b.im); }
  friend __device__ __forceinline__ complex operator-(complex a) { return complex(-a.re, -a.im); }
  friend __device__ __forceinline__ complex operator*(complex a, complex b) { return complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re); }
  friend __device__ __forceinline__ bool operator==(complex a, complex b) { return a.re == b.re && a.im == b.im; }
  friend __device__ __forceinline__ bool operator!=(complex a, complex b) { return !(a == b); }
  // Smith's method: divide by the larger part first, so that squares neither overflow nor vanish.
  friend __device__ __forceinline__ complex operator/(complex a, complex b) {
    const bool wide = abs(b.re) >= abs(b.im);
    const T large = wide ? b.re : b.im, small = wide ? b.im : b.re;
    if (b.re == T(0) && b.im == T(0)) return complex(a.re / abs(large), a.im / abs(large));
    const T ratio = small / large, scale = T(1) / (large + small * ratio);
    const T x = wide ? a.re : a.im, y = wide ? a.im : a.re;
    const T re = (x + y * ratio) * scale, im = (y - x * ratio) * scale;
    return complex(re, wide ? im : -im);
  }
};

template <class T> struct TypeFacts<complex<T>> { static constexpr bool half = false, floating = true; };
template <class T> struct ComplexFacts { static constexpr bool is = false; using part = T; };
template <class T> struct ComplexFacts<complex<T>> { static constexpr bool is = true; using part = T; };
template <class To, class T> WEFT_DEVICE To convert(complex<T> v) {
  if constexpr (ComplexFacts<To>::is) return To(static_cast<typename ComplexFacts<To>::part>(v.re), static_cast<typename ComplexFacts<To>::part>(v.im));
  else if constexpr (SameType<To, bool>::value) return v.re != T(0) || v.im != T(0);
  else return convert<To>(v.re);
}

WEFT_DEVICE float hypotenuse(float a, float b) { return ::hypotf(a, b); }
WEFT_DEVICE double hypotenuse(double a, double b) { return ::hypot(a, b); }

namespace complex_math {
template <class T> WEFT_DEVICE complex<T> times_i(complex<T> z) { return complex<T>(-z.im, z.re); }
template <class T> WEFT_DEVICE complex<T> over_i(complex<T> z) { return complex<T>(z.im, -z.re); }
template <class T> WEFT_DEVICE complex<T> swapped(complex<T> z) { return complex<T>(z.im, z.re); }

template <class T> WEFT_DEVICE complex<T> reciprocal(complex<T> z) { return complex<T>(T(1)) / z; }
// 0 of anything infinite, even beside a NaN.
template <class T> WEFT_DEVICE complex<T> reciprocal_of_infinite(complex<T> z) {
  if (weft::isinf(z.re) || weft::isinf(z.im)) return complex<T>(weft::copysign(T(0), z.re), -weft::copysign(T(0), z.im));
  return reciprocal<T>(z);
}
// e^x times a sine or cosine, where e^x alone may overflow.
template <class T> WEFT_DEVICE complex<T> scaled_by_exp(T x, complex<T> z) {
  const T limit = sizeof(T) == 4 ? T(88) : T(709);
  if (!(weft::abs(x) > limit && weft::isfinite(x))) {
    const T size = weft::exp(x);
    return complex<T>(size * z.re, size * z.im);
  }
  const T half = weft::exp(x * T(0.5));
  return complex<T>(half * z.re * half, half * z.im * half);
}
template <class T> WEFT_DEVICE complex<T> exp(complex<T> z) {
  if (z.im == T(0)) return complex<T>(weft::exp(z.re), z.im);
  if (!weft::isfinite(z.im)) {
    if (weft::isinf(z.re)) return z.re < T(0) ? complex<T>(T(0), T(0)) : complex<T>(z.re, z.im - z.im);
    return complex<T>(z.im - z.im, z.im - z.im);
  }
  return scaled_by_exp<T>(z.re, complex<T>(weft::cos(z.im), weft::sin(z.im)));
}
template <class T> WEFT_DEVICE complex<T> exp2(complex<T> z) { return exp<T>(complex<T>(z.re * T(0.6931471805599453), z.im * T(0.6931471805599453))); }
template <class T> WEFT_DEVICE complex<T> expm1(complex<T> z) {
  const T half = weft::sin(z.im / T(2));
  return complex<T>(weft::expm1(z.re) * weft::cos(z.im) - T(2) * half * half, weft::exp(z.re) * weft::sin(z.im));
}
template <class T> WEFT_DEVICE complex<T> log(complex<T> z) { return complex<T>(weft::log(hypotenuse(z.re, z.im)), weft::atan2(z.im, z.re)); }
template <class T> WEFT_DEVICE complex<T> log2(complex<T> z) {
  const complex<T> y = log<T>(z);
  return complex<T>(y.re / T(0.6931471805599453), y.im / T(0.6931471805599453));
}
template <class T> WEFT_DEVICE complex<T> log10(complex<T> z) {
  const complex<T> y = log<T>(z);
  return complex<T>(y.re * T(0.4342944819032518), y.im * T(0.4342944819032518));
}
template <class T> WEFT_DEVICE complex<T> log1p(complex<T> z) {
  // |1 + z|^2 - 1 = re (2 + re) + im^2 keeps the digits of a small z.
  const T above = z.re * (T(2) + z.re) + z.im * z.im;
  const T real = weft::abs(above) < T(0.5) ? T(0.5) * weft::log1p(above) : weft::log(hypotenuse(T(1) + z.re, z.im));
  return complex<T>(real, weft::atan2(z.im, T(1) + z.re));
}
template <class T> WEFT_DEVICE complex<T> sqrt(complex<T> z) {
  if (z.re == T(0) && z.im == T(0)) return complex<T>(T(0), z.im);
  if (weft::isinf(z.im)) return complex<T>(infinity<T>(), z.im);
  if (weft::isnan(z.re)) return complex<T>(z.re, z.re);
  if (weft::isinf(z.re)) {
    const T other = z.im - z.im;  // 0, or NaN
    return z.re < T(0) ? complex<T>(weft::abs(other), weft::copysign(z.re, z.im)) : complex<T>(z.re, weft::copysign(other, z.im));
  }
  const T size = hypotenuse(z.re, z.im);
  const T large = weft::sqrt((size + weft::abs(z.re)) * T(0.5)), small = weft::abs(z.im) / (T(2) * large);
  return complex<T>(z.re >= T(0) ? large : small, weft::copysign(z.re >= T(0) ? small : large, z.im));
}
template <class T> WEFT_DEVICE complex<T> rsqrt(complex<T> z) { return reciprocal_of_infinite<T>(sqrt<T>(z)); }
// sinh and cosh of x + iy: (e^x times e^iy, minus or plus the same of -x) / 2 where only one of both counts, which may exist where cosh x overflows.
template <class T> WEFT_DEVICE complex<T> sinh(complex<T> z) {
  const T x = z.re, y = z.im;
  if (y == T(0)) return complex<T>(weft::sinh(x), weft::isnan(x) ? weft::copysign(T(0), y) : y);
  if (!weft::isfinite(y)) return x == T(0) ? complex<T>(x, y - y) : complex<T>(weft::isinf(x) ? x * x : y - y, y - y);
  if (weft::abs(x) > T(22)) {
    const complex<T> turn = scaled_by_exp<T>(weft::abs(x), complex<T>(T(0.5) * weft::cos(y), T(0.5) * weft::sin(y)));
    return complex<T>(weft::copysign(T(1), x) * turn.re, turn.im);
  }
  return complex<T>(weft::sinh(x) * weft::cos(y), weft::cosh(x) * weft::sin(y));
}
template <class T> WEFT_DEVICE complex<T> cosh(complex<T> z) {
  const T x = z.re, y = z.im;
  if (y == T(0)) return complex<T>(weft::cosh(x), weft::isnan(x) ? T(0) : weft::copysign(T(1), x) * y);
  if (!weft::isfinite(y)) return x == T(0) ? complex<T>(y - y, T(0)) : complex<T>(weft::isinf(x) ? x * x : y - y, y - y);
  if (weft::abs(x) > T(22)) {
    const complex<T> turn = scaled_by_exp<T>(weft::abs(x), complex<T>(T(0.5) * weft::cos(y), T(0.5) * weft::sin(y)));
    return complex<T>(turn.re, weft::copysign(T(1), x) * turn.im);
  }
  return complex<T>(weft::cosh(x) * weft::cos(y), weft::sinh(x) * weft::sin(y));
}
// Kahan, Branch cuts for complex elementary functions, 1987: by the tangent of y, which does not cancel near its poles.
template <class T> WEFT_DEVICE complex<T> tanh(complex<T> z) {
  const T x = z.re, y = z.im;
  if (weft::isnan(x)) return complex<T>(x, y == T(0) ? y : x);
  if (weft::isinf(x)) return complex<T>(weft::copysign(T(1), x), weft::copysign(T(0), weft::isfinite(y) ? weft::sin(y) * weft::cos(y) : y));
  if (!weft::isfinite(y)) return complex<T>(y - y, y - y);
  if (weft::abs(x) > T(22)) {
    const T small = weft::exp(-weft::abs(x));
    return complex<T>(weft::copysign(T(1), x), T(4) * weft::sin(y) * weft::cos(y) * small * small);
  }
  const T t = weft::tan(y), s = weft::sinh(x);
  const T beta = T(1) + t * t, rho = weft::sqrt(T(1) + s * s);
  if (weft::isinf(t)) return complex<T>(rho / s, T(1) / t);
  const T below = T(1) + beta * s * s;
  return complex<T>(beta * rho * s / below, t / below);
}
template <class T> WEFT_DEVICE complex<T> sin(complex<T> z) { return over_i<T>(sinh<T>(times_i<T>(z))); }
template <class T> WEFT_DEVICE complex<T> cos(complex<T> z) { return cosh<T>(times_i<T>(z)); }
template <class T> WEFT_DEVICE complex<T> tan(complex<T> z) { return over_i<T>(tanh<T>(times_i<T>(z))); }
// log(2 |x| + 2i |y|): what asinh and acosh are where 1 does not count beside z * z. Also of infinities.
template <class T> WEFT_DEVICE bool is_large(complex<T> z) {
  const T limit = sizeof(T) == 4 ? T(1e8) : T(1e16);
  return weft::abs(z.re) > limit || weft::abs(z.im) > limit;
}
template <class T> WEFT_DEVICE T log_of_double(complex<T> z) { return weft::log(hypotenuse(z.re * T(0.5), z.im * T(0.5))) + T(1.3862943611198906); }
template <class T> WEFT_DEVICE complex<T> asinh(complex<T> z) {
  if (weft::isnan(z.re) || weft::isnan(z.im)) {
    if (weft::isinf(z.re)) return complex<T>(z.re, z.im);
    if (weft::isinf(z.im)) return complex<T>(z.im, z.re);
    return complex<T>(z.re + z.im, z.im == T(0) ? z.im : z.re + z.im);
  }
  if (is_large<T>(z)) return complex<T>(weft::copysign(log_of_double<T>(z), z.re), weft::copysign(weft::atan2(weft::abs(z.im), weft::abs(z.re)), z.im));
  // asinh is odd; on the right half plane nothing cancels.
  const bool flip = weft::signbit(z.re);
  const complex<T> w = flip ? -z : z;
  const complex<T> root = sqrt<T>(complex<T>(T(1) - w.im, w.re)) * sqrt<T>(complex<T>(T(1) + w.im, -w.re));
  const complex<T> y = log<T>(w + root);
  return flip ? -y : y;
}
template <class T> WEFT_DEVICE complex<T> asin(complex<T> z) { return swapped<T>(asinh<T>(swapped<T>(z))); }
template <class T> WEFT_DEVICE complex<T> acos(complex<T> z) {
  if (weft::isnan(z.re) || weft::isnan(z.im)) {
    if (weft::isinf(z.re)) return complex<T>(z.im, -infinity<T>());
    if (weft::isinf(z.im)) return complex<T>(z.re, -z.im);
    return complex<T>(z.re == T(0) ? T(1.5707963267948966) : z.re + z.im, z.re + z.im);
  }
  if (is_large<T>(z)) return complex<T>(weft::abs(weft::atan2(z.im, z.re)), -weft::copysign(log_of_double<T>(z), z.im));
  const complex<T> y = asin<T>(z);
  return complex<T>(T(1.5707963267948966) - y.re, -y.im);
}
template <class T> WEFT_DEVICE complex<T> acosh(complex<T> z) {
  const complex<T> y = acos<T>(z);
  if (weft::isnan(y.im)) return complex<T>(y.im, weft::isnan(y.re) ? y.re : y.im);
  return complex<T>(weft::abs(y.im), weft::isnan(y.re) ? y.re : weft::copysign(y.re, z.im));
}
template <class T> WEFT_DEVICE complex<T> atanh(complex<T> z) {
  const T quarter = weft::copysign(T(1.5707963267948966), z.im);
  if (weft::isnan(z.re) || weft::isnan(z.im)) {
    if (weft::isinf(z.re)) return complex<T>(weft::copysign(T(0), z.re), z.im);
    if (weft::isinf(z.im)) return complex<T>(weft::copysign(T(0), z.re), quarter);
    return complex<T>(z.re == T(0) ? z.re : z.re + z.im, z.re + z.im);
  }
  if (is_large<T>(z)) {  // 1 / z
    const T size = hypotenuse(z.re, z.im);
    return complex<T>(weft::isfinite(size) ? z.re / size / size : weft::copysign(T(0), z.re), quarter);
  }
  const complex<T> y = log1p<T>(z) - log1p<T>(-z);
  return complex<T>(T(0.5) * y.re, T(0.5) * y.im);
}
template <class T> WEFT_DEVICE complex<T> atan(complex<T> z) { return swapped<T>(atanh<T>(swapped<T>(z))); }
template <class T> WEFT_DEVICE complex<T> sigmoid(complex<T> z) { return reciprocal_of_infinite<T>(complex<T>(T(1)) + exp<T>(-z)); }
template <class T> WEFT_DEVICE complex<T> silu(complex<T> z) { return z * sigmoid<T>(z); }
// The product in this order rounds as torch's does. What zeros give, 0^0 above all, are torch's NaNs.
template <class T> WEFT_DEVICE complex<T> pow(complex<T> a, complex<T> b) { return exp<T>(log<T>(a) * b); }
}  // namespace complex_math

#define WEFT_COMPLEX1(name)                                                                       \
  WEFT_DEVICE complex<float> name(complex<float> z) { return complex_math::name<float>(z); }      \
  WEFT_DEVICE complex<double> name(complex<double> z) { return complex_math::name<double>(z); }
WEFT_COMPLEX1(exp) WEFT_COMPLEX1(exp2) WEFT_COMPLEX1(expm1) WEFT_COMPLEX1(log) WEFT_COMPLEX1(log2) WEFT_COMPLEX1(log10) WEFT_COMPLEX1(log1p)
WEFT_COMPLEX1(sqrt) WEFT_COMPLEX1(rsqrt) WEFT_COMPLEX1(reciprocal) WEFT_COMPLEX1(sin) WEFT_COMPLEX1(cos) WEFT_COMPLEX1(tan) WEFT_COMPLEX1(sinh)
WEFT_COMPLEX1(cosh) WEFT_COMPLEX1(tanh) WEFT_COMPLEX1(asin) WEFT_COMPLEX1(acos) WEFT_COMPLEX1(atan) WEFT_COMPLEX1(asinh) WEFT_COMPLEX1(acosh)
WEFT_COMPLEX1(atanh) WEFT_COMPLEX1(sigmoid) WEFT_COMPLEX1(silu)
#undef WEFT_COMPLEX1
#define WEFT_COMPLEX_PARTS(T)                                                                                         \
  WEFT_DEVICE complex<T> pow(complex<T> a, complex<T> b) { return complex_math::pow<T>(a, b); }                       \
  WEFT_DEVICE complex<T> lerp(complex<T> a, complex<T> b, complex<T> weight) { return a + weight * (b - a); }         \
  WEFT_DEVICE T abs(complex<T> z) { return hypotenuse(z.re, z.im); }                                                  \
  WEFT_DEVICE T real(complex<T> z) { return z.re; }                                                                   \
  WEFT_DEVICE T imag(complex<T> z) { return z.im; }                                                                   \
  WEFT_DEVICE bool isreal(complex<T> z) { return z.im == T(0); }                                                      \
  WEFT_DEVICE bool isfinite(complex<T> z) { return isfinite(z.re) && isfinite(z.im); }                                \
  WEFT_DEVICE bool isinf(complex<T> z) { return isinf(z.re) || isinf(z.im); }                                         \
  WEFT_DEVICE bool isnan(complex<T> z) { return isnan(z.re) || isnan(z.im); }
WEFT_COMPLEX_PARTS(float) WEFT_COMPLEX_PARTS(double)
#undef WEFT_COMPLEX_PARTS

}  // namespace weft
