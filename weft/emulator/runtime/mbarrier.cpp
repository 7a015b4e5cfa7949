// Barriers in shared memory that count arrivals and bytes (PTX mbarrier objects).
// A phase is complete when no arrival is pending and the tx-count is exactly zero. A waiter acquires what those who arrived in
// that phase released; completed copies publish their own bytes only.
#include "machine.h"
#include "mbarrier.h"
#include "memory.h"
#include "report.h"
#include "shadow.h"
#include "switching.h"
#include "trace.h"

namespace weft_rt {

static const i64 MAX_TX_BYTES = (1 << 20) - 1;
static const u32 MAX_ARRIVALS = (1 << 20) - 1, MBARRIER_BYTES = 8;

static u64 shared_offset(Block* b, const void* p, const char* operation, int line) {
  const u64 offset = (u64)p - (u64)b->shared;
  if (UNLIKELY(offset + MBARRIER_BYTES > machine.grid->shared_bytes || offset % MBARRIER_BYTES))
    fatal("bad-mbarrier-address", line, 0, "an mbarrier is 8 bytes of shared memory, 8-byte aligned", "%s by %s: %s is no place for an mbarrier",
          operation, describe_fiber(machine.current), describe_address((u64)p));
  return offset;
}

static Mbarrier* find_mbarrier(Block* b, u64 offset) {
  for (Mbarrier* m : b->mbarriers)
    if (m->offset == offset) return m;
  return nullptr;
}

Mbarrier* use_mbarrier(Block* b, void* p, const char* operation, int line) {
  const u64 offset = shared_offset(b, p, operation, line);
  Mbarrier* m = find_mbarrier(b, offset);
  if (UNLIKELY(!m || !m->valid))
    fatal("mbarrier-not-initialised", line, 0, "mbarrier_init() by one thread, then a barrier before anyone uses it",
          "%s by %s: there is no valid mbarrier at %s", operation, describe_fiber(machine.current), describe_address((u64)p));
  if (machine.config.check_races) {
    const Fiber* f = machine.current;
    const Accessor by = {f, own_epoch(f), false};
    if (UNLIKELY(!knows(by, m->init_epoch) && (!m->shown_phase || f->cluster_seen < m->shown_phase)))
      REPORT("data-race", line, m->init_line, "block_sync() between mbarrier_init() and the first use",
             "%s by %s is not ordered after the init of the %s", operation, describe_fiber(f), describe_mbarrier(m));
  }
  return m;
}

// The inits that the thread knows of become visible to the async proxy.
void fence_mbarriers(const Fiber* f) {
  if (!machine.config.check_races) return;
  const Accessor by = {f, own_epoch(f), false};
  for (Mbarrier* m : f->block->mbarriers) m->is_fenced |= knows(by, m->init_epoch);
}

// The thread arrives at the cluster's barrier without releasing anything: what was fenced before is shown all the same.
void show_mbarriers(const Fiber* f, u32 phase) {
  const Accessor by = {f, own_epoch(f), false};
  for (Mbarrier* m : f->block->mbarriers)
    if (m->is_fenced && !m->shown_phase && knows(by, m->init_epoch)) m->shown_phase = phase;
}

Mbarrier* use_mbarrier_by_copy(Block* b, void* p, const char* operation, int line) {
  Mbarrier* m = use_mbarrier(b, p, operation, line);
  if (UNLIKELY(!m->is_fenced && machine.config.check_races))
    REPORT("missing-proxy-fence", line, m->init_line, "fence_mbarrier_init() by the thread that makes the mbarrier, before the barrier that shows it to others",
           "%s issued by %s completes on the %s, whose init no fence has made visible to copies and other blocks", operation, describe_fiber(machine.current),
           describe_mbarrier(m));
  return m;
}

static void complete_phase(Mbarrier* m, int line) {
  if (UNLIKELY(m->bytes_in_flight))
    REPORT("phase-completes-early", line, m->init_line, "announce exactly the bytes that are copied",
           "phase %u of the %s completes while bytes copied to it are still in flight", m->phase, describe_mbarrier(m));
  if (UNLIKELY(machine.config.trace)) trace_phase(m, line);
  m->phase++;
  m->pending = m->expected;
  m->observed = false;
  if (machine.config.check_races) {
    release(m->released);
    m->released = m->arriving.take();
    release(m->read);
    m->read = m->reading;
    m->reading = nullptr;
  }
  if (m->waiting.count) m->observed = true;
  for (Fiber* f : m->waiting) {
    if (machine.config.check_races) {
      acquire_from(f, m->released);
      acquire_reads(f, m->read);
    }
    make_ready(f->warp, 1u << f->lane);
  }
  m->waiting.clear();
}

static void complete_if_done(Mbarrier* m, int line) {
  if (m->pending == 0 && m->tx_bytes == 0) complete_phase(m, line);
}

static void add_tx(Mbarrier* m, i64 bytes, int line) {
  m->tx_bytes += bytes;
  if (UNLIKELY(m->tx_bytes > MAX_TX_BYTES || m->tx_bytes < -MAX_TX_BYTES)) {
    REPORT("tx-count-out-of-range", line, m->init_line, "announce and copy less than 1 MiB per phase",
           "the tx-count of the %s leaves its range of 2^20 - 1 bytes", describe_mbarrier(m));
    machine.aborted = true;
    if (machine.current) leave_to_main();
  }
}

void copy_arrives(Mbarrier* m, u32 bytes, bool last, u32 slot, u32 clock, Knowledge* issued, int line) {
  if (last && machine.config.check_races) {
    if (!m->arriving.value) m->arriving.value = clocks.copy(nullptr);
    if (issued && !m->reading) m->reading = clocks.copy(nullptr);
    if (issued) clocks.join_into(m->reading, issued);
    u32& known = m->arriving.value->clock[slot_index(slot)];
    known = max_of(known, clock);
  }
  m->bytes_in_flight -= bytes;
  add_tx(m, -(i64)bytes, line);
  complete_if_done(m, line);
}

static void note_arriver(Mbarrier* m, const Fiber* f) {
  for (u32 i = 0; i < m->arriver_count; i++)
    if (m->arrivers[i].role == f->role && (f->role || m->arrivers[i].warp == f->warp->index)) return;
  if (m->arriver_count < sizeof m->arrivers / sizeof m->arrivers[0]) m->arrivers[m->arriver_count++] = Mbarrier::Arriver{f->role, f->warp->index};
}

static void arrive(Mbarrier* m, int line) {
  Fiber* f = machine.current;
  note_arriver(m, f);
  if (UNLIKELY(m->pending == 0)) {
    REPORT("too-many-arrivals", line, m->init_line, "count the arrivals per phase, and wait for the slot to be free before using it again",
           "arrival by %s, but phase %u of the %s has had all its arrivals", describe_fiber(f), m->phase, describe_mbarrier(m));
    yield_sometimes(f);
    return;
  }
  if (UNLIKELY(!m->observed && m->phase && machine.config.check_races))
    REPORT("phase-not-observed", line, m->init_line, "somebody must wait for each phase before the next arrival",
           "arrival by %s on the %s, but nobody waited for phase %u", describe_fiber(f), describe_mbarrier(m), m->phase - 1);
  m->pending--;
  if (machine.config.check_races) release_to(m->arriving, f);
  complete_if_done(m, line);
  yield_sometimes(f);
}

static COLD void check_phase(const Mbarrier* m, i64 phase, int line) {
  REPORT("wrong-phase", line, m->init_line, "a wait names the current phase or the one before; a parity alone cannot tell phases two apart",
         "wait by %s for phase %lld of the %s, which is in phase %u", describe_fiber(machine.current), (long long)phase, describe_mbarrier(m),
         m->phase);
}

}  // namespace weft_rt

