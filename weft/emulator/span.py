"""A piece of a timeline of the emulator. Read first: `Span`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """What a track did from `start` to `end` ("run", or what it waited for), or an event (`is_mark`): an mbarrier's phase was completed."""

    block: int
    track: str
    name: str
    detail: str
    start: int
    end: int
    line: int
    is_mark: bool = False
