// Which thread runs next. Lanes of a warp run in order until each of them waits; then another warp; then another block.
#include "grids.h"
#include "machine.h"
#include "report.h"
#include "switching.h"
#include "trace.h"
#include "wait_graph.h"

namespace weft_rt {

Machine machine;

void make_ready(Warp* warp, u32 lanes) {
  machine.events++;
  warp->ready |= lanes;
  if (lanes) warp->block->ready_warps |= 1u << warp->index;
}

static u32 random_bit(u32 mask) {
  for (u32 skip = machine.random.below(count_bits(mask)); skip; skip--) mask &= mask - 1;
  return lowest_bit(mask);
}

static Fiber* pick_in_block(Block* b) {
  const u32 schedule = machine.config.schedule;
  u32 ready = b->ready_warps & ~b->held_warps;
  if (UNLIKELY(!ready)) {
    b->held_warps = 0;
    ready = b->ready_warps;
  }
  u32 later = b->current_warp == 31 ? 0 : ready & ~((2u << b->current_warp) - 1);
  u32 w = schedule == IN_ORDER ? lowest_bit(later ? later : ready) : random_bit(ready);
  b->current_warp = w;
  Warp* warp = &b->warps[w];
  u32 lane = schedule == RANDOM_LANES ? random_bit(warp->ready) : lowest_bit(warp->ready);
  return &warp->fibers[lane];
}

static Block* pick_block() {
  Block* current = machine.current_block;
  const bool stay = machine.config.schedule == IN_ORDER || machine.resident.count == 1 || machine.random.below(16);
  if (current && current->unit->live && current->ready_warps && stay) return current;
  const u32 count = machine.resident.count;
  if (!count) return nullptr;
  const u32 first = machine.config.schedule == IN_ORDER ? 0 : machine.random.below(count);
  for (u32 i = 0; i < count; i++) {
    Unit* unit = machine.resident[(first + i) % count];
    for (u32 k = 0; k < unit->block_count; k++)
      if (unit->blocks[k]->ready_warps) return unit->blocks[k];
  }
  return nullptr;
}

// The next ready thread, or null when the main loop has to decide (nobody is ready, or the launch is over).
Fiber* pick() {
  if (UNLIKELY(machine.timed_out)) {
    if (machine.current) machine.last_running = machine.current;
    return nullptr;
  }
  for (;;) {
    if (machine.copies_in_flight && machine.config.copy_timing == COPY_RANDOM) {
      machine.tick++;
      step_copies(false);
    }
    if (Block* b = pick_block()) return pick_in_block(b);
    if (!machine.copies_in_flight) return nullptr;
    step_copies(true);
  }
}

void yield_sometimes(Fiber* f) {
  if (LIKELY(machine.config.schedule == IN_ORDER) || machine.random.next() & 3 << 8) return;
  switch_to(pick(), f);
}

// The systematic search: counts the points at which warps synchronize, and lets a warp give way at those that were asked for.
void at_sync_point(Fiber* f, u64 object) {
  if (f->lane != lowest_bit(f->warp->alive)) return;
  const u64 number = machine.sync_points++;
  u64& order = machine.sync_order[object * 0x9E3779B97F4A7C15ull >> 56];
  order = (order ^ (f->block->linear * 32 + f->warp->index + 1)) * 0x100000001B3ull;
  for (u32 i = 0; i < machine.config.preempt_count; i++) {
    if (machine.config.preempt[i] != number) continue;
    f->block->held_warps |= 1u << f->warp->index;
    switch_to(pick(), f);
  }
}

void leave_to_main() {
  Fiber* from = machine.current;
  if (from) switch_to(nullptr, from);
  abort();
}

// A thread that sees the same value again gives way until something changed.
void wait_polling(Fiber* f, int line) {
  machine.polling.push(f);
  wait_here(f, Wait::POLL, (void*)f->poll_address, line);
}

static void wake_polling() {
  for (Fiber* f : machine.polling) make_ready(f->warp, 1u << f->lane);
  machine.polling.clear();
}

static ALWAYS_INLINE void thread_exits(Fiber* f) {
  f->exited = true;
  f->warp->alive &= ~(1u << f->lane);
  make_unready(f);
  f->block->live_threads--;
  f->block->unit->live_threads--;
  machine.events++;
  barrier_thread_left(f);
  cluster_thread_left(f);
  if (UNLIKELY(machine.config.trace)) trace_thread(f, TRACE_EXIT);
  f->parked = true;
  if (UNLIKELY(f->block->unit->live_threads == 0))
    switch_to(nullptr, f);
  else
    reschedule(f);
}

// What runs on a stack: one thread after the other, each of another block.
void fiber_main() {
  for (;;) {
    if (UNLIKELY(machine.config.trace)) trace_thread(machine.current, TRACE_START);
    machine.grid->entry(machine.grid->arguments);
    Fiber* f = machine.current;
    if (UNLIKELY(f->has_more)) check_copies_at_exit(f);
    thread_exits(f);
  }
}

// ---- deadlock -----------------------------------------------------------------------------------------------------

static const char* describe_wait(const Fiber* f) {
  const char* at = format_text("%s%s%s%s at line %d", f->role ? "[" : "", f->role ? f->role : "", f->role ? "] " : "", wait_name(f->wait), f->line);
  if (f->wait == Wait::MBARRIER) {
    const Mbarrier* m = (const Mbarrier*)f->waits_for;
    return format_text("%s, phase %u of %s", at, f->phase, describe_mbarrier(m));
  }
  if (f->wait == Wait::BARRIER) {
    const NamedBarrier& b = f->block->barriers[f->barrier];
    u32 expected = b.expected_threads < 0 ? f->block->unit->grid->block_threads : (u32)b.expected_threads;
    return format_text("%s, barrier %u: %u of %u threads arrived", at, f->barrier, b.arrived_threads, expected);
  }
  if (f->wait == Wait::COLLECTIVE) {
    const Collective* c = (const Collective*)f->waits_for;
    return format_text("%s: lanes 0x%08x of mask 0x%08x arrived", at, c->arrived, c->mask);
  }
  if (f->wait == Wait::REGISTERS)
    return format_text("%s: needs %u registers, %d free in the pool", at, f->warp->registers_wanted, f->block->register_pool);
  if (f->wait == Wait::CLUSTER) return format_text("%s: %u threads of the cluster arrived", at, f->block->unit->cluster.arrived);
  if (f->wait == Wait::POLL) return format_text("%s: %s stays 0x%llx", at, describe_address((u64)f->poll_address), (unsigned long long)f->poll_value);
  return at;
}

static void add_mbarrier_hint(Text& text, const Mbarrier* m) {
  if (!m->valid || !m->waiting.count) return;
  const char* place = describe_address((u64)m->block->shared + m->offset);
  if (m->pending == 0 && m->tx_bytes > 0)
    text.add("%s: all arrivals are in; expect-tx announced %lld bytes more than were copied. ", place, (long long)m->tx_bytes);
  else if (m->tx_bytes < 0)
    text.add("%s: %lld more bytes were copied than announced. ", place, -(long long)m->tx_bytes);
  else if (m->pending)
    text.add("%s: %u of %u arrivals are missing in phase %u. ", place, m->pending, m->expected, m->phase);
}

struct WaitGroup {
  const char* text;
  Fiber* first;
  u32 count;
};

static COLD void report_deadlock() {
  List<WaitGroup> groups;
  Text hint = {};
  u32 live = 0;
  int line = 0;
  for (Unit* unit : machine.resident) {
    live += unit->live_threads;
    for (u32 b = 0; b < unit->block_count; b++) {
      Block* block = unit->blocks[b];
      for (u32 t = 0; t < unit->grid->block_threads; t++) {
        Fiber* f = &block->warps[0].fibers[t];
        if (f->exited) continue;
        if (!line) line = f->line;
        const char* text = describe_wait(f);
        WaitGroup* known = nullptr;
        for (WaitGroup& g : groups)
          if (!strcmp(g.text, text)) known = &g;
        if (known)
          known->count++;
        else
          groups.push(WaitGroup{text, f, 1});
      }
      for (Mbarrier* m : block->mbarriers) add_mbarrier_hint(hint, m);
    }
  }
  Text message = {};
  message.add("deadlock: %u threads wait and nothing can wake them", live);
  for (WaitGroup& g : groups) {
    if (message.characters.count > 6000) break;
    message.add("\n      %u x, first %s: ", g.count, describe_fiber(g.first)).add("%s", g.text);
  }
  message.add("\n      wait-for graph:%s", describe_wait_graph());
  machine.aborted = true;
  REPORT("deadlock", line, 0, hint.characters.count ? format_text("%s", hint.c_str()) : nullptr, "%s", message.c_str());
  groups.release();
  message.release();
  hint.release();
}

// ---- the main loop ------------------------------------------------------------------------------------------------

static bool retire_finished() {
  bool any = false;
  for (u32 i = machine.resident.count; i-- > 0;) {
    Unit* unit = machine.resident[i];
    if (unit->live_threads) continue;
    finish_copies_of(unit);
    retire_unit(unit);
    for (u32 k = i; k + 1 < machine.resident.count; k++) machine.resident[k] = machine.resident[k + 1];
    machine.resident.count--;
    any = true;
  }
  return any;
}

static bool start_next_of(Grid* grid) {
  if (grid->next_unit >= grid->unit_order.count) return false;
  if (resident_units(grid) * grid->unit_blocks >= grid->resident_blocks) return false;
  machine.resident.push(start_unit(grid, grid->unit_order[grid->next_unit++]));
  return true;
}

bool start_next() {
  if (start_next_of(&machine.grids[0])) return true;
  return machine.grid_count > 1 && can_start_second() && start_next_of(&machine.grids[1]);
}

// A thread may look at one value often without waiting for it, so a few polls in vain are no deadlock.
static const u64 MAX_IDLE_POLLS = 100000;

// Blocks run one after another, unless one polls for another's value (or the launch is cooperative): then they run together.
void run_all() {
  if (machine.grid->cooperative)
    while (start_next()) {
    }
  u64 events_at_wake = ~0ull, idle_polls = 0;
  u32 rounds = 0;  // of polling since a block was started: some loops poll several places and always look busy
  while (!machine.aborted) {
    retire_finished();
    if (!machine.resident.count && !start_next()) break;
    if (Fiber* f = pick()) {
      switch_to(f, nullptr);
      continue;
    }
    if (machine.timed_out) break;
    if (retire_finished()) continue;
    if (machine.grid_count > 1 && overlap_step()) continue;
    if (!machine.polling.count) {
      report_deadlock();
      continue;
    }
    const bool idle = machine.events == events_at_wake;
    if ((idle || ++rounds % 4 == 0) && start_next()) continue;
    idle_polls = idle ? idle_polls + machine.polling.count : 0;
    if (idle_polls > MAX_IDLE_POLLS) {
      report_deadlock();
      continue;
    }
    wake_polling();
    events_at_wake = machine.events;
  }
}

}  // namespace weft_rt
