"""The launches of one call that follow one another, as one object: addresses are written at once; with the setting `launch_graphs`, a CUDA graph starts all.

Owns the memory that such launches share. Beside the driver's call, a launch of its own costs Python more: taking and giving back
prepared memory, addresses, the stream. Here a further launch costs the driver's call alone, or what `weft.runtime.launch_graph` says (docs/executors.md).
Read first: `LaunchBatch`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from ..options import current
from .launch import STREAM_WORD, LaunchRecord
from .launch_graph import capture

CALLS_BEFORE_GRAPH = 2
"""Calls before a graph is made. Making one takes as long as 50 launches; most signatures that occur twice occur often."""

_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


class LaunchBatch:
    """Launches that one function makes one after the other, on one stream.

    pointers: for each launch the expressions of its addresses; equal expressions share a word of memory.
    Threads may run the function at the same time: each takes separate memory from a list of idle ones, as in `LaunchRecord`; so does each stream, because a
    graph cannot run concurrently with itself.
    """

    def __init__(self, records: Sequence[LaunchRecord], pointers: Sequence[Sequence[str]]) -> None:
        self.records = list(records)
        self.expressions = list(dict.fromkeys(text for own in pointers for text in own))
        place = {text: n for n, text in enumerate(self.expressions)}
        self.words = [[place[text] for text in own] for own in pointers]
        self._idle: dict[int, list[_Prepared]] = {}

    def written(self, number: int, stream: str, scalars: Sequence[tuple[int, int, str]]) -> tuple[list[str], dict[str, Any]]:
        """Return the statements that launch, and the constants that they use; `number` distinguishes the batches of one function.

        scalars: (which launch, slot, expression) of parameters that change from call to call.
        """
        changing = "".join(f"({launch}, {slot}, {text}), " for launch, slot, text in scalars)
        line = f"batch{number}({stream}, ({''.join(f'{text}, ' for text in self.expressions)}){f', ({changing})' if changing else ''})"
        return [line], {f"batch{number}": self.launch}

    def launch(self, stream: int, pointers: tuple[int, ...], scalars: Sequence[tuple[int, int, Any]] = ()) -> None:
        """Launch all on a stream. pointers: the values of `expressions`. scalars: (which launch, slot, value). Errors: DriverCallFailed."""
        try:
            prepared = self._idle[stream].pop()
        except (KeyError, IndexError):
            prepared = _Prepared(self, stream)
        try:
            if prepared.start is None or _is_capturing() or not prepared.launch_graph(pointers, scalars):
                prepared.launch_each(pointers, scalars)
        finally:
            self._idle.setdefault(stream, []).append(prepared)


class _Prepared:
    """The memory of one run of a batch at a time, for one stream.

    start: launches its graph, once there is one. held: the addresses in the graph.
    """

    __slots__ = ("_configs", "_graph", "_launches", "_moves", "_pick", "_slots", "_stream", "_uses", "_values", "device", "held", "start")

    def __init__(self, batch: LaunchBatch, stream: int) -> None:
        self._values: Any = (ctypes.c_uint64 * len(batch.expressions))()  # accepts any sequence as a slice
        base = ctypes.addressof(self._values)
        self._configs, self._slots, self._launches, self._moves = [], [], [], []
        self._pick = [itemgetter(*words) if words else _nothing for words in batch.words]
        for record, words in zip(batch.records, batch.words):
            _, config, arguments, scalars, maps = record.prepare_at([base + 8 * word for word in words])
            config[STREAM_WORD] = stream
            self._configs.append(config)
            self._slots.append(scalars)
            self._launches.append((record.call, arguments, record.again))
            self._moves.append(partial(_move, record, maps, words) if maps else None)
        devices = {record.device for record in batch.records if not record.is_empty} if all(not r.is_empty for r in batch.records) else set()
        self.device = devices.pop() if len(devices) == 1 else None
        self._stream, self._uses = stream, 0
        self._graph: Any = None
        self.start: Any = None
        self.held: tuple[int, ...] = ()

    def launch_each(self, pointers: tuple[int, ...], scalars: Sequence[tuple[int, int, Any]]) -> None:
        """Launch one by one; the second time also make a graph for later calls."""
        self._values[:] = pointers
        for launch, slot, value in scalars:
            self._slots[launch][slot].value = value
        for move in self._moves:
            if move is not None:
                move(pointers)
        for call, arguments, again in self._launches:
            status = call(*arguments)
            if status:
                again(status, arguments)
        self._uses += 1
        if self._uses == CALLS_BEFORE_GRAPH and self.device is not None and current().launch_graphs and not _is_capturing():
            self._make_graph(pointers)

    def launch_graph(self, pointers: tuple[int, ...], scalars: Sequence[tuple[int, int, Any]]) -> bool:
        """Launch the graph; return whether this was done. False if every kernel has new addresses, or the driver refuses; then `launch_each` is used, after a
        refusal for all later calls, so that the driver's error is reported.
        """
        held, changed = self.held, []
        if pointers != held:
            changed = [n for n, pick in enumerate(self._pick) if pick(pointers) != pick(held)]
            if len(changed) == len(self._pick):
                return False  # an update takes as long as a launch
        start, self.start = self.start, None  # after an error the graph is dropped, because its contents are unknown
        updates, status = self._graph.updates, 0
        if changed:
            self._values[:] = pointers
            for n in changed:
                move, (update, arguments) = self._moves[n], updates[n]
                if move is not None:
                    move(pointers)
                status |= update(*arguments)
            self.held = pointers
        if scalars:
            for launch, slot, value in scalars:
                self._slots[launch][slot].value = value
            for launch in {launch for launch, _, _ in scalars}:
                update, arguments = updates[launch]
                status |= update(*arguments)
        call, arguments = start
        if status or call(*arguments):
            return False
        self.start = start
        return True

    def _make_graph(self, pointers: tuple[int, ...]) -> None:
        graph = capture(self.device, [launch[:2] for launch in self._launches], self._configs, STREAM_WORD)  # type: ignore[arg-type]
        for config in self._configs:
            config[STREAM_WORD] = self._stream
        if graph is not None:
            self._graph, self.held, self.start = graph, pointers, graph.launcher(self._stream)


def _move(record: LaunchRecord, maps: list[list[Any]], words: Sequence[int], pointers: Sequence[int]) -> None:
    """Put addresses into the tensor maps of a launch."""
    record.move_maps(maps, [pointers[word] for word in words])


def _nothing(pointers: Sequence[int]) -> None:
    """The addresses of a launch without pointers."""


__all__ = ["LaunchBatch"]
