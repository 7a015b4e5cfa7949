// Who waits for whom, by role, for the report of a deadlock; see wait_graph.h.
#include "wait_graph.h"
#include "report.h"

namespace weft_rt {

static const u32 MAX_EDGES = 40, MAX_TARGETS = 6;

// A thread by its role, or by its warp when it has none.
static const char* actor_of(const Fiber* f) {
  return f->role ? format_text("[%s]", f->role) : format_text("warp %u", f->warp->index);
}

struct Targets {
  const char* names[MAX_TARGETS];
  u32 count = 0;
  bool more = false;
  void add(const char* name) {
    for (u32 i = 0; i < count; i++)
      if (!strcmp(names[i], name)) return;
    if (count == MAX_TARGETS)
      more = true;
    else
      names[count++] = name;
  }
  const char* text() const {
    Text joined = {};
    for (u32 i = 0; i < count; i++) joined.add("%s%s", i ? ", " : "", names[i]);
    const char* all = format_text("%s%s", joined.characters.count ? joined.c_str() : "", more ? ", ..." : "");
    joined.release();
    return all;
  }
};

template <class Missing> static void add_missing(Targets& targets, const Block* b, Missing missing) {
  for (u32 t = 0; t < b->unit->grid->block_threads; t++) {
    const Fiber* f = &b->warps[0].fibers[t];
    if (!f->exited && missing(f)) targets.add(actor_of(f));
  }
}

static const char* who_arrives_at(const Mbarrier* m) {
  Targets targets;
  for (u32 i = 0; i < m->arriver_count; i++)
    targets.add(m->arrivers[i].role ? format_text("[%s]", m->arrivers[i].role) : format_text("warp %u", m->arrivers[i].warp));
  const char* names = targets.count ? targets.text() : "nobody has arrived at it so far";
  if (m->tx_bytes > 0 && !m->pending) return format_text("%lld announced bytes that no copy brings", (long long)m->tx_bytes);
  return format_text("%s (%u of %u arrivals missing)", names, m->pending, m->expected);
}

static const char* needed_by(const Fiber* f) {
  Targets targets;
  switch (f->wait) {
    case Wait::MBARRIER: return who_arrives_at((const Mbarrier*)f->waits_for);
    case Wait::BARRIER: {
      const u32 id = f->barrier;
      const NamedBarrier& barrier = f->block->barriers[id];
      const bool named = barrier.expected_threads >= 0;
      add_missing(targets, f->block, [&](const Fiber* other) {
        const bool is_there = other->wait == Wait::BARRIER && other->barrier == id;
        return !is_there && (!named || barrier.line[other->warp->index]);  // of a named barrier, those who have used it
      });
      return targets.count ? targets.text() : "threads that have left, or that never use it";
    }
    case Wait::COLLECTIVE: {
      const Collective* c = (const Collective*)f->waits_for;
      for (u32 lane = 0; lane < WARP_THREADS; lane++)
        if (c->mask & ~c->arrived & 1u << lane) targets.add(format_text("lane %u of warp %u", lane, f->warp->index));
      return targets.text();
    }
    case Wait::REGISTERS: return format_text("%u registers, of which the pool has %d", f->warp->registers_wanted, f->block->register_pool);
    case Wait::CLUSTER:
      for (u32 b = 0; b < f->block->unit->block_count; b++)
        add_missing(targets, f->block->unit->blocks[b], [](const Fiber* other) { return other->wait != Wait::CLUSTER; });
      return targets.text();
    case Wait::POLL: return format_text("a write to %s", describe_address((u64)f->poll_address));
    case Wait::NEXT_GRID: return "the kernel behind this one";
    case Wait::PREVIOUS_GRID: return "the end of the kernel before";
    default: return "a copy";
  }
}

static const char* waited_for(const Fiber* f) {
  if (f->wait == Wait::MBARRIER) {
    const Mbarrier* m = (const Mbarrier*)f->waits_for;
    return format_text("phase %u of %s", f->phase, describe_address((u64)m->block->shared + m->offset));
  }
  if (f->wait == Wait::BARRIER) return f->barrier ? format_text("named barrier %u", f->barrier) : "the block's barrier";
  return wait_name(f->wait);
}

COLD const char* describe_wait_graph() {
  List<const char*> edges = {};
  for (Unit* unit : machine.resident)
    for (u32 b = 0; b < unit->block_count; b++)
      for (u32 t = 0; t < unit->grid->block_threads && edges.count < MAX_EDGES; t++) {
        const Fiber* f = &unit->blocks[b]->warps[0].fibers[t];
        if (f->exited || f->wait == Wait::NONE) continue;
        const char* edge = format_text("\n        %s waits for %s <- needs %s", actor_of(f), waited_for(f), needed_by(f));
        bool known = false;
        for (const char* e : edges) known = known || !strcmp(e, edge);
        if (!known) edges.push(edge);
      }
  Text text = {};
  for (const char* e : edges) text.add("%s", e);
  const char* all = format_text("%s", text.c_str());
  text.release();
  edges.release();
  return all;
}

}  // namespace weft_rt
