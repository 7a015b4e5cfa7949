"""The emulator: runs the kernel text that the GPU gets on a CPU, and reports races, deadlocks and stray accesses.

Owns the host half of the primitives (`weft_emulator.h`), the runtime (`runtime/*.cpp`) and launching from Python.
Does not own the kernel text or the device half. Read first: `launch.EmulatedKernel`.
"""

from weft.emulator.arguments import Arg, BadLaunch, Buffer, ChipLimits, Scalar
from weft.emulator.launch import EmulatedKernel
from weft.emulator.report import Finding, KernelFault, LaunchReport
from weft.emulator.source_map import Place, SourceMap
from weft.emulator.tensor_map import encode_tensor_map

__all__ = [
    "Arg", "BadLaunch", "Buffer", "ChipLimits", "EmulatedKernel", "Finding", "KernelFault", "LaunchReport", "Place", "Scalar", "SourceMap", "encode_tensor_map",
]  # fmt: skip
