// Positions that index tensors give. Read first: position.
namespace weft {

// Element `at` of an axis, as an index of type Index. One that is out of range is an error in the emulator, and element 0 otherwise: no access is wild.
#if defined(WEFT_EMULATOR)
template <class Index, class T> WEFT_DEVICE Index position(T at, long long extent, WEFT_LINE) {
  if ((unsigned long long)(long long)at >= (unsigned long long)extent) weft_emu_bad_position(at, extent, line);
  return (Index)at;
}
#else
template <class Index, class T> WEFT_DEVICE Index position(T at, long long extent) {
  return (unsigned long long)(long long)at < (unsigned long long)extent ? (Index)at : (Index)0;
}
#endif

}  // namespace weft
