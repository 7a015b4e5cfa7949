// Two grids, of which the second was launched behind the first and may start before that has ended.
#pragma once
#include "machine.h"

namespace weft_rt {

u32 resident_units(const Grid* grid);
bool can_start_second();
bool overlap_step();                   // no thread can run: what comes next; false: nothing does
void start_overlap();                  // before the first thread runs
void end_overlap();
void share_shadows();                  // of buffers of both grids that lie in the same memory

}  // namespace weft_rt
