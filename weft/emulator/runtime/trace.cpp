// The timeline; see trace.h. Records are lines of `time, begin|end|mark, block, track, name, detail, line`, separated by tabs.
#include "trace.h"
#include "report.h"

namespace weft_rt {

static Text timeline;
static u64 records;
static const u32 MAX_TIMELINE_BYTES = 256u << 20;

void clear_trace() {
  timeline.characters.clear();
  records = 0;
}

static bool is_followed(const Fiber* f) { return f->lane == 0 || (f->role && f->role != f->warp->fibers[0].role); }

static void record(const char* kind, const Block* block, const char* track, const char* name, const char* detail, int line) {
  if (timeline.characters.count > MAX_TIMELINE_BYTES) return;
  timeline.add("%llu\t%s\t%u\t%s\t%s\t%s\t%d\n", records++, kind, block->linear, track, name, detail, line);
}
static void record(bool begins, const Block* block, const char* track, const char* name, const char* detail, int line) {
  record(begins ? "begin" : "end", block, track, name, detail, line);
}

// "full_0[2]", or "mbarrier + 96" without a name.
static void name_of(const Mbarrier* m, char* text, u32 bytes) {
  const u64 address = (u64)m->block->shared + m->offset;
  snprintf(text, bytes, "mbarrier + %u", m->offset);
  for (const Name& name : m->block->names)
    if (address - name.first < name.bytes) snprintf(text, bytes, "%s[%llu]", name.text, (unsigned long long)(address - name.first) / 8);
}

static void track_of(const Fiber* f, char* track, u32 bytes) {
  if (f->role)
    snprintf(track, bytes, "warp %02u %s", f->warp->index, f->role);
  else
    snprintf(track, bytes, "warp %02u", f->warp->index);
}

void trace_thread(const Fiber* f, TraceKind kind) {
  if (!is_followed(f)) return;
  char track[128], detail[128] = "";
  track_of(f, track, sizeof track);
  if (kind == TRACE_WAIT && f->wait == Wait::COLLECTIVE) return;  // too short to tell anything
  if (kind == TRACE_RUN && f->wait == Wait::COLLECTIVE) return;
  if (f->wait == Wait::MBARRIER) {
    const Mbarrier* m = (const Mbarrier*)f->waits_for;
    char name[96];
    name_of(m, name, sizeof name);
    snprintf(detail, sizeof detail, "%s phase %u", name, f->phase);
  } else if (f->wait == Wait::BARRIER) {
    snprintf(detail, sizeof detail, "barrier %u", f->barrier);
  }
  if (kind != TRACE_START) record(false, f->block, track, "", "", f->line);
  if (kind == TRACE_WAIT)
    record(true, f->block, track, wait_name(f->wait), detail, f->line);
  else if (kind != TRACE_EXIT)
    record(true, f->block, track, "run", "", f->line);
}

void trace_copy(const Copy* c, bool begins) {
  char track[128], detail[64], barrier[96];
  const bool loads = c->kind == Copy::LOAD || c->kind == Copy::TENSOR_LOAD;
  snprintf(track, sizeof track, "store slot %02u", c->slot);
  if (loads && c->barrier) {
    name_of(c->barrier, barrier, sizeof barrier);
    snprintf(track, sizeof track, "load into %s slot %02u", barrier, c->slot);
  }
  snprintf(detail, sizeof detail, "%u bytes", c->bytes);
  record(begins, c->issuer->block, track, loads ? "load" : "store", detail, c->line);
}

void trace_phase(const Mbarrier* m, int line) {
  char track[96], name[32];
  name_of(m, track, sizeof track);
  snprintf(name, sizeof name, "phase %u", m->phase);
  record("mark", m->block, track, name, "", line);
}

}  // namespace weft_rt

EXPORT const char* weft_rt_trace() { return weft_rt::timeline.c_str(); }