using namespace weft_rt;

EXPORT void weft_emu_mbarrier_init(void* p, unsigned count, int line) {
  Fiber* f = machine.current;
  const u64 offset = shared_offset(f->block, p, "mbarrier_init", line);
  if (count < 1 || count > MAX_ARRIVALS) fatal("bad-mbarrier-count", line, 0, nullptr, "mbarrier_init with count %u: 1 to 2^20 - 1", count);
  Mbarrier* m = find_mbarrier(f->block, offset);
  if (m && m->valid)
    REPORT("mbarrier-reinitialised", line, m->init_line, "mbarrier_inval() first", "mbarrier_init by %s on a valid %s", describe_fiber(f),
           describe_mbarrier(m));
  else if (machine.config.check_races)
    check_shared((u64)p, MBARRIER_BYTES, WEFT_WRITE | WEFT_SHARED, line, Accessor{f, own_epoch(f), false}, "");
  if (!m) f->block->mbarriers.push(m = (Mbarrier*)calloc(1, sizeof(Mbarrier)));
  m->arriving.clear();
  m->arriver_count = 0;
  release(m->released);
  release(m->reading);
  release(m->read);
  m->waiting.release();
  *m = Mbarrier{};
  m->valid = m->observed = true;
  m->block = f->block;
  m->offset = (u32)offset;
  m->expected = m->pending = count;
  m->init_line = line;
  m->init_epoch = machine.config.check_races ? own_epoch(f) : 0;
  memset(p, 0xee, MBARRIER_BYTES);
  shadow_mark(f->block->shadow, (u64)p, MBARRIER_BYTES, make_epoch(f->block->unit->id, INDEX_MBARRIER, 1), (u32)line);
}

