// requires: math
// Random numbers: Philox4x32-10, keyed and counted as torch does. The element with linear index i of the random op whose offset is o takes
// component i % 4 of philox(seed, i / 4, o) (32-bit floats), or component i % 2 of philox(seed, i / 2, o) (doubles).
// Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011). Read first: philox, uniform_float4.
namespace weft {

struct Philox4 { unsigned x, y, z, w; };

// Ten rounds over Calls counters that share a key; the subsequences are consecutive. One call's keys serve all of them.
template <int Calls> WEFT_DEVICE void philox_calls(Philox4 (&out)[Calls], unsigned long long seed, unsigned long long subsequence, unsigned long long offset) {
#pragma unroll
  for (int call = 0; call < Calls; call++) {
    out[call].x = static_cast<unsigned>(offset), out[call].y = static_cast<unsigned>(offset >> 32);
    out[call].z = static_cast<unsigned>(subsequence + call), out[call].w = static_cast<unsigned>((subsequence + call) >> 32);
  }
  unsigned key_x = static_cast<unsigned>(seed), key_y = static_cast<unsigned>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
#pragma unroll
    for (int call = 0; call < Calls; call++) {
      Philox4& c = out[call];
      const unsigned long long first = 0xd2511f53ull * c.x, second = 0xcd9e8d57ull * c.z;  // one wide multiplication each
      c.x = static_cast<unsigned>(second >> 32) ^ c.y ^ key_x;
      c.y = static_cast<unsigned>(second);
      c.z = static_cast<unsigned>(first >> 32) ^ c.w ^ key_y;
      c.w = static_cast<unsigned>(first);
    }
    key_x += 0x9e3779b9u;
    key_y += 0xbb67ae85u;
  }
}

// Ten rounds over the counter (offset, subsequence) with the key `seed`; each is 64 bits, low word first.
WEFT_DEVICE Philox4 philox(unsigned long long seed, unsigned long long subsequence, unsigned long long offset) {
  unsigned x = static_cast<unsigned>(offset), y = static_cast<unsigned>(offset >> 32);
  unsigned z = static_cast<unsigned>(subsequence), w = static_cast<unsigned>(subsequence >> 32);
  unsigned key_x = static_cast<unsigned>(seed), key_y = static_cast<unsigned>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned long long first = 0xd2511f53ull * x, second = 0xcd9e8d57ull * z;  // one wide multiplication each
    x = static_cast<unsigned>(second >> 32) ^ y ^ key_x;
    y = static_cast<unsigned>(second);
    z = static_cast<unsigned>(first >> 32) ^ w ^ key_y;
    w = static_cast<unsigned>(first);
    key_x += 0x9e3779b9u;
    key_y += 0xbb67ae85u;
  }
  return Philox4{x, y, z, w};
}

WEFT_DEVICE unsigned philox_word(const Philox4& bits, unsigned component) {
  const unsigned even = component & 2 ? bits.z : bits.x, odd = component & 2 ? bits.w : bits.y;
  return component & 1 ? odd : even;
}

// ---- distributions from bits: uniform in [0, 1). A float is rounded towards zero, so that it never becomes 1 and needs no test for it.
WEFT_DEVICE float float_towards_zero(unsigned x) {
#if defined(WEFT_EMULATOR)
  const float y = static_cast<float>(x);
  return static_cast<double>(y) > static_cast<double>(x) ? ::nextafterf(y, 0.f) : y;
#else
  return __uint2float_rz(x);
#endif
}
WEFT_DEVICE float uniform_of_bits(unsigned x) { return float_towards_zero(x) * 2.3283064365386963e-10f; }
WEFT_DEVICE double uniform_of_bits(unsigned low, unsigned high) {
  const unsigned long long z = low ^ (static_cast<unsigned long long>(high) << 21);
  const double y = static_cast<double>(z) * 1.1102230246251565e-16 + 5.551115123125783e-17;
  return y == 1. ? 0. : y;
}
// [low, high), or (high, low]: what rounds to `high` becomes `low`
template <class T> WEFT_DEVICE T to_range(T y, T low, T high) {
  if (low == T(0) && high == T(1)) return y;  // decided at compile time for literal bounds
  const T scaled = low + (high - low) * y;
  return (low < high ? scaled < high : scaled > high) ? scaled : low;
}

// Box and Muller's pair of normal numbers; u is in (0, 1].
WEFT_DEVICE void normal_of_bits(unsigned x, unsigned y, float& first, float& second) {
  const float u = static_cast<float>(x) * 2.3283064365386963e-10f + 1.1641532182693481e-10f;
  const float v = static_cast<float>(y) * 1.4629180792671596e-09f + 7.314590396335798e-10f;
  const float radius = ::sqrtf(-2.f * ::logf(u));
#ifdef WEFT_EMULATOR
  first = ::sinf(v) * radius;
  second = ::cosf(v) * radius;
#else
  first = __sinf(v) * radius;
  second = __cosf(v) * radius;
#endif
}
WEFT_DEVICE void normal_of_bits(const Philox4& bits, double& first, double& second) {
  const unsigned long long a = bits.x ^ (static_cast<unsigned long long>(bits.y) << 21), b = bits.z ^ (static_cast<unsigned long long>(bits.w) << 21);
  const double u = static_cast<double>(a) * 1.1102230246251565e-16 + 5.551115123125783e-17;
  const double v = (static_cast<double>(b) * 2.220446049250313e-16 + 1.1102230246251565e-16) * 3.141592653589793;
  const double radius = ::sqrt(-2. * ::log(u));
  first = ::sin(v) * radius;
  second = ::cos(v) * radius;
}

