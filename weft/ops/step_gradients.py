"""Gradients of ops that read or write at positions of an index, run along an axis, or are torch's: lookups, scatter, cumsum, matmul, linear, attention.

Owns their rules. Gradients of a lookup add up in torch's scatter_add and embedding backward, each a step of its own. Read first: `lookup_gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import expr as e
from ..dtypes import DataType
from ..expr import Sym, const
from ..ir.graph_ops import Along, At, Fixed, LookupOp, ScanOp, ScatterOp, TorchOp
from ..ir.values import TensorView
from .build import broadcast, cast, logical_axes, own_axis
from .calls import Calls
from .gradients import Gradient, NotDifferentiable, filled, gradient_of
from .lookups import add_lookup, embedding_backward, scatter, scatter_rows
from .resize import fill_of


def _like(o: Calls, g: Gradient, value: TensorView) -> TensorView:
    """Return a gradient with the extents and the type of `value`."""
    return cast(o.fusion, filled(o, g, value), value.dtype())  # type: ignore[arg-type,return-value]


# ---------------------------------------------------------------- lookups
@gradient_of(LookupOp)
def lookup_gradient(o: Calls, node: LookupOp, grads: list[Gradient]) -> Sequence[Gradient]:
    """Shifted positions go back by a lookup; positions by an index are added up. Indices get nothing."""
    rest: list[Gradient] = [None] * (len(node.inputs) - 1)
    g = _like(o, grads[0], node.outputs[0])  # type: ignore[arg-type]
    if any(isinstance(p, At) for p in node.positions):
        return [_added(o, node, g), *rest]
    return [_moved_back(o, node, g), *rest]


def _moved_back(o: Calls, node: LookupOp, g: TensorView) -> TensorView:
    """Of slice, pad and select: the elements of the source are at shifted positions of the result, or nowhere."""
    along = [p.axis for p in node.positions if isinstance(p, Along)]
    if along != list(range(g.ndim)):
        raise NotDifferentiable(node)
    fixed = [isinstance(p, Fixed) for p in node.positions]
    g = broadcast(o.fusion, g, fixed) if any(fixed) else g
    back = [Along(d, e.mul(p.offset if isinstance(p, Along) else p.position, -1)) for d, p in enumerate(node.positions)]  # type: ignore[union-attr]
    axes = [o.fusion.copy_axis(axis) for axis in logical_axes(node.source)]
    return add_lookup(o.fusion, "pad", g, axes, back, fill=fill_of(o.fusion, node.source.dtype(), None))


def _added(o: Calls, node: LookupOp, g: TensorView) -> TensorView:
    """Of gather, take_along_axis, index_select and embedding: each element of the gradient is added where its value came from."""
    source, index = node.source, node.inputs[1]
    assert isinstance(index, TensorView)
    if node.op_name == "embedding_fwd":
        flat = o.squeeze(index, [index.ndim - 1])
        return embedding_backward(o.fusion, g, flat, logical_axes(source)[0].logical_extent)
    at = [d for d, p in enumerate(node.positions) if isinstance(p, At)]
    if len(at) != 1 or len(node.positions) != g.ndim or node.is_masked:
        raise NotDifferentiable(node)
    sizes = [source.size(d) if d == at[0] or isinstance(p, Along) else g.size(d) for d, p in enumerate(node.positions)]
    wide = _wide(o, g)
    return scatter(o.fusion, o.full(sizes, 0.0, wide.dtype()), filled(o, index, g), wide, at[0], "sum")


def _wide(o: Calls, g: TensorView) -> TensorView:
    """Return 16-bit floats in Float: many of them may be added up."""
    return cast(o.fusion, g, DataType.Float) if g.dtype().bits < 32 else g  # type: ignore[return-value]


@gradient_of(ScatterOp)
def _scatter_gradient(o: Calls, node: ScatterOp, grads: list[Gradient]) -> Sequence[Gradient]:
    """What is replaced gets nothing; what replaces or is added gets the gradient from there."""
    base, index, source = node.inputs
    kind, dim = node.attributes["kind"], node.attributes["dim"]
    assert isinstance(base, TensorView) and isinstance(index, TensorView)
    if kind not in ("set", "sum") or "named" in node.attributes:
        raise NotDifferentiable(node)
    g = _like(o, grads[0], base)
    if node.has_rows:
        return [_without_rows(o, node, g) if kind == "set" else g, None, _of_rows(o, node, g)]
    of_base = scatter(o.fusion, g, index, 0.0, dim) if kind == "set" else g
    if not isinstance(source, TensorView):
        return [of_base, None, None]
    picked = o.gather(g, index, dim)
    axes = [o.fusion.copy_axis(axis) for axis in logical_axes(source)]  # the source may be larger than the index
    whole = [Along(d) for d in range(source.ndim)]
    return [of_base, None, add_lookup(o.fusion, "pad", picked, axes, whole, fill=fill_of(o.fusion, g.dtype(), None))]


def _without_rows(o: Calls, node: ScatterOp, g: TensorView) -> TensorView:
    """Return the gradient of a base of which rows are replaced: theirs are 0."""
    _, index, source = node.tensor_inputs
    zeros = o.full([source.size(d) for d in range(source.ndim)], 0.0, g.dtype())
    return scatter_rows(o.fusion, g, index, zeros, node.attributes["dim"], "set", bool(node.attributes.get("skips")))


def _of_rows(o: Calls, node: ScatterOp, g: TensorView) -> TensorView:
    """Each row that was added has the gradient of the row that it was added to; 0 if it was skipped."""
    base, index, source = node.tensor_inputs
    axes = [own_axis(o.fusion, axis) for axis in logical_axes(source)]
    along = {t: d for d in range(source.ndim) if (t := node.target_axis(d)) is not None}
    positions = [Along(along[d]) if d in along else At(1) for d in range(base.ndim)]
    fill = fill_of(o.fusion, g.dtype(), None) if node.attributes.get("skips") else None
    return add_lookup(o.fusion, "scatter_rows", g, axes, positions, indices=[index], fill=fill)


# ---------------------------------------------------------------- scans
@gradient_of(ScanOp)
def _scan_gradient(o: Calls, node: ScanOp, grads: list[Gradient]) -> Sequence[Gradient]:
    """Of a running sum: the running sum from the other end. Of running extrema: each is an element of the input, which gets its gradient. Of a linear
    recurrence, and so of a running product: a linear recurrence from the other end."""
    out: TensorView = node.outputs[0]  # type: ignore[assignment]
    if node.attributes["kind"] in ("max", "min") and node.start is None and not out.dtype().is_bool:
        return [_of_running_extrema(o, node, grads[0])]
    dim, g = node.attributes["dim"], _wide(o, _like(o, grads[0], out))
    if node.attributes["kind"] == "logsumexp" and len(node.inputs) == 1:
        return [_of_running_logsumexp(o, node, g)]
    if node.attributes["kind"] == "linear_recurrence":
        return _of_recurrence(o, node, g)
    if node.attributes["kind"] == "prod" and not out.dtype().is_complex:
        start = 1.0 if node.start is None else node.start
        found = running_product_gradient(o, _wide(o, node.elements[0]), _wide(o, out), g, node.attributes["dim"], start)
        return [found, *[None] * (len(node.inputs) - 1)]
    if node.attributes["kind"] != "sum":
        raise NotDifferentiable(node)
    return [_reversed(o, o.cumsum(_reversed(o, g, dim), dim), dim), *[None] * (len(node.inputs) - 1)]


def _of_running_extrema(o: Calls, node: ScanOp, g: Gradient) -> TensorView:
    x, kind, dim = node.elements[0], node.attributes["kind"], node.attributes["dim"]
    places = node.outputs[1] if node.attributes.get("positions") else o.several(f"cum{kind}_with_indices", x, dim)[1]
    wide = _wide(o, _like(o, g, x))
    assert isinstance(places, TensorView)
    return scatter(o.fusion, o.full([x.size(d) for d in range(x.ndim)], 0.0, wide.dtype()), places, wide, dim, "sum")


def _of_running_logsumexp(o: Calls, node: ScanOp, g: TensorView) -> TensorView:
    """exp(x[i]) times the sum of g[j] / exp(out[j]) over j >= i: in logarithms, apart for positive and negative g, because the exponentials may overflow."""
    x, out, dim = _wide(o, node.inputs[0]), _wide(o, node.outputs[0]), node.attributes["dim"]  # type: ignore[arg-type]
    size = o.log(o.abs(g))
    parts = [o.where(sign(g, 0.0), size, float("-inf")) - out for sign in (o.gt, o.lt)]
    positive, negative = (o.exp(_reversed(o, o.logcumsumexp(_reversed(o, part, dim), dim), dim) + x) for part in parts)
    return positive - negative


def _of_recurrence(o: Calls, node: ScanOp, g: TensorView) -> list[Gradient]:
    """Of y[k] = gate[k] * y[k-1] + x[k]: dx[k] = g[k] + gate[k+1] * dx[k+1], dgate[k] = dx[k] * y[k-1]."""
    gate, out = _wide(o, node.elements[0]), _wide(o, node.outputs[0])  # type: ignore[arg-type]
    dim, is_reversed = node.attributes["dim"], bool(node.attributes.get("reverse"))
    next_one = -1 if is_reversed else 1
    of_x = o.linear_recurrence(_shifted(o, gate, dim, next_one), g, dim, not is_reversed)
    return [of_x * _shifted(o, out, dim, -next_one), of_x]


def running_product_gradient(o: Calls, x: TensorView, out: TensorView, g: TensorView, dim: int, start: Any = 1.0) -> TensorView:
    """Return the gradient of x, where y[k] = y[k-1] * x[k] along dim from `start` on (`out`), and g is the gradient of y: y[k-1] * s[k], where
    s[k] = g[k] + x[k+1] * s[k+1]. No division, so that elements may be 0."""
    return o.linear_recurrence(_shifted(o, x, dim, 1), g, dim, True) * _shifted(o, out, dim, -1, start)


def _shifted(o: Calls, x: TensorView, dim: int, offset: int, fill: Any = None) -> TensorView:
    """Return x[k + offset] along dim, and the fill, or 0, where there is no such element."""
    positions = [Along(d, const(offset)) if d == dim else Along(d) for d in range(x.ndim)]
    axes = [o.fusion.copy_axis(axis) for axis in logical_axes(x)]
    return add_lookup(o.fusion, "pad", x, axes, positions, fill=fill_of(o.fusion, x.dtype(), fill))


def _reversed(o: Calls, x: TensorView, dim: int) -> TensorView:
    size = x.size(dim)
    return o.index_select(x, o.iota(size, o.sub(size, 1), -1), dim)


# ---------------------------------------------------------------- what torch runs
@gradient_of(TorchOp)
def _torch_gradient(o: Calls, node: TorchOp, grads: list[Gradient]) -> Sequence[Gradient]:
    rule = _OF_TORCH.get(node.op_name)
    if rule is None:
        raise NotDifferentiable(node)
    return rule(o, node, grads)


def _transposed(o: Calls, x: TensorView) -> TensorView:
    return o.permute(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def _matmul(o: Calls, node: TorchOp, grads: list[Gradient]) -> list[Gradient]:
    """a @ b: g @ b.T and a.T @ g, vectors as matrices of one row or column, batches that were repeated summed."""
    a, b = node.inputs
    assert isinstance(a, TensorView) and isinstance(b, TensorView)
    g = _like(o, grads[0], node.outputs[0])  # type: ignore[arg-type]
    left, right = (o.unsqueeze(a, 0) if a.ndim == 1 else a), (o.unsqueeze(b, 1) if b.ndim == 1 else b)
    if a.ndim == 1:
        g = o.unsqueeze(g, g.ndim - (b.ndim != 1))
    if b.ndim == 1:
        g = o.unsqueeze(g, g.ndim)
    return [_unbatched(o, o.matmul(g, _transposed(o, right)), a, 0), _unbatched(o, o.matmul(_transposed(o, left), g), b, -1)]


def _unbatched(o: Calls, g: TensorView, like: TensorView, drop: int) -> TensorView:
    """Return g [batch..., rows, columns] summed over batch axes that `like` has not, without the axis that a vector has not."""
    extra = g.ndim - max(like.ndim, 2)
    g = o.sum(g, list(range(extra))) if extra else g
    return o.squeeze(g, [drop % g.ndim]) if like.ndim == 1 else g


def _linear(o: Calls, node: TorchOp, grads: list[Gradient]) -> list[Gradient]:
    """x @ w.T + bias: g @ w, g.T @ x over all rows, and the sum of g."""
    x, weight = node.inputs[:2]
    assert isinstance(x, TensorView) and isinstance(weight, TensorView)
    g = _like(o, grads[0], node.outputs[0])  # type: ignore[arg-type]
    of_x = o.matmul(g, weight)
    rows_g, rows_x = (t if t.ndim == 2 else o.reshape(t, [-1, t.size(t.ndim - 1)]) if t.ndim > 2 else o.unsqueeze(t, 0) for t in (g, x))
    found: list[Gradient] = [of_x, o.matmul(_transposed(o, rows_g), rows_x)]
    if len(node.inputs) > 2:
        bias = node.inputs[2]
        assert isinstance(bias, TensorView)
        found.append(o.sum(_wide(o, rows_g), [0] if bias.ndim else None))
    return found


def _attention(o: Calls, node: TorchOp, grads: list[Gradient]) -> list[Gradient]:
    """By sdpfa_bwd. Errors: NotDifferentiable for a bias or a mask, and for gradients of the logsumexp."""
    if len(node.inputs) != 3 or any(g is not None for g in grads[1:]) or grads[0] is None:
        raise NotDifferentiable(node, "omit bias and mask (is_causal=True is allowed), or cut the gradient with ops.detach(x)")
    out, sums, seed, offset = node.outputs
    numbers = {name: _value(o, node.attributes[name]) for name in ("dropout_p", "is_causal", "scale")}
    g = _like(o, grads[0], out)  # type: ignore[arg-type]
    return list(o.several("sdpfa_bwd", g, *node.inputs, out, sums, numbers["dropout_p"], numbers["is_causal"], seed, offset, numbers["scale"]))


def _value(o: Calls, sym: Sym | None) -> Any:
    """Return a number of a node as an argument of an op."""
    return None if sym is None else sym.value if sym.is_const else next(v for v in o.fusion.vals() if getattr(v, "sym", None) is sym)


_OF_TORCH: dict[str, Callable[[Calls, TorchOp, list[Gradient]], list[Gradient]]] = {"matmul": _matmul, "linear": _linear, "sdpfa_fwd": _attention}
