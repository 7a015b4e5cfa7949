// Findings: what the emulator has to say about a kernel.
#pragma once
#include "machine.h"

namespace weft_rt {

// `kind` is a fixed slug that tests and tools match on; `line` is where, `other_line` the other party's line or 0.
// Equal (kind, line, other_line) are counted, not repeated: REPORT does not even evaluate the rest of its arguments then.
#define REPORT(kind, line, other_line, ...)                                                \
  do {                                                                                     \
    if (!is_repeated(kind, line, other_line, machine.grid->number)) report(kind, line, other_line, __VA_ARGS__); \
  } while (0)
COLD bool is_repeated(const char* kind, int line, int other_line, u32 grid);
COLD void report(const char* kind, int line, int other_line, const char* hint, const char* format, ...) __attribute__((format(printf, 5, 6)));
// Of two grids that overlap: a line of each.
COLD void report_between_grids(const char* kind, int second_line, int first_line, const char* hint, const char* format, ...) __attribute__((format(printf, 5, 6)));
// The same, and the launch ends here.
COLD void fatal(const char* kind, int line, int other_line, const char* hint, const char* format, ...)
    __attribute__((format(printf, 5, 6), noreturn));

// Text that lives until the next launch; cold paths only.
COLD const char* describe_fiber(const Fiber* f);
COLD const char* describe_address(u64 address);
COLD const char* describe_mbarrier(const Mbarrier* m);
COLD const char* format_text(const char* format, ...) __attribute__((format(printf, 1, 2)));

void clear_findings();
u32 finding_count();

}  // namespace weft_rt
