// requires:
// Reductions across the threads of a block and across the blocks of a grid. Every result is valid in all threads that took part.
// Read first: reduce_rows (whole warps), reduce_tree (any shape), reduce_grid.
namespace weft {

#ifndef WEFT_DEVICE
#ifdef WEFT_EMULATOR
#define WEFT_DEVICE static inline
#else
#define WEFT_DEVICE static __device__ __forceinline__
#endif
#endif

template <int N> struct Parts { unsigned long long part[N]; };

// ---- monoids: combine and identity
struct Sum {
  template <class T> WEFT_DEVICE T combine(T a, T b) { return a + b; }
};
struct Prod {
  template <class T> WEFT_DEVICE T combine(T a, T b) { return a * b; }
};
struct Max {  // a NaN wins, as in torch
  template <class T> WEFT_DEVICE T combine(T a, T b) { return a > b || a != a ? a : b; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !defined(WEFT_EMULATOR)
  WEFT_DEVICE float combine(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
#elif defined(WEFT_EMULATOR)  // of two zeros, as the instruction has it
  WEFT_DEVICE float combine(float a, float b) { return a > b || a != a || (a == b && !__builtin_signbit(a)) ? a : b; }
#endif
};
struct Min {
  template <class T> WEFT_DEVICE T combine(T a, T b) { return a < b || a != a ? a : b; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !defined(WEFT_EMULATOR)
  WEFT_DEVICE float combine(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
  }
#elif defined(WEFT_EMULATOR)
  WEFT_DEVICE float combine(float a, float b) { return a < b || a != a || (a == b && __builtin_signbit(a)) ? a : b; }
#endif
};
struct Or {
  template <class T> WEFT_DEVICE T combine(T a, T b) { return a | b; }
};
struct And {
  template <class T> WEFT_DEVICE T combine(T a, T b) { return a & b; }
};

// A monoid of several fields may know a quicker way for lanes than to combine states: all_lanes<Width>(state).
template <class Op, class T> WEFT_DEVICE constexpr auto has_all_lanes(int) -> decltype(Op::template all_lanes<32>(T()), bool()) { return true; }
template <class Op, class T> WEFT_DEVICE constexpr bool has_all_lanes(long) { return false; }
// One for threads that hold columns, all_columns<Tree>(states, workspace): Tree::fold folds numbers as the states are to be folded.
template <class Tree, class Op, int N, class T> WEFT_DEVICE constexpr auto has_all_columns(int)
    -> decltype(Op::template all_columns<Tree>(*(T (*)[N])nullptr, (T*)nullptr), bool()) { return true; }
template <class Tree, class Op, int N, class T> WEFT_DEVICE constexpr bool has_all_columns(long) { return false; }
// And one for many states in shared memory, which the lanes of a warp fold: all_entries(entries, stride, count, lane).
template <class Op, class T> WEFT_DEVICE constexpr auto has_all_entries(int) -> decltype(Op::all_entries((const T*)nullptr, 1u, 1u, 0u), bool()) { return true; }
template <class Op, class T> WEFT_DEVICE constexpr bool has_all_entries(long) { return false; }

// Fold over groups of Width neighbouring lanes (a power of two up to 32); all lanes get the result.
template <class Op, int Width, class T> WEFT_DEVICE T reduce_lanes(T value) {
  if constexpr (has_all_lanes<Op, T>(0)) return Op::template all_lanes<Width>(value);
#if defined(WEFT_EMULATOR) && !defined(WEFT_CHECK_RACES)  // the lanes meet once; with all checks, the text of the GPU runs
  return fold_lanes<Op, Width>(value);
#else
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) value = Op::combine(value, shuffle_xor(value, offset));
  return value;
#endif
}

// The threads of the block in x-fastest order.
WEFT_DEVICE unsigned linear_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

// Fold N values over runs of `run_threads` consecutive threads (a multiple of 32): along x, along x and y, or over the whole block. One barrier.
// workspace: one T per warp and value. trailing: another barrier, for a call in a loop. Alone: the block is one run along x.
// hand_over_rows and take_rows are its two halves; what stands between them is done while other warps still come.
template <class Op, int N, bool Alone = false, class T> WEFT_DEVICE void hand_over_rows(T (&values)[N], T* workspace) {
  const unsigned thread = Alone ? threadIdx.x : linear_thread(), lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int n = 0; n < N; n++) {
    values[n] = reduce_lanes<Op, 32>(values[n]);
    if (lane == 0) store_shared(workspace + warp * N + n, values[n]);
  }
}
template <class Op, int N, bool Alone = false, class T> WEFT_DEVICE void take_rows(T (&values)[N], T identity, T* workspace, unsigned run_threads) {
  const unsigned thread = Alone ? threadIdx.x : linear_thread(), lane = thread % 32, warp = thread / 32;
  const unsigned warps = run_threads / 32, first = !Alone && run_threads == blockDim.x ? (thread - threadIdx.x) / 32 :
    Alone || run_threads == blockDim.x * blockDim.y * blockDim.z ? 0 : warp / warps * warps;  // the run's first warp
  block_sync();
#pragma unroll
  for (int n = 0; n < N; n++) {
    T value = lane < warps ? load_shared(workspace + (first + lane) * N + n) : identity;
    if constexpr (has_all_lanes<Op, T>(0)) {
      values[n] = reduce_lanes<Op, 32>(value);
      continue;
    }
#if defined(WEFT_EMULATOR) && !defined(WEFT_CHECK_RACES)  // the lanes meet once; with all checks, the text of the GPU runs
    values[n] = fold_first_lanes<Op>(value, warps);
#else
    if (warps > 16) value = Op::combine(value, shuffle_xor(value, 16));
    if (warps > 8) value = Op::combine(value, shuffle_xor(value, 8));
    if (warps > 4) value = Op::combine(value, shuffle_xor(value, 4));
    if (warps > 2) value = Op::combine(value, shuffle_xor(value, 2));
    if (warps > 1) value = Op::combine(value, shuffle_xor(value, 1));
    values[n] = shuffle_index(value, 0);
#endif
  }
}
template <class Op, int N, bool Trailing, bool Alone = false, class T>
WEFT_DEVICE void reduce_rows(T (&values)[N], T identity, T* workspace, unsigned run_threads) {
  hand_over_rows<Op, N, Alone>(values, workspace);
  take_rows<Op, N, Alone>(values, identity, workspace, run_threads);
  if (Trailing) block_sync();
}

// Fold N values over the block dimensions X, Y, Z that are true, for any block shape. workspace: N + 2 values per thread.
// Where lanes of a warp hold the same column, shuffles fold them first. Then values lie by row (of the folded threads or warps) and column (kept thread and
// value). Where there are more threads along a column than values, neighbouring lanes fold a column each group, with two barriers; up to 32 rows are folded
// one behind the other, by threads that share the values; else rows are halved, with one barrier each. BX, BY, BZ: the block's shape where the text knows
// it, which leaves no division.
template <class Op, int N, bool X, bool Y, bool Z, unsigned BX, unsigned BY, unsigned BZ, class T>
WEFT_DEVICE void reduce_tree_of_states(T (&values)[N], T* workspace) {
  const unsigned bx = BX ? BX : blockDim.x, by = BY ? BY : blockDim.y, bz = BZ ? BZ : blockDim.z;
  const unsigned nx = X ? bx : 1, ny = Y ? by : 1, nz = Z ? bz : 1;
  const unsigned folded = (X ? threadIdx.x : 0) + nx * ((Y ? threadIdx.y : 0) + ny * (Z ? threadIdx.z : 0));
  const unsigned kx = X ? 1 : bx, ky = Y ? 1 : by, kz = Z ? 1 : bz;
  const unsigned kept = (X ? 0 : threadIdx.x) + kx * ((Y ? 0 : threadIdx.y) + ky * (Z ? 0 : threadIdx.z));
  const unsigned count = nx * ny * nz, segments = kx * ky * kz, columns = N * segments;
  unsigned in_warp = 1;  // rows of a warp that shuffles fold
  if (!X && Y && !Z && bz == 1 && bx < 32 && 32 % bx == 0 && bx * by % 32 == 0) {
    in_warp = 32 / bx;
    for (unsigned offset = bx; offset < 32; offset *= 2) {
#pragma unroll
      for (int n = 0; n < N; n++) values[n] = Op::combine(values[n], shuffle_xor(values[n], static_cast<int>(offset)));
    }
  }
  const unsigned rows = count / in_warp;
  const bool in_lanes = count >= 2 * N && count * segments % 32 == 0;
  unsigned shift = 0;
  while (shift < 5 && (2u << shift) * N <= count) shift++;
  const unsigned lanes = 1u << shift;  // that fold a column
  // A row is longer than its columns: neighbouring groups of lanes, which read a column of several rows each, find them in different banks.
  const unsigned apart = ((32 >> shift) + 32 - columns % 32) % 32, stride = columns + (apart <= segments * in_warp ? apart : segments);
  if (folded % in_warp == 0) {
#pragma unroll
    for (int n = 0; n < N; n++) store_shared(workspace + folded / in_warp * stride + n * segments + kept, values[n]);
  }
  block_sync();
  T* result = workspace;
  if (in_lanes) {
    result = workspace + count * (columns + segments);
    const unsigned thread = threadIdx.x + bx * (threadIdx.y + by * threadIdx.z), lane = thread & (lanes - 1), column = thread >> shift;
    T part = values[0];
    if (column < columns && lane < rows) {
      part = load_shared(workspace + lane * stride + column);
      for (unsigned row = lane + lanes; row < rows; row += lanes) part = Op::combine(part, load_shared(workspace + row * stride + column));
    }
    const unsigned filled = lanes < rows ? lanes : rows;
#pragma unroll
    for (unsigned offset = 16; offset > 0; offset /= 2) {
      const T other = shuffle_xor(part, static_cast<int>(offset));
      if (offset < lanes && (lane ^ offset) < filled && lane < filled) part = Op::combine(part, other);
    }
    if (column < columns && lane == 0) store_shared(result + column, part);
    block_sync();
  } else if (rows <= 32) {
    for (unsigned n = folded % in_warp == 0 ? folded / in_warp : N; n < N; n += rows) {
      T* mine = workspace + n * segments + kept;
      T part = load_shared(mine);
#pragma unroll 8
      for (unsigned row = 1; row < rows; row++) part = Op::combine(part, load_shared(mine + row * stride));
      store_shared(mine, part);
    }
    block_sync();
  } else {
    unsigned width = 1;
    while (width < rows) width *= 2;
    for (unsigned half = width / 2; half > 0; half /= 2) {
      if (folded < half && folded + half < rows) {
#pragma unroll
        for (int n = 0; n < N; n++) {
          T* mine = workspace + folded * stride + n * segments + kept;
          store_shared(mine, Op::combine(load_shared(mine), load_shared(mine + half * stride)));
        }
      }
      block_sync();
    }
  }
#pragma unroll
  for (int n = 0; n < N; n++) values[n] = load_shared(result + n * segments + kept);
  block_sync();
}

template <bool X, bool Y, bool Z, unsigned BX, unsigned BY, unsigned BZ> struct TreeOfSums {
  template <int N, class T> WEFT_DEVICE void fold(T (&values)[N], T* workspace) { reduce_tree_of_states<Sum, N, X, Y, Z, BX, BY, BZ>(values, workspace); }
};
template <class Op, int N, bool X, bool Y, bool Z, unsigned BX = 0, unsigned BY = 0, unsigned BZ = 0, class T>
WEFT_DEVICE void reduce_tree(T (&values)[N], T* workspace) {
  using Tree = TreeOfSums<X, Y, Z, BX, BY, BZ>;
  if constexpr (has_all_columns<Tree, Op, N, T>(0)) Op::template all_columns<Tree>(values, workspace);
  else reduce_tree_of_states<Op, N, X, Y, Z, BX, BY, BZ>(values, workspace);
}

// Partial results in global memory; a state of more than 8 bytes moves in parts.
template <class T> WEFT_DEVICE void store_partial(T* p, T value) {
  if constexpr (sizeof(T) <= 8) {
    store_global<Cache::unspecified>(p, value);
  } else {
    const Parts<sizeof(T) / 8> parts = bit_cast<Parts<sizeof(T) / 8>>(value);
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 8); i++) store_global<Cache::unspecified>(reinterpret_cast<unsigned long long*>(p) + i, parts.part[i]);
  }
}
template <class T> WEFT_DEVICE T load_partial(const T* p) {
  if constexpr (sizeof(T) <= 8) {
    return load_global_volatile(p);
  } else {
    Parts<sizeof(T) / 8> parts;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 8); i++) parts.part[i] = load_global_volatile(reinterpret_cast<const unsigned long long*>(p) + i);
    return bit_cast<T>(parts);
  }
}

