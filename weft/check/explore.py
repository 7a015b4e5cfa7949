"""One launch in many orders: the same kernel and data, with threads and copies permuted by seeds.

Read first: `explore`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.arch import VECTOR_BYTES
from weft.emulator import Buffer, EmulatedKernel, Finding, LaunchReport, Scalar
from weft.errors import UserError

SEEDS = 8


class NoOrders(UserError):
    code = "W443"
    what = "{seeds} orders were requested; a kernel that does not run is not checked"
    fix = "request at least one order"


Order = int | None | tuple[int, ...]
"""A seed, None for the plain order, or the synchronization points at which a warp yields."""


@dataclass
class Found:
    """A finding and the orders that show it."""

    finding: Finding
    seeds: list[Order] = field(default_factory=list)

    def text(self) -> str:
        """The finding, and how to see it again."""
        shown = [str(s) for s in self.seeds if isinstance(s, int)]
        points = [s for s in self.seeds if isinstance(s, tuple) and s]
        replay = f"preempt={points[0]} replays it" if len(points) == len(self.seeds) else "without a seed it shows too"
        replay = f"    shown by {len(self.seeds)} order(s); " + (f"WEFT_SEED={shown[0]} replays it" if shown else replay)
        return f"{self.finding.text()}\n{replay}"


@dataclass
class Exploration:
    """What the orders of one launch showed. `reports` has one report per seed."""

    kernel: str
    reports: dict[Order, LaunchReport] = field(default_factory=dict)

    @property
    def found(self) -> list[Found]:
        """Every finding once, those that most seeds show first."""
        by_place: dict[tuple[str, int, int], Found] = {}
        for seed, report in self.reports.items():
            for f in report.findings:
                by_place.setdefault((f.kind, f.line, f.other_line), Found(f)).seeds.append(seed)
        return sorted(by_place.values(), key=lambda found: -len(found.seeds))

    @property
    def is_clean(self) -> bool:
        """Whether some order ran and none showed anything."""
        return bool(self.reports) and not any(report.findings for report in self.reports.values())


ALIGNMENT_BYTES = 256  # of memory, as the driver's allocations
GUARD_BYTES = 1 << 16  # around a buffer, so that what lies beside it is no other


def own_copies(arguments: Iterable[Any]) -> list[Any]:
    """Return the arguments with buffers of their own, which hold the same bytes, for launches after the call that they belong to."""
    arguments, out = list(arguments), []
    moved: list[tuple[Buffer, int]] = []
    for argument in arguments:
        if isinstance(argument, Buffer):
            memory = ctypes.create_string_buffer(argument.bytes + ALIGNMENT_BYTES + 2 * GUARD_BYTES)
            start = ctypes.addressof(memory) + GUARD_BYTES
            start += -start % ALIGNMENT_BYTES + argument.address % VECTOR_BYTES
            ctypes.memmove(start, argument.address, argument.bytes)
            moved.append((argument, start))
            argument = replace(argument, address=start, keep=memory)
        out.append(argument)
    for number, argument in enumerate(out):
        if isinstance(argument, Scalar) and argument.ctype == "tensor_map":
            base = int.from_bytes(bytes(argument.value)[:8], "little")
            new = next((start + base - buffer.address for buffer, start in moved if 0 <= base - buffer.address < buffer.bytes), base)
            out[number] = replace(argument, value=new.to_bytes(8, "little") + bytes(argument.value)[8:])
    return out


class Snapshot:
    """The bytes of all buffers that a kernel may write, to be put back."""

    def __init__(self, arguments: Iterable[Any]) -> None:
        self._bytes = [(a.address, ctypes.string_at(a.address, a.bytes)) for a in arguments if isinstance(a, Buffer) and a.written and a.bytes]

    def restore(self) -> None:
        for address, data in self._bytes:
            ctypes.memmove(address, data, len(data))


def explore(
    kernel: EmulatedKernel, geometry: dict[str, Any], arguments: Sequence[Any], seeds: Iterable[int | None] = range(SEEDS), **options: Any
) -> Exploration:
    """Launch a kernel once per seed and return what was found; memory is as before afterwards.

    Errors: NoOrders, BadLaunch, those of building a foreign kernel.
    geometry: grid, block, shared_bytes, and cluster and cooperative where they are not the usual. options: further ones of EmulatedKernel.launch.
    """
    seeds = list(seeds)
    if not seeds:
        raise NoOrders(seeds=0)
    launch = _Launcher(kernel, geometry, arguments, options)
    result = Exploration(kernel.entry)
    for seed in seeds:
        result.reports[seed] = launch(seed=seed)
    return result


class _Launcher:
    """Launches a kernel again and again; memory is as before after each time."""

    def __init__(self, kernel: EmulatedKernel, geometry: dict[str, Any], arguments: Sequence[Any], options: dict[str, Any]) -> None:
        self.kernel, self.arguments, self.before = kernel, arguments, Snapshot(arguments)
        self.how = geometry | options

    def __call__(self, **how: Any) -> LaunchReport:
        try:
            return self.kernel.launch(args=self.arguments, raise_findings=False, **self.how, **how)
        finally:
            self.before.restore()


def search(kernel: EmulatedKernel, geometry: dict[str, Any], arguments: Sequence[Any], most: int, *, preemptions: int = 2, **options: Any) -> Exploration:
    """Try orders systematically: the plain one, then with a warp giving way at one synchronization point, at each in its turn, then at two.

    A preemption that changes at no object who comes to it in which order leads nowhere that was not looked at: it is not combined with further ones.
    most: launches; where there are more points, they are taken evenly. Errors: those of `explore`.
    """
    if most < 1:
        raise NoOrders(seeds=most)
    launch = _Launcher(kernel, geometry, arguments, options)
    result = Exploration(kernel.entry)
    plain = result.reports[()] = launch(preempt=())
    seen = {plain.order}
    level: list[tuple[tuple[int, ...], LaunchReport]] = [((), plain)]
    for _ in range(preemptions):
        tries = [(*points, n) for points, report in level for n in range(points[-1] + 1 if points else 0, report.sync_points)]
        left = most - len(result.reports)
        level = []
        for points in tries[:: max(1, -(-len(tries) // max(1, left)))][:left]:
            report = result.reports[points] = launch(preempt=points)
            if report.order not in seen:
                seen.add(report.order)
                level.append((points, report))
    return result
