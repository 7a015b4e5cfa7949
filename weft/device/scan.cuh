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

// ---- rows that several blocks share, along y: what the pieces of a block fold to, and what those of the blocks before do

// Fold a piece into what this thread has of its block's total.
template <class Op, int N, class T> WEFT_DEVICE void fold_piece(const T (&values)[N], T& total) {
  T own = values[0];
#pragma unroll
  for (int n = 1; n < N; n++) own = Op::combine(own, values[n]);
  total = Op::combine(total, own);
}

// Fold the totals of all threads and store the result in totals[row, block]. workspace: as for scan_row.
template <class Op, class T> WEFT_DEVICE void hand_over_row(T total, T* totals, T* workspace) {
  const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
  for (unsigned mask = 16; mask > 0; mask /= 2) total = Op::combine(total, shuffle_index(total, (int)(lane ^ mask)));
  if (lane == 0) store_shared(workspace + threadIdx.x / 32, total);
  block_sync();
  if (threadIdx.x == 0) {
    T all = load_shared(workspace);
    for (unsigned w = 1; w < warps; w++) all = Op::combine(all, load_shared(workspace + w));
    store_global(totals + (blockIdx.x * gridDim.y + blockIdx.y), all);
  }
}

// Let a row's scan begin with the totals of the blocks before. Every warp computes the same. identity: of the fold.
template <class Op, class T> WEFT_DEVICE void take_row(Carry<T>& carry, const T* totals, T identity) {
  const unsigned lane = threadIdx.x % 32;
  T before = identity;
  for (unsigned block = lane; block < blockIdx.y; block += 32) before = Op::combine(before, load_global(totals + (blockIdx.x * gridDim.y + block)));
#pragma unroll
  for (unsigned mask = 16; mask > 0; mask /= 2) before = Op::combine(before, shuffle_index(before, (int)(lane ^ mask)));
  carry.value = Op::combine(carry.value, before);
}

// The same for columns, one for each thread along x: totals[column, block]. workspace: as for scan_column.
template <class Op, class T> WEFT_DEVICE void hand_over_column(T total, T* totals, T* workspace) {
  store_shared(workspace + threadIdx.y * blockDim.x + threadIdx.x, total);
  block_sync();
  if (threadIdx.y == 0) {
    T all = load_shared(workspace + threadIdx.x);
    for (unsigned y = 1; y < blockDim.y; y++) all = Op::combine(all, load_shared(workspace + y * blockDim.x + threadIdx.x));
    store_global(totals + ((blockIdx.x * blockDim.x + threadIdx.x) * gridDim.y + blockIdx.y), all);
  }
}

template <class Op, class T> WEFT_DEVICE void take_column(Carry<T>& carry, const T* totals, T identity) {
  const T* const own = totals + (blockIdx.x * blockDim.x + threadIdx.x) * gridDim.y;
  T before = identity;
#pragma unroll 8
  for (unsigned block = 0; block < blockIdx.y; block++) before = Op::combine(before, load_global(own + block));
  carry.value = Op::combine(carry.value, before);
}

}  // namespace weft