EXPORT void weft_emu_mbarrier_inval(void* p, int line) {
  Fiber* f = machine.current;
  Mbarrier* m = use_mbarrier(f->block, p, "mbarrier_inval", line);
  if (m->waiting.count)
    REPORT("mbarrier-inval-while-waited", line, m->init_line, "a barrier between the last wait and the inval",
           "mbarrier_inval by %s while %u threads wait on the %s", describe_fiber(f), m->waiting.count, describe_mbarrier(m));
  m->valid = false;
  memset(p, 0xff, MBARRIER_BYTES);
  shadow_mark(f->block->shadow, (u64)p, MBARRIER_BYTES, 0, 0);
}

static u64 place_of(const void* p) { return 64 + ((u64)p - (u64)machine.current->block->shared); }

EXPORT void weft_emu_mbarrier_arrive(void* p, int line) {
  sync_point(machine.current, place_of(p));
  arrive(use_mbarrier(machine.current->block, p, "mbarrier_arrive", line), line);
}

EXPORT void weft_emu_mbarrier_arrive_remote(void* p, unsigned rank, int line) {
  void* there = weft_emu_remote_address(p, rank, line);
  arrive(use_mbarrier(machine.current->block->unit->blocks[rank], there, "mbarrier_arrive_remote", line), line);
}

EXPORT void weft_emu_mbarrier_expect_tx(void* p, unsigned bytes, int arrives, int line) {
  sync_point(machine.current, place_of(p));
  Mbarrier* m = use_mbarrier(machine.current->block, p, arrives ? "mbarrier_arrive_expect_tx" : "mbarrier_expect_tx", line);
  add_tx(m, bytes, line);  // before the arrival, which therefore cannot complete the phase early
  if (arrives)
    arrive(m, line);
  else
    complete_if_done(m, line);
}

// `exact`: `phase` counts from 0; else it is a parity.
EXPORT void weft_emu_mbarrier_wait(void* p, long long phase, int exact, int line) {
  Fiber* f = machine.current;
  sync_point(f, place_of(p));
  Mbarrier* m = use_mbarrier(f->block, p, "mbarrier_wait", line);
  yield_sometimes(f);
  // Phase -1 has the parity of the phase before the first: a fresh barrier counts as having completed it.
  if (exact && UNLIKELY(phase != (i64)m->phase && phase != (i64)m->phase - 1)) check_phase(m, phase, line);
  if ((m->phase & 1) != ((u64)phase & 1)) {
    m->observed = true;
    if (machine.config.check_races) {
      acquire_from(f, m->released);
      acquire_reads(f, m->read);
    }
    return;
  }
  f->phase = m->phase;
  m->waiting.push(f);
  wait_here(f, Wait::MBARRIER, m, line);
  if (UNLIKELY(m->phase > f->phase + 1))
    REPORT(
        "phase-overrun", line, m->init_line, "let those who wait release the slot (an empty barrier) before it is filled again",
        "%s waited for phase %u of the %s, which had moved on by more than one phase before the thread ran again; a poll of the parity can miss that",
        describe_fiber(f), f->phase, describe_mbarrier(m));
}

EXPORT void weft_emu_fence_mbarrier_init(int) { fence_mbarriers(machine.current); }
