// requires: reduce
// Running folds across the threads of a block, piece after piece of a row. Read first: scan_row.
namespace weft {

// What a row's pieces so far fold to. odd: which half of the workspace the next piece takes, so that one barrier per piece is enough.
template <class T> struct Carry {
  T value;
  bool odd;
};

// Let each value be the fold of all values of the row up to it. A thread has N neighbours of the row; threads along x follow each other, in whole warps.
// workspace: two T per warp.
template <class Op, int N, class T> WEFT_DEVICE void scan_row(T (&values)[N], Carry<T>& carry, T* workspace) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int n = 1; n < N; n++) values[n] = Op::combine(values[n - 1], values[n]);
  T total = values[N - 1];
#pragma unroll
  for (unsigned offset = 1; offset < 32; offset *= 2) {
    const T other = shuffle_index(total, lane >= offset ? (int)(lane - offset) : (int)lane);
    if (lane >= offset) total = Op::combine(other, total);
  }
  const T before = shuffle_index(total, lane ? (int)lane - 1 : 0);
  T* const mine = workspace + (carry.odd ? warps : 0);
  if (lane == 31) store_shared(mine + warp, total);
  block_sync();
  T prefix = carry.value, all = carry.value;
  for (unsigned w = 0; w < warps; w++) {
    if (w == warp) prefix = all;
    all = Op::combine(all, load_shared(mine + w));
  }
  carry.value = all;
  carry.odd = !carry.odd;
  if (lane) prefix = Op::combine(prefix, before);
#pragma unroll
  for (int n = 0; n < N; n++) values[n] = Op::combine(prefix, values[n]);
}

// The same down columns, one for each thread along x: threads along y follow each other. workspace: two T per thread.
template <class Op, int N, class T> WEFT_DEVICE void scan_column(T (&values)[N], Carry<T>& carry, T* workspace) {
#pragma unroll
  for (int n = 1; n < N; n++) values[n] = Op::combine(values[n - 1], values[n]);
  T* const mine = workspace + (carry.odd ? blockDim.x * blockDim.y : 0) + threadIdx.x;
  store_shared(mine + threadIdx.y * blockDim.x, values[N - 1]);
  block_sync();
  T prefix = carry.value, all = carry.value;
#pragma unroll 8
  for (unsigned y = 0; y < blockDim.y; y++) {
    if (y == threadIdx.y) prefix = all;
    all = Op::combine(all, load_shared(mine + y * blockDim.x));
  }
  carry.value = all;
  carry.odd = !carry.odd;
#pragma unroll
  for (int n = 0; n < N; n++) values[n] = Op::combine(prefix, values[n]);
}

}  // namespace weft
