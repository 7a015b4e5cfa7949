// requires: lookup
// Writes at positions that index tensors give. Read first: is_position.
namespace weft {

// Whether element `at` of an axis exists. Nothing is written for one that does not, and what looks positions up says so where it does.
template <class T> WEFT_DEVICE bool is_position(T at, long long extent) {
  if ((unsigned long long)(long long)at < (unsigned long long)extent) return true;
  position<long long>(at, extent);
  return false;
}

// Of several values for one element the last one stays, in no order.
template <class T> WEFT_DEVICE void scatter_set(T* p, same<T> v) {
#if defined(WEFT_EMULATOR)
  store_strong(p, (T)v, 0, __builtin_LINE());  // also of 16 bytes
#else
  store_global(p, v);
#endif
}
template <class T> WEFT_DEVICE void scatter_add(T* p, same<T> v) { atomic_add(p, v); }
WEFT_DEVICE void scatter_add(long long* p, long long v) { atomic_add(reinterpret_cast<unsigned long long*>(p), (unsigned long long)v); }

}  // namespace weft
