// What threads of a warp, block or cluster do together: barriers, shuffles, votes, register redistribution.
#include "machine.h"
#include "mbarrier.h"
#include "report.h"
#include "switching.h"

namespace weft_rt {

enum CollectiveKind : u8 { NO_COLLECTIVE, WARP_SYNC, SHUFFLE, BALLOT, ELECT, SETMAXNREG, ARRIVE };
static const char* const COLLECTIVE_NAMES[] = {"", "warp_sync", "a shuffle", "ballot", "elect", "setmaxnreg", "named_arrive"};

// ---- warps --------------------------------------------------------------------------------------------------------

static COLD void check_mask(Fiber* f, u32 mask, CollectiveKind kind, int line) {
  if (!(mask >> f->lane & 1))
    REPORT("bad-warp-mask", line, 0, "a lane may only execute a collective whose mask names it", "%s: %s is not in mask 0x%08x",
           COLLECTIVE_NAMES[kind], describe_fiber(f), mask);
  if (mask & ~f->warp->alive)
    fatal("exited-lanes-in-mask", line, 0, "let every lane reach the collective, or leave the exited ones out of the mask",
          "%s by %s: mask 0x%08x names lanes that exited or do not exist (alive: 0x%08x)", COLLECTIVE_NAMES[kind], describe_fiber(f), mask,
          f->warp->alive);
}

static COLD void divergent(Fiber* f, const Collective* c, CollectiveKind kind, int line) {
  fatal("divergent-collective", line, c->line, "all lanes of the mask must reach the same instruction",
        "lanes 0x%08x of warp %u are in %s at line %d while %s is in %s at line %d", c->arrived, f->warp->index, COLLECTIVE_NAMES[c->kind], c->line,
        describe_fiber(f), COLLECTIVE_NAMES[kind], line);
}

static ALWAYS_INLINE Collective* find_collective(Fiber* f, u32 mask, CollectiveKind kind, int line) {
  Warp* warp = f->warp;
  for (u32 open = warp->gathering; open; open &= open - 1) {
    Collective& c = warp->collectives[lowest_bit(open)];
    if (UNLIKELY(!(c.mask & mask))) continue;
    if (UNLIKELY(c.kind != kind || c.mask != mask || (c.line != line && kind != WARP_SYNC))) divergent(f, &c, kind, line);
    return &c;
  }
  for (Collective& c : warp->collectives)
    if (!c.arrived) {
      warp->gathering |= 1u << (&c - warp->collectives);
      c.mask = mask;
      c.kind = kind;
      c.line = line;
      c.taken = 0;
      return &c;
    }
  fatal("too-many-collectives", line, 0, nullptr, "%s: more than %d warp collectives in progress", describe_fiber(f), COLLECTIVES);
}

static ALWAYS_INLINE void let_collective_go(Collective* c, Fiber* last) {
  last->warp->gathering &= ~(1u << (c - last->warp->collectives));
  if (machine.config.check_races && c->kind == WARP_SYNC) {
    Knowledge* all = c->knowledge.take();
    for (u32 m = c->mask; m; m &= m - 1) assign(last->warp->fibers[lowest_bit(m)].base, all);
    release(all);
  }
  make_ready(last->warp, c->mask & ~(1u << last->lane));
}

// Returns when all lanes of the mask have come; every caller must call leave_collective after reading values.
static ALWAYS_INLINE Collective* meet(Fiber* f, u32 mask, CollectiveKind kind, u64 value, int line) {
  if (UNLIKELY(!(mask >> f->lane & 1) || mask & ~f->warp->alive)) check_mask(f, mask, kind, line);
  Collective* c = find_collective(f, mask, kind, line);
  c->arrived |= 1u << f->lane;
  c->value[f->lane] = value;
  if (machine.config.check_races && kind == WARP_SYNC) release_to(c->knowledge, f);
  if (c->arrived == c->mask)
    let_collective_go(c, f);
  else
    wait_here(f, Wait::COLLECTIVE, c, line);
  return c;
}

static ALWAYS_INLINE void leave_collective(Collective* c, Fiber* f) {
  c->taken |= 1u << f->lane;
  if (c->taken == c->mask) c->arrived = 0;
}

static ALWAYS_INLINE u32 shuffle_source(u32 lane, int kind, int operand) {
  if (kind == WEFT_SHUFFLE_XOR) return (lane ^ (u32)operand) & 31;
  if (kind == WEFT_SHUFFLE_INDEX) return (u32)operand & 31;
  u32 source = lane + (u32)operand;
  return source > 31 ? lane : source;
}

// ---- barriers of a block ------------------------------------------------------------------------------------------

static u32 bit_of(const Block* b, const NamedBarrier& barrier) { return 1u << (&barrier - b->barriers); }
static bool is_active(const Block* b, const NamedBarrier& barrier) { return b->active_barriers & bit_of(b, barrier); }

static u32 expected_threads(const Block* b, const NamedBarrier& barrier) {
  if (barrier.expected_threads >= 0) return (u32)barrier.expected_threads;
  u32 warps = 0;
  for (u32 w = 0; w < b->warp_count; w++) warps += b->warps[w].alive != 0;
  return warps * WARP_THREADS;
}

static void try_open(Block* b, NamedBarrier& barrier) {
  if (!is_active(b, barrier) || barrier.arrived_threads < expected_threads(b, barrier)) return;
  Knowledge* all = machine.config.check_races ? barrier.knowledge.take() : nullptr;
  for (u32 w = 0; w < b->warp_count; w++) {
    u32 waiting = barrier.waiting[w];
    if (waiting && all)
      for (u32 m = waiting; m; m &= m - 1) assign(b->warps[w].fibers[lowest_bit(m)].base, all);  // it covers what each of them knew
    make_ready(&b->warps[w], waiting);
    barrier.waiting[w] = barrier.arrived[w] = 0;
  }
  release(all);
  barrier.arrived_threads = barrier.counted_warps = 0;
  b->active_barriers &= ~bit_of(b, barrier);
}

static COLD void check_barrier_operands(const Fiber* f, int id, int threads, int line) {
  if (id < 0 || id >= (int)machine.config.named_barriers)
    fatal("bad-barrier", line, 0, "number named barriers from 1 to 15", "barrier %d by %s: a block has barriers 0 to %u", id, describe_fiber(f),
          machine.config.named_barriers - 1);
  if (threads == 0 || (threads > 0 && threads % (int)WARP_THREADS) || threads > (int)(machine.grid->warps_per_block * WARP_THREADS))
    fatal("bad-barrier", line, 0, "count whole warps",
          "barrier %d with %d threads by %s: the count must be a multiple of 32 and at most the block's %u", id, threads, describe_fiber(f),
          machine.grid->warps_per_block * WARP_THREADS);
}

static COLD void check_barrier_state(Fiber* f, NamedBarrier& barrier, int id, int threads, bool sync, int line) {
  const u32 w = f->warp->index;
  if (barrier.expected_threads != threads) {
    int there = 0;  // where one of those came that are there already
    for (u32 k = 0; k < f->block->warp_count && !there; k++)
      if (barrier.arrived[k]) there = barrier.line[k];
    fatal("barrier-count-mismatch", line, there, "all who use a barrier must give the same count",
          "barrier %d by %s with count %d, but the threads already there gave %d", id, describe_fiber(f), threads, barrier.expected_threads);
  }
  if (barrier.arrived[w] && (barrier.line[w] != line || barrier.syncs[w] != sync))
    REPORT("divergent-barrier", line, barrier.line[w], "move the barrier out of the branch, or give each side its own named barrier",
           "lanes of warp %u reach barrier %d at different places: line %d and line %d (%s)", w, id, barrier.line[w], line, describe_fiber(f));
}

// A warp counts as 32 threads as soon as all of its lanes that have not exited are there.
static ALWAYS_INLINE bool count_warp_if_complete(NamedBarrier& barrier, const Warp* warp) {
  const u32 w = warp->index;
  if (!barrier.arrived[w] || warp->alive & ~barrier.arrived[w] || barrier.counted_warps >> w & 1) return false;
  barrier.counted_warps |= 1u << w;
  barrier.arrived_threads += WARP_THREADS;
  return true;
}

static ALWAYS_INLINE void check_whole_warp(const Fiber* f, int id, int line) {
  const Warp* warp = f->warp;
  if (UNLIKELY(warp->alive != warp->lanes))
    REPORT("exit-before-barrier", line, 0, "let every lane reach the barrier, predicate the work instead of returning early",
           "barrier %d by %s, but lanes 0x%08x of its warp have exited: all lanes of a warp must execute a barrier", id, describe_fiber(f),
           warp->lanes & ~warp->alive);
}

static ALWAYS_INLINE void arrive_at_barrier(Fiber* f, int id, int threads, bool sync, int line) {
  if (UNLIKELY(id || threads >= 0)) check_barrier_operands(f, id, threads, line);
  NamedBarrier& barrier = f->block->barriers[id];
  Warp* warp = f->warp;
  const u32 w = warp->index, bit = 1u << f->lane;
  if (!is_active(f->block, barrier)) {
    f->block->active_barriers |= 1u << id;
    f->block->used_barriers |= 1u << id;
    barrier.expected_threads = threads;
  } else {
    if (UNLIKELY(barrier.expected_threads != threads || (barrier.arrived[w] && (barrier.line[w] != line || barrier.syncs[w] != sync))))
      check_barrier_state(f, barrier, id, threads, sync, line);
  }
  if (!barrier.arrived[w]) {
    barrier.line[w] = line;
    barrier.syncs[w] = sync;
  }
  if (UNLIKELY(barrier.arrived[w] & bit))
    REPORT("barrier-overrun", line, barrier.line[w], "wait for the barrier (named_sync) before arriving at it again",
           "%s arrives at barrier %d a second time before it opened", describe_fiber(f), id);
  barrier.arrived[w] |= bit;
  if (sync) barrier.waiting[w] |= bit;
  if (machine.config.check_races) release_to(barrier.knowledge, f);
  bool opens = false;
  if (count_warp_if_complete(barrier, warp)) {
    if (UNLIKELY(threads > 0 && (int)barrier.arrived_threads > threads))
      REPORT("too-many-at-barrier", line, 0, "two groups use one barrier: give each its own", "barrier %d: %u threads arrived, %d expected", id,
             barrier.arrived_threads, threads);
    opens = barrier.arrived_threads >= expected_threads(f->block, barrier);
  }
  if (opens) {
    try_open(f->block, barrier);
    yield_sometimes(f);
  } else if (sync) {
    f->barrier = (u8)id;
    wait_here(f, Wait::BARRIER, &barrier, line);
  }
}

// A thread that exits is no longer expected at barriers: its warp may be complete now, or the block. That lanes of a warp part
// here is reported: the barrier instructions are aligned. A whole warp may exit early.
void barrier_thread_left(Fiber* f) {
  Block* b = f->block;
  for (u32 active = b->active_barriers; active; active &= active - 1) {
    const u32 id = lowest_bit(active);
    NamedBarrier& barrier = b->barriers[id];
    if (barrier.arrived[f->warp->index] && !(barrier.arrived[f->warp->index] >> f->lane & 1) && barrier.syncs[f->warp->index])
      REPORT("exit-before-barrier", barrier.line[f->warp->index], 0,
             "let every lane reach the barrier, predicate the work instead of returning early",
             "%s exits while lanes 0x%08x of its warp wait at barrier %u", describe_fiber(f), barrier.arrived[f->warp->index], id);
    count_warp_if_complete(barrier, f->warp);
    try_open(b, barrier);
  }
  for (u32 open = f->warp->gathering; open; open &= open - 1) {
    const Collective& c = f->warp->collectives[lowest_bit(open)];
    if ((c.mask >> f->lane & 1) && !(c.arrived >> f->lane & 1))
      fatal("exited-lanes-in-mask", c.line, 0, "let every lane reach the collective", "%s exits while lanes 0x%08x of its warp wait for it in %s",
            describe_fiber(f), c.arrived, COLLECTIVE_NAMES[c.kind]);
  }
}

// ---- registers ----------------------------------------------------------------------------------------------------

static void grant_registers(Block* b) {
  for (u32 w = 0; w < b->warp_count; w++) {
    Warp* warp = &b->warps[w];
    if (!warp->registers_wanted || (int)warp->registers_wanted > b->register_pool) continue;
    b->register_pool -= (int)warp->registers_wanted;
    warp->registers += warp->registers_wanted / WARP_THREADS;
    warp->registers_wanted = 0;
    make_ready(warp, warp->alive);
  }
}

// Moves registers between the warp and the block's pool, or notes how many the warp has to wait for.
static void change_registers(Fiber* f, bool increase, u32 registers, int line) {
  Warp* warp = f->warp;
  Block* b = f->block;
  warp->register_changes.push((u32)increase << 16 | registers);
  if (!machine.grid->registers_per_thread) {
    REPORT("bad-setmaxnreg", line, 0, "give the kernel __launch_bounds__(threads, 1), or the launch registers_per_thread",
           "setmaxnreg by %s, and nothing says how many registers a thread starts with; ptxas ignores it then", describe_fiber(f));
    return;
  }
  if (increase ? registers < warp->registers : registers > warp->registers) {
    REPORT("bad-setmaxnreg", line, 0, "increase to more and decrease to fewer than the launch gave",
           "setmaxnreg_%s<%u> by %s, which owns %u registers", increase ? "inc" : "dec", registers, describe_fiber(f), warp->registers);
    return;
  }
  if (!increase) {
    b->register_pool += (int)((warp->registers - registers) * WARP_THREADS);
    warp->registers = registers;
    grant_registers(b);
    return;
  }
  u32 wanted = (registers - warp->registers) * WARP_THREADS;
  if ((int)wanted > b->register_pool) {
    warp->registers_wanted = wanted;
    return;
  }
  b->register_pool -= (int)wanted;
  warp->registers = registers;
}

// ---- clusters -----------------------------------------------------------------------------------------------------

static void try_open_cluster(Unit* unit) {
  ClusterBarrier& c = unit->cluster;
  if (!c.arrived || c.arrived < unit->live_threads) return;
  c.arrived = 0;
  c.phase++;
  if (machine.config.check_races) {
    release(c.released);
    c.released = c.arriving.take();
  }
  for (u32 i = 0; i < unit->block_count * machine.grid->block_threads; i++) {
    Fiber* f = &unit->fibers[i];
    if (!f->exited && f->wait == Wait::CLUSTER && f->cluster_phase < c.phase) make_ready(f->warp, 1u << f->lane);
  }
}

void cluster_thread_left(Fiber* f) {
  if (f->block->unit->cluster.arrived) try_open_cluster(f->block->unit);
}

}  // namespace weft_rt

