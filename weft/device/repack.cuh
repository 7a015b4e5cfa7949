// Keeps arrays of elements of 16 bits and fewer packed. The compiler otherwise converts an element once and keeps the wide value for a later use.
namespace weft {

// From here on the words of the array are values that the compiler knows nothing about.
template <class T, int N> WEFT_DEVICE void repack(Array<T, N>& array) {
#if !defined(WEFT_EMULATOR)
#pragma unroll
  for (int i = 0; i < (int)(sizeof(array.words) / sizeof(unsigned)); i++) asm volatile("" : "+r"(array.words[i]));
#endif
}

}  // namespace weft
