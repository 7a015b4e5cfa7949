// Who waits for whom when nobody can run.
#pragma once
#include "machine.h"

namespace weft_rt {

// Lines of `[role] waits for X <- needs [other role]`.
const char* describe_wait_graph();

}  // namespace weft_rt
