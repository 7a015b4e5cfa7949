// Copies that run beside the threads: bulk and tensor copies (the async proxy), and cp.async.
// A bulk copy is checked when it is issued and moves its bytes when the schedule says so: late, at once, or at random, a load
// possibly in pieces. Until then its destination is filled with NaN.
#include "machine.h"
#include "mbarrier.h"
#include "memory.h"
#include "report.h"
#include "switching.h"
#include "tensor_map.h"
#include "trace.h"

namespace weft_rt {

static const u32 BULK_ALIGNMENT = 16, TENSOR_ALIGNMENT = 128;
static const u32 RANDOM_DELAY = 256, RANDOM_PIECE_DELAY = 64, NEVER_BY_ITSELF = 1u << 30;  // scheduler steps

// ---- running ------------------------------------------------------------------------------------------------------

static void wake_bulk_waiting() {
  for (Fiber* f : machine.bulk_waiting) make_ready(f->warp, 1u << f->lane);
  machine.bulk_waiting.clear();
}

static void end_copy(Copy* c) {
  if (UNLIKELY(machine.config.trace)) trace_copy(c, false);
  c->state = Copy::DONE;
  c->unit->slot_used[c->slot] = false;
  machine.copies_in_flight--;
  machine.events++;
  wake_bulk_waiting();
}

static u32 piece_bytes(const Copy* c) {
  const u32 left = c->bytes - c->done_bytes;
  if (machine.config.copy_pieces <= 1) return left;
  return min_of(left, max_of(c->bytes / machine.config.copy_pieces / BULK_ALIGNMENT * BULK_ALIGNMENT, BULK_ALIGNMENT));
}

// Pieces come from the front, or from either end when the schedule is random: no order among the bytes of a copy is promised.
static void load_piece(Copy* c) {
  if (c->kind == Copy::TENSOR_LOAD && !c->staged) {
    c->staged = (u8*)malloc(c->bytes);
    tensor_box_to_image(c->map, c->at, c->staged, (u64)c->to);
    c->from = c->staged;
  }
  const u32 n = piece_bytes(c);
  const bool from_back = machine.config.copy_timing == COPY_RANDOM && machine.random.next() & 256;
  const u32 at = from_back ? c->bytes - c->back_bytes - n : c->done_bytes - c->back_bytes;
  memcpy(c->to + at, c->from + at, n);
  c->done_bytes += n;
  if (from_back) c->back_bytes += n;
  const bool last = c->done_bytes == c->bytes;
  Mbarrier* barrier = c->barrier;
  const u32 slot = c->slot, clock = c->slot_clock;
  const int line = c->line;
  Knowledge* const issued = last ? c->issued.take() : nullptr;
  if (last) {
    free(c->staged);
    c->staged = nullptr;
    end_copy(c);
    c->kind = Copy::FREE;
  }
  copy_arrives(barrier, n, last, slot, clock, issued, line);
  release(issued);
}

static void store_step(Copy* c) {
  if (c->state == Copy::ISSUED) {
    c->staged = (u8*)malloc(c->bytes);
    memcpy(c->staged, c->from, c->bytes);
    c->state = Copy::SOURCE_READ;
    wake_bulk_waiting();
    return;
  }
  if (c->kind == Copy::TENSOR_STORE)
    tensor_box_to_global(c->map, c->at, c->staged, (u64)c->from);
  else
    memcpy(c->to, c->staged, c->bytes);
  free(c->staged);
  c->staged = nullptr;
  end_copy(c);
}

// When a copy moves: most within some steps, some at once, and some only when nothing else can run.
static u64 due_tick() {
  if (machine.config.copy_timing != COPY_RANDOM) return machine.tick;
  const u32 kind = machine.random.below(8);
  return machine.tick + (kind == 0 ? 0 : kind == 1 ? NEVER_BY_ITSELF : machine.random.below(RANDOM_DELAY));
}

static bool in_flight(const Copy* c) { return c->kind != Copy::FREE && c->state != Copy::DONE; }
static void step_copy(Copy* c) {
  const InGrid there(c->unit->grid);
  if (c->kind == Copy::LOAD || c->kind == Copy::TENSOR_LOAD)
    load_piece(c);
  else
    store_step(c);
}

// Moves copies on: those that are due, or (`force`, when nothing else can run) one of them.
void step_copies(bool force) {
  Copy* chosen = nullptr;
  u32 seen = 0;
  for (u32 i = 0; i < machine.copies.count; i++) {
    Copy* c = machine.copies[i];
    if (!in_flight(c)) continue;
    if (!force) {
      if (c->due > machine.tick) continue;
      c->due = machine.tick + machine.random.below(RANDOM_PIECE_DELAY);
      step_copy(c);
    } else if (machine.config.copy_timing == COPY_RANDOM) {
      if (!chosen || c->due < chosen->due) chosen = c;
    } else if (machine.config.schedule == IN_ORDER ? !chosen : machine.random.below(++seen) == 0) {
      chosen = c;
    }
  }
  if (chosen) {
    machine.tick = max_of(machine.tick, chosen->due);
    step_copy(chosen);
  }
}

// ---- issuing ------------------------------------------------------------------------------------------------------

// A slot stands for a copy in the vector clocks. One whose last copy the issuer knows of loses no information when reused.
static int free_slot(const Fiber* f) {
  const Unit* unit = f->block->unit;
  int any = -1;
  for (u32 s = 0; s < COPY_SLOTS; s++) {
    if (unit->slot_used[s]) continue;
    if (any < 0) any = (int)s;
    if (!machine.config.check_races || f->base->clock[slot_index(s)] >= unit->slot_clock[s]) return (int)s;
  }
  return any;
}

static Copy* new_copy(Fiber* f, Copy::Kind kind, u32 bytes, int line, Mbarrier* barrier = nullptr) {
  int slot = free_slot(f);
  while (slot < 0) {
    step_copies(true);
    slot = free_slot(f);
  }
  Copy* c = nullptr;
  for (Copy* candidate : machine.copies)
    if (candidate->kind == Copy::FREE) {
      c = candidate;
      break;
    }
  if (!c) machine.copies.push(c = (Copy*)calloc(1, sizeof(Copy)));
  Unit* unit = f->block->unit;
  *c = Copy{};
  c->kind = kind;
  c->unit = unit;
  c->issuer = f;
  c->barrier = barrier;
  c->bytes = bytes;
  c->line = line;
  c->slot = (u32)slot;
  c->slot_clock = unit->slot_clock[slot] + 1;  // of the source read; a store's write has the next
  unit->slot_clock[slot] += 2;
  unit->slot_used[slot] = true;
  c->due = due_tick();
  machine.copies_in_flight++;
  if (UNLIKELY(machine.config.trace)) trace_copy(c, true);
  return c;
}

static Accessor accessor_of(const Copy* c, u32 later) {
  const Epoch epoch = machine.config.check_races ? make_epoch(c->unit->id, slot_index(c->slot), c->slot_clock + later) : 0;
  return Accessor{c->issuer, epoch, true};
}

static void check_alignment(const void* shared, const void* global, u32 bytes, u32 shared_alignment, int line) {
  if (((u64)shared % shared_alignment) | ((u64)global % BULK_ALIGNMENT) | (bytes % BULK_ALIGNMENT))
    fatal("misaligned-copy", line, 0, "bulk copies need addresses and sizes that are multiples of 16 (tensor copies: shared addresses of 128)",
          "copy by %s between %s and %s of %u bytes: not aligned", describe_fiber(machine.current), describe_address((u64)shared),
          describe_address((u64)global), bytes);
}

static void start_load(Copy* c, u8* to, Mbarrier* barrier) {
  c->to = to;
  c->barrier = barrier;
  barrier->bytes_in_flight += c->bytes;
  memset(to, 0xff, c->bytes);
  if (machine.config.copy_timing == COPY_AT_ONCE)
    while (in_flight(c)) load_piece(c);
  yield_sometimes(machine.current);
}

static void start_store(Copy* c, const void* from) {
  c->from = (const u8*)from;
  with_more(c->issuer)->bulk.open.push(c);
  if (machine.config.copy_timing == COPY_AT_ONCE)
    while (in_flight(c)) store_step(c);
}

// ---- waiting for stores -------------------------------------------------------------------------------------------

static u32 members_to_wait_for(const BulkGroups& g, u32 groups_left) {
  u32 members = 0;
  for (u32 i = 0; i + groups_left < g.sizes.count; i++) members += g.sizes[i];
  return members;
}

static void learn_stores(Fiber* f, u32 members, bool read_only) {
  Knowledge* learned = nullptr;
  for (u32 i = 0; i < members; i++) {
    Copy* c = f->bulk.members[i];
    c->waited = true;
    if (!machine.config.check_races) continue;
    const u32 index = slot_index(c->slot), clock = c->slot_clock + (read_only ? 0 : 1);
    if (f->base->clock[index] >= clock) continue;
    if (!learned) learned = clocks.copy(f->base);
    learned->clock[index] = max_of(learned->clock[index], clock);
  }
  if (!learned) return;
  release(f->base);
  f->base = learned;
}

static void drop_done_groups(BulkGroups& g, u32 groups_left) {
  while (g.sizes.count > groups_left) {
    for (u32 i = 0; i < g.sizes[0]; i++)
      if (g.members[i]->state != Copy::DONE) return;
    for (u32 i = 0; i < g.sizes[0]; i++) g.members[i]->kind = Copy::FREE;
    g.members.drop_front(g.sizes[0]);
    g.sizes.drop_front(1);
  }
}

// ---- cp.async -----------------------------------------------------------------------------------------------------

static void perform(const CpAsync& c) {
  if (c.valid)
    memcpy(c.to, c.from, c.bytes);
  else
    memset(c.to, 0, c.bytes);
}

static void perform_groups(Fiber* f, u32 last_group) {
  u32 kept = 0;
  for (u32 i = 0; i < f->cp_async.count; i++) {
    if (f->cp_async[i].group <= last_group)
      perform(f->cp_async[i]);
    else
      f->cp_async[kept++] = f->cp_async[i];
  }
  f->cp_async.count = kept;
}

// ---- ends ---------------------------------------------------------------------------------------------------------

void check_copies_at_exit(Fiber* f) {
  for (Copy* c : f->bulk.members)
    if (!c->waited)
      REPORT("exit-with-pending-store", c->line, 0, "bulk_wait_read<0>() before the thread exits",
             "%s exits while its bulk store may still read shared memory", describe_fiber(f));
  if (f->bulk.open.count)
    REPORT("exit-with-uncommitted-store", f->bulk.open[0]->line, 0, "bulk_commit() and bulk_wait_read<0>()",
           "%s exits with bulk stores that it did not commit", describe_fiber(f));
  if (f->cp_async.count)
    REPORT("exit-with-pending-copy", 0, 0, "cp_async_wait<0>() before the thread exits", "%s exits with cp_async copies that it did not wait for",
           describe_fiber(f));
  perform_groups(f, ~0u);
}

// A unit has exited: loads still in flight are a mistake; stores finish on their own.
void finish_copies_of(Unit* unit) {
  for (u32 i = 0; i < machine.copies.count; i++) {
    Copy* c = machine.copies[i];
    if (c->kind == Copy::FREE || c->unit != unit) continue;
    if (c->kind == Copy::LOAD || c->kind == Copy::TENSOR_LOAD) {
      machine.current_block = c->issuer->block;
      REPORT("exit-with-pending-load", c->line, 0, "wait for the mbarrier of every load before the block exits",
             "a load issued by %s is still in flight when its block has exited", describe_fiber(c->issuer));
      free(c->staged);
      c->staged = nullptr;
      c->issued.clear();
      end_copy(c);
    }
    while (in_flight(c)) step_copy(c);
    c->kind = Copy::FREE;
  }
}

void drop_copies() {
  for (Copy* c : machine.copies) {
    free(c->staged);
    c->issued.clear();
    free(c);
  }
  machine.copies.clear();
  machine.copies_in_flight = 0;
  machine.bulk_waiting.clear();
}

static void check_tensor_map(const WeftTensorMap* map, int rank, int line) {
  if (map->magic != TENSOR_MAP_MAGIC || map->rank != (u32)rank)
    fatal("bad-tensor-map", line, 0, "pass a map made by weft.emulator.tensor_map, of the rank that the copy names",
          "tensor copy of rank %d by %s: the map is %s", rank, describe_fiber(machine.current),
          map->magic != TENSOR_MAP_MAGIC ? "not one of the emulator's" : format_text("of rank %u", map->rank));
}

}  // namespace weft_rt

