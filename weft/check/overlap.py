"""A kernel behind the one before it in the stream, both at once, in several orders: programmatic dependent launch as the chip may run it.

Owns the memory of such a pair, and who is a pair. Read first: `PairWatch`, `explore_pair`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.arch import VECTOR_BYTES
from weft.check.explore import ALIGNMENT_BYTES, GUARD_BYTES, Exploration, Found, Snapshot, own_copies
from weft.emulator import Buffer, EmulatedKernel, Scalar
from weft.emulator.overlapped import KernelCall, launch_overlapped
from weft.runtime.engines import EmulatedCall

ORDERS: tuple[tuple[int | None, str], ...] = ((None, "early"), (0, "early"), (1, "early"), (None, "late"))
"""Seeds, and where the second kernel starts. Accesses that nothing orders are found in each; values differ, and so does what depends on them."""

Piece = tuple[int, bytes]
"""Memory that a kernel is given: its address, and what is there."""


def pieces_of(arguments: Iterable[Any]) -> list[Piece]:
    """Return what the buffers of a kernel hold now."""
    return [(a.address, ctypes.string_at(a.address, a.bytes)) for a in arguments if isinstance(a, Buffer) and a.bytes]


class PairMemory:
    """Copies of the memory of two kernels; what is one place for both is one place in the copy. The first kernel's pieces say what is there."""

    def __init__(self, first: Sequence[Piece], second: Sequence[Piece]) -> None:
        self._ranges: list[tuple[int, int, int]] = []  # first and end address, and the address of the copy
        self._keep: list[Any] = []
        places = sorted((address, address + len(data)) for address, data in (*first, *second))
        while places:
            begin, end = places.pop(0)
            while places and places[0][0] < end:
                end = max(end, places.pop(0)[1])
            memory = ctypes.create_string_buffer(end - begin + ALIGNMENT_BYTES + 2 * GUARD_BYTES)
            start = ctypes.addressof(memory) + GUARD_BYTES
            start += -start % ALIGNMENT_BYTES + begin % VECTOR_BYTES
            self._keep.append(memory)
            self._ranges.append((begin, end, start))
        for address, data in (*second, *first):
            ctypes.memmove(self.moved(address), data, len(data))

    def moved(self, address: int) -> int:
        """Return where the copy of an address is; an address of no buffer stays."""
        return next((start + address - begin for begin, end, start in self._ranges if begin <= address < end), address)

    def arguments(self, given: Iterable[Any]) -> list[Any]:
        """Return a kernel's arguments with the copies for its buffers."""
        out: list[Any] = []
        for a in given:
            if isinstance(a, Buffer):
                a = replace(a, address=self.moved(a.address), keep=self._keep)
            moved = (_moved_map(a, begin, end - begin, start) for begin, end, start in self._ranges)
            out.append(next((m for m in moved if m is not a), a))
        return out


def behind_itself(arguments: Iterable[Any], relation: str) -> tuple[list[Any], list[Any]]:
    """Return the arguments of a kernel and of a second launch of it, whose scratch memory and semaphores are the same, as in a stream.

    relation: the second "reads" what the first writes, "overwrites" what the first reads, or "shares" no more than that.
    """
    given = list(arguments)
    first, second = own_copies(given), own_copies(given)

    def numbers(wanted: bool) -> list[int]:
        return [n for n, a in enumerate(first) if isinstance(a, Buffer) and not (a.workspace or a.left_zero) and a.written == wanted]

    second = [f if isinstance(f, Buffer) and (f.workspace or f.left_zero) else s for f, s in zip(first, second)]
    if relation != "shares":
        result = numbers(True)[-1]
        source = next(n for n in numbers(False) if first[n].bytes == first[result].bytes)
        mine, other = (source, result) if relation == "reads" else (result, source)
        old, new = second[mine].address, first[other].address
        moved = [_moved_map(a, old, second[mine].bytes, new) for a in second]
        second = [*moved[:mine], replace(second[mine], address=new, keep=first[other].keep), *moved[mine + 1 :]]
    return first, second


def _moved_map(argument: Any, old: int, size_bytes: int, new: int) -> Any:
    """Return a tensor map of memory at `old` as one of that at `new`; any other argument as it is."""
    if not isinstance(argument, Scalar) or argument.ctype != "tensor_map":
        return argument
    value = bytes(argument.value)
    offset = int.from_bytes(value[:8], "little") - old
    return replace(argument, value=(new + offset).to_bytes(8, "little") + value[8:]) if 0 <= offset < size_bytes else argument


def explore_pair(first: KernelCall, second: KernelCall, orders: Sequence[tuple[int | None, str]] = ORDERS) -> Exploration:
    """Launch two kernels, the second by programmatic dependent launch, once per order, and return what was found; memory is as before afterwards."""
    result = Exploration(f"{second.kernel.entry} behind {first.kernel.entry}")
    before = Snapshot([*first.arguments, *second.arguments])
    for seed, overlap in orders:
        try:
            result.reports[seed if overlap == "early" else ()] = launch_overlapped(first, second, seed=seed, overlap=overlap, raise_findings=False)
        finally:
            before.restore()
    return result


@dataclass(frozen=True)
class Before:
    """A launch that has happened: what it was given, and what its memory held then."""

    call: EmulatedCall
    pieces: list[Piece]


@dataclass
class PairWatch:
    """Follows the launches in the emulator (`engines.watchers`), and runs each that may overlap the one before it together with that one.

    build: makes a program's kernel with all checks. A pair of programs is run once for each pair of launch sizes. Where something else wrote memory between
    the two, they are no pair. found: by the names of both.
    """

    build: Callable[[EmulatedCall], EmulatedKernel]
    orders: Sequence[tuple[int | None, str]] = ORDERS
    pairs: int = 0
    others: int = 0
    found: list[tuple[str, Found]] = field(default_factory=list)
    _last: Before | None = None
    _seen: set[Any] = field(default_factory=set)

    def __call__(self, call: EmulatedCall) -> None:
        last, pieces = self._last, pieces_of(call.arguments)
        self._last = Before(call, pieces)
        if last is None or not call.plan.overlaps_previous or call.plan.cooperative:
            return
        places = tuple(address for address, _ in (*last.pieces, *pieces))
        base = min(places, default=0)
        key = (last.call.program.text, last.call.plan, call.program.text, call.plan, tuple(address - base for address in places))
        if key in self._seen:
            return
        self._seen.add(key)
        memory = PairMemory(last.pieces, pieces)
        first, second = self._launch(last.call, memory), self._launch(call, memory)
        if not self._is_what_the_first_left(first, memory, pieces):
            self.others += 1
            return
        exploration = explore_pair(first, second, self.orders)
        self.pairs += 1
        self.found += [(exploration.kernel, found) for found in exploration.found]

    def _launch(self, call: EmulatedCall, memory: PairMemory) -> KernelCall:
        plan = call.plan
        geometry = {name: getattr(plan, name) for name in ("grid", "block", "shared_bytes", "cluster", "cooperative", "shared_tensors")}
        return KernelCall(self.build(call), geometry, memory.arguments(call.arguments))

    def _is_what_the_first_left(self, first: KernelCall, memory: PairMemory, now: Sequence[Piece]) -> bool:
        """Tell whether the second kernel finds what the first has left there: else something else ran between the two."""
        before = Snapshot(first.arguments)
        first.kernel.launch(args=first.arguments, raise_findings=False, **first.geometry)
        left = [ctypes.string_at(memory.moved(address), len(data)) for address, data in now]
        before.restore()
        return all(found == data for found, (_, data) in zip(left, now))
