"""Activations, gated units and rotary positions. Read first: `gelu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


from ..ops import composites as c
from ..runtime.argument_kinds import checked
from .family import Family
from .quick import quick
from .results import Tensor, WrongArgument

_GELU = Family("gelu", lambda o, x, *, approximate: o.gelu(x, approximate), ["input"], keeps_layout=True, folds=True)
_SILU = Family("silu", lambda o, x: c.narrowed(o.silu(x), x.dtype()), ["input"], keeps_layout=True, folds=True)


@quick
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """torch.nn.functional.gelu."""
    return _GELU((input,), approximate=approximate)


@quick
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.silu, out of place."""
    if inplace:
        raise WrongArgument(function="silu", problem="inplace=True", remedy="use the returned tensor: the gradient needs the unchanged input")
    if not (input.is_floating_point() or input.is_complex()):
        raise WrongArgument(function="silu", problem=f"the input is of type {input.dtype}", remedy="cast it to a float type")
    return _SILU((input,))


_SWIGLU = Family("swiglu", lambda o, a, b: o.swiglu(a, b), ["gate", "value"], keeps_layout=True)
_GEGLU = Family("geglu", lambda o, a, b, *, exact: o.geglu_exact(a, b) if exact else o.geglu(a, b), ["gate", "value"], keeps_layout=True)


class _HalvesFamily(Family):
    """The last axis of its tensors has a fixed size, so that its halves are slices by numbers."""

    def definition(self, forms: Sequence[Any], static: dict[str, Any]) -> Any:
        fixed = [(dtype, (*sizes[:-1], 2 * static["half"]), contiguity, order) for dtype, sizes, contiguity, order in forms]
        return super().definition(fixed, static)


_PACKED_SWIGLU = _HalvesFamily("packed_swiglu", lambda o, x, *, half: o.swiglu(x[..., :half], x[..., half:]), ["gate"])
_PACKED_GEGLU = _HalvesFamily(
    "packed_geglu", lambda o, x, *, half, exact: (o.geglu_exact if exact else o.geglu)(x[..., :half], x[..., half:]), ["gate"]
)  # fmt: skip


def _half(name: str, gate: Tensor) -> int:
    """Return the size of the gate in a packed input. Errors: WrongArgument."""
    if not gate.dim() or gate.shape[-1] % 2:
        problem = f"the packed input has sizes {list(gate.shape)}"
        raise WrongArgument(function=name, problem=problem, remedy="pack gate and value side by side with equal sizes, or pass two tensors")
    return gate.shape[-1] // 2


@quick
def swiglu(gate: Tensor, value: Tensor | None = None) -> Tensor:
    """Return silu(gate) * value; with one tensor its first half along the last axis is the gate, the second the value."""
    if value is None and _half("swiglu", gate):
        return _PACKED_SWIGLU((gate,), half=gate.shape[-1] // 2)
    return _SWIGLU(tuple(gate.chunk(2, -1)) if value is None else (gate, value))


@quick
def geglu(gate: Tensor, value: Tensor | None = None, approximate: str = "tanh") -> Tensor:
    """Return gelu(gate) * value; with one tensor its first half along the last axis is the gate. approximate: "tanh" (Liger's) or "none"."""
    if approximate not in ("tanh", "none"):
        raise WrongArgument(function="geglu", problem=f"approximate is {approximate!r}", remedy="use 'tanh' or 'none'")
    if value is None and _half("geglu", gate):
        return _PACKED_GEGLU((gate,), half=gate.shape[-1] // 2, exact=approximate == "none")
    return _GEGLU(tuple(gate.chunk(2, -1)) if value is None else (gate, value), exact=approximate == "none")


# ---------------------------------------------------------------- positions
def _rope(o: Any, x: Any, cos: Any, sin: Any, *, half: int) -> Any:
    wide = c.wide(x)
    turned = o.cat([-(wide[..., half:]), wide[..., :half]], -1)
    return c.narrowed(wide * c.wide(cos) + turned * c.wide(sin), x.dtype())


_ROPE = _HalvesFamily("rope", _rope, ["x", "cos", "sin"])


@checked
def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Return q and k turned by position, halves against each other: Hugging Face's function. q, k: [batch, heads, positions, size]; cos, sin: [batch,
    positions, size]."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return rope(q, cos, sin), rope(k, cos, sin)


@quick
def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x * cos + (-second half, first half) * sin along the last axis; cos and sin broadcast against x."""
    if not (x.dim() and cos.dim() and sin.dim()):
        problem = f"x, cos and sin have {x.dim()}, {cos.dim()} and {sin.dim()} axes"
        raise WrongArgument(function="rope", problem=problem, remedy="pass tensors whose last axis is the size of a head")
    if x.shape[-1] % 2 or cos.shape[-1] != x.shape[-1] or sin.shape[-1] != x.shape[-1]:
        problem = f"the last axes are {x.shape[-1]}, {cos.shape[-1]} and {sin.shape[-1]} for x, cos and sin"
        raise WrongArgument(function="rope", problem=problem, remedy="make the three sizes equal and even")
    return _ROPE((x, cos, sin), half=x.shape[-1] // 2)


__all__ = ["apply_rotary_pos_emb", "geglu", "gelu", "rope", "silu", "swiglu"]
