"""The launches of one call that follow one another, as one object: all addresses are written at once, then the driver is called for each.

Owns the memory that such launches share. A launch of its own costs Python about 0.6 us beside the driver: taking and giving back prepared memory,
addresses, the stream. Here a further launch costs the call alone. Read first: `LaunchBatch.written`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from .launch import STREAM_WORD, LaunchRecord


class LaunchBatch:
    """Launches that one function makes one after the other, on one stream.

    pointers: for each launch the expressions of its addresses; equal expressions share a word of memory.
    Threads may run the function at the same time: each takes memory of its own from a list of idle ones, as in `LaunchRecord`.
    """

    def __init__(self, records: Sequence[LaunchRecord], pointers: Sequence[Sequence[str]]) -> None:
        self._records = list(records)
        self.expressions = list(dict.fromkeys(text for own in pointers for text in own))
        place = {text: n for n, text in enumerate(self.expressions)}
        self._words = [[place[text] for text in own] for own in pointers]
        self._idle: list[tuple[Any, ...]] = []
        self._idle.append(self._prepare())

    def written(self, number: int, stream: str, scalars: Sequence[tuple[int, int, str]]) -> tuple[list[str], dict[str, Any]]:
        """Return the statements that launch, and what they name; `number` tells the batches of one function apart.

        scalars: (which launch, slot, expression) of parameters that change from call to call.
        """
        names = {"take_batch": self._idle.pop, "make_batch": self._prepare, "give_batch": self._idle.append, "set_stream": set_stream}
        lines = [
            f"try: prepared = take_batch{number}()",
            f"except IndexError: prepared = make_batch{number}()",
            "try:",
            "    values, streams, slots, launches = prepared",
            *([f"    values[:] = {', '.join(self.expressions)},"] if self.expressions else []),
            f"    if streams[0][{STREAM_WORD}] != {stream}: set_stream{number}(streams, {stream})",
            *(f"    slots[{launch}][{slot}].value = {text}" for launch, slot, text in scalars),
            "    for call, arguments, again in launches:",
            "        status = call(*arguments)",
            "        if status: again(status, arguments)",
            f"finally: give_batch{number}(prepared)",
        ]
        return lines, {f"{name}{number}": value for name, value in names.items()}

    def _prepare(self) -> tuple[Any, ...]:
        """Return (words of the addresses, configurations as words, scalars of each launch, (call, arguments, again) of each). The records keep the rest."""
        values = (ctypes.c_uint64 * len(self.expressions))()
        base = ctypes.addressof(values)
        streams, slots, launches = [], [], []
        for record, words in zip(self._records, self._words):
            _, config, arguments, scalars, _ = record.prepare_at([base + 8 * word for word in words])
            streams.append(config)
            slots.append(scalars)
            launches.append((record.call, arguments, record.again))
        return values, streams, slots, launches


def set_stream(configs: Sequence[Any], stream: int) -> None:
    """Write a stream into launch configurations."""
    for config in configs:
        config[STREAM_WORD] = stream


__all__ = ["LaunchBatch", "set_stream"]

