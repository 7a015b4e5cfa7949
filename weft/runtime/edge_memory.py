"""Where small tensors between the kernels of one call lie: one piece of memory, in which they follow one another as they are needed.

An allocation of its own would be a large part of what a further kernel costs the host (docs/executors.md). Large tensors have allocations of their own: beside
the time of moving them an allocation is nothing, and torch can give their memory to others as soon as they are dead. Read first: `EdgeMemory`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

LARGEST_BYTES = 16 << 20
"""Largest intermediate tensor in the common memory of a call. An estimate: writing and reading a larger one takes so long that it hides the host's work."""
MOST_BYTES = 64 << 20
"""Largest common memory of one call, which it may hold longer than necessary."""
ALIGNMENT_BYTES = 512
"""As in torch's allocator: enough for vectors, bulk copies and tensor maps."""


class EdgeMemory:
    """Offsets of tensors in one piece of memory. Freed places are reused later, because the kernels of one call run one after the other. most_bytes: the size
    of the piece.
    """

    def __init__(self) -> None:
        self.most_bytes = 0
        self._held: dict[Hashable, tuple[int, int]] = {}  # key -> (offset, end)

    def take(self, key: Hashable, size_bytes: int) -> int | None:
        """Return the offset of a new tensor, in the smallest hole that has room; None if it is too large for the common memory."""
        size = -(-max(size_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        holes, end = [], 0
        for start, stop in sorted(self._held.values()):
            if start - end >= size:
                holes.append((start - end, end))
            end = stop
        offset = min(holes)[1] if holes else end
        if size > LARGEST_BYTES or offset + size > MOST_BYTES:
            return None
        self._held[key] = (offset, offset + size)
        self.most_bytes = max(self.most_bytes, offset + size)
        return offset

    def give_back(self, keys: Iterable[Hashable]) -> bool:
        """Free these places for later tensors; return whether all of them had one."""
        return all([self._held.pop(key, None) is not None for key in keys])


__all__ = ["EdgeMemory"]