// Hand the block's partial results to global memory; the last block of a segment returns true and must then fold them with `partial_of`.
// partials: [segment][block of the segment][kept thread][N]. flag: shared memory, one int. Leaves the semaphore zero.
template <int N, class T>
WEFT_DEVICE bool arrive_grid(const T (&values)[N], T* partials, int* semaphore, int* flag, unsigned segment, unsigned rank, unsigned ranks, unsigned kept,
                             unsigned kept_threads, bool writer) {
  if (writer) {
    T* mine = partials + ((static_cast<unsigned long long>(segment) * ranks + rank) * kept_threads + kept) * N;
#pragma unroll
    for (int n = 0; n < N; n++) store_partial(mine + n, values[n]);
  }
  thread_fence();
  block_sync();
  if (linear_thread() == 0) {
    const int before = atomic_add(semaphore + segment, 1);
    const bool is_last = before == static_cast<int>(ranks) - 1;
    if (is_last) atomic_add(semaphore + segment, -static_cast<int>(ranks));
    store_shared(flag, static_cast<int>(is_last));
  }
  block_sync();
  const bool last = load_shared(flag) != 0;
  thread_fence();
  block_sync();
  return last;
}

template <class Op, int N, class T> WEFT_DEVICE void fold_rank(T (&values)[N], const T* partials, unsigned long long rank, unsigned kept, unsigned kept_threads) {
  const T* theirs = partials + (rank * kept_threads + kept) * N;
#pragma unroll
  for (int n = 0; n < N; n++) values[n] = Op::combine(values[n], load_partial(theirs + n));
}
// The last block's share of the partials: thread `worker` of `workers` folds ranks worker, worker + workers, ...
template <class Op, int N, class T>
WEFT_DEVICE void fold_partials(T (&values)[N], T identity, const T* partials, unsigned segment, unsigned ranks, unsigned kept, unsigned kept_threads, unsigned worker,
                               unsigned workers) {
  const unsigned long long first = static_cast<unsigned long long>(segment) * ranks;
#pragma unroll
  for (int n = 0; n < N; n++) values[n] = identity;
  if constexpr (sizeof(T) > 8) {  // a state is not combined with nothing, which takes as long as with another one
    if (worker < ranks) {
#pragma unroll
      for (int n = 0; n < N; n++) values[n] = load_partial(partials + ((first + worker) * kept_threads + kept) * N + n);
    }
#pragma unroll 1
    for (unsigned rank = worker + workers; rank < ranks; rank += workers) fold_rank<Op>(values, partials, first + rank, kept, kept_threads);
  } else if constexpr (N < 16) {
    for (unsigned rank = worker; rank < ranks; rank += workers) fold_rank<Op>(values, partials, first + rank, kept, kept_threads);
  } else {  // the compiler by itself loads four ranks at once, 64 values, and spills
#pragma unroll 2
    for (unsigned rank = worker; rank < ranks; rank += workers) fold_rank<Op>(values, partials, first + rank, kept, kept_threads);
  }
}

