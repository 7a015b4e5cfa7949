"""Pointwise nodes: operands of any kind in, casts and leading broadcasts inserted, axes mapped, a node added to the fusion.

Owns what all ops share: `as_val`, `new_axes`, `pointwise`, `cast`, `copy`. Shape ops are in `shapes.py`, reductions in `reductions.py`, factories in
`factories.py`; the front end's functions with their signatures are in `functions.py`. Read first: `pointwise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from .. import expr
from ..dtypes import DataType
from ..errors import UserError
from ..expr import Number, Sym
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, Expr, IterDomain, LoadStoreOp, PointwiseOp, Scalar, TensorView, Val, no_reductions
from .arguments import ForeignValue
from .promotion import Rule, common_dtype
from .registry import OpDef, UnsupportedDtype, lookup

Operand = Union[Val, int, float, bool, complex]


class ExtentMismatch(UserError):
    code = "W310"
    what = "{op}: axis {axis} has extent {left} in {left_tensor} and {right} in {right_tensor}"
    fix = "make the extents equal, or broadcast so that one of them is a new axis"


class IllegalCast(UserError):
    code = "W860"
    what = "Illegal Cast value from  DataType: {old} to DataType: {new}"  # nvFuser's words
    fix = "{remedy}"


class NumberTooLarge(UserError):
    code = "W305"
    what = "{op}(): an operand is an integer of {bits} bits; kernels compute with at most 64"
    fix = "pass a float, or an integer of at most 64 bits"


# ---------------------------------------------------------------- operands
def as_val(fusion: Fusion, operand: Operand, op: str) -> Val:
    """Return `operand` as a value of `fusion`: numbers become constant scalars. Errors: TypeError, ForeignValue, NumberTooLarge."""
    if isinstance(operand, (TensorView, Scalar)):
        if operand.fusion is fusion:
            return operand
        if operand.fusion is None and isinstance(operand, Scalar):  # the extent of an axis: a scalar without a home
            return fusion.new_scalar(operand.sym, operand.dtype())
        raise ForeignValue(op=op, value=str(operand))
    if isinstance(operand, (bool, int, float, complex)):
        if type(operand) is int and abs(operand) >> 64:
            raise NumberTooLarge(op=op, bits=operand.bit_length())
        return constant(fusion, operand)
    raise TypeError(f"{op}(): an operand must be a TensorView, a scalar or a number, not {type(operand).__name__}")


def constant(fusion: Fusion, value: Number, dtype: DataType | None = None) -> Scalar:
    """Return a new constant scalar; the type follows from Python's unless given."""
    sym = expr.const(value, dtype)
    return fusion.new_scalar(sym, sym.dtype)


# ---------------------------------------------------------------- axes
def is_plain_broadcast(axis: IterDomain) -> bool:
    """True for an axis of one element that is not expanded."""
    return axis.is_broadcast() and axis.expanded_extent is None


def logical_axes(tensor: TensorView) -> list[IterDomain]:
    """Return the axes of `tensor` that consumers see."""
    return no_reductions(tensor.get_logical_domain())


def pad_rank(fusion: Fusion, tensor: TensorView, rank: int) -> TensorView:
    """Return `tensor` with leading broadcast axes up to `rank`."""
    missing = rank - tensor.ndim
    if missing <= 0:
        return tensor
    return broadcast(fusion, tensor, [True] * missing + [False] * tensor.ndim)


def broadcast(fusion: Fusion, tensor: TensorView, flags: Sequence[bool]) -> TensorView:
    """Return `tensor` with new axes of extent 1 where `flags` is true; its own axes fill the other positions."""
    old = iter(logical_axes(tensor))
    axes = [fusion.new_axis(1, IterType.broadcast) if new else fusion.copy_axis(next(old)) for new in flags]
    out = fusion.new_tensor(axes, tensor.dtype())
    fusion.register(BroadcastOp([tensor], [out], op="broadcast", flags=tuple(map(bool, flags))))
    return out


def new_axes(fusion: Fusion, tensors: Sequence[TensorView], op: str) -> list[IterDomain]:
    """Return new axes for the result of a pointwise op over tensors of one rank. Errors: ExtentMismatch."""
    columns = zip(*(logical_axes(tensor) for tensor in tensors))
    return [joined_axis(fusion, tensors, column, position, op) for position, column in enumerate(columns)]