using namespace weft_rt;

EXPORT void weft_emu_warp_sync(unsigned mask, int line) {
  Fiber* f = machine.current;
  leave_collective(meet(f, mask, WARP_SYNC, 0, line), f);
}

EXPORT weft_u64 weft_emu_shuffle(weft_u64 value, int kind, int operand, int line) {
  Fiber* f = machine.current;
  Collective* c = meet(f, FULL_MASK, SHUFFLE, value, line);
  u64 result = c->value[shuffle_source(f->lane, kind, operand)];
  leave_collective(c, f);
  return result;
}

// The fold of each group of `width` lanes, rounded up to a power of two, or of the first group only: the first lane to see the values computes for all.
EXPORT weft_u64 weft_emu_fold(weft_u64 value, unsigned width, int only_first, void (*fold_halves)(weft_u64*, unsigned), int line) {
  Fiber* f = machine.current;
  while (width & (width - 1)) width += width & -width;
  Collective* c = meet(f, FULL_MASK, SHUFFLE, value, line);
  if (!c->taken)
    for (u32 first = 0; first < (only_first ? 1 : WARP_THREADS); first += width)
      for (u32 half = width / 2; half; half /= 2) fold_halves(c->value + first, half);
  const u64 result = c->value[only_first ? 0 : f->lane & -width];
  leave_collective(c, f);
  return result;
}

