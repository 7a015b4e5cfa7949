// The emulated machine: threads (fibers), warps, blocks, units (clusters), and what they wait for.
#pragma once
#include "../abi.h"
#include "base.h"
#include "clocks.h"
#include "context_switch.h"

namespace weft_rt {

enum : u32 {
  WARP_THREADS = 32,
  MAX_THREADS = 1024,
  MAX_WARPS = MAX_THREADS / WARP_THREADS,
  MAX_CLUSTER = 16,
  NAMED_BARRIERS = 16,
  COPY_SLOTS = 64,            // bulk copies whose clocks are told apart, per unit
  COLLECTIVES = 4,            // warp collectives in progress, per warp
  FULL_MASK = 0xffffffffu,
};

// How to run a launch, and how closely to look. Filled by native.py; keep in step with its ctypes twin.
struct Config {
  u32 check_races;            // 0: bounds and alignment, 1: everything
  u32 schedule;               // enum Schedule
  u32 copy_timing;            // enum CopyTiming
  u32 copy_pieces;
  u32 max_findings;
  u32 stack_kib;
  u32 timeout_ms;
  u32 named_barriers;
  u32 trace;
  u32 overlap;                // enum Overlap, of a second grid
  u32 counts_sync_points;     // of warps; at those in `preempt`, the warp gives way until no other of its block can run
  u32 preempt_count;
  u32 preempt[4];
  u64 seed;
};
// The shape of a grid, and what the chip has for it. Filled by native.py as well.
struct Shape {
  u32 grid[3], block[3], cluster[3];
  u32 shared_bytes;
  u32 shared_capacity_bytes;  // of the chip, per block
  u32 registers_per_thread;   // at launch; 0: the pool is not modelled
  u32 cooperative;
  u32 resident_blocks;        // at most this many blocks run at once
  u32 uses_cp_async;
  u32 check_dependency;       // accesses before griddep_wait are findings
};
enum Schedule : u32 { IN_ORDER, RANDOM_WARPS, RANDOM_LANES };
enum CopyTiming : u32 { COPY_LATE, COPY_AT_ONCE, COPY_RANDOM };
// Of two grids: the second starts before the last stores of the first, or not before the first has ended.
enum Overlap : u32 { SECOND_EARLY, SECOND_LATE };

enum class Wait : u8 { NONE, BARRIER, COLLECTIVE, MBARRIER, BULK_GROUP, REGISTERS, CLUSTER, POLL, NEXT_GRID, PREVIOUS_GRID };
const char* wait_name(Wait wait);

struct Block;
struct Warp;
struct Unit;
struct Grid;
struct Shadow;

struct Copy;
struct BulkGroups {              // bulk stores of one thread
  List<Copy*> open;              // not committed yet
  List<Copy*> members;           // of the committed groups, oldest first
  List<u32> sizes;               // of the committed groups
};

struct CpAsync { u8* to; const u8* from; u32 bytes, group; bool valid; };

enum { CACHE_LINE = 64 };

// What every thread needs comes first, in one cache line: a launch goes through all of them again and again.
struct alignas(CACHE_LINE) Fiber {
  Context context;
  Block* block;
  Warp* warp;
  void* waits_for;
  u64 thread_index;              // packed x, y, z
  const WeftNote* note;          // what the text said it does (WEFT_LINE_NOTE)
  u32 lane;
  int line;                      // where it waits
  Wait wait;
  u8 barrier;                    // named barrier waited for
  bool exited, dependency_met;
  bool parked;                   // between two blocks: its context starts the next one
  bool has_more;                 // something behind this line was set since the block started