def own_axis(fusion: Fusion, axis: IterDomain) -> IterDomain:
    """Return a new axis of the size that torch sees of `axis`: an expanded one has elements of its own."""
    if axis.expanded_extent is not None:
        return fusion.new_axis(axis.expanded_extent, IterType.iteration)
    return fusion.copy_axis(axis)


def joined_axis(fusion: Fusion, tensors: Sequence[TensorView], axes: Sequence[IterDomain], position: int, op: str) -> IterDomain:
    """Return the new axis of a result whose operands, `tensors`, have `axes` there, broadcast to each other. Errors: ExtentMismatch."""
    iterations: list[Sym] = []
    opened: list[Sym] = []
    expanded: list[Sym] = []
    for axis in axes:
        if axis.is_open():
            opened.append(axis.sym)
        elif not axis.is_broadcast():
            iterations.append(axis.sym)
        elif axis.expanded_extent is not None:
            expanded.append(axis.expanded_extent)
    known = {sym.payload for sym in iterations + expanded if sym.is_const}
    if len(known) > 1:
        raise _mismatch(tensors, axes, position, op)
    if iterations:
        return fusion.new_axis(_preferred(iterations), IterType.iteration)
    if opened:
        return fusion.new_axis(_broadcast_extent(opened + expanded), IterType.symbolic)
    return fusion.new_axis(1, IterType.broadcast, expanded_extent=_preferred(expanded) if expanded else None)


def _mismatch(tensors: Sequence[TensorView], axes: Sequence[IterDomain], position: int, op: str) -> ExtentMismatch:
    """Return the error for two axes of different constant extents."""
    sized = [(t, a.logical_extent) for t, a in zip(tensors, axes) if a.logical_extent.is_const and not is_plain_broadcast(a)]
    tensor, extent = sized[0]
    other, its_extent = next((t, e) for t, e in sized if e.payload != extent.payload)
    return ExtentMismatch(op=op, axis=position, left_tensor=str(tensor), left=extent, right_tensor=str(other), right=its_extent)


def _broadcast_extent(extents: Sequence[Sym]) -> Sym:
    """Return the extent to which open axes are broadcast: the first that is not 1 in the call. A constant among them is not 1."""
    found = _preferred(extents)
    for other in extents if not found.is_const else ():
        if other is not found and expr.lower_bound(found) < 2:
            found = expr.op(lookup("where").sym_name, (expr.equal(found, 1), other, found), DataType.Int)
    return found


def _preferred(extents: Sequence[Sym]) -> Sym:
    """Return the first constant, else the first."""
    return next((sym for sym in extents if sym.is_const), extents[0])


# ---------------------------------------------------------------- pointwise ops
def pointwise(fusion: Fusion, name: str, *operands: Operand) -> Val:
    """Add the pointwise op `name` over tensors, scalars and numbers; return its result (a Scalar when all operands are scalars).

    Reduced floats are cast to Float before, ranks are padded with leading broadcasts, two extents that are known to differ are an error.
    Errors: UnknownOp, WrongDtype, UnsupportedDtype, ExtentMismatch; TypeError for an operand of another kind.
    """
    op = lookup(name)
    vals = [as_val(fusion, operand, name) for operand in operands]
    free = [v for i, v in enumerate(vals) if i not in op.fixed] if op.fixed else vals
    compute = DataType.Bool if op.rule is Rule.logical else op.rule.compute(common_dtype(free), name)
    if not op.supports(compute):
        raise UnsupportedDtype(name, compute)
    vals = [cast(fusion, v, op.fixed.get(i, compute)) if isinstance(v, TensorView) else v for i, v in enumerate(vals)]
    tensors = [v for v in vals if isinstance(v, TensorView)]
    if not tensors:
        return _scalar_op(fusion, op, vals, compute)  # type: ignore[arg-type]
    ranks = {t.ndim for t in tensors}
    if len(ranks) > 1:
        vals = [pad_rank(fusion, v, max(ranks)) if isinstance(v, TensorView) else v for v in vals]
        tensors = [v for v in vals if isinstance(v, TensorView)]
    out = fusion.new_tensor(new_axes(fusion, tensors, name), op.result.dtype(compute))
    fusion.register(PointwiseOp(vals, [out], op=name, compute=compute))
    return out