EXPORT unsigned weft_emu_ballot(int predicate, int line) {
  Fiber* f = machine.current;
  Collective* c = meet(f, FULL_MASK, BALLOT, (u64)predicate, line);
  u32 votes = 0;
  for (u32 i = 0; i < WARP_THREADS; i++) votes |= (u32)(c->value[i] != 0) << i;
  leave_collective(c, f);
  return votes;
}

// The leader is any one lane, the same each time: lane 0, or another one when the schedule is random.
EXPORT int weft_emu_elect(int line) {
  Fiber* f = machine.current;
  Collective* c = meet(f, FULL_MASK, ELECT, 0, line);
  leave_collective(c, f);
  u32 leader = machine.config.schedule == IN_ORDER ? 0 : (u32)(machine.config.seed * 2654435761u + f->warp->index * 7 + f->block->linear) >> 3 & 31;
  return f->lane == leader;
}

EXPORT void weft_emu_block_sync(int line) {
  sync_point(machine.current, 1);
  check_whole_warp(machine.current, 0, line);
  arrive_at_barrier(machine.current, 0, -1, true, line);
}

EXPORT void weft_emu_named_barrier(int id, int threads, int sync, int line) {
  Fiber* f = machine.current;
  sync_point(f, 1 + (u64)id);
  check_whole_warp(f, id, line);
  if (!sync) leave_collective(meet(f, f->warp->alive, ARRIVE, 0, line), f);  // the warp executes it as one, though no lane waits for others
  arrive_at_barrier(f, id, threads, sync, line);
}

