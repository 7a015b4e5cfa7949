"""Casts, to and from floats of 8 bits too.

torch's conversions to 8 bits differ by version and type in what becomes of values that are too large: the largest value, NaN or infinity. weft's kernels
convert them to the largest value. Read first: `overflow_of`, `to`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .rules import NARROW_DTYPES, Operand, Translation, rule

aten, prims = torch.ops.aten, torch.ops.prims
Node = torch.fx.Node

CLAMPS = (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default)
CASTS = (aten._to_copy.default, prims.convert_element_type.default)


def _converted(number: float, dtype: torch.dtype) -> float:
    """Return what torch makes of a float32 in `dtype`, also while it traces."""
    with unset_fake_temporarily():
        return torch.tensor(number).to(dtype).item()


@functools.cache
def overflow_of(dtype: torch.dtype) -> float:
    """Return what torch converts values above the largest of a float type of 8 bits to."""
    return _converted(1e30, dtype)


@functools.cache
def last_inside(dtype: torch.dtype) -> float:
    """Return the largest number that torch rounds to the largest value of a float type of 8 bits, if those above become NaN or infinity: half a step above that
    value, or the float32 before that."""
    largest = torch.finfo(dtype).max
    middle = largest + 2.0 ** (math.frexp(largest)[1] - 1) * torch.finfo(dtype).eps / 2
    return middle if math.isfinite(_converted(middle, dtype)) else middle * (1 - torch.finfo(torch.float32).eps / 2)


def to(t: Translation, x: Operand, dtype: torch.dtype) -> Operand:
    """Return x in a type, with torch's result where it is too large for it."""
    source = t.node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    if not {source, dtype} & NARROW_DTYPES or source is dtype:
        return t.to(x, dtype)
    x = t.to(x, torch.float32)
    if dtype in NARROW_DTYPES and math.isnan(overflow_of(dtype)) and not _is_clamped(t.node, dtype):
        x = t.ops.where(t.ops.le(t.ops.abs(x), last_inside(dtype)), x, t.constant(math.nan, torch.float32))
    return t.to(x, dtype)


def _is_clamped(node: Node, dtype: torch.dtype) -> bool:
    """Tell whether what a node converts was limited to the range of `dtype` just before, between other conversions and copies at most."""
    below, above = False, False
    value: Any = node.args[0]
    while isinstance(value, Node) and value.target in (*CASTS, *CLAMPS, aten.clone.default):
        if value.target in CLAMPS:
            low, high = _limits(value)
            below, above = below or low >= -torch.finfo(dtype).max, above or high <= torch.finfo(dtype).max
        value = value.args[0]
    return below and above


def _limits(clamp: Node) -> tuple[float, float]:
    """Return the numbers that a clamp limits values to; infinite ones where it has none, or a tensor."""
    given = dict(zip(("x", "min", "max"), clamp.args)) | clamp.kwargs
    if clamp.target is aten.clamp_max.default:
        given = {"max": given.get("min", given.get("max"))}
    low, high = given.get("min"), given.get("max")
    return low if isinstance(low, (int, float)) else -math.inf, high if isinstance(high, (int, float)) else math.inf


def _refused(node: Node) -> str:
    """Why a cast stays with torch."""
    source: Any = node.args[0]
    value, dtype = source.meta["val"], node.meta["val"].dtype
    if value.is_complex():
        return "a complex tensor"
    is_narrowed = dtype in NARROW_DTYPES and value.dtype is not dtype
    if is_narrowed and dtype is torch.float8_e8m0fnu:
        return f"a cast to {dtype}: torch rounds to the nearest power of two, and weft's kernels up"
    if is_narrowed and math.isinf(overflow_of(dtype)) and not _is_clamped(node, dtype):
        return f"a cast to {dtype} of values that are not clamped to its range: torch makes those outside infinite, and weft's kernels the largest value"
    return ""


def _refused_or_elsewhere(node: Node) -> str:
    wanted, value = node.kwargs.get("device"), node.args[0].meta["val"]  # type: ignore[union-attr]
    is_here = wanted is None or torch.device(wanted).type == value.device.type  # type: ignore[arg-type]
    return _refused(node) or ("" if is_here else "a copy between devices")


@rule(aten._to_copy.default, claims=_refused_or_elsewhere, makes_complex=True, takes_narrow=True)
def to_copy(t: Translation, x: Operand, dtype: torch.dtype | None = None, **_: Any) -> Operand:
    return t.ops.set(x) if dtype is None else to(t, x, dtype)


SAME_BITS = {torch.uint8, torch.int8}, {torch.float32, torch.int32}
"""Pairs of types as which regions view each other's bits; integers of 8 bits by a cast, which keeps them."""


def _other_bits(node: Node) -> str:
    """Why a view as another type stays with torch."""
    pair = {node.args[0].meta["val"].dtype, node.meta["val"].dtype}  # type: ignore[union-attr]
    return "" if pair in SAME_BITS or len(pair) == 1 else "a view as another type, but for float32 and int32, int8 and uint8"


@rule(aten.view.dtype, claims=_other_bits)
def view_as_type(t: Translation, x: Operand, dtype: torch.dtype) -> Operand:
    source = t.node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    return t.ops.bitcast(x) if {source, dtype} == {torch.float32, torch.int32} else t.to(x, dtype)


@rule(prims.convert_element_type.default, claims=_refused, makes_complex=True, takes_narrow=True)
def convert_element_type(t: Translation, x: Operand, dtype: torch.dtype) -> Operand:
    return to(t, x, dtype)
