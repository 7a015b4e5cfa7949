// requires: reduce
// Running folds across the threads of a block, piece after piece of a row. Read first: scan_piece.
//
// Threads that are Stride apart follow each other in a row: 1 for a row along x, the threads along x for columns whose threads follow along y. With a Stride below
// 32, a block has whole warps, and the last Stride lanes of a warp have what the warp adds to each row. A thread has N neighbours of V rows: values[n * V + v].
// Rows that up to 32 threads of one warp share need neither memory nor barriers: scan_lanes_of_rows.
namespace weft {

// What the pieces so far of a thread's rows fold to. odd: which half of the workspace the next piece takes, so that one barrier per piece is enough.
template <class T, int V> struct Carry {
  T value[V];
  bool odd;
};

// Combines a state with the one of what comes right after it. A functor may have a function `follow` for that, which costs less than its `combine`: that one takes
// two states in any order, and of rows whose parts lie between each other.
template <class Op, class T> WEFT_DEVICE auto followed(T a, T b, int) -> decltype(Op::follow(a, b)) { return Op::follow(a, b); }
template <class Op, class T> WEFT_DEVICE T followed(T a, T b, long) { return Op::combine(a, b); }
template <class Op> struct InOrder {
  template <class T> WEFT_DEVICE T combine(T a, T b) { return followed<Op>(a, b, 0); }
};

// Whether a functor's states must be combined in the order of the row. Its `combine` takes the earlier one first.
template <class Op> WEFT_DEVICE constexpr auto keeps_order(int) -> decltype(Op::is_ordered) { return Op::is_ordered; }
template <class Op> WEFT_DEVICE constexpr bool keeps_order(long) { return false; }

// The place of this thread in its block of Threads. part: the threads of a row in one warp, one of `parts`. row: the thread's first row of `rows`.
template <int Stride, int Threads, int V> struct ScanPlace {
  static constexpr int parts = Stride < 32 ? Threads / 32 : Threads / Stride, rows = Stride * V;
  unsigned thread, lane, part, row;
};

template <int Stride, int Threads, int V> WEFT_DEVICE ScanPlace<Stride, Threads, V> scan_place() {
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  return {thread, thread % 32, thread / (Stride < 32 ? 32 : Stride), thread % Stride * V};
}

// Let each thread of a warp have what its row's threads of the warp fold to, up to itself. Each step doubles how many it has. Lanes: those that share rows.
template <class Op, int Stride, int Lanes = 32, int V, class T> WEFT_DEVICE void scan_lanes(T (&totals)[V], unsigned lane) {
  const unsigned place = lane % Lanes;
#pragma unroll
  for (unsigned offset = Stride; offset < Lanes; offset *= 2) {
#pragma unroll
    for (int v = 0; v < V; v++) {
      const T other = shuffle_index(totals[v], place >= offset ? (int)(lane - offset) : (int)lane);
      if (place >= offset) totals[v] = Op::combine(other, totals[v]);
    }
  }
}

// Store what each part of a row folds to: workspace[part][row].
template <int Stride, int Threads, int V, class T> WEFT_DEVICE void store_totals(const T (&totals)[V], T* workspace, const ScanPlace<Stride, Threads, V>& at) {
  if ((int)at.lane >= 32 - Stride) {
#pragma unroll
    for (int v = 0; v < V; v++) store_shared(workspace + at.part * at.rows + at.row + v, totals[v]);
  }
}

// What scan_piece does to the values of one thread, to the totals of a warp's threads, and to the values again, and how a piece is folded into a thread's totals.
// A type of states may have its own: `own` then tells whether the values of all threads of the warp are of a kind that costs less.
template <class T> struct ScanSteps {
  template <class Op, int N, int V, int Stride> WEFT_DEVICE bool own(T (&values)[N * V], const Carry<T, V>& carry) {
#pragma unroll
    for (int n = V; n < N * V; n++) values[n] = InOrder<Op>::combine(values[n - V], values[n]);
    return false;
  }
  template <class Op, int Stride, int Lanes, int V> WEFT_DEVICE void totals(T (&totals)[V], unsigned lane, bool) {
    scan_lanes<InOrder<Op>, Stride, Lanes>(totals, lane);
  }
  template <class Op, int N, int V> WEFT_DEVICE void behind(const T (&before)[V], T (&values)[N * V], bool) {
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
      for (int n = 0; n < N; n++) values[n * V + v] = InOrder<Op>::combine(before[v], values[n * V + v]);
    }
  }
  template <class Op, int N, int V> WEFT_DEVICE void fold(const T (&values)[N * V], T (&totals)[V]) {
#pragma unroll
    for (int v = 0; v < V; v++) {
      T own = values[v];
#pragma unroll
      for (int n = 1; n < N; n++) own = InOrder<Op>::combine(own, values[n * V + v]);
      totals[v] = Op::combine(totals[v], own);
    }
  }
};

