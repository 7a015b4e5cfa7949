"""One expression of a fusion as the call that makes it.

Owns one function per kind of expression; `weft.ops` made the expressions, so a new kind there needs an entry in `_CALLS` here.
Read first: `expr_call`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import Unsupported
from ..ir.block_ops import GROUPED, BlockFoldOp, BlockHadamardOp, BlockSampleOp
from ..ir.graph_ops import BagOp, CatOp, LookupOp, ReshapeOp, ScanOp, ScatterOp, TorchOp
from ..ir.values import (
    BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, IterDomain, LoadStoreOp, PointwiseOp, RandomOp, ReductionOp, SqueezeOp, TensorView, WelfordOp, no_reductions,
)  # fmt: skip
from . import translate_index, translate_torch
from . import translate_views as views
from .translate_values import Names, dtype_text, is_ordered, list_text, stride_order


def expr_call(expr: Expr, names: Names) -> str:
    """Return the call, without the leading `fd.ops.`.

    Errors: Unsupported for an expression that no op of the front end makes.
    """
    call = _CALLS.get(type(expr))
    if call is None:
        raise Unsupported(f"translation of {type(expr).__name__}")
    return call(expr, names)


def _positional(expr: Expr, names: Names) -> str:
    return ", ".join(map(names.of, expr.inputs))


def _pointwise(expr: Expr, names: Names) -> str:
    if (place := translate_index.place_of_extremum(expr, names)) is not None:
        return place
    if expr.op_name == "cast":
        return f"cast({names.of(expr.inputs[0])}, dtype={dtype_text(expr.outputs[0].dtype())})"  # type: ignore[attr-defined]
    return f"{expr.op_name}({_positional(expr, names)})"


def _load_store(expr: Expr, names: Names) -> str:
    source, out = names.of(expr.inputs[0]), expr.outputs[0]
    copy = f"cast({source}, dtype={dtype_text(out.dtype())})" if expr.op_name == "set" else f"{expr.op_name}({source})"  # type: ignore[attr-defined]
    if not isinstance(out, TensorView):
        return copy
    if out.has_root():
        root = {axis: position for position, axis in enumerate(out.get_root_domain())}
        return f"permute({source}, dims={[root[axis] for axis in out.get_logical_domain()]})"
    if is_ordered(out):
        return f"stride_order({source}, stride_order={stride_order(out)})"
    return copy


def _broadcast(expr: Expr, names: Names) -> str:
    return f"broadcast({names.of(expr.inputs[0])}, is_broadcast_dim={list(expr.attributes['flags'])})"


def _squeeze(expr: Expr, names: Names) -> str:
    axes = no_reductions(expr.inputs[0].get_logical_domain())  # type: ignore[attr-defined]
    dims = [dim for dim, dropped in enumerate(expr.attributes["flags"]) if dropped]
    expanded = ", squeeze_expanded=True" if any(axes[dim].expanded_extent is not None for dim in dims) else ""
    return f"squeeze({names.of(expr.inputs[0])}, dims={dims}{expanded})"


def _expand(expr: Expr, names: Names) -> str:
    before = no_reductions(expr.inputs[0].get_logical_domain())  # type: ignore[attr-defined]
    after = no_reductions(expr.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
    sizes = ["-1" if a.logical_extent is b.logical_extent else names.sym(b.logical_extent) for a, b in zip(before, after)]
    return f"expand({names.of(expr.inputs[0])}, shape={list_text(sizes)})"


def reduced_dims(expr: Expr) -> list[int]:
    """Return which axes of the input are reduced."""
    axes = expr.outputs[0].get_maybe_root_domain()  # type: ignore[attr-defined]
    return [dim for dim, axis in enumerate(axes) if axis.is_reduction()]


def _reduction(expr: Expr, names: Names) -> str:
    kind = expr.attributes["kind"]
    dtype = "DataType.Null" if kind in ("max", "min") else dtype_text(expr.outputs[0].dtype())  # type: ignore[attr-defined]
    return f"{kind}({names.of(expr.inputs[0])}, dims={reduced_dims(expr)}, dtype={dtype})"


def _welford(expr: Expr, names: Names) -> str:
    return f"welford({names.of(expr.inputs[0])}, dims={reduced_dims(expr)})"


def _sizes(axes: Iterable[IterDomain], names: Names) -> str:
    return list_text(names.sym(axis.logical_extent) for axis in axes)


def _full(expr: Expr, names: Names) -> str:
    out: TensorView = expr.outputs[0]  # type: ignore[assignment]
    return f"full(shape={_sizes(out.get_logical_domain(), names)}, fill_value={names.of(expr.inputs[0])}, dtype={dtype_text(out.dtype())})"


def _iota(expr: Expr, names: Names) -> str:
    length, start, step = map(names.of, expr.inputs)
    return f"iota({length}, {start}, {step}, dtype={dtype_text(expr.outputs[0].dtype())})"  # type: ignore[attr-defined]


def _random(expr: Expr, names: Names) -> str:
    out: TensorView = expr.outputs[0]  # type: ignore[assignment]
    bounds = ", ".join(map(names.of, expr.inputs[:2]))
    generator = "".join(f", {key}={names.of(value)}" for key, value in zip(("rng_seed", "rng_offset"), expr.inputs[2:]))
    return f"{expr.attributes['distribution']}({bounds}, shape={_sizes(out.get_logical_domain(), names)}{generator}, dtype={dtype_text(out.dtype())})"


def _lookup(expr: LookupOp, names: Names) -> str:
    call = views.LOOKUPS.get(expr.op_name) or translate_index.LOOKUPS.get(expr.op_name)
    if call is None:
        raise Unsupported(f"translation of {expr.op_name}")
    return call(expr, names)


def _fold(expr: BlockFoldOp, names: Names) -> str:
    return f"block_amax({names.of(expr.inputs[0])}, {expr.block})"


def _hadamard(expr: BlockHadamardOp, names: Names) -> str:
    signs = [-1 if expr.signs >> place & 1 else 1 for place in range(expr.block)]
    return f"block_hadamard({names.of(expr.inputs[0])}, {signs})"


def _sample(expr: BlockSampleOp, names: Names) -> str:
    if expr.layout == GROUPED:
        return f"grouped_tiles({', '.join(map(names.of, expr.inputs))}, {expr.block})"
    layout = "" if expr.layout == "rows" else f", layout={expr.layout!r}"
    return f"block_sample({names.of(expr.inputs[0])}, {expr.block}{layout})"


_CALLS: dict[type[Expr], Callable[..., str]] = {
    PointwiseOp: _pointwise, LoadStoreOp: _load_store, BroadcastOp: _broadcast, SqueezeOp: _squeeze, ExpandOp: _expand, ReductionOp: _reduction,
    WelfordOp: _welford, FullOp: _full, IotaOp: _iota, RandomOp: _random, ReshapeOp: views.reshape, CatOp: views.cat, LookupOp: _lookup, BagOp: _lookup,
    TorchOp: translate_torch.torch_op, ScanOp: translate_torch.scan, ScatterOp: translate_torch.scatter,
    BlockFoldOp: _fold, BlockHadamardOp: _hadamard, BlockSampleOp: _sample,
}  # fmt: skip
