// Registered buffers, the checks of every access, atomics and the order that they create between threads.
#include "machine.h"
#include "report.h"
#include "shadow.h"
#include "memory.h"
#include "switching.h"

WeftState weft_state __attribute__((visibility("default")));

namespace weft_rt {

static const u32 NO_BUFFER = ~0u;
static u32 recent_buffer[WEFT_WINDOWS];  // by the same hash as the kernel's windows

void forget_recent_buffers() {
  memset(weft_state.read, 0, sizeof weft_state.read);
  memset(weft_state.write, 0, sizeof weft_state.write);
  for (u32& i : recent_buffer) i = NO_BUFFER;
}

static bool contains(const Buffer& b, u64 address, u32 bytes) { return address - b.first < b.bytes && address - b.first + bytes <= b.bytes; }

// Buffers may overlap (views of one storage): then one that may be written comes first.
static Buffer* find_buffer(u64 address, u32 bytes) {
  u32& recent = recent_buffer[weft_window_of(address)];
  if (recent != NO_BUFFER && contains(machine.grid->buffers[recent], address, bytes)) return &machine.grid->buffers[recent];
  u32 found = NO_BUFFER;
  for (u32 i = 0; i < machine.grid->buffers.count; i++) {
    if (!contains(machine.grid->buffers[i], address, bytes)) continue;
    if (found == NO_BUFFER || machine.grid->buffers[i].written) found = i;
    if (machine.grid->buffers[i].written) break;
  }
  if (found == NO_BUFFER) return nullptr;
  recent = found;
  return &machine.grid->buffers[found];
}

// ---- reports ------------------------------------------------------------------------------------------------------

static const char* nearest_buffer(u64 address) {
  const Buffer* best = nullptr;
  u64 best_distance = ~0ull;
  for (const Buffer& b : machine.grid->buffers) {
    u64 distance = address < b.first ? b.first - address : address < b.first + b.bytes ? 0 : address - b.first - b.bytes;
    if (distance < best_distance) {
      best_distance = distance;
      best = &b;
    }
  }
  if (!best) return "the kernel was given no buffer";
  if (best_distance > 1u << 30) return format_text("no buffer of the kernel is near (address 0x%llx)", (unsigned long long)address);
  return format_text("nearest is '%s' of %llu bytes: offset %lld", best->name, (unsigned long long)best->bytes, (long long)(address - best->first));
}

static const char* access_noun(u32 access) { return access & WEFT_WRITE ? "write" : "read"; }

COLD void out_of_bounds(u64 address, u64 bytes, u32 access, int line, const char* how) {
  const Fiber* f = machine.current;
  const char* where = "";
  const u64 offset = address - (u64)f->block->shared;
  if (offset < machine.grid->shared_capacity_bytes)
    where = format_text("shared memory of %u bytes: offset %llu", machine.grid->shared_bytes, (unsigned long long)offset);
  else
    where = nearest_buffer(address);
  fatal("out-of-bounds", line, 0, "predicate the access, or allocate what the index reaches", "%s%s of %llu bytes out of bounds by %s; %s",
        access & WEFT_SHARED ? "shared " : "global ", format_text("%s%s", access_noun(access), how), (unsigned long long)bytes, describe_fiber(f),
        where);
}

static COLD void misaligned(u64 address, u32 bytes, u32 access, int line) {
  fatal("misaligned", line, 0, "a vector access needs an address that is a multiple of its bytes",
        "%u-byte %s of %s by %s: the address is %u past a multiple of %u", bytes, access_noun(access), describe_address(address),
        describe_fiber(machine.current), (u32)(address % bytes), bytes);
}

static COLD void read_only(const Buffer& b, int line) {
  fatal("write-to-read-only", line, 0, "register the buffer as written, or write elsewhere", "write to '%s' by %s: the kernel may only read it",
        b.name, describe_fiber(machine.current));
}

// ---- checks -------------------------------------------------------------------------------------------------------

static Block* block_holding(u64 address, u32 access) {
  Block* own = machine.current->block;
  if (!(access & WEFT_REMOTE)) return own;
  for (u32 i = 0; i < own->unit->block_count; i++)
    if (address - (u64)own->unit->blocks[i]->shared < machine.grid->shared_capacity_bytes) return own->unit->blocks[i];
  return own;
}

void check_shared_bounds(u64 address, u32 bytes, u32 access, int line, const char* how) {
  const u64 offset = address - (u64)block_holding(address, access)->shared;
  if (UNLIKELY(offset >= machine.grid->shared_bytes || offset + bytes > machine.grid->shared_bytes))
    out_of_bounds(address, bytes, access, line, how);
}

void check_shared(u64 address, u32 bytes, u32 access, int line, const Accessor& by, const char* how) {
  check_shared_bounds(address, bytes, access, line, how);
  Block* b = block_holding(address, access);
  if (UNLIKELY(!b->unit->live || !b->live_threads))
    REPORT("remote-access-after-exit", line, 0, "cluster_sync() before a block exits whose shared memory others use",
           "%s touches shared memory of a block that exited", describe_fiber(by.fiber));
  if (b->shadow) shadow_access(b->shadow, address, bytes, access & WEFT_WRITE, by, (u32)line | (access & WEFT_STRONG ? STRONG_LINE : 0));
}

Buffer* check_global(u64 address, u32 bytes, u32 access, int line, const Accessor& by, const char* how) {
  Buffer* b = find_buffer(address, bytes);
  if (UNLIKELY(!b)) out_of_bounds(address, bytes, access, line, how);
  if (UNLIKELY(access & WEFT_WRITE && !b->written)) {
    recent_buffer[weft_window_of(address)] = NO_BUFFER;  // a view of it may be writable
    b = find_buffer(address, bytes);
    if (!b->written) read_only(*b, line);
  }
  if (b->shadow) shadow_access(b->shadow, address, bytes, access & WEFT_WRITE, by, (u32)line | (access & WEFT_STRONG ? STRONG_LINE : 0));
  if (UNLIKELY(machine.grid->check_dependency && !by.fiber->dependency_met && !b->constant))
    REPORT("access-before-griddep-wait", line, 0, "griddep_wait() before the first access to what the previous kernel writes",
           "%s of '%s' by %s before griddep_wait()", access_noun(access), b->name, describe_fiber(by.fiber));
  return b;
}

// ---- order through global memory ----------------------------------------------------------------------------------

// Adds a snapshot of the thread's unit to what is known of other units. Takes over `own`; the result is the caller's.
static Foreign* as_published(const Fiber* f, Knowledge* own, Foreign* others) {
  others = retain(others);
  for (Foreign*& foreign : own->foreign) {
    release(foreign);
    foreign = nullptr;
  }
  Foreign* mine = foreign_of(f->block->unit->id, own);
  release(own);
  Foreign* all = merge_foreign(others, mine);
  release(mine);
  release(others);
  return all;
}

// Everything a thread knows and did, for others to acquire: what a release publishes. Owned by the caller.
static Foreign* publish_all(Fiber* f) {
  Knowledge* own = clocks.copy(f->base);
  add_own_clocks(own, f);
  f->clock++;
  return as_published(f, own, f->base->foreign[KNOWN]);
}

// What a relaxed atomic publishes: the part that thread_fence() by those who wrote it, or by this thread, made visible to the
// device. (The fence may lie on the far side of a block barrier: all threads fence, one thread then raises the flag.)
static Foreign* publish_fenced(Fiber* f) {
  if (f->fenced_base == f->base) return retain(f->fenced_published);
  Knowledge* own = clocks.copy(f->base);
  add_own_clocks(own, f);
  bool any = f->base->foreign[DEVICE_FENCED] != nullptr;
  for (u32 i = 0; i < clocks.width; i++) {
    const u32 fenced = clock_of(own, DEVICE_FENCED, i);
    any |= fenced != 0;
    clock_of(own, KNOWN, i) = fenced;
    clock_of(own, PROXY_FENCED, i) = min_of(fenced, clock_of(own, PROXY_FENCED, i));
  }
  release(f->fenced_published);
  f->fenced_published = nullptr;
  if (any) f->fenced_published = as_published(f, own, f->base->foreign[DEVICE_FENCED]);
  else release(own);
  assign(f->fenced_base, f->base);
  return retain(f->fenced_published);
}

static void acquire_published(Fiber* f, Foreign* published) {
  if (!published) return;
  Knowledge* base = clocks.copy(f->base);
  for (u32 i = 0; i < published->count; i++)
    if (published->entries[i].unit == f->block->unit->id) clocks.join_into(base, published->entries[i].known);
  Foreign* merged = merge_foreign(base->foreign[KNOWN], published);
  release(base->foreign[KNOWN]);
  base->foreign[KNOWN] = merged;
  release(f->base);
  f->base = base;
}

static void add_published(Foreign*& slot, Foreign* more) {
  Foreign* merged = merge_foreign(slot, more);
  release(slot);
  slot = merged;
}

// Open-addressed by address; grows by rebuilding.
static SyncVariable* sync_variable(u64 address) {
  List<SyncVariable>& table = machine.sync_variables;
  static u32 used;
  if (!table.count) {
    table.resize(64);
    used = 0;
  }
  u32 i = (u32)(address * 0x9E3779B97F4A7C15ull >> 40) & (table.count - 1);
  while (table[i].address && table[i].address != address) i = (i + 1) & (table.count - 1);
  if (table[i].address) return &table[i];
  if (++used * 2 > table.count) {
    List<SyncVariable> old = table;
    table = List<SyncVariable>{};
    table.resize(old.count * 2);
    used = 0;
    for (SyncVariable& v : old)
      if (v.address) *sync_variable(v.address) = v;
    old.release();
    return sync_variable(address);
  }
  table[i].address = address;
  return &table[i];
}

void drop_sync_variables() {
  for (SyncVariable& v : machine.sync_variables) release(v.published);
  machine.sync_variables.release();
}

static void order_read(Fiber* f, SyncVariable* v, bool acquire) {
  if (acquire)
    acquire_published(f, v->published);
  else if (v->published)
    add_published(f->seen_by_atomics, v->published);
}

enum Combination { ADD, MAX, MIN };

template <class T> static u64 combine_in_memory(void* address, u64 operand, Combination how) {
  T old, value;
  memcpy(&old, address, sizeof old);
  memcpy(&value, &operand, sizeof value);
  value = how == ADD ? old + value : (how == MAX) == (old < value) ? value : old;
  memcpy(address, &value, sizeof value);
  u64 bits = 0;
  memcpy(&bits, &old, sizeof old);
  return bits;
}

static u64 combine_atomically(void* address, u64 operand, int operation) {
  const Combination how = operation < WEFT_MAX_I32 ? ADD : operation < WEFT_MIN_I32 ? MAX : MIN;
  switch (operation) {
    case WEFT_ADD_F32: return combine_in_memory<float>(address, operand, how);
    case WEFT_ADD_F64: return combine_in_memory<double>(address, operand, how);
    case WEFT_MAX_I32:
    case WEFT_MIN_I32: return combine_in_memory<int>(address, operand, how);
    case WEFT_MAX_I64:
    case WEFT_MIN_I64: return combine_in_memory<long long>(address, operand, how);
    case WEFT_ADD_U64:
    case WEFT_MAX_U64:
    case WEFT_MIN_U64: return combine_in_memory<u64>(address, operand, how);
    default: return combine_in_memory<u32>(address, operand, how);
  }
}

static u32 bytes_of_operand(int operation) {
  switch (operation) {
    case WEFT_ADD_U64:
    case WEFT_ADD_F64:
    case WEFT_MAX_I64:
    case WEFT_MAX_U64:
    case WEFT_MIN_I64:
    case WEFT_MIN_U64: return 8;
    default: return 4;
  }
}

static bool is_shared(const Fiber* f, const void* address) { return (u64)address - (u64)f->block->shared < machine.grid->shared_capacity_bytes; }

}  // namespace weft_rt