using namespace weft_rt;

EXPORT void weft_emu_bulk_load(void* to, const void* from, unsigned bytes, void* bar, int line) {
  Fiber* f = machine.current;
  check_alignment(to, from, bytes, BULK_ALIGNMENT, line);
  Mbarrier* barrier = use_mbarrier_by_copy(f->block, bar, "bulk_load", line);
  if (!bytes) return;
  Copy* c = new_copy(f, Copy::LOAD, bytes, line, barrier);
  check_global((u64)from, bytes, WEFT_READ, line, accessor_of(c, 0), " (bulk load)");
  check_shared((u64)to, bytes, WEFT_WRITE | WEFT_SHARED, line, accessor_of(c, 0), " (bulk load)");
  c->from = (const u8*)from;
  start_load(c, (u8*)to, barrier);
}

// The units that hold `bytes` bytes from `from` on. Nobody may use what else is in them: it is NaN here, and need not be memory of the tensor.
EXPORT void weft_emu_bulk_load_units(void* to, const void* from, unsigned bytes, void* bar, int line) {
  Fiber* f = machine.current;
  const u32 before = (u32)((u64)from % BULK_ALIGNMENT), whole = (before + bytes + BULK_ALIGNMENT - 1) / BULK_ALIGNMENT * BULK_ALIGNMENT;
  check_alignment(to, (const u8*)from - before, whole, BULK_ALIGNMENT, line);
  Mbarrier* barrier = use_mbarrier_by_copy(f->block, bar, "bulk_load_units", line);
  if (!bytes) return;
  Copy* c = new_copy(f, Copy::LOAD, whole, line, barrier);
  check_global((u64)from, bytes, WEFT_READ, line, accessor_of(c, 0), " (bulk load of units)");
  check_shared((u64)to, whole, WEFT_WRITE | WEFT_SHARED, line, accessor_of(c, 0), " (bulk load of units)");
  c->staged = (u8*)malloc(whole);
  memset(c->staged, 0xFF, whole);
  memcpy(c->staged + before, from, bytes);
  c->from = c->staged;
  start_load(c, (u8*)to, barrier);
}

