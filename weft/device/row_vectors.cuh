// requires: shifted
// Rows that begin anywhere, loaded in aligned vectors by the lanes of a warp, which hand each other what lies in two vectors. Read first: load_row_vector.
namespace weft {

// The bytes from `first` on of low followed by high, in place of low. first: less than Bytes, a multiple of Step.
template <int Bytes, int Step> WEFT_DEVICE void bytes_from(unsigned* low, const unsigned* high, unsigned first) {
  constexpr int words = Bytes / 4;
  unsigned both[2 * words];
#pragma unroll
  for (int i = 0; i < words; i++) both[i] = low[i], both[words + i] = high[i];
#pragma unroll
  for (int apart = words / 2; 4 * apart >= Step && apart > 0; apart /= 2) {
#pragma unroll
    for (int i = 0; i < 2 * words - apart; i++) both[i] = first & 4 * apart ? both[i + apart] : both[i];
  }
#pragma unroll
  for (int i = 0; i < words; i++) low[i] = Step < 4 ? funnel_right(both[i], both[i + 1], first % 4 * 8) : both[i];
}

// Loads the aligned vector at `unit` if it has some of the elements [first, end).
template <int N, Cache C, class T> WEFT_DEVICE void load_unit(unsigned* words, const T* unit, const T* first, const T* end) {
#if defined(WEFT_EMULATOR)  // nothing beside these elements, of which the chip throws the rest away
  for (int i = 0; i < N; i++) {
    if (unit + i < first || unit + i >= end) continue;
    const T element = load_global<C>(unit + i);
    __builtin_memcpy(reinterpret_cast<char*>(words) + i * sizeof(T), &element, sizeof(T));
  }
#else
  if (unit < end && unit + N > first) load_words<N * sizeof(T), C>(words, unit);
#endif
}

// Loads the N elements from p on. All lanes execute it, and `Lanes` neighbours load neighbouring vectors of one row. left: elements of the row from p on, so
// that it falls by N from lane to lane, below zero too; -N or less in a lane that has no row. What is beyond the row has any value.
template <int N, int Lanes, Cache C = Cache::unspecified, class T, int M>
WEFT_DEVICE void load_row_vector(Array<T, M>& dst, int dst_offset, const T* p, int left) {
  constexpr int bytes = N * sizeof(T);
  const unsigned skipped = static_cast<unsigned>(reinterpret_cast<unsigned long long>(p) % bytes);
  const T* const unit = p - skipped / sizeof(T);
  const unsigned place = lane() % Lanes;
  unsigned low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
  load_unit<N, C>(low, unit, place == 0 ? p : unit, p + left);
#pragma unroll
  for (int i = 0; i < bytes / 4; i++) high[i] = shuffle_down(low[i], 1);
  if (place == Lanes - 1 && skipped) load_unit<N, C>(high, unit + N, unit + N, p + left);
  bytes_from<bytes, sizeof(T)>(low, high, skipped);
#if defined(WEFT_EMULATOR)
  __builtin_memcpy(dst.target(dst_offset, N), low, bytes);
#else
  array_from_words<N>(dst, dst_offset, low);
#endif
}

}  // namespace weft
