"""A Python script under check: every kernel that its fusions launch runs in several orders first.

Read first: `ScriptCheck`.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.check.explore import SEEDS, Exploration, explore, search
from weft.check.overlap import PairWatch
from weft.emulator import ChipLimits, EmulatedKernel
from weft.lower.program import KernelProgram
from weft.options import options
from weft.runtime import engines
from weft.runtime.engines import EmulatedCall


@functools.lru_cache(maxsize=256)
def checked_kernel(program: KernelProgram, limits: ChipLimits, raw_net: bool = False) -> EmulatedKernel:
    """Return a program built with all checks. raw_net: and with a net for accesses around the primitives."""
    names = [name for name, _ in program.shared_tensors]
    return EmulatedKernel.of_text(
        program.text, program.blocks, program.name, check="races", limits=limits, origins=program.origins, shared_tensors=names, raw_net=raw_net
    )


def checked_call(call: EmulatedCall) -> EmulatedKernel:
    """Return the kernel of a launch, built with all checks."""
    return checked_kernel(call.program, call.kernel.limits)


def geometry_of(call: EmulatedCall) -> dict[str, Any]:
    """Return the launch sizes of a call, as `explore` takes them."""
    return {name: getattr(call.plan, name) for name in ("grid", "block", "shared_bytes", "cluster", "cooperative", "shared_tensors", "overlaps_previous")}


@dataclass
class Checked:
    """One kernel at one set of sizes. launches: how often it was launched; only the first is explored."""

    program: KernelProgram
    plan: engines.LaunchPlan
    exploration: Exploration
    launches: int = 1

    def text(self) -> str:
        """A line, and the findings below it."""
        found = self.exploration.found
        clean = f"clean in {len(self.exploration.reports)} orders" if not found else f"{len(found)} finding(s)"
        line = f"{self.program.name}: grid {self.plan.grid}, block {self.plan.block}, launched {self.launches} time(s): {clean}"
        return "\n".join([line, *(f.text() for f in found)])


@dataclass
class KernelWatch:
    """Explores each kernel that is launched in the emulator while it is `watching`. blocks: how many (clusters of) blocks run, None for all.

    searched: orders that are tried systematically besides the seeds. raw_net: accesses around the primitives are findings too. pairs: also runs each kernel
    that may start before the one in front of it has ended together with that one.
    """

    seeds: Sequence[int | None] = tuple(range(SEEDS))
    blocks: int | None = None
    trace: Path | None = None
    searched: int = 0
    raw_net: bool = False
    pairs: PairWatch | None = None
    kernels: dict[Hashable, Checked] = field(default_factory=dict)

    def __call__(self, call: EmulatedCall) -> None:
        if self.pairs is not None:
            self.pairs(call)
        key = (call.program.text, call.plan)
        known = self.kernels.get(key)
        if known:
            known.launches += 1
            return
        kernel = checked_kernel(call.program, call.kernel.limits, self.raw_net)
        exploration = explore(kernel, geometry_of(call), call.arguments, self.seeds, sample_blocks=self.blocks)
        if self.searched:
            exploration.reports.update(search(kernel, geometry_of(call), call.arguments, self.searched, sample_blocks=self.blocks).reports)
        self.kernels[key] = Checked(call.program, call.plan, exploration)
        if self.trace is not None:
            number = len(self.kernels)
            path = self.trace if number == 1 else self.trace.with_name(f"{self.trace.stem}.{number}{self.trace.suffix}")
            explore(kernel, geometry_of(call), call.arguments, [None], sample_blocks=self.blocks, trace=path)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Explore what is launched within the block; the launches themselves run without checks."""
        engines.watchers.append(self)
        try:
            yield
        finally:
            engines.watchers.remove(self)

    @property
    def is_clean(self) -> bool:
        return all(checked.exploration.is_clean for checked in self.kernels.values()) and not (self.pairs and self.pairs.found)


def check_script(path: Path, arguments: Sequence[str], watch: KernelWatch) -> int:
    """Run a script as `python path arguments` does, with its fusions in the emulator under `watch`. Return its exit status. Errors: the script's."""
    kept = sys.argv[:], sys.path[:]
    sys.argv, sys.path = [os.fspath(path), *arguments], [os.fspath(path.resolve().parent), *sys.path]
    try:
        with watch.watching(), options(emulate="on", check="", seed=None):
            runpy.run_path(os.fspath(path), run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv, sys.path = kept