def cast(fusion: Fusion, value: Val, dtype: DataType) -> Val:
    """Return `value` as `dtype`: the value itself when it has that type, else a new cast."""
    old = value.dtype()  # type: ignore[attr-defined]
    if old is dtype:
        return value
    _check_cast(old, dtype, value)
    if isinstance(value, Scalar):
        out: Val = fusion.new_scalar(_cast_sym(value.sym, dtype), dtype)
    else:
        assert isinstance(value, TensorView)
        out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(value)], dtype)
    fusion.register(PointwiseOp([value], [out], op="cast", compute=old, dtype=dtype))
    return out


_BESIDE_NARROW = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16)


def _check_cast(old: DataType, new: DataType, value: Val) -> None:
    """Refuse what no conversion is defined for. Errors: IllegalCast."""
    remedy = ""
    if new is DataType.Float4_e2m1fn_x2:
        remedy = "Float4_e2m1fn_x2 should be converted to Float4_e2m1fn in fusion definition"
    elif DataType.Null in (old, new):
        remedy = "name the type of the result"
    elif new is DataType.Index:
        remedy = "use DataType.Int, or DataType.Int32"
    elif old.is_narrow_float and new not in _BESIDE_NARROW or new.is_narrow_float and old not in _BESIDE_NARROW:
        remedy = "go through Float: floats of 8 and 4 bits convert to and from Float, Double, Half and BFloat16 only"
    elif isinstance(value, Scalar) and new.is_narrow_float:
        remedy = "floats of 8 and 4 bits are types of tensors; use full()"
    if remedy:
        raise IllegalCast(old=old.value, new=new.value, remedy=remedy)


def copy(fusion: Fusion, value: Val, *, segment: bool = False) -> Val:
    """Return a copy of `value` (the ops `set` and `segment_set`; the latter asks for a kernel boundary)."""
    if isinstance(value, Scalar):
        out: Val = fusion.new_scalar(value.sym, value.dtype())
    else:
        assert isinstance(value, TensorView)
        out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(value)], value.dtype())
    node = LoadStoreOp([value], [out])
    if segment:
        node.attributes["op"] = "segment_set"
    fusion.register(node)
    return out


def compute_again(fusion: Fusion, expr: Expr, inputs: Sequence[Val]) -> TensorView:
    """Return the result of an op of one result, done once more on other inputs of the same shapes. Its axes are new; of a copy they are in the same order."""
    out = expr.tensor_outputs[0]
    copied = fusion.new_tensor([fusion.copy_axis(axis) for axis in logical_axes(out)], out.dtype())
    if isinstance(expr, LoadStoreOp):
        fusion.register(LoadStoreOp(inputs, [copied], kind=expr.kind, cache_op=expr.cache_op))
    else:
        fusion.register(type(expr)(list(inputs), [copied], **expr.attributes))
    return copied


# ---------------------------------------------------------------- scalars
def _cast_sym(sym: Sym, dtype: DataType) -> Sym:
    if sym.dtype is dtype or (sym.dtype.is_integer and dtype.is_integer and dtype.bits == 64):
        return sym
    return expr.op("cast", (sym,), dtype)


def _scalar_op(fusion: Fusion, op: OpDef, scalars: Sequence[Scalar], compute: DataType) -> Scalar:
    syms = [_as_category(s.sym, op.fixed.get(i, compute)) for i, s in enumerate(scalars)]
    dtype = op.result.dtype(compute)
    out = fusion.new_scalar(_scalar_sym(op, syms, compute, dtype), dtype)
    fusion.register(PointwiseOp(scalars, [out], op=op.name, compute=compute))
    return out


def _as_category(sym: Sym, dtype: DataType) -> Sym:
    same = (sym.dtype.is_bool, sym.dtype.is_integer, sym.dtype.is_float) == (dtype.is_bool, dtype.is_integer, dtype.is_float)
    return sym if same else expr.op("cast", (sym,), dtype)


def _scalar_sym(op: OpDef, syms: list[Sym], compute: DataType, dtype: DataType) -> Sym:
    """Return the scalar expression of an op; integer arithmetic uses the simplifying constructors, so that shapes computed by the user stay provable."""
    if compute.is_integer and compute.bits == 64:
        simple = {"add": expr.add, "sub": expr.sub, "mul": expr.mul, "maximum": expr.maximum, "minimum": expr.minimum, "lt": expr.less}.get(op.name)
        if simple is not None:
            return simple(*syms)
        if op.name in ("div", "mod") and expr.lower_bound(syms[0]) >= 0 and expr.lower_bound(syms[1]) >= 1:
            return (expr.floordiv if op.name == "div" else expr.mod)(*syms)
    return expr.op(op.sym_name, syms, dtype)
