// requires: reduce
// Folds over groups of neighbours in a row, of which each element gets the result: within a thread, over lanes, over the warps of a block. Read first: fold_group.
namespace weft {

// Elements first .. first + N - 1 of an array, folded in halves: few combinations wait for each other.
template <class Op, int N, class T, int S> WEFT_DEVICE T fold_elements(const Array<T, S>& src, int first) {
  if constexpr (N == 1) return src.get(first);
  else return Op::combine(fold_elements<Op, N / 2>(src, first), fold_elements<Op, N - N / 2>(src, first + N / 2));
}

// Folds one value of each thread over groups of Lanes threads along x; the threads of a group get the result if `is_there`, on which they agree. All threads of
// the block call this. Near: the lanes of a group that shuffles fold, the largest power of two that divides Lanes and a warp. What is left meets in `workspace`,
// with one value for every Near threads of the block.
template <class Op, int Lanes, int Near, class T> WEFT_DEVICE T fold_threads(T value, bool is_there, T* workspace) {
  if constexpr (Near > 1) value = reduce_lanes<Op, Near>(value);
  if constexpr (Lanes > Near) {
    const unsigned thread = linear_thread(), first = thread - threadIdx.x % Lanes;
    block_sync();  // others may still read what the workspace had before
    if (thread % Near == 0) store_shared(workspace + thread / Near, value);
    block_sync();
    if (is_there) {
      value = load_shared(workspace + first / Near);
#pragma unroll 8
      for (unsigned n = 1; n < Lanes / Near; n++) value = Op::combine(value, load_shared(workspace + first / Near + n));
    }
  }
  return value;
}

// Each of N elements gets the fold of its group. Lanes > 1: N elements each of so many neighbouring threads are a group; else the N elements are N / Group groups.
template <class Op, int N, int Group, int Lanes, int Near, class T, int M, int S>
WEFT_DEVICE void fold_group(Array<T, M>& dst, int dst_offset, const Array<T, S>& src, int src_offset, bool is_there, T identity, T* workspace) {
  constexpr int IN_THREAD = Lanes > 1 ? N : Group;
#pragma unroll
  for (int first = 0; first < N; first += IN_THREAD) {
    T folded = identity;
    if (is_there) folded = fold_elements<Op, IN_THREAD>(src, src_offset + first);
    folded = fold_threads<Op, Lanes, Near>(folded, is_there, workspace);
#pragma unroll
    for (int i = 0; i < IN_THREAD; i++) dst[dst_offset + first + i] = folded;
  }
}

}  // namespace weft
