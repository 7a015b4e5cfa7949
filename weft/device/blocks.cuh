// requires: cast
// Largest magnitudes and Hadamard transforms of blocks of neighbours, within a thread and over few lanes; and the padding of scales. Read first: block_amax.
namespace weft {

// The larger of two numbers; NaN does not count.
WEFT_DEVICE float larger(float a, float b) {
#if defined(WEFT_EMULATOR)
  return a > b || b != b ? a : b;
#else
  return fmaxf(a, b);
#endif
}

#if !defined(WEFT_EMULATOR)
// The larger magnitudes of two pairs of floats of 16 bits; of a number and NaN, the number.
template <class T> WEFT_DEVICE unsigned larger_pair(unsigned a, unsigned b) {
  if constexpr (SameType<T, bf16>::value) asm("{\n\t.reg .b32 size;\n\tabs.bf16x2 size, %1;\n\tmax.bf16x2 %0, %2, size;\n\t}" : "=r"(a) : "r"(b), "r"(a));
  else asm("{\n\t.reg .b32 size;\n\tabs.f16x2 size, %1;\n\tmax.f16x2 %0, %2, size;\n\t}" : "=r"(a) : "r"(b), "r"(a));
  return a;
}
// The same for many that follow each other: signs of `a` do not count, and mean nothing in the result.
template <class T> WEFT_DEVICE unsigned larger_pair_unsigned(unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 860
  if constexpr (SameType<T, bf16>::value) asm("max.xorsign.abs.bf16x2 %0, %2, %1;" : "=r"(a) : "r"(b), "r"(a));
  else asm("max.xorsign.abs.f16x2 %0, %2, %1;" : "=r"(a) : "r"(b), "r"(a));
  return a;
#else
  return larger_pair<T>(a, b);
#endif
}
#endif

// The largest magnitude of elements first .. first + N - 1, 0 where all are NaN. Floats of 16 bits are compared in pairs.
template <int N, class T, int S> WEFT_DEVICE float amax_of(const Array<T, S>& src, int first) {
  float amax = 0.f;
#if !defined(WEFT_EMULATOR)
  if constexpr (TypeFacts<T>::half && N % 2 == 0) {
    unsigned pair = 0;
#pragma unroll
    for (int i = 0; i < N / 2; i++) pair = larger_pair<T>(pair, src.words[first / 2 + i]);
    amax = larger(larger(amax, to_float(T{(unsigned short)pair})), to_float(T{(unsigned short)(pair >> 16)}));
  } else
#endif
#pragma unroll
  for (int i = 0; i < N; i += 4) {  // few that wait for each other
    float four = magnitude(convert<float>(src.get(first + i)));
#pragma unroll
    for (int j = i + 1; j < i + 4 && j < N; j++) four = larger(four, magnitude(convert<float>(src.get(first + j))));
    amax = larger(amax, four);
  }
  return amax;
}

// Each of N elements gets the largest magnitude of its block. Lanes > 1: N elements each of so many neighbouring lanes are a block, and all lanes of the warp
// call this; those whose elements are not there say so, and all lanes of a block agree on that. Else the N elements are N / Block blocks.
template <int N, int Block, int Lanes, int M, class T, int S> WEFT_DEVICE void block_amax(Array<float, M>& dst, int dst_offset, const Array<T, S>& src, int src_offset, bool is_there) {
  constexpr int IN_THREAD = Lanes > 1 ? N : Block;
#pragma unroll
  for (int first = 0; first < N; first += IN_THREAD) {
    float amax = 0.f;
    if (is_there) amax = amax_of<IN_THREAD>(src, src_offset + first);
    if constexpr (Lanes > 1) {
#pragma unroll
      for (int lanes = 1; lanes < Lanes; lanes *= 2) amax = larger(amax, shuffle_xor(amax, lanes));
    }
#pragma unroll
    for (int i = 0; i < IN_THREAD; i++) dst[dst_offset + first + i] = amax;
  }
}
// Each of N maxima takes the magnitude of one element into account, NaN apart.
template <int N, class T, int M, class S, int K> WEFT_DEVICE void larger_magnitudes(Array<T, M>& dst, int dst_offset, const Array<S, K>& src, int src_offset) {
#if !defined(WEFT_EMULATOR)
  if constexpr (TypeFacts<T>::half && SameType<T, S>::value) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) dst.words[dst_offset / 2 + i] = larger_pair_unsigned<T>(dst.words[dst_offset / 2 + i], src.words[src_offset / 2 + i]);
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < N; i++)
    dst[dst_offset + i] = convert<T>(larger(convert<float>(dst.get(dst_offset + i)), magnitude(convert<float>(src.get(src_offset + i)))));
}
// The largest magnitude of lanes, of one element of a thread, 0 where it is not there.
template <int Lanes> WEFT_DEVICE float lanes_amax(float value) {
  float amax = larger(0.f, magnitude(value));
#pragma unroll
  for (int lanes = 1; lanes < Lanes; lanes *= 2) amax = larger(amax, shuffle_xor(amax, lanes));
  return amax;
}

