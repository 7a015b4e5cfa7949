// From one thread to the next. All of it is inlined into what waits: after a switch the processor predicts the return of every call
// in between wrongly.
#pragma once
#include "machine.h"
#include "trace.h"

namespace weft_rt {

void at_sync_point(Fiber* f, u64 object);
static ALWAYS_INLINE void sync_point(Fiber* f, u64 object) {
  if (UNLIKELY(machine.config.counts_sync_points)) at_sync_point(f, object);
}
Fiber* pick();  // the next ready thread, or null when the main loop has to decide

static ALWAYS_INLINE void enter(Fiber* f) {
  machine.current = f;
  weft_state.thread_index = f->thread_index;
  if (UNLIKELY(f->block != machine.current_block)) {
    if (UNLIKELY(f->block->unit->grid != machine.grid)) use_grid(f->block->unit->grid);
    const Block* b = machine.current_block = f->block;
    weft_state.shared_first = (u64)b->shared;
    weft_state.block_index = pack(b->x, b->y, b->z);
  }
}

static ALWAYS_INLINE void switch_to(Fiber* to, Fiber* from) {
  if (to == from) return;
  machine.switches++;
  Context* save = from ? &from->context : &machine.main_context;
  if (to) {
    enter(to);
    switch_context(save, &to->context);
  } else {
    machine.current = nullptr;
    switch_context(save, &machine.main_context);
  }
}

static ALWAYS_INLINE void make_unready(Fiber* f) {
  if (!(f->warp->ready &= ~(1u << f->lane))) f->block->ready_warps &= ~(1u << f->warp->index);
}

// Brings the stack of a thread that runs soon into the cache: a switch to a cold one costs as much as all else it does.
static ALWAYS_INLINE void prefetch_stack(const Fiber* f) {
  const char* from = f->context.address() - (f->wait == Wait::NONE ? 5 * CACHE_LINE : 0);
  __builtin_prefetch(from);
  __builtin_prefetch(from + CACHE_LINE);
  __builtin_prefetch(from + 2 * CACHE_LINE);
  __builtin_prefetch(from + 3 * CACHE_LINE);
  __builtin_prefetch(from + 4 * CACHE_LINE);
  __builtin_prefetch(from + 5 * CACHE_LINE);
}

static ALWAYS_INLINE void reschedule(Fiber* from) {
  u32 ready = from->warp->ready;
  if (LIKELY(ready && machine.config.schedule != RANDOM_LANES && !machine.timed_out)) {
    Fiber* fibers = from->warp->fibers;
    if (const u32 later = ready & (ready - 1)) prefetch_stack(&fibers[lowest_bit(later)]);
    switch_to(&fibers[lowest_bit(ready)], from);
    return;
  }
  switch_to(pick(), from);
}

// Returns when somebody has made the thread ready.
static ALWAYS_INLINE void wait_here(Fiber* f, Wait wait, void* object, int line) {
  f->wait = wait;
  f->waits_for = object;
  f->line = line;
  make_unready(f);
  if (UNLIKELY(machine.config.trace)) trace_thread(f, TRACE_WAIT);
  reschedule(f);
  if (UNLIKELY(machine.config.trace)) trace_thread(f, TRACE_RUN);
  f->wait = Wait::NONE;
}

}  // namespace weft_rt
