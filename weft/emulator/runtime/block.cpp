// Making blocks and threads, and taking them down again.
#include <sys/mman.h>
#include "machine.h"
#include "report.h"
#include "shadow.h"
#include "trace.h"

namespace weft_rt {

// Stacks are colored so that the same depth in two threads does not fall into the same cache set.
static const u32 STACK_COLORS = 61, STACK_COLOR_BYTES = 64, GUARD_BYTES = 4096;
static const u32 MAX_GUARDED_STACKS = 16384;  // each guard page costs a mapping, and the kernel limits those
static u32 guarded_stacks = 0;

static char* map_memory(u64 bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    fprintf(stderr, "weft emulator: out of memory (%llu bytes)\n", (unsigned long long)bytes);
    abort();
  }
  return (char*)p;
}

// From one stack to the next: a page more than it holds, since a power of two would put all of them into a few sets of the second cache.
static u64 stack_stride() { return (u64)machine.config.stack_kib * 1024 + GUARD_BYTES; }

static void make_stacks(Unit* unit, u32 threads) {
  unit->stacks = map_memory(stack_stride() * threads);
  for (u32 i = 0; i < threads; i++) {
    char* low = unit->stacks + stack_stride() * i;
    if (guarded_stacks < MAX_GUARDED_STACKS && mprotect(low, GUARD_BYTES, PROT_NONE) == 0) guarded_stacks++;
    unit->fibers[i].stack_top = low + stack_stride() - i * 5 % STACK_COLORS * STACK_COLOR_BYTES;
  }
}

// The part of a unit that stays the same when it runs another cluster.
static Unit* make_unit() {
  const u32 threads = machine.grid->block_threads, warps = machine.grid->warps_per_block, blocks = machine.grid->unit_blocks;
  Unit* unit = (Unit*)calloc(1, sizeof(Unit));
  unit->block_count = blocks;
  unit->fibers = (Fiber*)aligned_alloc(CACHE_LINE, threads * blocks * sizeof(Fiber));
  memset((void*)unit->fibers, 0, threads * blocks * sizeof(Fiber));
  make_stacks(unit, threads * blocks);
  for (u32 rank = 0; rank < blocks; rank++) {
    Block* b = unit->blocks[rank] = (Block*)calloc(1, sizeof(Block));
    b->unit = unit;
    b->rank = rank;
    b->warp_count = warps;
    b->warps = (Warp*)calloc(warps, sizeof(Warp));
    b->shared = (u8*)map_memory(max_of(machine.grid->shared_capacity_bytes, 4096u));
    b->shadow = make_shadow((u64)b->shared, machine.grid->shared_bytes, false);
    for (u32 w = 0; w < warps; w++) {
      b->warps[w].block = b;
      b->warps[w].index = w;
      b->warps[w].fibers = unit->fibers + rank * threads + w * WARP_THREADS;
    }
    for (u32 t = 0; t < threads; t++) {
      Fiber* f = &unit->fibers[rank * threads + t];
      const u32* n = machine.grid->block;
      f->block = b;
      f->warp = &b->warps[t / WARP_THREADS];
      f->lane = t % WARP_THREADS;
      f->thread = t;
      f->index = rank * threads + t;
      f->thread_index = pack(t % n[0], t / n[0] % n[1], t / (n[0] * n[1]));
    }
  }
  return unit;
}

static void make_fiber_context(Fiber* f) {
  make_context(&f->context, f->stack_top, stack_stride() - STACK_COLORS * STACK_COLOR_BYTES - GUARD_BYTES, fiber_main);
}

static ALWAYS_INLINE void reset_fiber(Fiber* f) {
  f->wait = Wait::NONE;
  f->note = nullptr;
  f->exited = f->dependency_met = false;
  f->cluster_seen = 0;
  if (UNLIKELY(!f->parked)) make_fiber_context(f);
  f->parked = false;
  if (LIKELY(!machine.config.check_races)) return;
  assign(f->base, clocks.zero);
  f->clock = 1;
  for (u32& clock : f->fenced_clock) clock = 0;
}

static void reset_block(Block* b, u32 cluster) {
  const u32 *grid = machine.grid->grid, *size = machine.grid->cluster;
  const u32 clusters_x = grid[0] / size[0], clusters_y = grid[1] / size[1];
  b->x = cluster % clusters_x * size[0] + b->rank % size[0];
  b->y = cluster / clusters_x % clusters_y * size[1] + b->rank / size[0] % size[1];
  b->z = cluster / (clusters_x * clusters_y) * size[2] + b->rank / (size[0] * size[1]);
  b->linear = (b->z * grid[1] + b->y) * grid[0] + b->x;
  b->live_threads = machine.grid->block_threads;
  b->lets_next_start = false;
  b->ready_warps = 0;
  b->current_warp = MAX_WARPS - 1;  // so that warp 0 is the first
  b->register_pool = 0;
  memset(b->shared, 0xff, machine.grid->shared_bytes);  // NaN in every float format
  reset_shadow(b->shadow);
  for (u32 w = 0; w < b->warp_count; w++) {
    Warp* warp = &b->warps[w];
    const u32 threads = min_of(machine.grid->block_threads - w * WARP_THREADS, (u32)WARP_THREADS);
    warp->lanes = warp->alive = warp->ready = threads == WARP_THREADS ? FULL_MASK : (1u << threads) - 1;
    b->ready_warps |= 1u << w;
    warp->registers = machine.grid->registers_per_thread;
    warp->registers_wanted = 0;
  }
}