using namespace weft_rt;

// The check of one access, out of line. Where bounds are all there is to check, it opens a window for the inline check.
EXPORT void weft_emu_access(const void* pointer, unsigned bytes, unsigned access, int line) {
  Fiber* f = machine.current;
  const u64 address = (u64)pointer;
  if (UNLIKELY(address & (bytes - 1))) misaligned(address, bytes, access, line);
  const Accessor by = {f, machine.config.check_races ? own_epoch(f) : 0, false};
  if (access & WEFT_SHARED) {
    check_shared(address, bytes, access, line, by, "");
    return;
  }
  const Buffer* b = check_global(address, bytes, access, line, by, "");
  if (!machine.config.check_races) (access & WEFT_WRITE ? weft_state.write : weft_state.read)[weft_window_of(address)] = {b->first, b->bytes};
}

// An access through the pointer of a tensor in shared memory, to what is not the tensor's.
EXPORT void weft_emu_outside(const WeftSharedTensor* t, const void* p, weft_u64 bytes, int is_write, int line) {
  fatal("out-of-bounds", line, 0, "predicate the access, or allocate what the index reaches", "shared %s of %llu bytes out of bounds by %s; shared '%s' of %llu bytes: offset %lld",
        is_write ? "write" : "read", bytes, describe_fiber(machine.current), t->name, t->bytes, (long long)((u64)p - t->first));
}
// What WEFT_NAME said of the memory that begins at `first`.
EXPORT void weft_emu_named(WeftSharedTensor* t) {
  for (Name& known : machine.current->block->names)
    if (known.first == t->first) {
      t->bytes = known.bytes;
      t->name = known.text;
      return;
    }
}

