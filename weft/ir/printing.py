"""A fusion as text, in nvFuser's format: its inputs and outputs, and its expressions in an order in which they can be computed.

Owns the layout of `print_math`, of `str(fusion)` and of the dump "fusion". How one value prints is in `weft.ir.values`.
Read first: `math_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..dtypes import DataType
from .fusion import Fusion
from .naming import constant_text, inline_text
from .values import (
    BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, LoadStoreOp, Merge, PointwiseOp, RandomOp, ReductionOp, Scalar, Split, SqueezeOp, TensorView, Val,
    WelfordOp, names_in,
)  # fmt: skip


def math_text(fusion: Fusion, from_outputs_only: bool = True) -> str:
    """Return the fusion's expressions as text; with `from_outputs_only` False also those that no output needs.

    Sizes are numbered (`i0`), the letters of axes are those of `IterType`, `rf` marks an axis made by a view or rfactor.
    Example:
        Inputs:
          T0_g_float[iS0{i0}]
        Outputs:
          T1_g_float[iS1{i0}]

        %kernel_math {
        T1_g_float[iS1{i0}]
           = relu(T0_g_float[iS0{i0}]);
        } // %kernel_math
    """
    exprs = fusion.exprs() if from_outputs_only else _all_exprs(fusion)
    body = "".join(f"{expr_text(expr)}\n" for expr in exprs)
    return f"{boundary_text(fusion)}\n%kernel_math {{\n{body}}} // %kernel_math \n\n"


def fusion_text(fusion: Fusion) -> str:
    """Return the fusion as text with the transforms of each tensor that is scheduled."""
    scheduled = [t for t in fusion.tensors() if t.get_loop_domain() != t.get_logical_domain() or t.compute_at]
    schedule = "".join(f"  {t}\n    logical {t.get_logical_domain()} compute_at {t.compute_at}\n" for t in scheduled)
    return math_text(fusion) + (f"Transforms:\n{schedule}" if schedule else "")


def expr_text(expr: Expr) -> str:
    """Return `output`, and below it its definition: `= op(operands);`."""
    if isinstance(expr, (Split, Merge)):
        return _transform_text(expr)
    write = next((text for kind, text in _WRITERS.items() if isinstance(expr, kind)), _any_text)
    if isinstance(expr.outputs[0], Scalar):
        return f"{expr.outputs[0]} = {write(expr)};"
    return f"{', '.join(map(str, expr.outputs))}\n   = {write(expr)};"


def _transform_text(expr: Split | Merge) -> str:
    if isinstance(expr, Merge):
        return f"Merge: {expr.outer()} and {expr.inner()} -> {expr.out()}"
    factor = inline_text(expr.factor, names_in(expr.source().fusion))
    return f"{'Split' if expr.inner_split else 'Outer split'}: {expr.source()} by factor {factor} -> {expr.outer()}, {expr.inner()}"


# ---------------------------------------------------------------- one op
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "mod": "%", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "logical_and": "&&", "logical_or": "||", "bitwise_left_shift": "<<",
    "bitwise_right_shift": ">>",
}  # fmt: skip
_PREFIX = {"neg": "-", "logical_not": "!", "bitwise_not": "~"}
_CALLED = {"maximum": "fmax", "minimum": "fmin"}
_WITHOUT_F = frozenset("abs frac imag silu neg real relu reciprocal sigmoid isfinite isinf isnan isneginf isposinf isreal".split())
"""Functions with the same name for all types; for the others the one for Float ends in f."""
_CASTS = {
    (DataType.Half, DataType.Float): "__half2float", (DataType.Float, DataType.Half): "__float2half", (DataType.BFloat16, DataType.Float): "__bfloat2float",
    (DataType.Float, DataType.BFloat16): "__float2bfloat", (DataType.Double, DataType.Half): "__double2half", (DataType.Half, DataType.Double): "__half2double",
    (DataType.Double, DataType.BFloat16): "__double2bfloat", (DataType.BFloat16, DataType.Double): "__bfloat2double",
}  # fmt: skip


def _pointwise_text(expr: Expr) -> str:
    op, operands, out = expr.op_name, list(map(str, expr.inputs)), expr.outputs[0]
    new_line = "\n   " if isinstance(out, TensorView) else " "
    if op == "cast":
        pair = (_dtype(expr.inputs[0]), _dtype(out))
        return f"{_CASTS.get(pair, f'({pair[1].value})')}({operands[0]})"
    if len(operands) == 2 and op in _INFIX:
        return f"{operands[0]}{new_line}{_INFIX[op]} {operands[1]}"
    if len(operands) == 1:
        if op in _PREFIX:
            return f"{_PREFIX[op]}{operands[0]}"
        return f"{op}{'f' if _dtype(out) is DataType.Float and op not in _WITHOUT_F else ''}({operands[0]})"
    comma = "\n  , " if isinstance(out, TensorView) else ", "
    return f"{_CALLED.get(op, op)}({comma.join(operands)}{_attributes_text(expr)})"


def _dtype(value: Val) -> DataType:
    dtype: DataType = value.dtype()  # type: ignore[attr-defined]
    return dtype


def _copy_text(expr: Expr) -> str:
    assert isinstance(expr, LoadStoreOp)
    kind = expr.kind.name if expr.kind.name != "set" else "Set.Permute" if _is_permute(expr) else "Set"
    return f"{kind}( {expr.inputs[0]}, cache_op={''.join(map(str.capitalize, expr.cache_op.name.split('_')))} )"


def _is_permute(expr: Expr) -> bool:
    domain = expr.tensor_outputs[0].domain() if expr.tensor_outputs else None
    return domain is not None and domain.root is not None and domain.root != domain.logical and set(domain.root) == set(domain.logical)


def _flags_text(name: str) -> Callable[[Expr], str]:
    def text(expr: Expr) -> str:
        return f"{name}( {expr.inputs[0]}, flags = {_braces([str(bool(f)).lower() for f in expr.attributes['flags']])} )"

    return text


_FOLDS = {"sum": "add", "prod": "mul", "max": "fmax", "min": "fmin"}
_IDENTITIES = {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}


def _reduction_text(expr: Expr) -> str:
    kind, dtype = expr.attributes.get("kind", expr.op_name), _dtype(expr.outputs[0])
    identity = _IDENTITIES.get(kind)
    initial = "" if identity is None else f", initial value = {constant_text(complex(identity) if dtype.is_complex else identity, dtype)}"
    return f"reduction( {expr.inputs[0]}, op = {_FOLDS.get(kind, kind)}{initial}, allreduce = false )"


def _welford_text(expr: Expr) -> str:
    return f"Welford ( {expr.inputs[0]}(Avg), allreduce = false )"


def _shape_text(expr: Expr) -> str:
    return _braces([inline_text(axis.logical_extent, names_in(axis.fusion)) for axis in expr.tensor_outputs[0].get_logical_domain()])


def _expand_text(expr: Expr) -> str:
    return f"expand( {expr.inputs[0]}, {_shape_text(expr)} )"


def _full_text(expr: Expr) -> str:
    return f"full({_shape_text(expr)}, {expr.inputs[0]})"


def _iota_text(expr: Expr) -> str:
    return f"iota({', '.join(map(str, expr.inputs))}, {_dtype(expr.outputs[0]).value})"


def _random_text(expr: Expr) -> str:
    operands = ", ".join(map(str, expr.inputs))
    return f"rng_{expr.attributes['distribution']}({_shape_text(expr)}, {operands}, {_dtype(expr.outputs[0]).value})"


def _any_text(expr: Expr) -> str:
    return f"{expr.op_name}( {', '.join(map(str, expr.inputs))}{_attributes_text(expr)} )"


_HIDDEN = ("op", "compute", "is_masked", "positions")


def _attributes_text(expr: Expr) -> str:
    return "".join(f", {key} = {_attribute_text(value)}" for key, value in expr.attributes.items() if key not in _HIDDEN and value is not None)


def _attribute_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return _braces(list(map(_attribute_text, value)))
    return str(value)


def _braces(parts: Sequence[str]) -> str:
    return f"{{{', '.join(parts)}}}"


_WRITERS: Mapping[type[Expr], Callable[[Expr], str]] = {
    PointwiseOp: _pointwise_text, LoadStoreOp: _copy_text, BroadcastOp: _flags_text("broadcast"), SqueezeOp: _flags_text("squeeze"), ExpandOp: _expand_text,
    ReductionOp: _reduction_text, WelfordOp: _welford_text, FullOp: _full_text, IotaOp: _iota_text, RandomOp: _random_text,
}  # fmt: skip


# ---------------------------------------------------------------- inputs and outputs
def boundary_text(fusion: Fusion) -> str:
    """Return the list of inputs and that of outputs."""
    lines = ["Inputs:", *(f"  {v}" for v in fusion.inputs()), "Outputs:"]
    for value in fusion.outputs():
        alias = fusion.aliases.get(value)
        into = "" if alias is None or value in fusion.reuses else f" written into T{alias.name}{' and not returned' if value in fusion.hidden_outputs else ''}"
        lines.append(f"  {value}{into}")
    return "\n".join(lines) + "\n"


def _all_exprs(fusion: Fusion) -> list[Expr]:
    """Return all expressions, those that no output needs too, definitions before uses."""
    return fusion.exprs([value for value in fusion.vals() if value.definition() is not None])


Fusion.text_of, Expr.text_of = fusion_text, expr_text
