"""Two kernels on the emulated chip at once: the second was launched behind the first, and may start before that has ended.

Owns the launch of a pair; how the two are interleaved is in `runtime/grids.cpp`. Read first: `launch_overlapped`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.emulator.arguments import BadLaunch, Geometry, LaunchOptions
from weft.emulator.launch import EmulatedKernel
from weft.emulator.native import GridLaunch, run_grids
from weft.emulator.report import KernelFault, LaunchReport, parse_findings


@dataclass(frozen=True)
class KernelCall:
    """A kernel, built with all checks, and its launch arguments. geometry: keywords of EmulatedKernel.launch."""

    kernel: EmulatedKernel
    geometry: dict[str, Any]
    arguments: Sequence[Any]

    def prepared(self, **how: Any) -> GridLaunch:
        """Return the launch as the runtime takes it. Errors: BadLaunch."""
        kernel, given = self.kernel, self.geometry
        if kernel.check != "races" or kernel.is_foreign:
            raise BadLaunch(kernel=kernel.entry, problem="kernels that overlap run in this process, with all checks")
        geometry = Geometry(given["grid"], given["block"], given["shared_bytes"], given.get("cluster", (1, 1, 1)), tuple(given.get("shared_tensors", ())))
        if problem := geometry.problem(kernel.limits):
            raise BadLaunch(kernel=kernel.entry, problem=problem)
        options = LaunchOptions(given.get("cooperative", False), registers_per_thread=kernel.registers_at_launch(), **how)
        return GridLaunch(kernel._native(), geometry, self.arguments, (), options, kernel.limits)


def launch_overlapped(
    first: KernelCall, second: KernelCall, *, seed: int | None = None, overlap: str = "early", timeout_s: float = 60.0, raise_findings: bool = True
) -> LaunchReport:
    """Run two kernels, the second by programmatic dependent launch after the first, and return what was found; raise KernelFault when told to.

    Errors: BadLaunch, KernelFault.
    The second starts when every block of the first has called griddep_launch() or has ended. `overlap`: "early": blocks of the first stay at that call until
    those of the second have reached their wait; "late": the second starts when the first has ended. `seed`: some of them do, and threads run in random order.
    Accesses of the second that griddep_wait() does not put behind the first are found in any order ("overlaps-kernel-before").
    Both may use the same memory under different names.
    """
    grids = [call.prepared(seed=seed, timeout_s=timeout_s) for call in (first, second)]
    outcome = run_grids(grids, overlap=overlap)
    findings = parse_findings(outcome.findings, first.kernel.source_map, second.kernel.source_map) if outcome.findings else ()
    name = f"{second.kernel.entry} behind {first.kernel.entry}"
    report = LaunchReport(name, findings, outcome.switches, outcome.joins, seed, outcome.sync_points, outcome.order)
    if findings and raise_findings:
        raise KernelFault(report)
    return report