// A load as to order and barrier: it writes shared memory and completes bytes there; its source is a value. It is of the generic proxy. It waits for no other
// store of its thread and publishes none; but what the thread has read before it has read when the bytes come, so who has waited for them may write there.
EXPORT void weft_emu_store_async_remote(void* local, unsigned rank, weft_u64 value, unsigned bytes, void* local_barrier, int line) {
  Fiber* f = machine.current;
  u8* to = (u8*)weft_emu_remote_address(local, rank, line);
  if ((u64)to % bytes)
    fatal("misaligned-copy", line, 0, "a store needs an address that is a multiple of its bytes", "store_async_remote by %s to %s: not aligned",
          describe_fiber(f), describe_address((u64)to));
  Mbarrier* barrier = use_mbarrier_by_copy(f->block->unit->blocks[rank], weft_emu_remote_address(local_barrier, rank, line), "store_async_remote", line);
  Copy* c = new_copy(f, Copy::LOAD, bytes, line, barrier);
  Accessor by = accessor_of(c, 0);
  by.copy = false;
  check_shared((u64)to, bytes, WEFT_WRITE | WEFT_SHARED | WEFT_REMOTE, line, by, " (asynchronous store)");
  c->value = value;
  c->from = (const u8*)&c->value;
  if (machine.config.check_races) {
    release_to(c->issued, f);
    if (f->reads) clocks.join_into(c->issued.value, f->reads);
  }
  start_load(c, to, barrier);
}