// ---- one number, at any index
WEFT_DEVICE float uniform_float(unsigned long long seed, unsigned long long offset, unsigned long long index) {
  return uniform_of_bits(philox_word(philox(seed, index / 4, offset), static_cast<unsigned>(index) & 3));
}
WEFT_DEVICE float uniform_float(unsigned long long seed, unsigned long long offset, unsigned long long index, float low, float high) {
  return to_range<float>(uniform_float(seed, offset, index), low, high);
}
WEFT_DEVICE float normal_float(unsigned long long seed, unsigned long long offset, unsigned long long index, float mean = 0.f, float deviation = 1.f) {
  const Philox4 bits = philox(seed, index / 4, offset);
  float first, second;
  normal_of_bits(index & 2 ? bits.z : bits.x, index & 2 ? bits.w : bits.y, first, second);
  return mean + deviation * (index & 1 ? second : first);
}
WEFT_DEVICE double uniform_double(unsigned long long seed, unsigned long long offset, unsigned long long index) {
  const Philox4 bits = philox(seed, index / 2, offset);
  return index & 1 ? uniform_of_bits(bits.z, bits.w) : uniform_of_bits(bits.x, bits.y);
}
WEFT_DEVICE double uniform_double(unsigned long long seed, unsigned long long offset, unsigned long long index, double low, double high) {
  return to_range<double>(uniform_double(seed, offset, index), low, high);
}
WEFT_DEVICE double normal_double(unsigned long long seed, unsigned long long offset, unsigned long long index, double mean = 0., double deviation = 1.) {
  double first, second;
  normal_of_bits(philox(seed, index / 2, offset), first, second);
  return mean + deviation * (index & 1 ? second : first);
}

// ---- all numbers of one Philox call: `index` is a multiple of 4 (2 for doubles)
template <int N, int M>
WEFT_DEVICE void uniform_floats(Array<float, M>& dst, int dst_offset, unsigned long long seed, unsigned long long offset, unsigned long long index, float low = 0.f, float high = 1.f) {
  static_assert(N % 4 == 0, "a Philox call makes four floats");
  Philox4 bits[N / 4];
  philox_calls<N / 4>(bits, seed, index / 4, offset);
#pragma unroll
  for (int call = 0; call < N / 4; call++) {
    dst[dst_offset + 4 * call] = to_range<float>(uniform_of_bits(bits[call].x), low, high);
    dst[dst_offset + 4 * call + 1] = to_range<float>(uniform_of_bits(bits[call].y), low, high);
    dst[dst_offset + 4 * call + 2] = to_range<float>(uniform_of_bits(bits[call].z), low, high);
    dst[dst_offset + 4 * call + 3] = to_range<float>(uniform_of_bits(bits[call].w), low, high);
  }
}
template <int M>
WEFT_DEVICE void uniform_float4(Array<float, M>& dst, int dst_offset, unsigned long long seed, unsigned long long offset, unsigned long long index, float low = 0.f, float high = 1.f) {
  const Philox4 bits = philox(seed, index / 4, offset);
  dst[dst_offset] = to_range<float>(uniform_of_bits(bits.x), low, high);
  dst[dst_offset + 1] = to_range<float>(uniform_of_bits(bits.y), low, high);
  dst[dst_offset + 2] = to_range<float>(uniform_of_bits(bits.z), low, high);
  dst[dst_offset + 3] = to_range<float>(uniform_of_bits(bits.w), low, high);
}
template <int M>
WEFT_DEVICE void normal_float4(Array<float, M>& dst, int dst_offset, unsigned long long seed, unsigned long long offset, unsigned long long index, float mean = 0.f, float deviation = 1.f) {
  const Philox4 bits = philox(seed, index / 4, offset);
  float a, b, c, d;
  normal_of_bits(bits.x, bits.y, a, b);
  normal_of_bits(bits.z, bits.w, c, d);
  dst[dst_offset] = mean + deviation * a;
  dst[dst_offset + 1] = mean + deviation * b;
  dst[dst_offset + 2] = mean + deviation * c;
  dst[dst_offset + 3] = mean + deviation * d;
}
template <int M>
WEFT_DEVICE void uniform_double2(Array<double, M>& dst, int dst_offset, unsigned long long seed, unsigned long long offset, unsigned long long index, double low = 0., double high = 1.) {
  const Philox4 bits = philox(seed, index / 2, offset);
  dst[dst_offset] = to_range<double>(uniform_of_bits(bits.x, bits.y), low, high);
  dst[dst_offset + 1] = to_range<double>(uniform_of_bits(bits.z, bits.w), low, high);
}
template <int M>
WEFT_DEVICE void normal_double2(Array<double, M>& dst, int dst_offset, unsigned long long seed, unsigned long long offset, unsigned long long index, double mean = 0., double deviation = 1.) {
  double first, second;
  normal_of_bits(philox(seed, index / 2, offset), first, second);
  dst[dst_offset] = mean + deviation * first;
  dst[dst_offset + 1] = mean + deviation * second;
}

}  // namespace weft
