"""A fusion as text: its inputs and outputs, and its expressions in an order in which they can be computed.

Owns the layout of `print_math`, of `str(fusion)` and of the dump "fusion". How one value prints is in `weft.ir.values`.
Read first: `math_text`.
"""

from __future__ import annotations

from .enums import MemoryType
from .fusion import Fusion
from .values import Expr, LoadStoreOp, Scalar, TensorView, Val

_PLACES = {MemoryType.local: "l", MemoryType.shared: "s", MemoryType.global_: "g", MemoryType.tensor: "t", MemoryType.symmetric: "y"}


def math_text(fusion: Fusion, from_outputs_only: bool = True) -> str:
    """Return the fusion's expressions as text; with `from_outputs_only` False also those that no output needs.

    Example:
        Inputs:
          T0_g_float[iS0{T0.size[0]}]
        Outputs:
          T1_g_float[iS1{T0.size[0]}]

        %kernel_math {
        T1_g_float[iS1{T0.size[0]}]
           = relu(T0_g_float[iS0{T0.size[0]}]);
        } // %kernel_math
    """
    exprs = fusion.exprs() if from_outputs_only else _all_exprs(fusion)
    body = "".join(f"{expr_text(expr)}\n" for expr in exprs)
    return f"{_boundary(fusion)}\n%kernel_math {{\n{body}}} // %kernel_math \n"


def fusion_text(fusion: Fusion) -> str:
    """Return the fusion as text with the transforms of each tensor that is scheduled."""
    scheduled = [t for t in fusion.tensors() if t.get_loop_domain() != t.get_logical_domain() or t.compute_at]
    schedule = "".join(f"  {value_text(t)}\n    logical {t.get_logical_domain()} compute_at {t.compute_at}\n" for t in scheduled)
    return math_text(fusion) + (f"\nTransforms:\n{schedule}" if schedule else "")


def value_text(value: Val) -> str:
    """Return a value with its type: `T0_g_float[iS0{4}]`, `d3`, or a constant."""
    if isinstance(value, TensorView):
        position = f" ca_pos( {value.compute_at} )" if value.compute_at else ""
        axes = ", ".join(map(str, value.get_loop_domain()))
        return f"T{value.name}_{_PLACES[value.memory_type]}_{value.dtype().value}[{axes}]{position}"
    if isinstance(value, Scalar) and not value.is_symbolic():
        return f"{value.dtype().value}({value.sym})"
    if isinstance(value, Scalar) and value.definition() is None:
        return f"{value.sym}"
    return str(value)


def expr_text(expr: Expr) -> str:
    """Return `outputs = op(inputs, attributes);` on two lines."""
    hidden = ("op", "compute") if "op" in expr.attributes else ()
    attributes = [f"{key}={_attribute_text(v)}" for key, v in expr.attributes.items() if key not in hidden and v is not None]
    if isinstance(expr, LoadStoreOp):
        attributes.append(f"{expr.kind.name}, {expr.cache_op.name}")
    operands = ", ".join([*map(value_text, expr.inputs), *attributes])
    return f"{', '.join(map(value_text, expr.outputs))}\n   = {expr.op_name}({operands});"


def _attribute_text(value: object) -> str:
    if isinstance(value, Val):
        return value_text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_attribute_text, value))}]"
    return str(value)


def _boundary(fusion: Fusion) -> str:
    lines = ["Inputs:", *(f"  {value_text(v)}" for v in fusion.inputs()), "Outputs:"]
    for value in fusion.outputs():
        alias = fusion.aliases.get(value)
        into = "" if alias is None else f" written into T{alias.name}{' and not returned' if value in fusion.hidden_outputs else ''}"
        lines.append(f"  {value_text(value)}{into}")
    return "\n".join(lines) + "\n"


def _all_exprs(fusion: Fusion) -> list[Expr]:
    """Return all expressions, those that no output needs too, definitions before uses."""
    return fusion.exprs([value for value in fusion.vals() if value.definition() is not None])
