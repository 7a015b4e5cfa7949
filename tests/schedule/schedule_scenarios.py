"""Fusions that the schedule tests share, and what they ask of any schedule."""

from __future__ import annotations

import torch

from weft.analysis.axes import AxisMaps
from weft.dtypes import DataType
from weft.errors import WeftError
from weft.expr import evaluate as evaluate_sym
from weft.expr import var
from weft.ir.enums import IterType
from weft.ir.fusion import Fusion
from weft.ir.values import BroadcastOp, Expr, FullOp, LoadStoreOp, ReductionOp, TensorView
from weft.lower.loops import LoopPlan, order_exprs
from weft.ops.build import broadcast, cast, pointwise
from weft.ops.reductions import reduce
from weft.ops.registry import OPS

F32, BF16 = DataType.Float, DataType.BFloat16


def tensor(fusion: Fusion, *sizes: int | str, dtype: DataType = F32) -> TensorView:
    """Add an input; a size is a number or the name of a symbolic one; 1 is a broadcast axis."""
    axes = [fusion.new_axis(s if isinstance(s, int) else var(s, lower=1), IterType.broadcast if s == 1 else IterType.iteration) for s in sizes]
    out = fusion.new_tensor(axes, dtype)
    fusion.add_input(out)
    return out


def local(*sizes: int | str) -> TensorView:
    """A tensor without a definition and without a role, for tests of one primitive."""
    fusion = Fusion()
    axes = [fusion.new_axis(s if isinstance(s, int) else var(s, lower=1), IterType.broadcast if s == 1 else IterType.iteration) for s in sizes]
    return fusion.new_tensor(axes, F32)


def op(name: str, *operands) -> TensorView:
    fusion = next(o.fusion for o in operands if isinstance(o, TensorView))
    return pointwise(fusion, name, *operands)


def up(value: TensorView) -> TensorView:
    return cast(value.fusion, value, F32)


def fold(kind: str, value: TensorView, *dims: int, keepdim: bool = False) -> TensorView:
    return reduce(value.fusion, kind, value, list(dims), keepdim)


def spread(value: TensorView, *flags: bool) -> TensorView:
    return broadcast(value.fusion, value, flags)


def add_sum(n="n", m="m") -> tuple[Fusion, TensorView, TensorView, TensorView, TensorView]:
    """y = sum(x + 1, last axis): fusion, x, x + 1, sum, output (2 * sum)."""
    fusion = Fusion()
    x = tensor(fusion, n, m)
    t = op("add", x, 1.0)
    s = fold("sum", t, 1)
    y = op("mul", s, 2.0)
    fusion.add_output(y)
    return fusion, x, t, s, y


def softmax(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    x = up(tensor(fusion, "n", "m", dtype=dtype))
    e = op("exp", op("sub", x, fold("max", x, 1, keepdim=True)))
    fusion.add_output(cast(fusion, op("div", e, fold("sum", e, 1, keepdim=True)), dtype))
    return fusion


def rms_norm(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    x, w = tensor(fusion, "n", "m", dtype=dtype), tensor(fusion, "m", dtype=dtype)
    xf = up(x)
    mean = op("mul", fold("sum", op("mul", xf, xf), 1, keepdim=True), 1 / 4096)
    y = op("mul", op("mul", xf, op("rsqrt", op("add", mean, 1e-5))), up(w))
    fusion.add_output(cast(fusion, y, dtype))
    return fusion


def reductions(fusion: Fusion) -> list[TensorView]:
    return [e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp)]  # type: ignore[misc]


def computed(fusion: Fusion) -> list[TensorView]:
    return [t for t in fusion.tensors() if t.definition() is not None]


def loops(value: TensorView) -> str:
    """The loop axes in short: kind, parallel type and extent of each."""
    return " ".join(f"{a.iter_type.value}{'' if a.parallel.value == 'S' else ':' + a.parallel.name}[{a.sym}]" for a in value.get_loop_domain())


def message(error: WeftError) -> str:
    """The error's text without the line that says where the test is."""
    return "\n".join(line for line in str(error).split("\n") if not line.startswith("  at "))


def check_schedule(fusion: Fusion) -> list[Expr]:
    """Assert what any legal schedule has, on the loops that lowering makes of it; return the expressions in order.

    Producers come first; a tensor inlined at position p is in its first p loops with each consumer; no consumer is inside a loop over which
    the tensor is still being reduced.
    """
    plan = LoopPlan(fusion, AxisMaps(fusion))
    order = order_exprs(plan)
    place = {id(e): n for n, e in enumerate(order)}
    for expr in order:
        for producer in expr.tensor_inputs:
            definition = producer.definition()
            if definition is None:
                continue
            assert place[id(definition)] < place[id(expr)]
            around = {id(g) for g in plan.nest(expr)}
            groups = plan.groups[producer]
            for group in groups[: producer.compute_at]:
                assert id(group) in around, f"{producer} is inlined into {expr.outputs[0]} and shares no loop {group.axis} with it"
            for axis, group in zip(producer.get_loop_domain(), groups):
                if axis.is_reduction() and not group.parallel.is_bound:
                    assert id(group) not in around, f"{expr.outputs[0]} reads {producer} inside its reduction loop {axis}"
    return order


def evaluate(fusion: Fusion, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Compute the outputs with torch, node by node, reading nothing of the schedule."""
    values = dict(zip(fusion.inputs(), inputs))
    bindings = {}
    for t, given in zip(fusion.inputs(), inputs):
        for a, size in zip(t.get_logical_domain(), given.shape):  # type: ignore[attr-defined]
            bindings[a.sym] = size

    def number(value):
        sym = value.sym
        return sym.value if sym.is_const else evaluate_sym(sym, bindings)

    for expr in fusion.tensor_exprs():
        operands = [values[v] if isinstance(v, TensorView) else number(v) for v in expr.inputs]
        if isinstance(expr, ReductionOp):
            dims = [i for i, a in enumerate(expr.outputs[0].get_maybe_root_domain()) if a.is_reduction()]  # type: ignore[attr-defined]
            result = operands[0].sum(dims) if expr.attributes["kind"] == "sum" else operands[0].amax(dims)
        elif isinstance(expr, BroadcastOp):
            result = operands[0][tuple(None if new else slice(None) for new in expr.attributes["flags"])]
        elif isinstance(expr, LoadStoreOp):
            out = expr.outputs[0]
            result = operands[0].permute([out.get_root_domain().index(a) for a in out.get_logical_domain()]) if out.has_root() else operands[0]  # type: ignore[attr-defined]
        elif isinstance(expr, FullOp):
            result = torch.full([bindings.get(a.sym, 1) for a in expr.outputs[0].get_logical_domain()], operands[0])  # type: ignore[attr-defined]
        elif expr.op_name == "cast":
            result = operands[0].to(TORCH_DTYPES[expr.attributes["dtype"]])
        else:
            result = OPS[expr.op_name].ref(*(o if isinstance(o, torch.Tensor) else torch.tensor(o, dtype=torch.float32) for o in operands))
        values[expr.outputs[0]] = result
    return [values[v] for v in fusion.outputs()]


TORCH_DTYPES = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16, DataType.Int: torch.int64, DataType.Double: torch.float64}
