"""A fusion as the Python text of its definition, which defines the same fusion again when executed.

Owns the order of lines and the names; the text of one expression is in `translate_ops`, of literals and scalars in `translate_values`.
Read first: `translate_fusion`.
"""

from __future__ import annotations

from ..errors import Unsupported, shown
from ..ir.fusion import Fusion
from ..ir.values import Expr, Scalar, TensorView, Val
from .translate_index import belongs_to_embedding, belongs_to_extremum
from .translate_ops import expr_call
from .translate_values import Names, dtype_text, is_ordered, list_text, stride_order

HEADER = "def nvfuser_fusion(fd : FusionDefinition) -> None :"


def translate_fusion(fusion: Fusion) -> str:
    """Return the definition of `fusion`: a function `nvfuser_fusion(fd)` over the names FusionDefinition and DataType.

    Lines follow the fusion's topological order; `tvN` is the tensor TN. Expressions that no output needs are left out.
    Errors: Unsupported for an expression that no op of the front end makes.
    """
    if not isinstance(fusion, Fusion):
        from ..runtime.argument_kinds import WrongKind  # loads torch

        raise WrongKind(function="translate_fusion", argument="fusion", value=shown(fusion), wanted="Fusion, such as fd.fusion")
    return "\n".join([HEADER, *("    " + line for line in _Translator(fusion).lines()), ""])


class _Translator:
    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.names = Names(fusion)
        self.body: list[str] = []
        self.done: set[int] = set()

    def lines(self) -> list[str]:
        for value in self.fusion.inputs():
            self.body.append(self._input(value))
        for expr in self.fusion.exprs():
            self._expr(expr)
        for position, value in enumerate(self.fusion.outputs()):
            self._output(value, position)
        return self.body or ["pass"]

    def _input(self, value: Val) -> str:
        if isinstance(value, Scalar):
            return f"c{value.name} = fd.define_scalar(None, dtype={dtype_text(value.dtype())})"
        if not isinstance(value, TensorView):
            raise Unsupported(f"translation of the input {value}")
        return f"tv{value.name} = fd.define_tensor({tensor_arguments(value)})"

    def _expr(self, expr: Expr) -> None:
        if id(expr) in self.done:
            return
        self.done.add(id(expr))
        first = expr.outputs[0]
        if isinstance(first, Scalar) and not first.is_symbolic() or belongs_to_embedding(expr) or belongs_to_extremum(expr):
            return
        for value in expr.inputs:
            self._define_constant(value)
        targets = ", ".join(map(self.names.of, expr.outputs))
        self.body.append(f"{targets} = fd.ops.{expr_call(expr, self.names)}")

    def _define_constant(self, value: Val) -> None:
        """Add a line for a constant of a type that no Python literal has."""
        if self.names.needs_definition(value):
            assert isinstance(value, Scalar)
            self.names.defined.add(value)
            self.body.append(f"c{value.name} = fd.define_scalar({self.names.literal(value)}, dtype={dtype_text(value.dtype())})")

    def _output(self, value: Val, position: int) -> None:
        self._define_constant(value)
        text = self.names.of(value)
        alias = None if value in self.fusion.reuses else self.fusion.aliases.get(value)
        is_first = not any(v is value for v in self.fusion.outputs()[:position])
        if alias is not None and is_first:
            self.body.append(f"fd.add_output({text}, {self.names.of(alias)})")
        if alias is None or not is_first or value not in self.fusion.hidden_outputs:
            self.body.append(f"fd.add_output({text})")


def tensor_arguments(tensor: TensorView) -> str:
    """Return the arguments of define_tensor for an input."""
    domain = tensor.domain()
    shape = [a.logical_extent.value if a.logical_extent.is_const else -1 for a in domain.logical]
    parts = [
        f"shape={list_text(map(str, shape))}", f"contiguity={list_text(map(str, domain.contiguity))}",
        f"dtype={dtype_text(tensor.dtype())}", f"is_cpu={tensor.is_cpu_scalar}",
    ]  # fmt: skip
    if is_ordered(tensor):
        parts.append(f"stride_order={stride_order(tensor)}")
    return ", ".join(parts)
