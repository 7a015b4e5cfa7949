"""Ops that torch runs, scans and scatters, as calls of the front end.

Read first: `torch_op`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import Sym
from ..ir.values import Expr
from .translate_values import Names, dtype_text

_NAMES_OF_OPERANDS = {
    "sdpfa_bwd": ("grad_output", "query", "key", "value", "output", "logsumexp", "philox_seed", "philox_offset"),
    "scaled_grouped_mm": ("mat1", "mat2", "offsets", "scale1", "scale2"),
}


_MADE = ("rows",)
"""Attributes that the front end makes from its arguments."""


def torch_op(expr: Expr, names: Names) -> str:
    """Return the call of an op of the table in `weft.ops.torch_ops`."""
    op = expr.op_name
    given = expr.attributes.get("given") or _NAMES_OF_OPERANDS.get(op)
    operands = [names.of(value) for value in expr.inputs]
    if given is not None:
        operands = [f"{name}={text}" for name, text in zip(given, operands)]
    options = [f"{key}={_text(value, names)}" for key, value in expr.attributes.items() if key not in ("op", "given", *_MADE) and value is not None]
    if op == "sdpfa_bwd" and expr.attributes["scale"] is None:
        options.append("scale=None")
    is_scaled = op in ("scaled_mm", "scaled_grouped_mm")
    return f"{'grouped_mm' if op == 'scaled_grouped_mm' else op}({', '.join([*operands, *options])}){'[0]' if is_scaled else ''}"


def _text(value: object, names: Names) -> str:
    if isinstance(value, Sym):
        return names.sym(value)
    return dtype_text(value) if isinstance(value, DataType) else repr(value)


def scan(expr: Expr, names: Names) -> str:
    """Return the call of a scan (cumulative sum, product, maximum or minimum)."""
    if expr.attributes["kind"] == "linear_recurrence":
        return f"{expr.op_name}({', '.join(map(names.of, expr.inputs))}, dim={expr.attributes['dim']}, reverse={bool(expr.attributes.get('reverse'))})"
    start = f", init={names.of(expr.inputs[1])}" if len(expr.inputs) > 1 else ""
    return f"{expr.op_name}({names.of(expr.inputs[0])}, dim={expr.attributes['dim']}{start})"


def scatter(expr: Expr, names: Names) -> str:
    """Return the call of a scatter."""
    if "places" in expr.attributes:
        kind, skip = expr.attributes["kind"], expr.attributes.get("skips", False)
        axes = f", axes={expr.attributes['named']}" if "named" in expr.attributes else ""
        return f"scatter_rows({', '.join(map(names.of, expr.inputs))}, dim={expr.attributes['dim']}, kind={kind!r}, skip={skip}{axes})"
    name = "scatter_add" if expr.attributes["kind"] == "sum" else "scatter"
    return f"{name}({', '.join(map(names.of, expr.inputs))}, dim={expr.attributes['dim']})"