  u32 thread, index;             // linear in the block; in the unit's vectors
  char* stack_top;
  u32 phase;                     // of the mbarrier waited for
  u32 cluster_phase;             // of the last cluster_arrive
  u32 cluster_seen;              // phases of the cluster's barrier that it has waited for
  const char* role;
  // polling
  const void* poll_address;
  u64 poll_value;
  u32 polls;
  u64 poll_events;
  // happens-before; only with check_races
  Knowledge* base;
  u32 clock;
  u32 fenced_clock[SECTIONS];    // its own clock at its last fence of each kind; [KNOWN] is not used
  Knowledge* reads;              // known to be over by the bytes of asynchronous stores, which publish no writes
  Foreign* seen_by_atomics;      // acquired by the next thread_fence
  Foreign* fenced_published;     // what its relaxed atomics publish, as of fenced_base
  Knowledge* fenced_base;
  // asynchronous copies
  BulkGroups bulk;
  List<CpAsync> cp_async;        // not performed yet
  u32 cp_async_committed, cp_async_done;   // groups; done: waited for
};
static_assert(offsetof(Fiber, thread) <= CACHE_LINE, "what every thread needs fits one cache line");
// The thread, about to keep something behind its first line.
inline Fiber* with_more(Fiber* f) {
  f->has_more = true;
  return f;
}

struct Collective {
  u32 mask, arrived, taken;
  u8 kind;
  int line;
  u64 value[WARP_THREADS];
  Accumulator knowledge;
};

struct Warp {
  Block* block;
  Fiber* fibers;
  u32 index;
  u32 lanes;                     // that exist: the last warp of a block may be partial
  u32 ready, alive;
  u32 gathering;                 // bit i: collectives[i] waits for lanes
  Collective collectives[COLLECTIVES];
  u32 registers, registers_wanted;
  List<u32> register_changes;
};

struct NamedBarrier {
  int expected_threads;          // negative: the whole block
  u32 arrived_threads, counted_warps;
  u32 waiting[MAX_WARPS], arrived[MAX_WARPS];
  int line[MAX_WARPS];
  bool syncs[MAX_WARPS];
  Accumulator knowledge;
};

struct Mbarrier {
  bool valid, observed;
  bool is_fenced;                // its init is visible to copies
  u32 shown_phase;               // fenced before this phase of the cluster's barrier, which shows it to all, released or not; 0: none
  Block* block;
  u32 offset;                    // in the block's shared memory
  u32 expected, pending;
  i64 tx_bytes;
  u32 phase;
  u32 bytes_in_flight;
  int init_line;
  Epoch init_epoch;
  List<Fiber*> waiting;
  struct Arriver { const char* role; u32 warp; } arrivers[8];  // the first that differ, for reports
  u32 arriver_count;
  Accumulator arriving;
  Knowledge* released;           // by those who arrived in the phase completed last
  Knowledge *reading, *read;     // what was read before the asynchronous stores of this phase, and of the one completed last
};

struct Name { u64 first, bytes; const char* text; };

struct Block {
  Unit* unit;
  u32 rank;                      // in the cluster
  u32 linear;
  u32 x, y, z;
  bool lets_next_start;          // some thread has said so
  u8* shared;                    // arena of the chip's capacity
  u32 live_threads;
  u32 ready_warps, current_warp;
  u32 held_warps;                // preempted at a synchronization point
  u32 warp_count;
  Warp* warps;
  u32 active_barriers, used_barriers;  // bit i: somebody waits at barriers[i]; did so since the block started
  NamedBarrier barriers[NAMED_BARRIERS];
  List<Mbarrier*> mbarriers;
  int register_pool;
  Shadow* shadow;
  List<Name> names;
};

struct Copy {
  enum Kind : u8 { FREE, LOAD, STORE, TENSOR_LOAD, TENSOR_STORE } kind;
  enum State : u8 { ISSUED, SOURCE_READ, DONE } state;
  bool waited;                   // its thread has waited for it, at least until the source was read
  Unit* unit;
  Fiber* issuer;
  Mbarrier* barrier;
  u8* to;
  const u8* from;
  u32 bytes, done_bytes, back_bytes;  // back_bytes: of done_bytes, those that came from the end
  u32 slot, slot_clock;
  int line;
  u64 due;
  u8* staged;                    // a store's source, read before its destination is written; a tensor load's box
  u64 value;                     // what a store to another block of the cluster carries
  Accumulator issued;            // what the thread of a store to another block knew then: its reads are over when the bytes have come
  WeftTensorMap map;
  int at[5];
};

struct ClusterBarrier {
  u32 arrived, phase;            // arrived threads in this phase
  int line;
  Accumulator arriving;
  Knowledge* released;
};

struct Unit {
  Grid* grid;
  u32 id;                        // linear cluster index + 1, counted on from the grid before
  bool live;
  u32 live_threads;
  u32 block_count;
  Block* blocks[MAX_CLUSTER];
  Fiber* fibers;
  char* stacks;
  u32 slot_clock[COPY_SLOTS];
  bool slot_used[COPY_SLOTS];
  ClusterBarrier cluster;
};

struct Buffer {
  u64 first, bytes;
  const char* name;
  bool written, initialised, workspace, constant;
  Shadow* shadow;
};

// One kernel of a launch. A second one was launched behind the first, and may start before that has ended.
struct Grid : Shape {
  u32 number;
  const char* name;
  void (*entry)(void**);
  void** arguments;
  u32 block_threads, warps_per_block, unit_blocks, unit_count;
  u32 first_unit;                // its units have the ids from this one + 1 on
  u32 next_unit;
  List<u32> unit_order;          // linear cluster indices to run
  List<Unit*> pool;              // finished units, to be used again
  List<Buffer> buffers;
  u64 kernel_first, kernel_bytes;  // the kernel's code, for faults
  const u64* shared_tensors;     // bytes of each
  u32 shared_tensor_count;
};

// A global location that threads synchronise through.
struct SyncVariable { u64 address; Foreign* published; };

// As WeftState has indices and extents.
inline u64 pack(u32 x, u32 y, u32 z) { return (u64)z << 48 | (u64)y << 32 | x; }

// Everything but the configuration starts at zero; see launch.cpp.

struct Machine {
  Config config;
  Grid grids[2];
  u32 grid_count;
  Grid* grid;                    // of the running thread
  u32 unit_threads;              // of the larger units: what vectors of clocks have places for
  bool uses_cp_async;            // some grid does
  Knowledge* first_ended;        // what those learn who have waited for the first grid
  bool is_first_over;
  bool second_waited;            // some thread of the second grid has waited for the first
  Context main_context;
  Fiber* current;
  Block* current_block;
  bool running, aborted;
  volatile int timed_out;        // or interrupted: stop at the next switch
  volatile int interrupted;
  Fiber* last_running;           // when time ran out
  Random random;
  List<Unit*> resident;
  List<Fiber*> polling;
  List<Fiber*> held;             // of the first grid, where they have let the second start
  List<Fiber*> early;            // of the second grid, where they wait for the first
  List<Copy*> copies;            // kind FREE when unused
  u32 copies_in_flight;
  List<Fiber*> bulk_waiting;
  u64 tick;
  u64 events;                    // changes that a polling thread may be waiting for
  u64 switches;
  u64 sync_points;               // that warps came to
  u64 sync_order[256];           // per synchronization object, by hash: which warps came to it, in which order
  List<SyncVariable> sync_variables;
  List<Shadow*> shadows;  // of buffers
};
extern Machine machine;

// ---- scheduler.cpp
void make_ready(Warp* warp, u32 lanes);
void yield_sometimes(Fiber* fiber);                                  // random schedules only
void wait_polling(Fiber* fiber, int line);
void leave_to_main() __attribute__((noreturn));
void fiber_main();
void run_all();
bool start_next();

// ---- collectives.cpp
void barrier_thread_left(Fiber* fiber);
void cluster_thread_left(Fiber* fiber);

// ---- copies.cpp
void step_copies(bool force);
void finish_copies_of(Unit* unit);
void drop_copies();
void check_copies_at_exit(Fiber* fiber);

// ---- block.cpp
Unit* start_unit(Grid* grid, u32 linear);
void retire_unit(Unit* unit);
void shrink_pool(Grid* grid, u32 kept_units);      // of the finished ones

// ---- grids.cpp
void use_grid(Grid* grid);             // what follows is done for a thread of it

// Work on behalf of a thread that does not run now.
struct InGrid {
  Grid* before;
  Block* block;
  explicit InGrid(Grid* grid) : before(machine.grid), block(machine.current_block) {
    if (grid != before) use_grid(grid);
  }
  ~InGrid() {
    if (machine.grid == before) return;
    use_grid(before);
    machine.current_block = block;
  }
};
inline bool is_second(const Fiber* f) { return f->block->unit->grid->number != 0; }
inline u32 grid_of(Epoch e) { return machine.grid_count > 1 && epoch_unit(e) > machine.grids[1].first_unit; }

// ---- happens-before of one thread
inline Epoch own_epoch(const Fiber* f) { return make_epoch(f->block->unit->id, f->index, f->clock); }
inline u32 slot_index(u32 slot) { return machine.unit_threads + slot; }
inline u32 cp_async_index(const Fiber* f) { return slot_index(COPY_SLOTS) + f->index; }

inline void raise(u32& clock, u32 to) { clock = max_of(clock, to); }
inline void add_own_clocks(Knowledge* k, const Fiber* f) {
  raise(clock_of(k, KNOWN, f->index), f->clock);
  raise(clock_of(k, PROXY_FENCED, f->index), f->fenced_clock[PROXY_FENCED]);
  raise(clock_of(k, DEVICE_FENCED, f->index), f->fenced_clock[DEVICE_FENCED]);
  if (machine.uses_cp_async) raise(clock_of(k, KNOWN, cp_async_index(f)), f->cp_async_done);
}

// Adds what a thread knows to an accumulator, and starts a new clock so that later writes are not covered.
inline void release_to(Accumulator& to, Fiber* f) {
  to.join_base(f->base);
  add_own_clocks(to.value, f);
  f->clock++;
}
inline void acquire_from(Fiber* f, Knowledge* k) { if (k) assign(f->base, clocks.join(f->base, k)); }
inline void acquire_reads(Fiber* f, Knowledge* k) { if (k) assign(f->reads, f->reads ? clocks.join(f->reads, k) : k); }

}  // namespace weft_rt