#if defined(WEFT_EMULATOR) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// ---- across the blocks of a cluster: each hands its results to every block by asynchronous stores, and waits for the bytes of all.
// exchange: a header of 16 bytes, whose first 8 are the barrier, and the values, in shared memory; each call has its own. The blocks have all started
// (cluster_arrive_relaxed at the top of the kernel, cluster_wait before the first call).
template <class T> WEFT_DEVICE constexpr bool is_sent_async() { return sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16; }
template <class T> WEFT_DEVICE T* exchange_values(T* exchange) { return exchange + 16 / sizeof(T); }
// The barrier awaits `values` values of each block. One thread of each block, before the blocks of the cluster meet.
template <class T> WEFT_DEVICE void expect_cluster(T* exchange, unsigned values) {
  if constexpr (is_sent_async<T>()) {
    unsigned long long* const arrived = reinterpret_cast<unsigned long long*>(exchange);
    mbarrier_init(arrived, 1);
    mbarrier_arrive_expect_tx(arrived, cluster_size() * values * (unsigned)sizeof(T));
  }
}
template <class T> WEFT_DEVICE void send_async(T* place, unsigned block, same<T> value, unsigned long long* arrived) {
  if constexpr (sizeof(T) <= 8) {
    store_async_remote(place, block, value, arrived);
  } else {
    const Parts<2> parts = bit_cast<Parts<2>>(value);
#pragma unroll
    for (int i = 0; i < 2; i++) store_async_remote(reinterpret_cast<unsigned long long*>(place) + i, block, parts.part[i], arrived);
  }
}
template <class T> WEFT_DEVICE void send_to_block(T* exchange, unsigned place, unsigned block, same<T> value) {
  if constexpr (is_sent_async<T>()) send_async(exchange_values(exchange) + place, block, value, reinterpret_cast<unsigned long long*>(exchange));
  else store_shared_remote(exchange_values(exchange) + place, block, value);
}
template <class T> WEFT_DEVICE void await_cluster(T* exchange) {
  if constexpr (is_sent_async<T>()) mbarrier_wait_phase(reinterpret_cast<unsigned long long*>(exchange), 0);
  else cluster_sync();
}

