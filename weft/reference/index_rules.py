"""What index ops mean in torch's terms, for the interpreter: lookups, scans, scatters.

Positions are integers and may be any; which of them are inside, and what is read outside, is said here once. Read first: `look_up`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..errors import UserError
from ..expr import Number, Sym
from ..ir.graph_ops import Along, At, BagOp, LookupOp
from ..ir.values import no_reductions


class PositionOutOfRange(UserError):
    code = "W392"
    what = "{op}: position {position} along axis {axis} of {source}, which has {extent} elements there"
    fix = "use positions of at least 0 and below {extent}"


def look_up(
    node: LookupOp, source: torch.Tensor, indices: dict[int, torch.Tensor], shape: Sequence[int], number: Callable[[Sym], Number], fill: torch.Tensor | None
) -> torch.Tensor:  # fmt: skip
    """Return one element of `source` per element of `shape`. indices: operand -> index tensor. Errors: PositionOutOfRange."""
    if isinstance(node, BagOp):
        return _bag_sums(node, source, indices, shape)
    axes = no_reductions(node.source.get_logical_domain())
    inside: torch.Tensor | None = None
    places: list[torch.Tensor] = []
    for d, (axis, position) in enumerate(zip(axes, node.positions)):
        at = _place(position, indices, shape, number, source.device)
        extent = int(number(axis.logical_extent))  # type: ignore[arg-type]
        fits = (at >= 0) & (at < extent)
        if fill is None and at.numel() and not bool(fits.all()) and 0 not in shape:
            raise PositionOutOfRange(op=node.op_name, position=int(at[~fits].flatten()[0]), axis=d, source=node.source, extent=extent)
        inside = fits if inside is None else inside & fits
        places.append(at.clamp(0, max(0, source.shape[d] - 1)))
    if 0 in source.shape:
        found = torch.zeros(list(shape), dtype=source.dtype, device=source.device)
    else:
        found = source[tuple(p.expand(list(shape)) for p in places)] if places else source.expand(list(shape))
    if fill is None or inside is None:
        return found
    return torch.where(inside, found, fill.to(found.dtype))


def _bag_sums(node: BagOp, source: torch.Tensor, indices: dict[int, torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """Return the sum of the rows of each bag, in the wide type of the source."""
    bag, places = node.bag, node.positions
    kept = {place.axis: n for n, place in enumerate(places) if isinstance(place, Along)}  # axis of the result -> of the source
    source = source.permute(node.bag_axis, *(kept[axis] for axis in sorted(kept)))
    extent = source.shape[0]
    length = min(indices[n].numel() if n else extent for n, _ in node.counted_axes)
    first, end = (indices[n].flatten().to(torch.int64).expand(shape[0]).clamp(0, length) for n in (bag.operand, bag.end))
    counts = (end - first).clamp_min(0)
    owner = torch.repeat_interleave(torch.arange(shape[0], device=source.device), counts)
    at = torch.arange(int(counts.sum()), device=source.device) - (counts.cumsum(0) - counts)[owner] + first[owner]
    weights = None if bag.weights is None else indices[bag.weights].flatten()[at].to(torch.float64 if source.dtype is torch.float64 else torch.float32)
    at = at if bag.order is None else indices[bag.order].flatten().to(torch.int64)[at]
    wrong = at[(at < 0) | (at >= extent)]
    if wrong.numel():
        raise PositionOutOfRange(op=node.op_name, position=int(wrong[0]), axis=node.bag_axis, source=node.source, extent=extent)
    wide = torch.promote_types(source.dtype, torch.float32) if source.is_floating_point() else source.dtype
    terms = source[at].to(wide).expand(at.numel(), *shape[1:])
    terms = terms if weights is None else terms * weights.to(wide).reshape(-1, *(1 for _ in shape[1:]))
    return torch.zeros(list(shape), dtype=wide, device=source.device).index_add_(0, owner, terms)


def _place(position: object, indices: dict[int, torch.Tensor], shape: Sequence[int], number: Callable[[Sym], Number], device: torch.device) -> torch.Tensor:
    """Return positions that broadcast to `shape`."""
    if isinstance(position, At):
        return indices[position.operand].to(torch.int64)
    if isinstance(position, Along):
        row = torch.arange(shape[position.axis], device=device) + int(number(position.offset))  # type: ignore[arg-type]
        return row.reshape([-1 if d == position.axis else 1 for d in range(len(shape))])
    return torch.tensor(int(number(position.position)), device=device).reshape([1] * len(shape))  # type: ignore[attr-defined, arg-type]


__all__ = ["PositionOutOfRange", "look_up"]
