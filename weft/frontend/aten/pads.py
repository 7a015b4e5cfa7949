"""Pads that repeat pixels of an image: mirrored at its borders, the borders themselves, and the other end; forward and backward, for AOTAutograd.

torch's decomposition counts positions in integers of 64 bits; its gradient of a mirrored image looks up nine places for each pixel, and that of continued
borders is a kernel of torch's. Here a pixel's gradient is that of its own place and, in the few rows and columns that are repeated, of the places that repeat
it. Read first: `padded`, `padded_backward`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..windows import before, channels_behind, channels_in_front, counted, integers_below, is_channels_last, wide_type

aten = torch.ops.aten

MOST_PLACES = 32
"""Up to so many places of the result that may be a pixel, they are looked up one by one. A mirrored volume has 27."""


@dataclass(frozen=True)
class Place:
    """For each pixel of an axis, a place of the result [n] that is this pixel if the condition [n] holds; None: it always does."""

    place: Tensor | slice
    condition: Tensor | None


@dataclass(frozen=True)
class Axis:
    """An axis of n pixels, and how many it gets in front and behind; negative numbers cut."""

    n: Any
    front: int
    back: int
    device: torch.device

    @property
    def count(self) -> Any:
        return self.n + self.front + self.back

    def counted(self, count: Any) -> Tensor:
        """Return 0, 1, 2 and so on, in a type for positions."""
        return counted(count, self.device, integers_below(4 * self.n) if isinstance(self.n, int) else torch.int64)

    def sources(self) -> Tensor:
        """Return the pixel [count] that each place of the result is."""
        raise NotImplementedError

    def in_front(self, pixel: Tensor) -> list[Place]:
        """Return the places in front of the image that repeat a pixel."""
        raise NotImplementedError

    def behind(self, pixel: Tensor) -> list[Place]:
        """Return those behind it."""
        raise NotImplementedError

    @property
    def is_apart(self) -> bool:
        """True if it is known that no pixel is repeated at both ends."""
        raise NotImplementedError

    def results(self) -> list[Place]:
        """Return the places of the result that may be each pixel. If it is known that no pixel is repeated at both ends, the places in front and those behind
        are one each, chosen by the pixel."""
        pixel = self.counted(self.n)
        place = pixel + self.front
        is_whole = self.front >= 0 and self.back >= 0
        own = Place(slice(self.front, self.front + self.n), None) if is_whole else Place(place, (place >= 0) & (place < self.count))
        front, back = self.in_front(pixel), self.behind(pixel)
        pairs = min(len(front), len(back)) if self.is_apart else 0
        merged = [Place(torch.where(a.condition, a.place, b.place), a.condition | b.condition) for a, b in zip(front[:pairs], back[:pairs])]  # type: ignore[arg-type, operator]
        return [own, *merged, *front[pairs:], *back[pairs:]]


class Mirrored(Axis):
    """Pixels in reverse order, without the border itself."""

    def sources(self) -> Tensor:
        last = self.n - 1
        return last - (last - (self.counted(self.count) - self.front).abs()).abs()

    def in_front(self, pixel: Tensor) -> list[Place]:
        return [Place(self.front - pixel, (pixel >= 1) & (pixel <= self.front))] if self.front > 0 else []

    def behind(self, pixel: Tensor) -> list[Place]:
        last = self.n - 1
        return [Place(self.front + 2 * last - pixel, (pixel >= last - self.back) & (pixel < last))] if self.back > 0 else []

    @property
    def is_apart(self) -> bool:
        return isinstance(self.n, int) and self.front + self.back < self.n - 1


class Continued(Axis):
    """The pixel at the border."""

    def sources(self) -> Tensor:
        return (self.counted(self.count) - self.front).clamp(0, self.n - 1)

    def in_front(self, pixel: Tensor) -> list[Place]:
        return [Place(torch.full_like(pixel, place), pixel == 0) for place in range(self.front)]

    def behind(self, pixel: Tensor) -> list[Place]:
        return [Place(torch.full_like(pixel, self.count - 1 - place), pixel == self.n - 1) for place in range(self.back)]

    @property
    def is_apart(self) -> bool:
        return isinstance(self.n, int) and self.n > 1


class Wrapped(Axis):
    """The pixels of the other end."""

    def sources(self) -> Tensor:
        place = self.counted(self.count) - self.front
        place = torch.where(place < 0, place + self.n, place)
        return torch.where(place >= self.n, place - self.n, place).clamp(0, self.n - 1)  # as is; a kernel sees that it is inside

    def in_front(self, pixel: Tensor) -> list[Place]:
        return [Place(pixel - (self.n - self.front), pixel >= self.n - self.front)] if self.front > 0 else []

    def behind(self, pixel: Tensor) -> list[Place]:
        return [Place(pixel + (self.front + self.n), pixel < self.back)] if self.back > 0 else []

    @property
    def is_apart(self) -> bool:
        return isinstance(self.n, int) and self.front + self.back <= self.n


def padded(x: Tensor, axes: Sequence[Axis], is_last: bool) -> Tensor:
    """Return an image whose last axes are padded, dense; is_last: with channels last."""
    out = channels_behind(x) if is_last else x
    first = out.dim() - is_last - len(axes)
    for number, axis in enumerate(axes, first):
        out = _at(out, number, axis.sources()) if axis.front or axis.back else out
    return _dense(out, is_last)


def padded_backward(grad: Tensor, axes: Sequence[Axis], is_last: bool) -> Any:
    """Return the gradient of the image: each pixel takes the results that are this pixel. NotImplemented if they are many."""
    places = [axis.results() for axis in axes]
    if math.prod(map(len, places)) > MOST_PLACES:
        return NotImplemented
    values = channels_behind(grad) if is_last else grad
    return _dense(_taken(values, values.dim() - is_last - len(axes), places, int(is_last)).to(grad.dtype), is_last)


def _dense(values: Tensor, is_last: bool) -> Tensor:
    """Return an image in its memory format; is_last: its channels are behind, and are to be in front."""
    last = torch.channels_last if values.dim() == 4 else torch.channels_last_3d
    return channels_in_front(values).contiguous(memory_format=last) if is_last else values.contiguous()


def _taken(grad: Tensor, first: int, places: Sequence[Sequence[Place]], behind: int) -> Tensor:
    """Return the sums over the places of each pixel, along the axes from `first` on. behind: how many axes there are behind those of `places`."""
    if not places:
        return grad.to(wide_type(grad))
    terms = []
    for place in places[0]:
        inside = place.place if isinstance(place.place, slice) else place.place.clamp(0, grad.shape[first] - 1)
        found = _taken(_at(grad, first, inside), first + 1, places[1:], behind)
        is_part = None if place.condition is None else before(place.condition, len(places) - 1 + behind)
        terms.append(found if is_part is None else torch.where(is_part, found, 0.0))
    return sum(terms[1:], terms[0])


def _at(x: Tensor, axis: int, place: Tensor | slice) -> Tensor:
    everything: list[Any] = [slice(None)] * axis
    return x[tuple([*everything, place])]


def _axes(kind: type[Axis], x: Tensor, widths: Sequence[int]) -> list[Axis] | None:
    """Return the padded axes of an image; None for types and sizes that are left to torch."""
    if x.is_complex() or not all(isinstance(width, int) for width in widths) or any(isinstance(n, int) and n == 0 for n in x.shape):
        return None
    count = len(widths) // 2
    pairs = [(widths[2 * n], widths[2 * n + 1]) for n in reversed(range(count))]
    return [kind(n, *pair, x.device) for n, pair in zip(x.shape[-count:], pairs)]


def _forward(kind: type[Axis]) -> Callable[..., Any]:
    def rule(x: Tensor, padding: Sequence[int]) -> Any:
        axes = _axes(kind, x, padding)
        return NotImplemented if axes is None else padded(x, axes, _is_last(x))

    return rule


def _backward(kind: type[Axis]) -> Callable[..., Any]:
    def rule(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Any:
        axes = _axes(kind, x, padding)
        return NotImplemented if axes is None else padded_backward(grad, axes, _is_last(x))

    return rule


def _is_last(x: Tensor) -> bool:
    """True if torch keeps channels last: its kernels of a GPU do not."""
    return x.device.type == "cpu" and is_channels_last(x)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    getattr(aten, f"{name}_pad{count}d{way}").default: rule(kind)
    for name, kind in (("reflection", Mirrored), ("replication", Continued)) for count in (1, 2, 3) for way, rule in (("", _forward), ("_backward", _backward))
}  # fmt: skip
"""For AOTAutograd."""