// Let each value be the fold of all values of its row up to it. workspace: two T per part and row.
template <class Op, int N, int V, int Stride, int Threads, class T> WEFT_DEVICE void scan_piece(T (&values)[N * V], Carry<T, V>& carry, T* workspace) {
  const ScanPlace<Stride, Threads, V> at = scan_place<Stride, Threads, V>();
  using Next = InOrder<Op>;
  T totals[V], before[V], prefix[V];
  const bool is_easy = ScanSteps<T>::template own<Op, N, V, Stride>(values, carry);
#pragma unroll
  for (int v = 0; v < V; v++) totals[v] = values[(N - 1) * V + v];
  ScanSteps<T>::template totals<Op, Stride, 32>(totals, at.lane, is_easy);
  T* const mine = workspace + (carry.odd ? at.parts * at.rows : 0);
  store_totals(totals, mine, at);
#pragma unroll
  for (int v = 0; v < V; v++) {
    if constexpr (Stride < 32) before[v] = shuffle_index(totals[v], at.lane >= Stride ? (int)(at.lane - Stride) : (int)at.lane);
    prefix[v] = carry.value[v];
  }
  block_sync();
#pragma unroll
  for (int w = 0; w < at.parts; w++) {
#pragma unroll
    for (int v = 0; v < V; v++) {
      if (w == (int)at.part) prefix[v] = carry.value[v];
      carry.value[v] = Next::combine(carry.value[v], load_shared(mine + w * at.rows + at.row + v));
    }
  }
  carry.odd = !carry.odd;
#pragma unroll
  for (int v = 0; v < V; v++) {
    if (Stride < 32 && at.lane >= Stride) prefix[v] = Next::combine(prefix[v], before[v]);
  }
  ScanSteps<T>::template behind<Op, N>(prefix, values, is_easy);
}

// The same for rows of Lanes neighbouring threads each, a power of two: the lanes of a warp, or a part of them.
template <class Op, int N, int V, int Lanes, class T> WEFT_DEVICE void scan_lanes_of_rows(T (&values)[N * V], Carry<T, V>& carry) {
  const unsigned lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32, place = lane % Lanes;
  using Next = InOrder<Op>;
  T totals[V], prefix[V];
  const bool is_easy = ScanSteps<T>::template own<Op, N, V, 1>(values, carry);
#pragma unroll
  for (int v = 0; v < V; v++) totals[v] = values[(N - 1) * V + v];
  ScanSteps<T>::template totals<Op, 1, Lanes>(totals, lane, is_easy);
#pragma unroll
  for (int v = 0; v < V; v++) {
    const T before = shuffle_index(totals[v], place > 0 ? (int)lane - 1 : (int)lane), all = shuffle_index(totals[v], (int)(lane | (Lanes - 1)));
    prefix[v] = place > 0 ? Next::combine(carry.value[v], before) : carry.value[v];
    carry.value[v] = Next::combine(carry.value[v], all);
  }
  ScanSteps<T>::template behind<Op, N>(prefix, values, is_easy);
}

// ---- rows that several blocks share, along y: what the pieces of a block fold to, and what those of the blocks before do

// Fold a piece into what the pieces before fold to, in the order of the row: all threads of a row have the result. workspace: two T per part and row.
template <class Op, int N, int V, int Stride, int Threads, class T> WEFT_DEVICE void fold_piece_in_order(const T (&values)[N * V], Carry<T, V>& total, T* workspace) {
  const ScanPlace<Stride, Threads, V> at = scan_place<Stride, Threads, V>();
  T own[V];
#pragma unroll
  for (int v = 0; v < V; v++) {
    own[v] = values[v];
#pragma unroll
    for (int n = 1; n < N; n++) own[v] = Op::combine(own[v], values[n * V + v]);
  }
  scan_lanes<Op, Stride>(own, at.lane);
  T* const mine = workspace + (total.odd ? at.parts * at.rows : 0);
  store_totals(own, mine, at);
  block_sync();
#pragma unroll
  for (int w = 0; w < at.parts; w++) {
#pragma unroll
    for (int v = 0; v < V; v++) total.value[v] = Op::combine(total.value[v], load_shared(mine + w * at.rows + at.row + v));
  }
  total.odd = !total.odd;
}

