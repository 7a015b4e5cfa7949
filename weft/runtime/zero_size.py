"""Fusions at sizes with a zero among them: what is left to compute, as a fusion without empty tensors.

Outputs without elements need no kernel; a reduction over an empty axis is its identity, whatever its operand. What remains never touches an
empty tensor, so no scheduler and no kernel has to know about zero. Read first: `without_empty_tensors`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import DataType
from ..errors import UserError
from ..expr import Number, Sym, add, ceildiv, const, mul
from ..ir.block_ops import GROUPED, BlockSampleOp, sample_of
from ..ir.fusion import Fusion
from ..ir.graph_ops import CatOp, LookupOp, ReshapeOp, ScatterOp
from ..ir.values import Expr, FullOp, LoadStoreOp, PointwiseOp, ReductionOp, Scalar, SqueezeOp, TensorDomain, TensorView, WelfordOp, no_reductions
from ..ops.build import cast
from ..ops.factories import full
from ..ops.monoids import MONOIDS, StateMonoid
from ..ops.reshape import ElementCountsDiffer

IsZero = Callable[[Sym], bool]


class NothingToKeep(UserError):
    code = "W743"
    what = "{tensor} takes one element along each axis that is dropped from {source}, but axis {axis} has no elements at these sizes"
    fix = "make the expanded axis at least 1 long, or reduce it with sum or prod, which are defined for empty axes"


class NothingToFold(UserError):
    code = "W744"
    what = "{kind}: the reduced axis {axis} of {tensor} has no elements, and {kind} of no elements is undefined"
    fix = "make the axis at least 1 long, or reduce it with sum or prod, which are defined for empty axes"


def extents(fusion: Fusion) -> list[Sym]:
    """Return the distinct extents of all needed tensors, in order."""
    found: dict[Sym, None] = {}
    for tensor in fusion.tensors():
        for axis in (*tensor.get_maybe_root_domain(), *(tensor.get_logical_domain() if sample_of(tensor) is not None else ())):
            found[axis.logical_extent] = None
    return list(found)


def without_empty_tensors(fusion: Fusion, outputs: list[TensorView], is_zero: IsZero) -> list[TensorView | None]:
    """Change `fusion` in place so that no needed tensor is empty; return the replacement of each of `outputs` (None: empty, not computed). After: the fusion's
    outputs are the remaining ones, in order. An input may be unused. Errors: NothingToFold if an output needs a maximum over no elements.
    """
    images: dict[TensorView, TensorView] = {}
    without_value: dict[TensorView, NothingToFold] = {}
    for expr in fusion.tensor_exprs():
        if isinstance(expr, (LookupOp, CatOp, ScatterOp)):
            _leave_out_empty(fusion, expr, is_zero)
        if isinstance(expr, ReshapeOp) and _is_empty(expr.tensor_outputs[0], is_zero) and not _is_empty(expr.tensor_inputs[0], is_zero):
            shape = [str(axis.logical_extent) for axis in no_reductions(expr.tensor_outputs[0].get_logical_domain())]
            raise ElementCountsDiffer(tensor=expr.tensor_inputs[0], old="some", new="no", shape=shape)
        if isinstance(expr, (ReductionOp, WelfordOp)) and _folds_nothing(expr, is_zero):
            for number, output in enumerate(_results(expr)):
                image = images[output] = _identity(fusion, expr, number, output)
                if isinstance(expr, ReductionOp) and MONOIDS[expr.attributes["kind"]].needs_elements:
                    axis = next(a for a in expr.tensor_outputs[0].get_logical_domain() if a.is_reduction() and is_zero(a.sym))
                    without_value[image] = NothingToFold(kind=expr.attributes["kind"], tensor=expr.tensor_inputs[0], axis=axis)
    left: list[TensorView | None] = []
    for output in outputs:
        image = images.get(output, output)
        sample = sample_of(output)
        if sample is not None and sample.layout == GROUPED and _is_empty(output, is_zero):
            image = _no_groups(fusion, output, sample)
        left.append(None if _is_empty(image, is_zero) else image)
    for old, new in images.items():
        if old in fusion.aliases:
            fusion.aliases[new] = fusion.aliases.pop(old)
            fusion.reuses |= {new} if old in fusion.reuses else set()
    fusion.set_outputs(dict.fromkeys(v for v in left if v is not None))
    for expr in fusion.tensor_exprs():
        if isinstance(expr, SqueezeOp):
            _squeeze_nothing(fusion, expr, is_zero)
    for tensor in fusion.tensors() if without_value else ():
        if tensor in without_value:
            raise without_value[tensor]
    fusion.aliases = {out: source for out, source in fusion.aliases.items() if fusion.is_output(out)}
    fusion.hidden_outputs, fusion.reuses = set(), fusion.reuses & set(fusion.aliases)
    return left


def _no_groups(fusion: Fusion, output: TensorView, sample: BlockSampleOp) -> TensorView:
    """Return the tiles of groups without any row: zeros."""
    rows, columns = (axis.sym for axis in output.get_logical_domain())
    groups = sample.read_whole[1].get_logical_domain()[0].sym
    shape = [fusion.new_scalar(extent, DataType.Int) for extent in (add(rows, mul(groups, 127)), mul(ceildiv(columns, 4), 4))]
    return cast(fusion, full(fusion, shape, 0.0, DataType.Float), output.dtype())  # type: ignore[return-value]


def _is_empty(tensor: TensorView, is_zero: IsZero) -> bool:
    return any(is_zero(axis.logical_extent) for axis in no_reductions(tensor.get_logical_domain()))


def _leave_out_empty(fusion: Fusion, expr: Expr, is_zero: IsZero) -> None:
    """Remove an empty operand of an op: a pad becomes its fill, a cat has one input less, an empty scatter is a copy."""
    out = expr.tensor_outputs[0]
    if _is_empty(out, is_zero):
        return
    if isinstance(expr, LookupOp) and expr.is_masked and _is_empty(expr.source, is_zero):
        fusion.remove(expr)
        fusion.register(FullOp([expr.inputs[-1]], [out], op="full"))
    elif isinstance(expr, CatOp) and any(_is_empty(t, is_zero) for t in expr.tensor_inputs):
        kept = [t for t in expr.tensor_inputs if not _is_empty(t, is_zero)]
        fusion.remove(expr)
        fusion.register(CatOp(kept, [out], **expr.attributes) if len(kept) > 1 else LoadStoreOp(kept, [out]))
    elif isinstance(expr, ScatterOp) and any(isinstance(v, TensorView) and _is_empty(v, is_zero) for v in expr.inputs[1:]):
        fusion.remove(expr)
        fusion.register(LoadStoreOp([expr.inputs[0]], [out]))


def _folds_nothing(expr: Expr, is_zero: IsZero) -> bool:
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    return any(axis.is_reduction() and is_zero(axis.sym) for axis in output.get_logical_domain())


def _squeeze_nothing(fusion: Fusion, squeeze: SqueezeOp, is_zero: IsZero) -> None:
    """Replace the squeeze of an empty tensor by 0: a sum is 0 times that, a product that to the power of 0. Errors: NothingToKeep if another op reads it,
    because there is no element.
    """
    source: TensorView = squeeze.inputs[0]  # type: ignore[assignment]
    result: TensorView = squeeze.outputs[0]  # type: ignore[assignment]
    axes = no_reductions(source.get_logical_domain())
    empty = next((a for a, dropped in zip(axes, squeeze.attributes["flags"]) if dropped and is_zero(a.logical_extent)), None)
    if empty is None:
        return
    readers = [e for e in fusion.tensor_exprs() if result in e.tensor_inputs]
    if result.is_fusion_output or not all(map(_repeats, readers)):
        raise NothingToKeep(tensor=result, source=source, axis=empty)
    for reader in readers:
        if isinstance(reader, ReductionOp):
            _identity(fusion, reader, 0, reader.outputs[0])  # type: ignore[arg-type]
    _constant(fusion, result, MONOIDS["sum"].identity_value(result.dtype()))


def _repeats(expr: Expr) -> bool:
    """True for a reduction over an expanded axis, that is, of equal terms or factors, or for one of other axes before it."""
    if isinstance(expr, ReductionOp):
        uses = expr.outputs[0].uses()
        return expr.attributes["kind"] in ("sum", "prod") and bool(uses) and all(map(_repeats, uses))
    return isinstance(expr, PointwiseOp) and expr.attributes["op"] in ("mul", "pow") and isinstance(expr.inputs[1], Scalar)


def _results(expr: Expr) -> list[TensorView]:
    """Return the values that are read of a reduction: its outputs, or the fields of its state."""
    is_state = isinstance(expr, ReductionOp) and isinstance(MONOIDS[expr.attributes["kind"]], StateMonoid)
    return [out for use in expr.outputs[0].uses() for out in use.tensor_outputs] if is_state else list(expr.tensor_outputs)


def _identity(fusion: Fusion, expr: Expr, number: int, old: TensorView) -> TensorView:
    """Replace output `number` of a reduction by a constant."""
    if isinstance(expr, ReductionOp) and isinstance(MONOIDS[expr.attributes["kind"]], StateMonoid):
        return _constant(fusion, old, MONOIDS["sum"].identity_value(old.dtype()))
    if isinstance(expr, ReductionOp):
        return _constant(fusion, old, MONOIDS[expr.attributes["kind"]].identity_value(old.dtype()))
    # Welford: the average over no elements is NaN, its squares and count are 0
    return _constant(fusion, old, float("nan") if number == 0 else MONOIDS["sum"].identity_value(old.dtype()))


def _constant(fusion: Fusion, old: TensorView, number: Number) -> TensorView:
    """Replace `old` by a tensor filled with one number; return that."""
    domain = old.domain()
    copies = {axis: fusion.copy_axis(axis) for axis in no_reductions(domain.logical)}
    new = fusion.new_tensor(list(copies.values()), old.dtype())
    if domain.allocation is not None:
        kept = [(copies[axis], c) for axis, c in zip(domain.allocation, domain.contiguity) if axis in copies]
        new._domain = TensorDomain(None, list(copies.values()), [c for _, c in kept], [axis for axis, _ in kept])
    new.memory_type = old.memory_type
    value = fusion.new_scalar(const(number, old.dtype()), old.dtype())
    fusion.register(FullOp([value], [new], op="full"))
    for use in list(old.uses()):
        fusion.replace_input(use, old, new)
    return new