Unit* start_unit(Grid* grid, u32 cluster) {
  const InGrid there(grid);
  Unit* unit = grid->pool.count ? grid->pool.pop() : make_unit();
  unit->grid = grid;
  unit->id = grid->first_unit + cluster + 1;
  unit->live = true;
  unit->live_threads = machine.grid->block_threads * unit->block_count;
  memset(unit->slot_clock, 0, sizeof unit->slot_clock);
  memset(unit->slot_used, 0, sizeof unit->slot_used);
  for (u32 i = 0; i < unit->block_count; i++) reset_block(unit->blocks[i], cluster);
  for (u32 i = 0, threads = grid->block_threads * unit->block_count; i < threads; i++) reset_fiber(&unit->fibers[i]);
  return unit;
}

static void check_register_changes(Block* b) {
  for (u32 w = 0; w + 4 <= b->warp_count; w += 4)
    for (u32 k = 1; k < 4; k++) {
      List<u32>&first = b->warps[w].register_changes, &other = b->warps[w + k].register_changes;
      if (first.count == other.count && (!first.count || !memcmp(first.items, other.items, first.count * sizeof(u32)))) continue;
      REPORT("setmaxnreg-not-uniform", 0, 0, "all four warps of a warpgroup must execute the same setmaxnreg",
             "warps %u and %u of one warpgroup executed different setmaxnreg instructions (%u and %u of them)", w, w + k, first.count, other.count);
      break;
    }
}

static void clean_block(Block* b) {
  for (u32 used = b->used_barriers; used; used &= used - 1) {
    NamedBarrier& barrier = b->barriers[lowest_bit(used)];
    barrier.knowledge.clear();
    memset((void*)&barrier, 0, sizeof barrier);
  }
  b->active_barriers = b->used_barriers = 0;
  for (u32 w = 0; w < b->warp_count; w++) {
    b->warps[w].gathering = 0;
    for (Collective& c : b->warps[w].collectives) {
      c.knowledge.clear();
      c.mask = c.arrived = c.taken = 0;
    }
    b->warps[w].register_changes.clear();
  }
  for (Mbarrier* m : b->mbarriers) {
    m->arriving.clear();
    release(m->released);
    release(m->reading);
    release(m->read);
    m->waiting.release();
    free(m);
  }
  b->mbarriers.clear();
  b->names.clear();
}

static void clean_fiber(Fiber* f) {
  f->has_more = false;
  f->role = nullptr;
  f->poll_address = nullptr;
  f->polls = 0;
  assign(f->base, nullptr);
  assign(f->reads, nullptr);
  release(f->seen_by_atomics);
  release(f->fenced_published);
  f->seen_by_atomics = f->fenced_published = nullptr;
  assign(f->fenced_base, nullptr);
  f->bulk.open.clear();
  f->bulk.members.clear();
  f->bulk.sizes.clear();
  f->cp_async.clear();
  f->cp_async_committed = f->cp_async_done = 0;
}

// Takes a unit out of service: end-of-life checks, then cleaned for the next cluster.
void retire_unit(Unit* unit) {
  const InGrid there(unit->grid);
  if (!machine.aborted)
    for (u32 i = 0; i < unit->block_count; i++) {
      machine.current_block = unit->blocks[i];
      check_register_changes(unit->blocks[i]);
    }
  unit->live = false;
  machine.current_block = nullptr;
  for (u32 i = 0; i < unit->block_count; i++) clean_block(unit->blocks[i]);
  unit->cluster.arriving.clear();
  release(unit->cluster.released);
  unit->cluster = ClusterBarrier{};
  for (u32 i = 0, threads = unit->grid->block_threads * unit->block_count; i < threads; i++) {
    Fiber* f = &unit->fibers[i];
    if (UNLIKELY(f->has_more || machine.config.check_races)) clean_fiber(f);
  }
  unit->grid->pool.push(unit);
}

static void free_unit(Unit* unit) {
  const u32 threads = machine.grid->block_threads * unit->block_count;
  munmap(unit->stacks, stack_stride() * threads);
  guarded_stacks -= min_of(guarded_stacks, threads);
  for (u32 i = 0; i < threads; i++) {
    Fiber& f = unit->fibers[i];
    f.bulk.open.release();
    f.bulk.members.release();
    f.bulk.sizes.release();
    f.cp_async.release();
    drop_context(&f.context);
  }
  for (u32 i = 0; i < unit->block_count; i++) {
    Block* b = unit->blocks[i];
    free_shadow(b->shadow);
    munmap(b->shared, max_of(machine.grid->shared_capacity_bytes, 4096u));
    for (u32 w = 0; w < b->warp_count; w++) b->warps[w].register_changes.release();
    b->mbarriers.release();
    b->names.release();
    free(b->warps);
    free(b);
  }
  free(unit->fibers);
  free(unit);
}

void shrink_pool(Grid* grid, u32 kept_units) {
  const InGrid there(grid);
  while (grid->pool.count > kept_units) free_unit(grid->pool.pop());
}

}  // namespace weft_rt

EXPORT unsigned weft_emu_cluster_rank() { return weft_rt::machine.current->block->rank; }
EXPORT unsigned weft_emu_cluster_size() { return weft_rt::machine.grid->unit_blocks; }
EXPORT void weft_emu_role(const char* role) {
  using namespace weft_rt;
  Fiber* f = machine.current;
  if (UNLIKELY(machine.config.trace)) trace_thread(f, TRACE_EXIT);  // the track of its last role ends
  with_more(f)->role = role;
  if (UNLIKELY(machine.config.trace)) trace_thread(f, TRACE_START);
}