EXPORT void weft_emu_setmaxnreg(int increase, int registers, int line) {
  Fiber* f = machine.current;
  if (registers < 24 || registers > 256 || registers % 8)
    fatal("bad-setmaxnreg", line, 0, nullptr, "setmaxnreg to %d registers: 24 to 256 in steps of 8", registers);
  Collective* c = meet(f, FULL_MASK, SETMAXNREG, 0, line);
  const bool first = c->taken == 0;
  leave_collective(c, f);
  if (first) change_registers(f, increase, (u32)registers, line);
  if (f->warp->registers_wanted) wait_here(f, Wait::REGISTERS, nullptr, line);
}

static void cluster_arrive(int line, bool releases) {
  Fiber* f = machine.current;
  Unit* unit = f->block->unit;
  unit->cluster.arrived++;
  unit->cluster.line = line;
  f->cluster_phase = unit->cluster.phase;
  if (machine.config.check_races) {
    if (releases)
      release_to(unit->cluster.arriving, f);
    else
      show_mbarriers(f, unit->cluster.phase + 1);
  }
  try_open_cluster(unit);
}

EXPORT void weft_emu_cluster_arrive(int line) { cluster_arrive(line, true); }
// Orders no memory: the waiting threads learn of nothing but initialised mbarriers.
EXPORT void weft_emu_cluster_arrive_relaxed(int line) { cluster_arrive(line, false); }

EXPORT void weft_emu_cluster_wait(int line) {
  Fiber* f = machine.current;
  ClusterBarrier& c = f->block->unit->cluster;
  if (c.phase == f->cluster_phase) wait_here(f, Wait::CLUSTER, &c, line);
  f->cluster_seen = f->cluster_phase + 1;
  if (machine.config.check_races) acquire_from(f, c.released);
}

EXPORT void* weft_emu_remote_address(const void* local, unsigned rank, int line) {
  Fiber* f = machine.current;
  Unit* unit = f->block->unit;
  u64 offset = (u64)local - (u64)f->block->shared;
  if (offset >= machine.grid->shared_bytes || rank >= unit->block_count)
    fatal("out-of-bounds", line, 0, "give an address in this block's dynamic shared memory and a rank below cluster_size()",
          "remote shared access by %s: offset %llu of %u bytes, rank %u of %u", describe_fiber(f), (unsigned long long)offset,
          machine.grid->shared_bytes, rank, unit->block_count);
  return unit->blocks[rank]->shared + offset;
}
