"""Values as Python text: literals, data types, sizes and scalar expressions.

Owns when a scalar is written in place and when it has a name. Read first: `Names.of`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ..dtypes import DataType
from ..errors import Unsupported
from ..expr import Number, Sym
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView, Val

_LITERAL_TYPES = (DataType.Bool, DataType.Int, DataType.Index, DataType.Double, DataType.ComplexDouble)
_SIZE = re.compile(r"T(\d+)\.size\[(\d+)\]")
_SYM_OPS = {"floordiv": "div", "min": "minimum", "max": "maximum", "and": "logical_and"}


def dtype_text(dtype: DataType) -> str:
    """Return the type as users write it (Index is Int to them)."""
    return f"DataType.{'Int' if dtype is DataType.Index else dtype.name}"


def list_text(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def number_text(value: Number) -> str:
    """Return a literal that Python reads back as the same number: six digits of a float if they are enough, else all.

    Example: number_text(3.0) == "3.00000", number_text(0.1 + 0.2) == "0.30000000000000004"
    """
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return f'float("{value}")'
    short = f"{value:#.6g}"
    return short if float(short) == value else repr(value)


class Names:
    """The text of each value where it is used: `tv3`, `c5`, a literal, `tv0.size(1)`."""

    def __init__(self, fusion: Fusion) -> None:
        self.inputs = {v for v in fusion.inputs()}
        self.input_tensors = {v.name for v in fusion.tensor_inputs()}
        self.defined: set[Val] = set()
        self.sizes_of_results: dict[Sym, str] = {}

    def of(self, value: Val) -> str:
        """Return the text for `value` as an operand. Errors: Unsupported for a value that the front end does not make."""
        if isinstance(value, TensorView):
            return f"tv{value.name}"
        if not isinstance(value, Scalar):
            raise Unsupported(f"translation of the value {value}")
        if value in self.inputs or value in self.defined:
            return f"c{value.name}"
        if not value.is_symbolic():
            return self.literal(value)
        if value.definition() is not None:
            return f"c{value.name}"
        return self.sym(value.sym)

    def needs_definition(self, value: Val) -> bool:
        """True for a constant of a type other than those of Python's numbers, which has no line yet."""
        is_constant = isinstance(value, Scalar) and not value.is_symbolic()
        return is_constant and value.dtype() not in _LITERAL_TYPES and value not in self.defined  # type: ignore[attr-defined]

    def literal(self, value: Scalar) -> str:
        """Return a constant as Python's number of its type."""
        payload, dtype = value.sym.value, value.dtype()
        if dtype.is_bool:
            payload = bool(payload)
        elif dtype.is_integer and not isinstance(payload, bool):
            payload = int(payload)  # type: ignore[arg-type]
        elif dtype.is_float:
            payload = float(payload)  # type: ignore[arg-type]
        return number_text(complex(payload) if dtype.is_complex else payload)

    def sym(self, sym: Sym) -> str:
        """Return a scalar expression as ops over inputs' sizes, input scalars and literals.

        Errors: Unsupported when it depends on anything else.
        """
        if sym in self.sizes_of_results:
            return self.sizes_of_results[sym]
        if sym.is_const:
            return number_text(sym.value)
        if sym.is_var:
            return self._variable(str(sym.payload))
        args = [self.sym(arg) for arg in sym.args]
        if sym.op == "ceildiv":
            return f"fd.ops.div(fd.ops.add({args[0]}, fd.ops.sub({args[1]}, 1)), {args[1]})"
        if sym.op == "cast":
            return f"fd.ops.cast({args[0]}, dtype={dtype_text(sym.dtype)})"
        name = _SYM_OPS.get(sym.op, sym.op.removeprefix("scalar_"))
        if sym.op in ("add", "mul", "and"):
            text = args[0]
            for arg in args[1:]:
                text = f"fd.ops.{name}({text}, {arg})"
            return text
        return f"fd.ops.{name}({', '.join(args)})"

    def _variable(self, name: str) -> str:
        size = _SIZE.fullmatch(name)
        if size is not None and int(size[1]) in self.input_tensors:
            return f"tv{size[1]}.size({size[2]})"
        if re.fullmatch(r"S\d+", name):
            return f"c{name[1:]}"
        raise Unsupported(f"translation of the scalar {name}", detail="it is neither a size of an input nor an input scalar")


def is_ordered(tensor: TensorView) -> bool:
    """Tell whether a tensor has an order in memory that a definition can ask for; a schedule may lay it out along other axes."""
    allocation = tensor.domain().allocation
    return allocation is not None and set(allocation) == set(tensor.get_logical_domain())


def stride_order(tensor: TensorView) -> list[int]:
    """Return for each logical axis its place in memory, 0 the innermost."""
    allocation = tensor.domain().maybe_allocation
    place = {axis: len(allocation) - 1 - i for i, axis in enumerate(allocation)}
    return [place[axis] for axis in tensor.get_logical_domain()]
