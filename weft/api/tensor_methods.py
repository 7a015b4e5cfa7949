"""The schedule primitives as methods of TensorView.

Owns the binding; the primitives are functions of `weft.schedule.primitives`. Importing this module adds the methods, and those of `weft.ops.operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from ..errors import Unsupported, shown
from ..expr import Sym
from ..ir.enums import CacheOp, LoadStoreOpType, MemoryType, ParallelType
from ..ir.values import IterDomain, TensorView
from ..ops import operators as _operators  # noqa: F401
from ..ops.arguments import WrongArgument
from .misuse import explained


def _check_member(method: str, argument: str, kind: type[Enum], given: object) -> None:
    """Errors: WrongArgument for what is no member of an enumeration, such as its name as a string."""
    if not isinstance(given, kind):
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise WrongArgument(op=method, problem=f"{argument} must be a {kind.__name__}, not {shown(given)}", remedy=f"use one of {members}")


def split(self: TensorView, axis: int, factor: int, inner_split: bool = True) -> TensorView:
    """Split loop axis `axis` in two: the inner has `factor` iterations (the outer, with inner_split False)."""
    from ..schedule import primitives

    if not hasattr(factor, "__index__") and not isinstance(factor, Sym):
        raise WrongArgument(op="split", problem=f"factor must be a whole number, not {shown(factor)}", remedy="use a positive whole number")
    primitives.split(self, axis, factor, inner_split)
    return self


def inner_split(self: TensorView, axis: int, factor: int) -> TensorView:
    """`split` whose inner axis has `factor` iterations."""
    return split(self, axis, factor, True)


def outer_split(self: TensorView, axis: int, factor: int) -> TensorView:
    """`split` whose outer axis has `factor` iterations."""
    return split(self, axis, factor, False)


def merge(self: TensorView, axis_o: int, axis_i: int) -> TensorView:
    """Join two loop axes into one, `axis_o` the slower."""
    from ..schedule import primitives

    primitives.merge(self, axis_o, axis_i)
    return self


def reorder(self: TensorView, old2new: dict[int, int] | Sequence[int] = {}) -> TensorView:  # noqa: B006
    """Move loop axes: old position -> new position; the others keep their order."""
    from ..schedule import primitives

    if not isinstance(old2new, dict) and len(set(old2new)) != len(old2new):
        raise primitives.BadOrder(tensor=self, old2new=list(old2new), reason="a position is named twice")
    mapping = old2new if isinstance(old2new, dict) else {old: new for new, old in enumerate(old2new)}
    if mapping:
        primitives.reorder(self, dict(mapping))
    return self


def swizzle(self: TensorView, x: int, y: int) -> TensorView:
    """XOR loop axis `y` with `x`, which spreads a column over the banks of shared memory."""
    from ..schedule import primitives

    primitives.swizzle(self, x, y)
    return self


def swizzle1d(self: TensorView, x: int, parallel_type: ParallelType) -> TensorView:
    """Rotate loop axis `x` by the index of this device along `parallel_type`, a mesh type. On one device that index is 0, and nothing moves.

    Errors: Unsupported for other types.
    """
    from ..schedule.primitives import position_of
    from .multidevice import MESH_TYPES

    position_of(self, x)
    if parallel_type not in MESH_TYPES:
        raise Unsupported(f"TensorView.swizzle1d along {parallel_type}", remedy="rotate along mesh_x, mesh_y or mesh_z")
    return self


def rfactor(self: TensorView, axes: Sequence[int]) -> TensorView:
    """Reduce over the loop axes `axes` first, in a new tensor, which is returned; this tensor reduces over the rest."""
    from ..schedule import primitives

    return primitives.rfactor(self, list(axes))


def cache_after(
    self: TensorView, op_type: LoadStoreOpType = LoadStoreOpType.set, cache_op: CacheOp = CacheOp.unspecified,
    propagate_allocation_domain: bool = True, cached_uses: Sequence[Any] = (),
) -> TensorView:  # fmt: skip
    """Insert a copy between this tensor and its uses (`cached_uses` only, if given), and return it.

    propagate_allocation_domain: the copy lies in the order in which this tensor does.
    """
    from ..schedule import primitives

    _check_member("cache_after", "op_type", LoadStoreOpType, op_type)
    _check_member("cache_after", "cache_op", CacheOp, cache_op)
    return primitives.cache_after(self, op_type, cache_op, propagate_allocation_domain, list(cached_uses))


def cache_before(self: TensorView, op_type: LoadStoreOpType = LoadStoreOpType.set) -> TensorView:
    """Insert a copy between this tensor's definition and this tensor, and return it."""
    from ..schedule import primitives

    _check_member("cache_before", "op_type", LoadStoreOpType, op_type)
    return primitives.cache_before(self, op_type)


def cache_fork(self: TensorView) -> TensorView:
    """Split an output that is also read into the read tensor (this one) and a copy that is the output, which is returned."""
    from ..schedule import primitives

    return primitives.cache_fork(self)


def set_memory_type(self: TensorView, memory_type: MemoryType) -> None:
    """Choose where the tensor is kept."""
    from ..schedule import primitives

    _check_member("set_memory_type", "memory_type", MemoryType, memory_type)
    primitives.set_memory_type(self, memory_type)


def set_allocation_domain(self: TensorView, ids: Sequence[IterDomain], new_contiguity: bool | Sequence[bool | None]) -> None:
    """Choose how the tensor lies in memory: its axes from the outermost."""
    from ..schedule import primitives

    primitives.set_allocation_domain(self, ids, new_contiguity)


def set_device_mesh(self: TensorView, mesh: Any) -> None:
    """Say on which devices the tensor lies. Errors: Unsupported for a mesh of several, when it is made."""
    from . import multidevice

    multidevice.set_device_mesh(self, mesh)


def circular_buffer(self: TensorView, stages: int, prefetch: int | None = None, kind: Any = None, async_warp: int = 0) -> None:
    """Let the loads of this copy into shared memory run `prefetch` iterations ahead of their readers, in a ring of `stages`.

    kind: Pipelined() unless given, or WarpSpecialized(axis), of `weft.schedule.circular`.
    """
    from ..schedule import circular

    circular.circular_buffer(self, stages, prefetch, kind, async_warp)


METHODS = (
    split, inner_split, outer_split, merge, reorder, swizzle, swizzle1d, rfactor, cache_after, cache_before, cache_fork,
    set_memory_type, set_allocation_domain, set_device_mesh, circular_buffer,
)  # fmt: skip
for _method in METHODS:
    setattr(TensorView, _method.__name__, explained(_method))
