"""Arithmetic in double precision of which a result keeps nothing: it is done in single precision.

Constants are doubles, so what is computed from them alone is, too: where(mask, 1.0, 0.0) is a tensor of doubles, and so are its difference from a tensor of
floats and its product with one. A GPU converts between the two types at an eighth of the speed of its other arithmetic. Where the result is cast to a float of
16 bits, or is one exact operation that is cast to Float, the same steps in Float give it. Read first: `compute_in_single`, `Single`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from ..analysis.precision import is_narrow_float
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import Expr, LoadStoreOp, PointwiseOp, Scalar, TensorView, Val
from ..ops.build import cast, constant, pointwise

BOUND = 2.0**100
"""Of values that no float reaches infinity by, when they are added to it: half of the last place of the largest float is 2**103."""
EXACT = ("add", "sub", "mul")
"""Ops whose result in Double is the exact one, or is rounded so that a second rounding, to Float, gives what the op in Float gives."""
MOST_ROUNDINGS = 16
"""2**-24 each, together 1e-6: an eighth of what formulas for results of 16 bits may be wrong by (`weft.analysis.precision`)."""
Step = tuple[str, tuple[Val, ...]]


@dataclass(frozen=True)
class Single:
    """A double that steps in Float give, too. source: a tensor of floats, or a scalar; None: `op` of these `operands`. roundings: how often it was rounded.
    is_bounded: adding it makes no float infinite. is_last: as a float it may be infinite, or have lost digits near zero, where the double is not, which
    matters to whatever computes with it.
    """

    source: Val | None = None
    op: str = ""
    operands: tuple[Val | Single, ...] = ()
    roundings: int = 0
    is_bounded: bool = False
    is_last: bool = False


def compute_in_single(fusion: Fusion) -> None:
    """Replace doubles by floats where a cast shows no difference, in place. Before: no axis is open. After: results keep names and types."""
    if not any(e.outputs[0].dtype() is DataType.Double for e in fusion.tensor_exprs()):  # type: ignore[attr-defined]
        return
    known: dict[Val, Single] = {}
    for expr in fusion.tensor_exprs():
        if isinstance(expr, PointwiseOp) and expr.outputs[0].dtype() is DataType.Double and (found := _single(expr, known)) is not None:  # type: ignore[attr-defined]
            known[expr.outputs[0]] = found
    made: dict[int, Val] = {}
    outputs = set(fusion.outputs())
    for value, single in known.items():
        if single.op and value not in outputs and all(_hides(use, single) for use in value.uses()):
            for use in value.uses():
                _read(fusion, use, _made(fusion, single, made))


def _single(expr: PointwiseOp, known: dict[Val, Single]) -> Single | None:
    """Return how Float gives the result of an op, None if it does not."""
    if expr.op_name == "cast":
        source = expr.inputs[0]
        is_exact = isinstance(source, TensorView) and (is_narrow_float(source) or source.dtype() is DataType.Float)
        return Single(source) if is_exact else None
    operands = [_operand(v, known) for v in (expr.inputs[1:] if expr.op_name == "where" else expr.inputs)]
    if any(o is None or o.is_last and expr.op_name not in ("where", "neg", "abs") for o in operands):
        return None
    found: list[Single] = operands  # type: ignore[assignment]
    roundings, is_bounded = max((o.roundings for o in found), default=0), bool(found) and all(o.is_bounded for o in found)
    made = Single(None, expr.op_name, tuple(found), roundings, is_bounded, any(o.is_last for o in found))
    if expr.op_name == "where":
        return replace(made, operands=(expr.inputs[0], *found))
    if expr.op_name in ("neg", "abs"):
        return made
    if expr.op_name in ("add", "sub") and not roundings:  # the difference of two rounded values may be nothing but their roundings
        return replace(made, roundings=1, is_bounded=False, is_last=not any(o.is_bounded for o in found))
    if expr.op_name in ("mul", "div") and sum(o.roundings for o in found) < MOST_ROUNDINGS:
        return replace(made, roundings=1 + sum(o.roundings for o in found), is_bounded=False, is_last=True)
    return None


def _operand(value: Val, known: dict[Val, Single]) -> Single | None:
    """Return what is known of an operand: of a tensor what its definition says, of a constant how far a float is from it."""
    if not isinstance(value, Scalar):
        return known.get(value)
    if not value.sym.is_const or not isinstance(value.sym.payload, (int, float)) or not abs(value.sym.payload) < BOUND:
        return None
    number = float(value.sym.payload)
    return Single(value, roundings=int(struct.unpack("f", struct.pack("f", number))[0] != number), is_bounded=True)


def _hides(use: Expr, single: Single) -> bool:
    """True for a cast that gives the same of the float as of the double: any to 16 bits, and to Float one of what was rounded once or never."""
    if not isinstance(use, PointwiseOp) or use.op_name != "cast":
        return False
    (out,) = use.tensor_outputs
    if out.dtype() is DataType.Float:
        return not single.roundings or single.roundings == 1 and single.op in EXACT
    return is_narrow_float(out)


def _read(fusion: Fusion, use: Expr, value: Val) -> None:
    """Let a cast read a float in place of a double."""
    (out,) = use.tensor_outputs
    fusion.remove(use)
    is_copy = out.dtype() is DataType.Float
    fusion.register(LoadStoreOp([value], [out]) if is_copy else PointwiseOp([value], [out], op="cast", compute=DataType.Float, dtype=out.dtype()))


def _made(fusion: Fusion, single: Single, made: dict[int, Val]) -> Val:
    """Return the float, whose steps are added to the fusion once."""
    if id(single) not in made:
        if isinstance(single.source, Scalar):
            made[id(single)] = constant(fusion, float(single.source.sym.payload), DataType.Float)  # type: ignore[arg-type]
        elif single.source is not None:
            made[id(single)] = cast(fusion, single.source, DataType.Float)
        else:
            operands = [_made(fusion, o, made) if isinstance(o, Single) else o for o in single.operands]
            made[id(single)] = pointwise(fusion, single.op, *operands)
    return made[id(single)]


__all__ = ["compute_in_single"]