EXPORT void weft_emu_bulk_store(void* to, const void* from, unsigned bytes, int line) {
  Fiber* f = machine.current;
  check_alignment(from, to, bytes, BULK_ALIGNMENT, line);
  if (!bytes) return;
  Copy* c = new_copy(f, Copy::STORE, bytes, line);
  check_shared((u64)from, bytes, WEFT_READ | WEFT_SHARED, line, accessor_of(c, 0), " (bulk store)");
  check_global((u64)to, bytes, WEFT_WRITE, line, accessor_of(c, 1), " (bulk store)");
  c->to = (u8*)to;
  start_store(c, from);
}

EXPORT void weft_emu_tensor_load(void* to, const WeftTensorMap* map, const int* at, int rank, void* bar, int line) {
  Fiber* f = machine.current;
  check_tensor_map(map, rank, line);
  const u32 bytes = tensor_box_bytes(*map);
  check_alignment(to, (void*)map->base, bytes, TENSOR_ALIGNMENT, line);
  Mbarrier* barrier = use_mbarrier_by_copy(f->block, bar, "tensor_load", line);
  Copy* c = new_copy(f, Copy::TENSOR_LOAD, bytes, line, barrier);
  c->map = *map;
  memcpy(c->at, at, sizeof(int) * (u32)rank);
  tensor_rows(*map, c->at,
              [&](u64 global, u32, u32 row_bytes) { check_global(global, row_bytes, WEFT_READ, line, accessor_of(c, 0), " (tensor load)"); });
  check_shared((u64)to, bytes, WEFT_WRITE | WEFT_SHARED, line, accessor_of(c, 0), " (tensor load)");
  start_load(c, (u8*)to, barrier);
}

