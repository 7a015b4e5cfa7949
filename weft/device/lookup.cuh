// Positions that index tensors give. Read first: position.
namespace weft {

// Element `at` of an axis, as an index of type Index. One that is out of range is an error in the emulator, and element 0 otherwise: no access is wild.
// With the setting `bounds` a GPU tells the host of it, too.
#if defined(WEFT_EMULATOR)
template <class Index, class T> WEFT_DEVICE Index position(T at, long long extent, WEFT_LINE) {
  if ((unsigned long long)(long long)at >= (unsigned long long)extent) weft_emu_bad_position(at, extent, line);
  return (Index)at;
}
#elif defined(WEFT_BOUNDS)
// The setting `bounds`: memory of the host that tells of the first position out of range since the host looked last (weft.runtime.bounds).
extern "C" { __device__ unsigned* weft_bounds_report; }

WEFT_DEVICE void report_position(long long at, long long extent) {
  unsigned* report = weft_bounds_report;
  if (atomicCAS_system(report, 0u, 1u) != 0u) return;
  volatile long long* numbers = reinterpret_cast<volatile long long*>(report + 2);
  numbers[0] = at;
  numbers[1] = extent;
  __threadfence_system();
  *reinterpret_cast<volatile unsigned*>(report + 1) = 1u;
}

template <class Index, class T> WEFT_DEVICE Index position(T at, long long extent) {
  const bool is_inside = (unsigned long long)(long long)at < (unsigned long long)extent;
  if (!is_inside) report_position((long long)at, extent);
  return is_inside ? (Index)at : (Index)0;
}
#else
template <class Index, class T> WEFT_DEVICE Index position(T at, long long extent) {
  return (unsigned long long)(long long)at < (unsigned long long)extent ? (Index)at : (Index)0;
}
#endif

// Where a bag begins or ends: a number from 0 to the length of its order.
template <class Index> WEFT_DEVICE Index bag_limit(long long at, long long count) {
  return at < 0 ? (Index)0 : at > count ? (Index)count : (Index)at;
}

// An index that is at least 0 and below `count`: the compiler relies on it, and the emulator checks it. A function would be inlined too late.
#if defined(WEFT_EMULATOR)
#define WEFT_ASSUME_BELOW(at, count) weft::position<long long>(at, count)
#else
#define WEFT_ASSUME_BELOW(at, count) __builtin_assume((at) >= 0 && (at) < (count))
#endif

}  // namespace weft
