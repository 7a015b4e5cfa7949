// Shadow memory: who wrote and who read each location last. One cell per 16 bytes, split into 4-byte or 1-byte cells on demand.
#pragma once
#include "machine.h"

namespace weft_rt {

const u32 STRONG_LINE = 0x80000000u;  // set in a cell's line when the access was atomic or volatile

struct Cell {
  Epoch write, read;
  u32 write_line, read_line;
};

struct Shadow {
  u64 first;  // address, a multiple of 16
  u64 cells_count;
  bool initialised;  // a location nobody wrote yet holds the host's data
  Cell* cells;
};

// Who makes an access, and what it may rely on.
struct Accessor {
  const Fiber* fiber;  // the issuer, for a copy
  Epoch epoch;
  bool copy;  // by the async proxy, on the issuer's behalf
};

Shadow* make_shadow(u64 first, u64 bytes, bool initialised);  // null when races are not checked
void reset_shadow(Shadow* shadow);
void free_shadow(Shadow* shadow);
void shadow_access(Shadow* shadow, u64 address, u32 bytes, bool write, const Accessor& by, u32 line);
void shadow_mark(Shadow* shadow, u64 address, u32 bytes, Epoch write, u32 line);
u64 shadow_unwritten(Shadow* shadow, u64 address, u64 bytes, u64* first_unwritten);
void release_shadow_pools();

bool knows(const Accessor& by, Epoch e);

}  // namespace weft_rt
