// What copies need of mbarriers.
#pragma once
#include "machine.h"

namespace weft_rt {

// The valid mbarrier at p; anything else ends the launch with a finding.
Mbarrier* use_mbarrier(Block* block, void* p, const char* operation, int line);
// The same for a copy that completes on it: its init must be visible to the async proxy.
Mbarrier* use_mbarrier_by_copy(Block* block, void* p, const char* operation, int line);
// A fence of the thread, of any kind that makes the init of mbarriers visible to copies.
void fence_mbarriers(const Fiber* f);
// An arrival at the cluster's barrier that releases nothing else shows the fenced ones from `phase` on.
void show_mbarriers(const Fiber* f, u32 phase);
// Bytes of a copy have come; `last`: these are the last of it, and waiters may rely on all of it.
void copy_arrives(Mbarrier* m, u32 bytes, bool last, u32 slot, u32 clock, Knowledge* issued, int line);

}  // namespace weft_rt
