// Happens-before: vector clocks that threads share.
//
// A unit is a cluster of blocks (usually one block). Each thread of a unit, each bulk-copy slot, and each thread's stream of
// cp.async copies has an index in the unit's vectors. What a thread knows is its `base`, an immutable vector shared with
// everyone who passed the same barrier, plus its own clock. Joins are memoised, so a barrier of 128 threads costs one join.
// A vector has three sections: what is known; the part of it that a fence.proxy.async made visible to the async proxy; and the
// part that a thread_fence made visible to the device, which relaxed atomics publish.
// What a unit knows of other units is a sparse map to snapshots of their vectors; only atomics and acquire/release build it.
#pragma once
#include "base.h"

namespace weft_rt {

// Who made an access, and when: unit (22 bits), index in the unit's vectors (16), clock (26). 0 = never.
using Epoch = u64;
enum : u32 { INDEX_HOST = 0xffff, INDEX_MBARRIER = 0xfffe, INDEX_SHARED_READERS = 0xfffd, INDEX_SPLIT = 0xfffc };
enum : u32 { FIRST_GRID = 0 };  // no unit has this number: as one, all of the first grid, for those who have waited for its end
inline Epoch make_epoch(u32 unit, u32 index, u32 clock) { return (u64)unit << 42 | (u64)index << 26 | clock; }
inline u32 epoch_unit(Epoch e) { return (u32)(e >> 42); }
inline u32 epoch_index(Epoch e) { return (u32)(e >> 26) & 0xffff; }
inline u32 epoch_clock(Epoch e) { return (u32)e & 0x3ffffff; }

struct Knowledge;

// What is known; known and fenced for the async proxy; known and fenced for the device.
enum Section : u32 { KNOWN, PROXY_FENCED, DEVICE_FENCED, SECTIONS };

// Snapshots of other units' vectors, sorted by unit. Immutable once shared.
struct Foreign {
  u32 references;
  u32 count;
  struct Entry { u32 unit; Knowledge* known; } entries[1];
};

struct Knowledge {
  u32 references;
  u32 id;                 // unique, for the memo
  Knowledge* next_free;
  Foreign* foreign[SECTIONS];       // of other units; may be null
  u32 clock[1];           // SECTIONS times `width`
};

// Owner of all vectors of a launch; all have the same width.
struct Clocks {
  u32 width = 0;
  u32 next_id = 0;
  Knowledge* free_list = nullptr;
  Knowledge* zero = nullptr;
  u64 joins = 0;
  struct JoinMemo { Knowledge *a, *b, *result; } join_memo[32] = {};
  struct FenceMemo { Knowledge* from; Section section; Knowledge* result; } fence_memo[16] = {};

  void start(u32 new_width);
  Knowledge* copy(const Knowledge* from);
  Knowledge* join(Knowledge* a, Knowledge* b);      // returns a borrowed or memo-owned vector: retain it
  Knowledge* fence(Knowledge* from, Section section);      // all that is known becomes fenced; borrowed, too
  void join_into(Knowledge* target, const Knowledge* from);
  void drop(Knowledge* k);
  void forget_memos();
};
extern Clocks clocks;
inline u32& clock_of(Knowledge* k, Section section, u32 index) { return k->clock[section * clocks.width + index]; }
inline u32 clock_of(const Knowledge* k, Section section, u32 index) { return k->clock[section * clocks.width + index]; }

Foreign* merge_foreign(Foreign* a, Foreign* b);     // returns an owned reference
Foreign* foreign_of(u32 unit, Knowledge* known);
void drop_foreign(Foreign* f);
inline Foreign* retain(Foreign* f) { if (f) f->references++; return f; }
inline Knowledge* retain(Knowledge* k) { if (k) k->references++; return k; }
inline void release(Knowledge* k) { if (k && --k->references == 0) clocks.drop(k); }
inline void release(Foreign* f) { if (f && --f->references == 0) drop_foreign(f); }
inline void assign(Knowledge*& slot, Knowledge* value) { retain(value); release(slot); slot = value; }
inline const Knowledge* find_unit(const Foreign* f, u32 unit) {
  if (f) for (u32 i = 0; i < f->count; i++) if (f->entries[i].unit == unit) return f->entries[i].known;
  return nullptr;
}

// Collects what the threads arriving at a barrier know.
struct Accumulator {
  Knowledge* value;
  Knowledge* last_base;   // the base joined last: the next thread usually has the same
  void join_base(Knowledge* base);
  Knowledge* take() { Knowledge* v = value; release(last_base); value = last_base = nullptr; return v; }
  void clear() { release(value); release(last_base); value = last_base = nullptr; }
};

}  // namespace weft_rt
