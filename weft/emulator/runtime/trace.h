// A timeline of what each role does, for the Chrome trace viewer. Time is counted in scheduler steps.
#pragma once
#include "machine.h"

namespace weft_rt {

enum TraceKind : u8 { TRACE_RUN, TRACE_WAIT, TRACE_EXIT, TRACE_COPY_BEGIN, TRACE_COPY_END };
void trace_event(const Fiber* f, TraceKind kind);

}  // namespace weft_rt