// Fold N values. A block's results are held by all threads that they were folded over: thread `folded` of them, of which there are at least as many as
// blocks, hands them to block `folded`. kept: which of kept_threads results this thread holds. exchange: N values per block and kept thread.
template <class Op, int N, class T> WEFT_DEVICE void reduce_cluster(T (&values)[N], T* exchange, unsigned folded, unsigned kept, unsigned kept_threads) {
  const unsigned blocks = cluster_size(), rank = cluster_rank();
  if (folded < blocks) {
#pragma unroll
    for (int n = 0; n < N; n++) send_to_block(exchange, (rank * kept_threads + kept) * N + n, folded, values[n]);
  }
  await_cluster(exchange);
  const T* const all = exchange_values(exchange);
#pragma unroll
  for (int n = 0; n < N; n++) values[n] = load_shared(all + kept * N + n);
  for (unsigned block = 1; block < blocks; block++) {
    const T* const theirs = all + (block * kept_threads + kept) * N;
#pragma unroll
    for (int n = 0; n < N; n++) values[n] = Op::combine(values[n], load_shared(theirs + n));
  }
}

// The same for blocks of whole warps that fold all their threads: every warp hands its result to every block. exchange: N values per block and warp.
template <class Op, int N, class T> WEFT_DEVICE void reduce_cluster_rows(T (&values)[N], T identity, T* exchange) {
  const unsigned blocks = cluster_size(), rank = cluster_rank(), thread = linear_thread(), lane = thread % 32, warp = thread / 32;
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32, count = blocks * warps;
#pragma unroll
  for (int n = 0; n < N; n++) {
    values[n] = reduce_lanes<Op, 32>(values[n]);
    if (lane < blocks) send_to_block(exchange, (rank * warps + warp) * N + n, lane, values[n]);
  }
  await_cluster(exchange);
  const T* const all = exchange_values(exchange);
#pragma unroll
  for (int n = 0; n < N; n++) {
    if constexpr (has_all_entries<Op, T>(0)) {
      values[n] = Op::all_entries(all + n, N, count, lane);
      continue;
    }
    T value = identity;
    for (unsigned entry = lane; entry < count; entry += 32) value = Op::combine(value, load_shared(all + entry * N + n));
    values[n] = reduce_lanes<Op, 32>(value);
  }
}

