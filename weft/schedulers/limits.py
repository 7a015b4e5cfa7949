"""Constants of the parameter searches of all templates: how many candidates they try and show, and the allocation step of registers."""

from __future__ import annotations

from ..arch import REGISTER_BYTES, REGISTERS_PER_WARP_GRANULARITY, WARP_THREADS

UNROLLS = (1, 2, 4, 8)
"""Vectors of each input, or rows, that a thread loads at once."""
GROUPS = (1, 2, 4, 8, 16, 32)
"""Rows side by side in a block."""
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Vectors of a row that a thread keeps."""
MANY_BATCHES = 8
"""Of these, what a thread keeps of 16 bytes each without spills: 32 registers."""
MOST_BATCHES = 16
"""The same with more registers."""
FULL_BLOCK_THREADS, ROW_THREAD_REGISTERS = 512, 128
"""Of the largest block whose threads have many registers, and what each of them has then: all of a multiprocessor."""
LOOP_THREAD_REGISTERS = 64
"""Of a thread, in loops with four vectors under way: so that a multiprocessor has 1024."""
LAUNCH_BYTES = 10 << 20
"""A launch costs as much as moving these: 2.5 us at 4 TB/s."""
SHOWN = 6
"""Candidates in a trace."""
TIMED, TIMED_OF_A_WAY = 40, 4
"""Candidates among which tuning finds some of every way; of each way, where ways are many."""
NEAR, NEAR_TILES = 0.02, 0.005
"""Predicted times this close (relative) count as equal; later criteria decide, so that similar sizes share a kernel. Of tiles the first is taken."""
REGISTER_STEP = REGISTERS_PER_WARP_GRANULARITY // WARP_THREADS
"""Of a thread: a limit between two steps gives nothing. What needs a few registers more, whatever it is, gets one step."""
TARGET_WARPS = 20
"""Resident warps per multiprocessor below which a kernel loses time, as it does with a single block, which overlaps with none."""
STEP_BYTES = REGISTER_BYTES * REGISTER_STEP
"""Of a thread: one step of registers holds them. A kernel that spills more is compiled with more registers. One H200: add + RMS norm + FP8 that spills
56 bytes 0.85 of a copy; three kernels for rows and columns that spill 100 to 416 bytes took 1.35 to 1.92 times as long as others."""
