// Checks of memory accesses that copies share with plain loads and stores.
#pragma once
#include "machine.h"
#include "shadow.h"

namespace weft_rt {

// Bounds and, when races are checked, order and initialisation. `how` is appended to the noun in reports.
void check_shared_bounds(u64 address, u32 bytes, u32 access, int line, const char* how);
void check_shared(u64 address, u32 bytes, u32 access, int line, const Accessor& by, const char* how);
Buffer* check_global(u64 address, u32 bytes, u32 access, int line, const Accessor& by, const char* how);
COLD void out_of_bounds(u64 address, u64 bytes, u32 access, int line, const char* how) __attribute__((noreturn));

void forget_recent_buffers();
void drop_sync_variables();

}  // namespace weft_rt
