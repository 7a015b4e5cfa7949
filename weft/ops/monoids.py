"""The monoids that reductions fold with: sum, prod, max, min.

Owns their identities, their combination of two values in CUDA, and their names in the device library (`weft/device/reduce.cuh`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dtypes import CUDA_NAMES, DataType
from ..errors import InternalError
from .registry import OPS, torch

_D = DataType
_SUFFIX = {_D.Int: "ll", _D.Index: "ll", _D.Int32: "", _D.UInt64: "ull"}
_BYTES = (_D.Byte, _D.Char)
_LARGEST_INT = {
    _D.Byte: "(unsigned char)255", _D.Char: "(signed char)127", _D.Int: "0x7fffffffffffffffll",
    _D.Index: "0x7fffffffffffffffll", _D.Int32: "0x7fffffff", _D.UInt64: "0xffffffffffffffffull",
}  # fmt: skip
_SMALLEST_INT = {
    _D.Byte: "(unsigned char)0", _D.Char: "(signed char)-128", _D.Int: "(-0x7fffffffffffffffll - 1)",
    _D.Index: "(-0x7fffffffffffffffll - 1)", _D.Int32: "(-0x7fffffff - 1)", _D.UInt64: "0ull",
}  # fmt: skip


@dataclass(frozen=True)
class Monoid:
    """An associative operation with an identity. op: the pointwise op that combines; functor: its struct in the device library."""

    kind: str
    op: str
    functor: str
    identity_text: Callable[[DataType], str]
    reduce: Callable[..., Any]  # (torch tensor, dims, keepdim) -> torch tensor

    def identity(self, dtype: DataType) -> str:
        """Return the identity in C++."""
        return self.identity_text(dtype)

    def combine(self, a: str, b: str, dtype: DataType) -> str:
        """Return the C++ expression of `a` combined with `b`."""
        return OPS[self.op].cuda([a, b], dtype)

    def blocks_for(self, dtype: DataType) -> tuple[str, ...]:
        """Return the device library blocks that `identity` and `combine` need."""
        return OPS[self.op].blocks_for(dtype)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Device library blocks that `identity` and `combine` need for real types."""
        return OPS[self.op].blocks


def _number(value: int) -> Callable[[DataType], str]:
    def identity(dtype: DataType) -> str:
        if dtype is _D.Float:
            return f"{value}.f"
        if dtype is _D.Double:
            return f"{value}."
        if dtype.is_bool:
            return "true" if value else "false"
        if dtype.is_complex:
            return f"{CUDA_NAMES[dtype]}{{{value}, 0}}"
        if dtype in _BYTES:
            return f"({CUDA_NAMES[dtype]}){value}"
        if dtype.is_integer:  # with its type, for callers that deduce it
            return f"{value}{_SUFFIX[dtype]}"
        raise InternalError(f"no reduction folds {dtype}")

    return identity


def _bound(sign: str, integers: dict[DataType, str], of_bool: str) -> Callable[[DataType], str]:
    def identity(dtype: DataType) -> str:
        if dtype in (_D.Float, _D.Double):
            return f"{sign}weft::infinity<{CUDA_NAMES[dtype]}>()"
        if dtype.is_bool:
            return of_bool
        if dtype in integers:
            return integers[dtype]
        raise InternalError(f"no extremum is taken of {dtype}")

    return identity


def _sum(x: Any, dims: list[int], keepdim: bool) -> Any:
    return torch.sum(x, dims, keepdim=keepdim) if x.dtype != torch.bool else torch.any(x, dims, keepdim=keepdim)


def _prod(x: Any, dims: list[int], keepdim: bool) -> Any:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, keepdim=keepdim)
    return x


MONOIDS: dict[str, Monoid] = {
    m.kind: m
    for m in (
        Monoid("sum", "add", "weft::Sum", _number(0), _sum),
        Monoid("prod", "mul", "weft::Prod", _number(1), _prod),
        Monoid("max", "maximum", "weft::Max", _bound("-", _SMALLEST_INT, "false"), lambda x, dims, keepdim: torch.amax(x, dims, keepdim=keepdim)),
        Monoid("min", "minimum", "weft::Min", _bound("", _LARGEST_INT, "true"), lambda x, dims, keepdim: torch.amin(x, dims, keepdim=keepdim)),
    )
}
