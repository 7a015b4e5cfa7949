// A timeline of what each role does. Time counts records: the order of things, not how long they take.
#pragma once
#include "machine.h"

namespace weft_rt {

enum TraceKind : u8 { TRACE_START, TRACE_WAIT, TRACE_RUN, TRACE_EXIT };

// One thread per warp and role is followed: lane 0, and whoever took another role.
void trace_thread(const Fiber* f, TraceKind kind);
void trace_copy(const Copy* c, bool begins);
void trace_phase(const Mbarrier* m, int line);  // is complete
void clear_trace();

}  // namespace weft_rt