EXPORT void weft_emu_tensor_store(const WeftTensorMap* map, const void* from, const int* at, int rank, int line) {
  Fiber* f = machine.current;
  check_tensor_map(map, rank, line);
  const u32 bytes = tensor_box_bytes(*map);
  check_alignment(from, (void*)map->base, bytes, TENSOR_ALIGNMENT, line);
  Copy* c = new_copy(f, Copy::TENSOR_STORE, bytes, line);
  c->map = *map;
  memcpy(c->at, at, sizeof(int) * (u32)rank);
  check_shared_bounds((u64)from, bytes, WEFT_READ | WEFT_SHARED, line, " (tensor store)");
  tensor_rows(*map, c->at, [&](u64 global, u32 offset, u32 row_bytes) {
    tensor_chunks(*map, (u64)from + offset, row_bytes,
                  [&](u64 at, u32 n) { check_shared(at, n, WEFT_READ | WEFT_SHARED, line, accessor_of(c, 0), " (tensor store)"); });
    check_global(global, row_bytes, WEFT_WRITE, line, accessor_of(c, 1), " (tensor store)");
  });
  start_store(c, from);
}

EXPORT void weft_emu_bulk_commit(int) {
  BulkGroups& g = machine.current->bulk;
  for (Copy* c : g.open) g.members.push(c);
  g.sizes.push(g.open.count);
  g.open.clear();
}

EXPORT void weft_emu_bulk_wait(int groups, int read_only, int line) {
  Fiber* f = machine.current;
  for (;;) {
    const u32 members = members_to_wait_for(f->bulk, (u32)groups);
    bool done = true;
    for (u32 i = 0; i < members; i++) done &= f->bulk.members[i]->state >= (read_only ? Copy::SOURCE_READ : Copy::DONE);
    if (done) {
      learn_stores(f, members, read_only);
      drop_done_groups(f->bulk, (u32)groups);
      return;
    }
    machine.bulk_waiting.push(f);
    wait_here(f, Wait::BULK_GROUP, nullptr, line);
  }
}

// Everything the thread knows of becomes visible to the async proxy.
EXPORT void weft_emu_fence_proxy_async(int) {
  if (!machine.config.check_races) return;
  Fiber* f = machine.current;
  fence_mbarriers(f);
  assign(f->base, clocks.fence(f->base, PROXY_FENCED));
  f->fenced_clock[PROXY_FENCED] = f->clock++;
}

EXPORT void weft_emu_cp_async(void* to, const void* from, unsigned bytes, int valid, int line) {
  Fiber* f = machine.current;
  const u32 group = f->cp_async_committed + 1;
  if (((u64)to | (valid ? (u64)from : 0)) % bytes)
    fatal("misaligned-copy", line, 0, "cp_async needs addresses that are multiples of its bytes", "cp_async<%u> by %s from %s to %s: not aligned",
          bytes, describe_fiber(f), describe_address((u64)from), describe_address((u64)to));
  Accessor by = {f, 0, false};
  if (machine.config.check_races) by.epoch = own_epoch(f);
  if (valid) check_global((u64)from, bytes, WEFT_READ, line, by, " (cp_async)");
  if (machine.config.check_races) by.epoch = make_epoch(f->block->unit->id, cp_async_index(f), group);
  check_shared((u64)to, bytes, WEFT_WRITE | WEFT_SHARED, line, by, " (cp_async)");
  const CpAsync c = {(u8*)to, (const u8*)from, bytes, group, valid != 0};
  const u32 timing = machine.config.copy_timing;
  if (timing == COPY_AT_ONCE || (timing == COPY_RANDOM && machine.random.next() & 256)) {
    perform(c);
    return;
  }
  memset(to, 0xff, bytes);
  with_more(f)->cp_async.push(c);
}

EXPORT void weft_emu_cp_async_commit(int) { with_more(machine.current)->cp_async_committed++; }

EXPORT void weft_emu_cp_async_wait(int groups, int) {
  Fiber* f = machine.current;
  if (f->cp_async_committed < (u32)groups) return;
  const u32 done = f->cp_async_committed - (u32)groups;
  perform_groups(f, done);
  f->cp_async_done = max_of(f->cp_async_done, done);
}