// Fold a piece into what this thread has of its block's totals.
template <class Op, int N, int V, class T> WEFT_DEVICE void fold_piece(const T (&values)[N * V], T (&totals)[V]) {
  ScanSteps<T>::template fold<Op, N>(values, totals);
}

// Fold the totals of all threads of a row; all get the result. workspace: a T per part and row.
template <class Op, int Stride, int Threads, int V, class T> WEFT_DEVICE void fold_threads(T (&totals)[V], T* workspace, const ScanPlace<Stride, Threads, V>& at) {
  scan_lanes<Op, Stride>(totals, at.lane);
  store_totals(totals, workspace, at);
  block_sync();
#pragma unroll
  for (int v = 0; v < V; v++) totals[v] = load_shared(workspace + at.row + v);
#pragma unroll
  for (int w = 1; w < at.parts; w++) {
#pragma unroll
    for (int v = 0; v < V; v++) totals[v] = Op::combine(totals[v], load_shared(workspace + w * at.rows + at.row + v));
  }
}

// Store what this block's pieces fold to: totals[block along y][row]. All threads of a row have it.
template <int V, int Stride, int Threads, class T> WEFT_DEVICE void store_block_totals(const T (&own)[V], T* totals, const ScanPlace<Stride, Threads, V>& at) {
  if (at.thread < Stride) {
#pragma unroll
    for (int v = 0; v < V; v++) store_global(totals + (blockIdx.y * gridDim.x + blockIdx.x) * at.rows + at.row + v, own[v]);
  }
}

// Fold what this block's threads have of its pieces, and store it.
template <class Op, int V, int Stride, int Threads, class T> WEFT_DEVICE void hand_over_totals(T (&own)[V], T* totals, T* workspace) {
  const ScanPlace<Stride, Threads, V> at = scan_place<Stride, Threads, V>();
  fold_threads<Op>(own, workspace, at);
  store_block_totals(own, totals, at);
}

// Store what this block's pieces fold to in the order of the row, which all threads of the row have.
template <class Op, int V, int Stride, int Threads, class T> WEFT_DEVICE void hand_over_totals(const Carry<T, V>& own, T* totals, T*) {
  store_block_totals(own.value, totals, scan_place<Stride, Threads, V>());
}

// Let the scans begin with the totals of the blocks before: each thread of a row folds those of some, in order neighbours. The first piece uses the first half of the workspace, and
// this the second one. identity: of the fold.
template <class Op, int V, int Stride, int Threads, class T> WEFT_DEVICE void take_totals(Carry<T, V>& carry, const T* totals, T* workspace, T identity) {
  const ScanPlace<Stride, Threads, V> at = scan_place<Stride, Threads, V>();
  T before[V];
#pragma unroll
  for (int v = 0; v < V; v++) before[v] = identity;
  constexpr unsigned threads = Threads / Stride;
  const unsigned of_one = keeps_order<Op>(0) ? (blockIdx.y + threads - 1) / threads : 0;
  const unsigned first = keeps_order<Op>(0) ? at.thread / Stride * of_one : at.thread / Stride;
  const unsigned end = keeps_order<Op>(0) && first + of_one < blockIdx.y ? first + of_one : blockIdx.y;
#pragma unroll 4
  for (unsigned block = first; block < end; block += keeps_order<Op>(0) ? 1 : threads) {
#pragma unroll
    for (int v = 0; v < V; v++) before[v] = Op::combine(before[v], load_global(totals + (block * gridDim.x + blockIdx.x) * at.rows + at.row + v));
  }
  fold_threads<Op>(before, workspace + at.parts * at.rows, at);
#pragma unroll
  for (int v = 0; v < V; v++) carry.value[v] = Op::combine(carry.value[v], before[v]);
}

}  // namespace weft