EXPORT void weft_emu_bad_index(long long index, int elements, int line) {
  fatal("bad-array-index", line, 0, nullptr, "element %lld of a register array of %d, by %s", index, elements, describe_fiber(machine.current));
}

EXPORT void weft_emu_bad_position(long long position, long long extent, int line) {
  fatal("position-out-of-range", line, 0, "give positions from 0 to the extent of the axis - 1", "position %lld of an axis of %lld elements, by %s", position, extent,
        describe_fiber(machine.current));
}

EXPORT void weft_emu_uninitialised_register(int line) {
  REPORT("uninitialised-register", line, 0, "write the element first", "%s reads an element of a register array that it did not write",
         describe_fiber(machine.current));
}

EXPORT void weft_emu_sync_read(const void* address, unsigned, int acquire, int) {
  if (machine.config.check_races) order_read(machine.current, sync_variable((u64)address), acquire);
}

EXPORT void weft_emu_sync_write(void* address, unsigned, int release_order, int) {
  sync_point(machine.current, (u64)address);
  machine.events++;
  if (!machine.config.check_races) return;
  Fiber* f = machine.current;
  SyncVariable* v = sync_variable((u64)address);
  release(v->published);
  v->published = release_order ? publish_all(f) : publish_fenced(f);
}

// A thread that reads one value over and over waits for others.
EXPORT void weft_emu_poll(const void* address, weft_u64 value, int line) {
  Fiber* f = with_more(machine.current);
  const bool same = f->poll_address == address && f->poll_value == value;
  f->poll_address = address;
  f->poll_value = value;
  if (!same) machine.events++;
  if (!same && ++f->polls < 64) return;
  f->polls = 0;
  wait_polling(f, line);
}

