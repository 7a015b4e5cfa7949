// A tile of a matrix from memory to memory, turned, by all threads of a block: rows of both sides may begin anywhere. Read first: turn_tile.
namespace weft {

constexpr int TURN_SECTOR_BYTES = 32;

// A row of a tile in shared memory: the vectors of 16 bytes that it lies in, so that its first element stands some elements behind their start. Each group
// of as many rows as a vector has elements is followed by 16 bytes, so that lanes that read a column in vectors meet different banks.
template <int Bytes, int Columns> struct TurnRows {
  static constexpr int vector = 16 / Bytes, row_vectors = Columns / vector + 1, group = (vector * row_vectors + 1) * 16;
};
// Where element `column` of row `row` lies, whose first one stands `skipped` elements behind the start.
template <int Bytes, int Columns> WEFT_DEVICE int turn_place(int row, int column, int skipped) {
  using Of = TurnRows<Bytes, Columns>;
  return row / Of::vector * Of::group + row % Of::vector * (Of::row_vectors * 16) + (column + skipped) * Bytes;
}

// Elements from p on to the next one that begins with so many bytes.
template <int Bytes, class T> WEFT_DEVICE int until(const T* p) {
  constexpr int elems = Bytes / sizeof(T);
  return (int)((elems - (reinterpret_cast<unsigned long long>(p) / sizeof(T)) % elems) % elems);
}
template <int Bytes, class T> WEFT_DEVICE int since(const T* p) {
  return (int)((reinterpret_cast<unsigned long long>(p) / sizeof(T)) % (Bytes / sizeof(T)));
}

// Copies the vector of 16 bytes at `unit` to shared memory, if it has some of the elements [first, end).
template <class T> WEFT_DEVICE void copy_unit(unsigned char* to, const T* unit, const T* first, const T* end) {
#if defined(WEFT_EMULATOR)  // nothing beside these elements, of which the chip brings the rest along
  for (int i = 0; i < 16 / (int)sizeof(T); i++) {
    if (unit + i >= first && unit + i < end) store_shared(reinterpret_cast<T*>(to) + i, load_global(unit + i));
  }
#else
  if (unit < end && unit + 16 / sizeof(T) > first) cp_async<16>(to, unit);
#endif
}

// to[c * to_stride + r] = from[r * from_stride + c] for the rows r of a tile and its columns c. Rows of a tile are Rows, but begin with a sector of
// `to`: each column has its own first row, up to a sector's elements later than the tile's, and the first tile of all has what is in front of that, too.
// So all but the ends of whole rows of `to` are written in whole sectors. rows_left, columns_left: how many there are from here on. All threads execute it.
// Lanes: neighbours of a warp that write neighbouring vectors.
template <int Rows, int Columns, int Threads, int Lanes, class T>
WEFT_DEVICE void turn_tile(T* to, const T* from, long long to_stride, long long from_stride, long long rows_left, long long columns_left, bool is_first,
                           unsigned char* shared) {
  constexpr int bytes = sizeof(T), vector = 16 / bytes, ahead = TURN_SECTOR_BYTES / bytes, all_rows = Rows + ahead - 1;
  constexpr int row_vectors = TurnRows<bytes, Columns>::row_vectors, group = TurnRows<bytes, Columns>::group;
  constexpr int lane_columns = 32 / Lanes, apart = bytes < 4 ? 4 / bytes : 1;  // columns of neighbouring lanes are a word apart
  const int rows = rows_left < 2 * all_rows ? (int)rows_left : 2 * all_rows;  // more are as many
  const int thread = (int)threadIdx.x, last_row = rows < all_rows ? rows : all_rows, last_column = columns_left < Columns ? (int)columns_left : Columns;
  for (int i = thread; i < all_rows * row_vectors; i += Threads) {
    const int row = i / row_vectors, place = i % row_vectors;
    const T* const first = from + row * from_stride;
    const T* const unit = first - since<16>(first) + place * vector;
    if (row < last_row) copy_unit(shared + turn_place<bytes, Columns>(row, place * vector, 0), unit, first, first + last_column);
  }
  cp_async_commit();
  cp_async_wait<0>();
  block_sync();
  const int skipped = since<16>(from), step = (int)(from_stride % vector);  // of row r: (skipped + r * step) % vector
  const int lane_row = thread % Lanes * vector, lane_column = thread % 32 / Lanes * apart;
  for (int part = thread / 32; part < Columns / lane_columns; part += Threads / 32) {
    const int column = part / apart * (lane_columns * apart) + lane_column + part % apart;
    if (column >= last_column) continue;
    T* const line = to + column * to_stride;
    const int later = until<TURN_SECTOR_BYTES>(line);
    int places[vector];
#pragma unroll
    for (int i = 0; i < vector; i++) {
      places[i] = turn_place<bytes, Columns>(later + i, column, (skipped + (later + i) * step) % vector) + lane_row / vector * group;
    }
#pragma unroll
    for (int first = 0; first < Rows; first += Lanes * vector) {
      const int row = first + lane_row + later;
      const unsigned char* const at = shared + first / vector * group;
      if (row + vector <= rows) {
        Array<T, vector> moved;
#pragma unroll
        for (int i = 0; i < vector; i++) moved[i] = load_shared(reinterpret_cast<const T*>(at + places[i]));
        store_global_vector<vector>(line + row, moved, 0);
      } else {
#pragma unroll
        for (int i = 0; i < vector; i++) {
          if (row + i < rows) store_global(line + row + i, load_shared(reinterpret_cast<const T*>(at + places[i])));
        }
      }
    }
  }
  if (is_first) {
    for (int i = thread; i < Columns * ahead; i += Threads) {
      const int column = i / ahead, row = i % ahead;
      T* const line = to + column * to_stride;
      if (column < last_column && row < rows && row < until<TURN_SECTOR_BYTES>(line)) {
        store_global(line + row, load_shared(reinterpret_cast<const T*>(shared + turn_place<bytes, Columns>(row, column, (skipped + row * step) % vector))));
      }
    }
  }
}

}  // namespace weft
