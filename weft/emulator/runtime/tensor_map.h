// Moving the boxes of tensor copies between global memory and (swizzled) shared memory.
#pragma once
#include "machine.h"

namespace weft_rt {

const u32 TENSOR_MAP_MAGIC = 0x77656674;

inline u32 tensor_box_bytes(const WeftTensorMap& map) {
  u32 bytes = map.element_bytes;
  for (u32 d = 0; d < map.rank; d++) bytes *= map.box[d];
  return bytes;
}

// Calls row(global address, byte offset in the dense box, bytes) for the part inside the tensor of each row of the box.
template <class Row> void tensor_rows(const WeftTensorMap& map, const int* at, Row row) {
  const i64 low = max_of((i64)at[0], (i64)0), high = min_of((i64)at[0] + map.box[0], (i64)map.extent[0]);
  if (low >= high) return;
  u32 rows = 1;
  for (u32 d = 1; d < map.rank; d++) rows *= map.box[d];
  for (u32 r = 0; r < rows; r++) {
    u64 address = map.base + (u64)low * map.element_bytes;
    bool inside = true;
    u32 rest = r;
    for (u32 d = 1; d < map.rank; d++) {
      const i64 c = at[d] + (i64)(rest % map.box[d]);
      rest /= map.box[d];
      inside &= c >= 0 && c < (i64)map.extent[d];
      address += (u64)c * map.stride_bytes[d];
    }
    if (inside) row(address, (r * map.box[0] + (u32)(low - at[0])) * map.element_bytes, (u32)(high - low) * map.element_bytes);
  }
}

// Where byte `address` of a dense box lies when the copy swizzles: 16-byte chunks are exchanged within 128, 64 or 32 bytes.
inline u64 swizzled(const WeftTensorMap& map, u64 address) {
  const u64 chunks = map.swizzle_bytes / 16;
  return chunks ? address ^ ((address >> 7 & (chunks - 1)) << 4) : address;
}

// Calls chunk(address in shared memory, bytes) for the pieces that `bytes` of a dense box from `address` on lie in.
template <class Chunk> void tensor_chunks(const WeftTensorMap& map, u64 address, u32 bytes, Chunk chunk) {
  if (!map.swizzle_bytes) {
    chunk(address, bytes);
    return;
  }
  for (u32 done = 0; done < bytes;) {
    const u32 n = min_of(bytes - done, (u32)(16 - (address + done) % 16));
    chunk(swizzled(map, address + done), n);
    done += n;
  }
}

// What a box becomes in the shared memory that begins at `shared`, whose address decides the swizzle.
inline void tensor_box_to_image(const WeftTensorMap& map, const int* at, u8* image, u64 shared) {
  memset(image, map.fill_nan ? 0xff : 0, tensor_box_bytes(map));
  tensor_rows(map, at, [&](u64 global, u32 offset, u32 row_bytes) {
    tensor_chunks(map, shared + offset, row_bytes, [&](u64 to, u32 n) {
      memcpy(image + (to - shared), (const u8*)global, n);
      global += n;
    });
  });
}

// `staged` is a copy of the shared memory that began at `shared`, whose address decides the swizzle.
inline void tensor_box_to_global(const WeftTensorMap& map, const int* at, const u8* staged, u64 shared) {
  tensor_rows(map, at, [&](u64 global, u32 offset, u32 row_bytes) {
    for (u32 i = 0; i < row_bytes; i += map.element_bytes)
      memcpy((u8*)global + i, staged + (swizzled(map, shared + offset + i) - shared), map.element_bytes);
  });
}

}  // namespace weft_rt
