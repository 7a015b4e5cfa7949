"""The emulator: runs the kernel text that the GPU gets on a CPU, and reports races, deadlocks and stray accesses.

Owns the host half of the primitives (`weft_emulator.h`), the runtime (`runtime/*.cpp`) and launching from Python.
Does not own the kernel text or the device half. Read first: `launch.EmulatedKernel`.
"""

from weft.emulator.launch import Buffer, ChipLimits, EmulatedKernel, Finding, KernelFault, LaunchReport, Scalar

__all__ = ["Buffer", "ChipLimits", "EmulatedKernel", "Finding", "KernelFault", "LaunchReport", "Scalar"]
