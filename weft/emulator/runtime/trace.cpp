// The timeline; see trace.h. Records are lines of `time, begin|end, block, track, name, detail, line`, separated by tabs.
#include "trace.h"
#include "report.h"

namespace weft_rt {

static Text timeline;
static const u32 MAX_TIMELINE_BYTES = 256u << 20;

void clear_trace() { timeline.characters.clear(); }

static bool is_followed(const Fiber* f) { return f->lane == 0 || (f->role && f->role != f->warp->fibers[0].role); }

static void record(bool begins, const Block* block, const char* track, const char* name, const char* detail, int line) {
  if (timeline.characters.count > MAX_TIMELINE_BYTES) return;
  timeline.add("%llu\t%s\t%u\t%s\t%s\t%s\t%d\n", machine.switches, begins ? "begin" : "end", block->linear, track, name, detail, line);
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
    const u64 address = (u64)f->block->shared + m->offset;
    for (const Name& name : f->block->names)
      if (address - name.first < name.bytes) snprintf(detail, sizeof detail, "%s[%llu] phase %u", name.text, (address - name.first) / 8, f->phase);
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
  char track[64], detail[64];
  const bool loads = c->kind == Copy::LOAD || c->kind == Copy::TENSOR_LOAD;
  snprintf(track, sizeof track, "%s slot %02u", loads ? "load" : "store", c->slot);
  snprintf(detail, sizeof detail, "%u bytes", c->bytes);
  record(begins, c->issuer->block, track, loads ? "load" : "store", detail, c->line);
}

}  // namespace weft_rt

EXPORT const char* weft_rt_trace() { return weft_rt::timeline.c_str(); }
