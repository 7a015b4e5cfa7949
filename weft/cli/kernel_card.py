"""What can be said of the kernel that ran a call: its scheduler, parameters, text, launch sizes and resources.

Owns no decision: it reads the executor's record of the kernel. Resources are those of machine code for the GPU; a kernel that ran in the
emulator is compiled by NVRTC for the chip that the emulator imitates.
Read first: `card_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.api.definition import FusionDefinition
from weft.api.profile import PythonProfiler
from weft.device.library import translation_unit
from weft.errors import require
from weft.runtime import nvrtc
from weft.runtime.spills import fewest_spills, mixed_or_apart


@dataclass(frozen=True, slots=True)
class KernelCard:
    """One kernel for one set of sizes. declined: (scheduler, reason); path: the file with the text, which has `lines` lines."""

    name: str
    scheduler: str
    params: Any
    declined: tuple[tuple[str, str], ...]
    launch: str
    path: Path
    lines: int
    resources_text: str


def card_of(fd: FusionDefinition, inputs: Sequence[Any], title: str, folder: Path) -> KernelCard:
    """Return the card of the kernel that an automatic `fd.execute(inputs)` has just used, and write its text to `title`.cu in `folder`.

    The call is made once more, under the profiler, which knows the sizes of the launch.
    """
    runtimes = fd.fec.kernel_runtimes
    require(runtimes, f"{title} was executed and has no kernel")
    runtime = runtimes[-1]
    program, proposal = runtime.program, runtime.proposal
    text = translation_unit(program.text, program.blocks)
    path = folder / f"{title}.cu"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    with PythonProfiler() as profiler:
        fd.execute(inputs)
    (launch,) = profiler.profile.kernel_profiles
    return KernelCard(
        name=program.name,
        scheduler=proposal.scheduler.name,
        params=proposal.params,
        declined=proposal.declined,
        launch=f"grid {launch.grid_str}, block {launch.block_str}, shared memory in bytes {launch.shared_mem_str}",
        path=path,
        lines=text.count("\n"),
        resources_text=resources_text(runtime),
    )


def resources_text(runtime: Any) -> str:
    """Return registers, stack and spills of a kernel's machine code, or that there is no compiler for it."""
    program, arch = runtime.program, runtime.engine.arch
    target = arch.nvrtc_target
    resources = runtime.built.report.resources
    if resources is None:
        unit = translation_unit(program.text, program.blocks)

        def compile_with(limit: int | None) -> nvrtc.Compiled:
            return mixed_or_apart(unit, lambda text: nvrtc.compile_or_load(text, program.name, target, max_registers=limit))

        try:
            resources = fewest_spills(program, arch, compile_with).resources
        except nvrtc.NvrtcMissing as error:
            return f"not compiled: NVRTC was not found ({error.values['looked']})"
    return f"{target}: {resources}"