// The same in a loop of whole blocks. use: how many exchanges went before; these take turns between two places of `half` elements, each with a header whose
// barrier one thread has initialised (start_cluster_turns). Nobody overtakes: a block that stores for use + 2 has had what all warps sent for use + 1, and
// every warp sends that after it has read the values of `use`. Stores run beside the thread and are counted as bytes, since an arrival at a barrier of another
// block waits for all that the thread has stored before. Each warp arrives at its own block's barrier, which so awaits the bytes of a warp of each block, too;
// what the threads of a block read before is ordered before what they do behind.
// hand_over_cluster_turn and take_cluster_turn are its two halves: what stands between them is done while values are on their way.
template <class T> WEFT_DEVICE void start_cluster_turns(T* exchange, unsigned half) {
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32;
#pragma unroll
  for (unsigned turn = 0; turn < 2; turn++)
    mbarrier_init(reinterpret_cast<unsigned long long*>(exchange + turn * half), is_sent_async<T>() ? warps : cluster_size() * warps);
}
template <class Op, int N, class T> WEFT_DEVICE void hand_over_cluster_turn(T (&values)[N], T* exchange, unsigned half, int use) {
  const unsigned blocks = cluster_size(), rank = cluster_rank(), thread = linear_thread(), lane = thread % 32, warp = thread / 32;
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32;
  exchange += use % 2 * half;
  unsigned long long* const arrived = reinterpret_cast<unsigned long long*>(exchange);
  T* const place = exchange_values(exchange) + (rank * warps + warp) * N;
#pragma unroll
  for (int n = 0; n < N; n++) values[n] = reduce_lanes<Op, 32>(values[n]);
  warp_sync(0xffffffffu);
  if constexpr (is_sent_async<T>()) {
    if (lane == 0) mbarrier_arrive_expect_tx(arrived, blocks * N * (unsigned)sizeof(T));
    if (lane < blocks) {
      if constexpr (sizeof(T) == 4 && N % 2 == 0) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
          const unsigned long long pair = (unsigned long long)to_bits(values[n + 1]) << 32 | to_bits(values[n]);
          store_async_remote(reinterpret_cast<unsigned long long*>(place + n), lane, pair, arrived);
        }
      } else {
#pragma unroll
        for (int n = 0; n < N; n++) send_async(place + n, lane, values[n], arrived);
      }
    }
  } else if (lane < blocks) {
#pragma unroll
    for (int n = 0; n < N; n++) store_shared_remote(place + n, lane, values[n]);
    mbarrier_arrive_remote(arrived, lane);
  }
}
template <class Op, int N, class T> WEFT_DEVICE void take_cluster_turn(T (&values)[N], T identity, T* exchange, unsigned half, int use) {
  const unsigned lane = linear_thread() % 32, count = cluster_size() * (blockDim.x * blockDim.y * blockDim.z / 32);
  exchange += use % 2 * half;
  mbarrier_wait_phase(reinterpret_cast<unsigned long long*>(exchange), use / 2);
  const T* const all = exchange_values(exchange);
#pragma unroll
  for (int n = 0; n < N; n++) {
    T value = identity;
    for (unsigned entry = lane; entry < count; entry += 32) value = Op::combine(load_shared(all + entry * N + n), value);
    values[n] = reduce_lanes<Op, 32>(value);
  }
}
template <class Op, int N, class T> WEFT_DEVICE void reduce_cluster_turn(T (&values)[N], T identity, T* exchange, unsigned half, int use) {
  hand_over_cluster_turn<Op, N>(values, exchange, half, use);
  take_cluster_turn<Op, N>(values, identity, exchange, half, use);
}
#endif

}  // namespace weft
