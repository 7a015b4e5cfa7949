"""Constants of the parameter searches of all templates: how many candidates they try and show, and the allocation step of registers."""

from __future__ import annotations

from ..arch import REGISTER_BYTES, REGISTERS_PER_WARP_GRANULARITY, WARP_THREADS

UNROLLS = (1, 2, 4, 8)
"""Vectors of each input, or rows, that a thread loads at once."""
MOST_LOOKED_UP = 4 * UNROLLS[-1]
"""Elements that a thread looks up for one vector, or inputs that it loads, from which on it does not load those of several vectors before it uses the first:
each needs a register."""
GROUPS = (1, 2, 4, 8, 16, 32)
"""Numbers of rows side by side in a block."""
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Numbers of vectors of a row that a thread keeps."""
MANY_BATCHES = 8
"""Vectors of 16 bytes that a thread keeps without spills: 32 registers."""
MOST_BATCHES = 16
"""The same with more registers."""
FULL_BLOCK_THREADS, ROW_THREAD_REGISTERS = 512, 128
"""Threads of the largest block with many registers per thread, and their number, which uses all registers of a multiprocessor."""
LOOP_THREAD_REGISTERS = 64
"""Registers per thread in loops with four vectors in flight, so that a multiprocessor has 1024 threads."""
MOST_EARLY_LOOKUPS = 3 * LOOP_THREAD_REGISTERS // 4
"""Elements that a thread of a pointwise kernel or a reduction looks up, from which on it loads each where it uses it if the kernel spills otherwise: before
that, each would hold one of these registers, of which a quarter is for indices and results. Counted: docs/constants.md."""
SHOWN = 6
"""Candidates shown in a trace."""
TIMED, TIMED_OF_A_WAY = 40, 4
"""Number of candidates from which tuning selects some of every way; number per way if there are many ways."""
NEAR, NEAR_TILES = 0.02, 0.005
"""Predicted times this close (relative) count as equal; later criteria decide, so that similar sizes share a kernel. Of equal tiles the first is taken."""
REGISTER_STEP = REGISTERS_PER_WARP_GRANULARITY // WARP_THREADS
"""Granularity of registers per thread: a limit between two steps has no effect. Anything that needs a few registers more gets one step."""
TARGET_WARPS = 20
"""Resident warps per multiprocessor below which a kernel becomes slower, as with a single resident block, which overlaps with none."""
STEP_BYTES = REGISTER_BYTES * REGISTER_STEP
"""Of a thread: one step of registers holds them. A kernel that spills more is compiled with more registers, because each spilled byte is written and
read again. Measured: docs/constants.md."""
