"""Seed and offset of random kernels: torch's CUDA generator, and one of our own for kernels on the CPU.

A kernel computes Philox numbers from the seed and from offset / 4 plus the number of the random op; each execution moves the offset on by
4 for each random op, as torch's own kernels do. While a CUDA graph is captured torch tells nobody its seed and offset, as they change from replay
to replay: then an operation of the graph itself draws a seed, and the kernels read it from memory. Read first: `generator_of`, `TakeState`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch

from ..errors import UserError

OFFSET_PER_OP = 4
"""torch counts single numbers; Philox generates four at a time."""


class RandomInGraph(UserError):
    code = "W790"
    what = "kernel {kernel} takes its seed from torch's generator, which cannot provide one during this CUDA graph capture: {reason}"
    fix = "capture with torch.cuda.graph, pass rng_seed and rng_offset to the random op, or run the fusion outside the capture"


class Generator(Protocol):
    """The part of torch.Generator that random kernels need."""

    def initial_seed(self) -> int: ...

    def get_offset(self) -> int: ...

    def set_offset(self, offset: int) -> object: ...


class CpuGenerator:
    """Philox state for kernels on the CPU, where torch's generator is a Mersenne twister.

    The seed is torch.initial_seed(). torch.manual_seed() puts the offset back to 0, also with the same seed: each execution draws a number
    from torch's generator, so a generator in freshly seeded state was seeded since.
    """

    def __init__(self) -> None:
        self._seed: int | None = None
        self._offset = 0

    def initial_seed(self) -> int:
        return torch.initial_seed() & 0xFFFF_FFFF_FFFF_FFFF

    def get_offset(self) -> int:
        """Return the offset; 0 again after the generator was seeded."""
        seed = self.initial_seed()
        if seed != self._seed or (self._offset and self._looks_fresh()):
            self._seed, self._offset = seed, 0
        return self._offset

    def set_offset(self, offset: int) -> None:
        self._seed, self._offset = self.initial_seed(), offset
        if offset:
            torch.rand(())

    def _looks_fresh(self) -> bool:
        fresh = torch.Generator().manual_seed(torch.initial_seed())
        return bool(torch.equal(fresh.get_state(), torch.default_generator.get_state()))


_CPU = CpuGenerator()


def generator_of(device: int | None) -> Generator:
    """Return the generator of a CUDA device, or of the CPU for None."""
    if device is None:
        return _CPU
    torch.cuda.init()
    return torch.cuda.default_generators[device]


def taker(device: int | None, random_ops: int, kernel: str) -> "TakeState":
    """Return a function that returns the state for one execution and advances the generator."""
    return TakeState(device, random_ops * OFFSET_PER_OP, kernel)


Taken = tuple[int, int, int, "torch.Tensor | None"]
"""Seed, offset; while a graph is captured, the address of the seed instead, and the tensor that it is in."""


@contextlib.contextmanager
def kept(device: int | None) -> Iterator[None]:
    """Restore the generators, torch's and weft's, after the block."""
    if device is None:
        before, own = torch.get_rng_state(), (_CPU._seed, _CPU._offset)
    else:
        before, own = torch.cuda.get_rng_state(device), None
    try:
        yield
    finally:
        if own is None:
            torch.cuda.set_rng_state(before, device)  # type: ignore[arg-type]
        else:
            torch.set_rng_state(before)
            _CPU._seed, _CPU._offset = own


class TakeState:
    """See `taker`."""

    __slots__ = ("generator", "device", "kernel", "step")

    def __init__(self, device: int | None, step: int, kernel: str) -> None:
        self.generator, self.device, self.step, self.kernel = generator_of(device), device, step, kernel

    def __call__(self) -> Taken:
        generator = self.generator
        try:
            offset = generator.get_offset()
            generator.set_offset(offset + self.step)
            return generator.initial_seed(), offset, 0, None
        except RuntimeError:  # torch forbids these during a capture
            if not is_capturing():
                raise
        try:
            drawn = seed_of_graph(self.device)
        except RuntimeError as error:
            raise RandomInGraph(kernel=self.kernel, reason=str(error).splitlines()[0]) from None
        return 0, 0, drawn.data_ptr(), drawn


def is_capturing() -> bool:
    """True while the current stream is being captured into a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def seed_of_graph(device: int | None) -> torch.Tensor:
    """Record the drawing of a seed into the graph that is being captured: each replay draws a new one from torch's generator."""
    return torch.randint(0, 2**63 - 1, (1,), dtype=torch.int64, device=None if device is None else torch.device("cuda", device))
