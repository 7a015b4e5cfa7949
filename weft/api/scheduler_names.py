"""nvFuser's names for schedulers that weft does without: what executes without a kernel, and which other schedulers a slice, pad or cat goes to.

Owns when these names are given; `weft.api.automatic` asks. Read first: `NAMES`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.lookups import is_resized
from ..expr import Number, Sym, evaluate
from ..ir.enums import SchedulerType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import ReductionOp, TensorView, WelfordOp, no_reductions
from ..ops.torch_ops import entry_of
from ..runtime.binding import Bound
from ..runtime.outputs import OutputPlan
from ..runtime.view_outputs import chains, view_of

NO_KERNEL = (SchedulerType.expr_eval, SchedulerType.no_op)
"""Schedulers of fusions for which nothing is compiled."""

ELEMENTWISE = (SchedulerType.transpose, SchedulerType.pointwise)
"""Schedulers that compute slices, pads and cats."""


def why_not_expr_eval(fusion: Fusion, bound: Bound) -> str:
    """Return "" for one op of those that nvFuser leaves to torch, and where all outputs are views of inputs; else what is neither."""
    exprs = fusion.tensor_exprs()
    if len(exprs) == 1 and (entry_of(exprs[0]) is not None or isinstance(exprs[0], LookupOp) and exprs[0].op_name == "gather"):
        return ""
    plan = OutputPlan(fusion)
    found = chains(fusion, plan.computed, plan.alias)
    for number, tensor in enumerate(plan.computed):
        chain = found.get(number)
        given = None if chain is None else bound.tensors[chain.source]
        if chain is None or given is None or view_of(chain, given.sizes, given.strides, bound.env) is None:
            return f"T{tensor.name} is not a view of an input, and needs more than one torch op"
    return "" if plan.computed else "every output is an input"


def why_not_no_op(fusion: Fusion, bound: Bound) -> str:
    """Return "" where every output is an input or has no elements at these sizes, else an output that is computed."""
    memo: dict[Sym, Number] = {}
    for value in fusion.outputs():
        if isinstance(value, TensorView) and not value.is_fusion_input:
            if all(evaluate(axis.logical_extent, bound.env, memo) for axis in no_reductions(value.get_logical_domain())):
                return f"output T{value.name} has to be computed"
    return ""


def why_not_resize(fusion: Fusion, bound: Bound) -> str:
    """Return "" where a slice, pad or cat is computed and nothing is reduced; the schedulers of `ELEMENTWISE` then decide."""
    reduced = next((e for e in fusion.tensor_exprs() if isinstance(e, (ReductionOp, WelfordOp))), None)
    if not is_resized(fusion):
        return "there is no slice, pad or cat"
    return "" if reduced is None else f"{reduced.outputs[0]} reduces"


NAMES: dict[SchedulerType, Callable[[Fusion, Bound], str]] = {
    SchedulerType.expr_eval: why_not_expr_eval, SchedulerType.no_op: why_not_no_op, SchedulerType.resize: why_not_resize,
}  # fmt: skip
"""By name: a function that returns why the name does not fit, or ""."""