// N elements of a thread, and those of Lanes neighbouring lanes, as blocks of 16: each times diag(Signs) H / 4, in sums and differences at distances 1, 2, 4, 8.
template <int N, int Lanes, unsigned Signs> WEFT_DEVICE void hadamard(float (&x)[N]) {
  const int first = Lanes > 1 ? (int)(lane() % Lanes) * N : 0;
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = Signs >> (first + i) % 16 & 1 ? -x[i] : x[i];
#pragma unroll
  for (int apart = 1; apart < 16; apart *= 2) {
    if (Lanes > 1 && apart >= N) {
      const float sign = lane() & (apart / N) ? -1.f : 1.f;
#pragma unroll
      for (int i = 0; i < N; i++) x[i] = shuffle_xor(x[i], apart / N) + sign * x[i];
    } else {
#pragma unroll
      for (int i = 0; i < N; i++) {
        if (i & apart) continue;
        const float low = x[i], high = x[i + apart];
        x[i] = low + high;
        x[i + apart] = low - high;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < N; i++) x[i] *= 0.25f;
}
// Blocks of 16 elements as rows times diag(Signs) H / 4; arguments as those of block_amax.
template <int N, int Lanes, unsigned Signs, int M, class T, int S> WEFT_DEVICE void block_hadamard(Array<float, M>& dst, int dst_offset, const Array<T, S>& src, int src_offset, bool is_there) {
  float x[N];
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = 0.f;
  if (is_there) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = convert<float>(src.get(src_offset + i));
  }
  hadamard<N, Lanes, Signs>(x);
#pragma unroll
  for (int i = 0; i < N; i++) dst[dst_offset + i] = x[i];
}
template <int Lanes, unsigned Signs> WEFT_DEVICE float lanes_hadamard(float value) {
  float x[1] = {value};
  hadamard<1, Lanes, Signs>(x);
  return x[0];
}

// Where the scale of row r and column c lies among tiles of 128 rows by 4 columns, of which a row of tiles has `column_tiles`.
template <class Index> WEFT_DEVICE Index tiled_offset(Index r, Index c, Index column_tiles) {
  return (r / 128 * column_tiles + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
}

// Zeros where tiles have no scale: rows from `rows` on, and columns from `columns` on. All threads of the grid share the work.
template <class Index, class T> WEFT_DEVICE void zero_tile_padding(T* scales, Index rows, Index columns) {
  const Index all_rows = (rows + 127) / 128 * 128, column_tiles = (columns + 3) / 4, all_columns = column_tiles * 4;
  const Index below = (all_rows - rows) * all_columns, beside = rows * (all_columns - columns);
  const Index threads = (Index)gridDim.x * gridDim.y * gridDim.z * (blockDim.x * blockDim.y * blockDim.z);
  const Index block = ((Index)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const Index thread = (block * blockDim.z + threadIdx.z) * (blockDim.y * blockDim.x) + threadIdx.y * blockDim.x + threadIdx.x;
  for (Index i = thread; i < below + beside; i += threads) {
    const Index j = i - below;
    const Index r = i < below ? rows + i / all_columns : j / (all_columns - columns);
    const Index c = i < below ? i % all_columns : columns + j % (all_columns - columns);
    store_global(scales + tiled_offset(r, c, column_tiles), T{0});
  }
}

// The scales of four rows of a tile, 32 apart, as bytes of a word: with that of one more.
template <class T> WEFT_DEVICE int with_scale(int rows, T scale, int row) { return (int)((unsigned)rows | (unsigned)scale.bits << 8 * row); }
// Stores the scales of four rows. Neighbouring lanes have neighbouring columns, and four of them exchange their bytes, so that each stores the four columns of one
// row: 16 bytes together. first: where the first row's scale of this thread's column lies; is_there: whether the row that this lane stores is. All lanes of the
// warp call this.
template <class T> WEFT_DEVICE void store_scales(T* first, int rows, bool is_there) {
  const int column = (int)(lane() % 4);
  int word = rows, other = shuffle_xor(word, 1);
  word = column & 1 ? (int)((unsigned)other >> 8 & 0x00ff00ffu) | (word & (int)0xff00ff00) : (word & 0x00ff00ff) | (int)(((unsigned)other & 0x00ff00ffu) << 8);
  other = shuffle_xor(word, 2);
  word = column & 2 ? (int)((unsigned)other >> 16) | (word & (int)0xffff0000) : (word & 0xffff) | (int)((unsigned)other << 16);
  T* const to = first + 3 * column;
  if (!is_there) return;
#if defined(WEFT_EMULATOR)
  for (int i = 0; i < 4; i++) store_global(to + i, T{(unsigned char)(word >> 8 * i)});
#else
  store_global(reinterpret_cast<int*>(to), word);
#endif
}

// The last of `groups` groups of rows that begins at `row` or before; -1 where none does. begins: in order; of groups without rows, the next begins there, too.
template <class Index, class Begin> WEFT_DEVICE Index group_at(const Begin* begins, Index groups, Index row) {
  Index low = 0, high = groups;  // those before `low` begin at the row or before, those from `high` on behind it
  while (low < high) {
    const Index middle = (low + high) / 2;
    if ((Index)load_global(begins + middle) <= row) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// The row of tiles in which row `row` of scales lies: those of a group stand in a row of their own, from places[group] on, a multiple of 128.
template <class Index, class Begin, class Place> WEFT_DEVICE Index grouped_row(Index row, const Begin* begins, const Place* places, Index groups) {
  const Index group = group_at(begins, groups, row);
  return row - (Index)load_global(begins + group) + (Index)load_global(places + group);
}

// Zeros where tiles of groups have no scale, and where there are no tiles, of rows + 127 * groups rows in all. All threads of the grid share the work.
template <class Index, class T, class Begin, class Place>
WEFT_DEVICE void zero_grouped_padding(T* scales, Index rows, Index columns, const Begin* begins, const Place* places, Index groups) {
  const Index column_tiles = (columns + 3) / 4, quads = (rows + 127 * groups) * column_tiles;
  const Index threads = (Index)gridDim.x * gridDim.y * gridDim.z * (blockDim.x * blockDim.y * blockDim.z);
  const Index block = ((Index)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const Index thread = (block * blockDim.z + threadIdx.z) * (blockDim.y * blockDim.x) + threadIdx.y * blockDim.x + threadIdx.x;
  for (Index i = thread; i < quads; i += threads) {  // four neighbours of a row of tiles
    const Index tile = i / 128, r = tile / column_tiles * 128 + i % 4 * 32 + i % 128 / 4, c = tile % column_tiles * 4;
    const Index group = group_at(places, groups, r);
    Index last = 0;  // behind the rows of this group, in rows of tiles
    if (group >= 0) {
      const Index begin = (Index)load_global(begins + group), end = group + 1 < groups ? (Index)load_global(begins + group + 1) : rows;
      last = (Index)load_global(places + group) + end - begin;
    }
    for (Index k = r < last ? columns - c : 0; k < 4; k++) store_global(scales + i * 4 + k, T{});
  }
}

// Zeros behind rows of scales, and below them, up to multiples of so many rows and columns.
template <class Index, class T> WEFT_DEVICE void zero_row_padding(T* scales, Index rows, Index columns, Index unit_rows, Index unit_columns) {
  const Index all_rows = (rows + unit_rows - 1) / unit_rows * unit_rows, pitch = (columns + unit_columns - 1) / unit_columns * unit_columns;
  const Index beside = rows * (pitch - columns), below = (all_rows - rows) * pitch;
  const Index threads = (Index)gridDim.x * gridDim.y * gridDim.z * (blockDim.x * blockDim.y * blockDim.z);
  const Index block = ((Index)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const Index thread = (block * blockDim.z + threadIdx.z) * (blockDim.y * blockDim.x) + threadIdx.y * blockDim.x + threadIdx.x;
  for (Index i = thread; i < beside + below; i += threads) {
    const Index at = i < beside ? i / (pitch - columns) * pitch + columns + i % (pitch - columns) : rows * pitch + (i - beside);
    store_global(scales + at, T{});
  }
}

// Zeros behind the first `padded` columns of scales whose rows are innermost: each of these ends at a multiple of four.
template <class Index, class T> WEFT_DEVICE void zero_column_padding(T* scales, Index rows, Index columns, Index padded) {
  const Index pitch = (rows + 3) / 4 * 4, gap = pitch - rows;
  const Index threads = (Index)gridDim.x * gridDim.y * gridDim.z * (blockDim.x * blockDim.y * blockDim.z);
  const Index block = ((Index)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const Index thread = (block * blockDim.z + threadIdx.z) * (blockDim.y * blockDim.x) + threadIdx.y * blockDim.x + threadIdx.x;
  for (Index i = thread; i < gap * padded; i += threads) store_global(scales + i / gap * pitch + rows + i % gap, T{});
}

}  // namespace weft
