// requires: reduce
// What kernels with pipelines add to the primitives: handing a stage back, and reductions of threads that meet at a named barrier.
// Read first: release_stage, reduce_group.
namespace weft {

#if defined(WEFT_EMULATOR) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// This thread has read (or written) what it needs of a stage. All lanes arrive: one for all, after a warp sync, is as fast (one H200, bf16 rows of 4096),
// and racecheck takes it for a race of the other lanes' reads with the next copy.
WEFT_DEVICE void release_stage(unsigned long long* barrier) { mbarrier_arrive(barrier); }
#endif

// Fold N values over `Threads` threads (whole warps) that meet at named barrier `barrier`; `thread` counts them. All get the result. One barrier.
// workspace: one T per warp and value; used again only after another barrier of these threads.
template <class Op, int N, int Threads, class T> WEFT_DEVICE void reduce_group(T (&values)[N], T* workspace, unsigned thread, int barrier) {
  constexpr unsigned warps = Threads / 32;
  const unsigned warp = thread / 32;
#pragma unroll
  for (int n = 0; n < N; n++) {
    values[n] = reduce_lanes<Op, 32>(values[n]);
    if (warps > 1 && thread % 32 == 0) store_shared(workspace + warp * N + n, values[n]);
  }
  if (warps == 1) return;
  named_sync(barrier, Threads);
#pragma unroll
  for (int n = 0; n < N; n++) {
    values[n] = load_shared(workspace + n);
#pragma unroll
    for (unsigned other = 1; other < warps; other++) values[n] = Op::combine(values[n], load_shared(workspace + other * N + n));
  }
}

// Fold N values over `rows` threads for each of `columns` others, any shape: this thread is (row, column). `threads` of them meet at `barrier`, twice.
// workspace: N values per thread.
template <class Op, int N, class T>
WEFT_DEVICE void reduce_table(T (&values)[N], T* workspace, unsigned row, unsigned rows, unsigned column, unsigned columns, int barrier, int threads) {
#pragma unroll
  for (int n = 0; n < N; n++) store_shared(workspace + (row * N + n) * columns + column, values[n]);
  named_sync(barrier, threads);
#pragma unroll
  for (int n = 0; n < N; n++) {
    values[n] = load_shared(workspace + n * columns + column);
    for (unsigned other = 1; other < rows; other++) values[n] = Op::combine(values[n], load_shared(workspace + (other * N + n) * columns + column));
  }
  named_sync(barrier, threads);
}

}  // namespace weft
