"""Rules of gradients for expressions between tensors: what flows to the inputs of an expression, given what flows to its outputs.

Owns the table and what rules share. The rule of a pointwise op stands in its `OpDef.gradient`, that of another kind of expression beside the
function that makes it, under `@gradient_of(Kind)`. Read first: `gradients_of`, then `fitted`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Unsupported
from ..ir.fusion import Fusion
from ..ir.values import Expr, FullOp, IotaOp, LoadStoreOp, PointwiseOp, RandomOp, TensorView, Val
from .build import is_plain_broadcast, logical_axes
from .calls import Calls
from .registry import OPS

Gradient = TensorView | None
Rule = Callable[[Calls, Any, list[Gradient]], Sequence[Gradient]]
RULES: dict[type[Expr], Rule] = {}


class NotDifferentiable(Unsupported):
    code = "W135"
    what = "{op} has no derivative rule ({expr})"
    fix = "{remedy}"

    def __init__(self, expr: Expr, remedy: str = "stop the gradient there with ops.detach(x)") -> None:
        super().__init__(op=expr.op_name, expr=str(expr), remedy=remedy)


def gradient_of(kind: type[Expr]) -> Callable[[Rule], Rule]:
    """Make a function the rule of a kind of expression: rule(o, expr, gradients of its outputs) -> gradients of its inputs, None where nothing flows."""

    def add(rule: Rule) -> Rule:
        RULES[kind] = rule
        return rule

    return add


def gradients_of(fusion: Fusion, expr: Expr, grads: list[Gradient]) -> list[Gradient]:
    """Return what flows to each input of `expr`, shaped like that input. Errors: NotDifferentiable."""
    o = Calls(fusion)
    if isinstance(expr, PointwiseOp):
        raw = _pointwise(o, expr, grads[0])
    elif type(expr) in RULES:
        raw = list(RULES[type(expr)](o, expr, grads))
    else:
        raise NotDifferentiable(expr)
    return [None if g is None or not flows(v) else fitted(o, g, v) for g, v in zip(raw, expr.inputs)]  # type: ignore[arg-type]


def with_gradient(result: TensorView, sources: Sequence[TensorView], rule: Callable[..., Any]) -> TensorView:
    """Return `result`, through which gradients flow by `rule` instead of by the rules of its ops: rule(o, g, result, *sources) -> one gradient per source.

    For composites whose derivative is simpler as a whole: it reads less, or what it reads is there anyway.
    """
    result.fusion.own_gradients[result] = (tuple(sources), rule)  # type: ignore[union-attr]
    return result


def own_gradients_of(fusion: Fusion, result: TensorView, g: TensorView) -> list[tuple[Val, TensorView]]:
    """Return (source, what flows to it) for a result that has a rule of its own."""
    sources, rule = fusion.own_gradients[result]
    o = Calls(fusion)
    found = rule(o, g, result, *sources)
    grads = found if isinstance(found, tuple) else (found,)
    return [(v, fitted(o, grad, v)) for v, grad in zip(sources, grads) if grad is not None and flows(v)]  # type: ignore[arg-type]


def flows(value: Val) -> bool:
    """Tell whether a gradient can flow to a value: a tensor of floats that is not detached."""
    return isinstance(value, TensorView) and value.dtype().is_float and value not in value.fusion.detached  # type: ignore[union-attr]


def _pointwise(o: Calls, expr: PointwiseOp, g: Gradient) -> list[Gradient]:
    op = OPS[expr.op_name]
    if op.gradient is None:
        raise NotDifferentiable(expr)
    found = op.gradient(o, g, expr.outputs[0], *expr.inputs)
    if not isinstance(found, tuple):
        return [found] + [None] * (len(expr.inputs) - 1)
    return list(found)


def fitted(o: Calls, g: TensorView, like: TensorView) -> TensorView:
    """Return g summed over the axes along which `like` was repeated implicitly: those of extent 1 in `like` and more in g."""
    dims = [d for d, (a, b) in enumerate(zip(logical_axes(g), logical_axes(like))) if is_plain_broadcast(b) and not is_plain_broadcast(a)]
    return o.sum(g, dims, True) if dims else g


def filled(o: Calls, g: TensorView, like: TensorView) -> TensorView:
    """Return g with the extents of `like`: axes of extent 1 are expanded where `like` has more."""
    pairs = list(zip(logical_axes(g), logical_axes(like)))
    if all(not is_plain_broadcast(a) or is_plain_broadcast(b) for a, b in pairs):
        return g
    sizes = like.shape()
    return o.expand(g, [sizes[d] if is_plain_broadcast(a) and not is_plain_broadcast(b) else -1 for d, (a, b) in enumerate(pairs)])


# ---------------------------------------------------------------- copies and tensors from nothing
@gradient_of(LoadStoreOp)
def _copy(o: Calls, expr: LoadStoreOp, grads: list[Gradient]) -> list[Gradient]:
    out: TensorView = expr.outputs[0]  # type: ignore[assignment]
    if not out.has_root():
        return [grads[0]]
    place = {axis: position for position, axis in enumerate(out.get_logical_domain())}
    return [o.permute(grads[0], [place[axis] for axis in out.get_root_domain()])]


for _kind in (FullOp, IotaOp, RandomOp):
    RULES[_kind] = lambda o, expr, grads: [None] * len(expr.inputs)