EXPORT void weft_emu_nanosleep(int line) { wait_polling(machine.current, line); }

EXPORT weft_u64 weft_emu_atomic(void* address, weft_u64 operand, int operation, int ordered, int line) {
  Fiber* f = machine.current;
  sync_point(f, (u64)address);
  const u32 bytes = bytes_of_operand(operation);
  weft_emu_access(address, bytes, WEFT_WRITE | WEFT_STRONG | (is_shared(f, address) ? WEFT_SHARED : 0), line);
  if (operand == 0 && operation < WEFT_MAX_I32) {  // adding nothing is a way to look
    u64 value = 0;
    memcpy(&value, address, bytes);
    weft_emu_poll(address, value, line);
  } else {
    machine.events++;
    yield_sometimes(f);
  }
  if (machine.config.check_races) {
    SyncVariable* v = sync_variable((u64)address);
    order_read(f, v, ordered);
    Foreign* mine = ordered ? publish_all(f) : publish_fenced(f);
    add_published(v->published, mine);
    release(mine);
  }
  return combine_atomically(address, operand, operation);
}

EXPORT void weft_emu_thread_fence(int) {
  if (!machine.config.check_races) return;
  Fiber* f = machine.current;
  acquire_published(f, f->seen_by_atomics);
  release(f->seen_by_atomics);
  f->seen_by_atomics = nullptr;
  assign(f->base, clocks.fence(f->base, DEVICE_FENCED));
  f->fenced_clock[DEVICE_FENCED] = f->clock++;
}

EXPORT void weft_emu_name(const void* address, weft_u64 bytes, const char* name) {
  Block* b = machine.current->block;
  for (Name& known : b->names)
    if (known.first == (u64)address) return;
  b->names.push(Name{(u64)address, bytes, name});
}
EXPORT void weft_emu_note(const WeftNote* note) { machine.current->note = note; }
