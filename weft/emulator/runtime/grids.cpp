// Programmatic dependent launch: blocks of a second grid run before the first has ended.
//
// The second grid starts once every block of the first has let it (griddep_launch) or has ended, as on the chip. Some blocks of the first are held where
// they say so: what stands behind it, usually the last stores, then runs after what stands in front of the second grid's wait. Whether the two may touch
// the same memory does not depend on the order: only griddep_wait() makes the first grid's accesses known to a thread of the second, and to whom it passes that on.
#include "grids.h"
#include "memory.h"
#include "report.h"
#include "shadow.h"
#include "switching.h"

namespace weft_rt {

static const u32 HELD_UNITS = 4;   // of the first grid: more would only take memory
static const u32 EARLY_UNITS = 8;  // of the second, that run up to their wait

void use_grid(Grid* g) {
  machine.grid = g;
  machine.current_block = nullptr;
  weft_state.shared_bytes = g->shared_bytes;
  weft_state.block_dim = pack(g->block[0], g->block[1], g->block[2]);
  weft_state.grid_dim = pack(g->grid[0], g->grid[1], g->grid[2]);
  for (u32 i = 0; i < WEFT_SHARED_TENSORS; i++) weft_state.shared_tensors[i] = i < g->shared_tensor_count ? g->shared_tensors[i] : 0;
  forget_recent_buffers();
}

u32 resident_units(const Grid* grid) {
  if (machine.grid_count == 1) return machine.resident.count;
  u32 count = 0;
  for (const Unit* unit : machine.resident) count += unit->grid == grid;
  return count;
}

static bool is_first_at_end() { return machine.grids[0].next_unit >= machine.grids[0].unit_order.count && !resident_units(&machine.grids[0]); }

bool can_start_second() {
  if (is_first_at_end()) return machine.is_first_over = true;
  if (machine.config.overlap == SECOND_LATE || machine.grids[0].next_unit < machine.grids[0].unit_order.count) return false;
  for (Unit* unit : machine.resident)
    for (u32 i = 0; unit->grid->number == 0 && i < unit->block_count; i++)
      if (!unit->blocks[i]->lets_next_start && unit->blocks[i]->live_threads) return false;
  return true;
}

static void wake(List<Fiber*>& waiting) {
  for (Fiber* f : waiting) make_ready(f->warp, 1u << f->lane);
  waiting.clear();
}

static bool is_held(const Unit* unit) {
  for (const Fiber* f : machine.held)
    if (f->block->unit == unit) return true;
  return false;
}

// Whether a unit of the first grid stays where it lets the second start. With a seed, half of them do.
static bool is_to_be_held(const Unit* unit) {
  if (machine.config.overlap == SECOND_LATE || machine.grids[1].next_unit) return false;
  if (is_held(unit)) return true;
  u32 units = 0;
  const Unit* last = nullptr;
  for (const Fiber* f : machine.held) {
    units += f->block->unit != last;
    last = f->block->unit;
  }
  return units < HELD_UNITS && (machine.config.schedule == IN_ORDER || machine.random.below(2));
}

bool overlap_step() {
  Grid* second = &machine.grids[1];
  if (!machine.polling.count) {
    const bool early = second->next_unit < EARLY_UNITS && (machine.config.schedule == IN_ORDER || machine.random.below(4));
    if (!machine.is_first_over && (machine.grids[0].next_unit < machine.grids[0].unit_order.count || early) && start_next()) return true;
  }
  if (machine.held.count) {
    wake(machine.held);
    return true;
  }
  if (machine.early.count && is_first_at_end()) {
    machine.is_first_over = true;
    wake(machine.early);
    return true;
  }
  return false;
}

void start_overlap() {
  machine.held.clear();
  machine.early.clear();
  machine.is_first_over = machine.second_waited = false;
  machine.first_ended = nullptr;
  if (machine.grid_count == 1 || !machine.config.check_races) return;
  machine.first_ended = clocks.copy(nullptr);
  machine.first_ended->foreign[KNOWN] = foreign_of(FIRST_GRID, clocks.zero);
}

void end_overlap() {
  if (machine.grid_count > 1 && !machine.aborted && !machine.timed_out && !machine.second_waited) {
    use_grid(&machine.grids[1]);
    REPORT("no-griddep-wait", 0, 0, "griddep_wait() in some thread, also where nothing of the kernel before is touched",
           "no thread of %s waits for the kernel before: it may end first, and then the kernel behind it starts while that one still runs", machine.grid->name);
  }
  release(machine.first_ended);
  machine.first_ended = nullptr;
}

// One shadow for each range of memory that buffers of either grid cover, where one of them may be written.
void share_shadows() {
  List<Buffer*> all = {};
  for (u32 g = 0; g < machine.grid_count; g++)
    for (Buffer& b : machine.grids[g].buffers) {
      all.push(&b);
      for (u32 i = all.count - 1; i && all[i]->first < all[i - 1]->first; i--) {
        Buffer* later = all[i - 1];
        all[i - 1] = all[i];
        all[i] = later;
      }
    }
  for (u32 from = 0, to; from < all.count; from = to) {
    u64 end = all[from]->first + all[from]->bytes;
    bool written = false, initialised = false;
    for (to = from; to < all.count && all[to]->first < end; to++) {
      end = max_of(end, all[to]->first + all[to]->bytes);
      written |= all[to]->written;
      initialised |= all[to]->initialised;
    }
    if (!written && initialised) continue;
    Shadow* shadow = make_shadow(all[from]->first, end - all[from]->first, initialised);
    machine.shadows.push(shadow);
    for (u32 i = from; i < to; i++) all[i]->shadow = shadow;
  }
  all.release();
}

}  // namespace weft_rt

using namespace weft_rt;

EXPORT void weft_emu_griddep_wait(int line) {
  Fiber* f = machine.current;
  f->dependency_met = true;
  if (!f->block->unit->grid->number) return;
  machine.second_waited = true;
  if (!machine.is_first_over) {
    machine.early.push(f);
    wait_here(f, Wait::PREVIOUS_GRID, nullptr, line);
  }
  acquire_from(f, machine.first_ended);
}

EXPORT void weft_emu_griddep_launch(int line) {
  Fiber* f = machine.current;
  if (machine.grid_count == 1 || f->block->unit->grid->number) return;
  f->block->lets_next_start = true;
  if (!is_to_be_held(f->block->unit)) return;
  machine.held.push(f);
  wait_here(f, Wait::NEXT_GRID, nullptr, line);
}
