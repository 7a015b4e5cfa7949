"""The registry of pointwise ops: each op is defined once, as data, in `unary.py`, `binary.py`, `ternary.py` or `cast.py`.

Owns `OpDef` and the table `OPS`. Construction of nodes is in `build.py`, the rules of types in `promotion.py`.
Read first: `OpDef`, then `weft/ops/unary.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .. import expr
from ..dtypes import CUDA_NAMES, DataType
from ..errors import Unsupported, UserError
from .promotion import Result, Rule


class _LazyTorch:
    """Stands for the module torch and imports it at first use, so that compiling needs no torch."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)


torch = _LazyTorch()


class UnknownOp(UserError):
    code = "W301"
    what = "there is no op named {name!r}; the nearest names are {nearest}"
    fix = "use one of these names"


class UnsupportedDtype(Unsupported):
    code = "W302"

    def __init__(self, op: str, dtype: DataType) -> None:
        super().__init__(name=f"{op} of {dtype}", remedy="cast the operands to a type that the op has")


def type_class(dtype: DataType) -> str:
    """Return the class of types that one CUDA text serves: float, double, int, bool, complex or reduced (16 bits and fewer)."""
    if dtype is DataType.Float:
        return "float"
    if dtype is DataType.Double:
        return "double"
    if dtype.is_bool:
        return "bool"
    if dtype.is_complex:
        return "complex"
    return "int" if dtype.is_integer else "reduced"


class Parity(Enum):
    """What a function of one number makes of the number with the other sign."""

    none = "none"
    odd = "odd"
    even = "even"


_FALLBACKS = {
    "float": ("float", "real", "number", "any"), "double": ("double", "real", "number", "any"), "int": ("int", "number", "any"),
    "bool": ("bool", "any"), "complex": ("complex", "any"), "reduced": ("reduced", "any"),
}  # fmt: skip


@dataclass(frozen=True)
class OpDef:
    """All that is known about one pointwise op.

    arity: operands. rule: which types it computes in. result: the type of the result. fixed: operands of a type of their own.
    text: C++ by class of types (`type_class`, or real = float and double, number = real and int, any); {0}, {1}, {2} are the operands, each used once,
        {T} the type computed in, {O} the type of the result. narrow: for float where results are seen in 16 bits at most,
        relative error below 1e-5, or 3e-5 beyond the range of half.
    reference: the op on torch tensors of the type computed in. python: the op on Python numbers (None: go through `reference`).
    blocks: device library blocks that the text needs.
    flops, narrow_flops (of the narrow text), is_exp, is_mufu: cost per element; is_exp: goes through an exponential, logarithm or trigonometric function;
        is_mufu: uses the special function unit.
    is_steep: the last bit of an operand may change the result as a whole (rounding, remainders, thresholds), or much (periodic functions).
    ulp: largest float32 error against `reference` in float64. source: where the formula comes from.
    gradient: (o, g, result, *operands) -> what flows to each operand (None: nothing), in ops of `o` (`weft.ops.calls.Calls`), where g flows to the result;
        None for an op that cannot be differentiated here, `flat` for one whose result does not change in the small.
    is_internal: only weft itself makes such nodes; `fd.ops` has no function of this name for it.
    parity: of an op of one float: odd if f(-x) is -f(x), even if it is f(x). commutes: the order of two operands does not matter.
    """

    name: str
    arity: int
    rule: Rule
    text: Mapping[str, str]
    reference: Callable[..., Any]
    result: Result = Result.same
    fixed: Mapping[int, DataType] = field(default_factory=dict)
    python: Callable[..., expr.Number] | None = None
    blocks: tuple[str, ...] = ()
    flops: int = 1
    narrow_flops: int = 0
    is_exp: bool = False
    is_mufu: bool = False
    is_steep: bool = False
    ulp: int = 0
    source: str = ""
    gradient: Callable[..., Any] | None = None
    is_internal: bool = False
    parity: Parity = Parity.none
    commutes: bool = False

    def cuda(self, args: Sequence[str], compute: DataType, out: DataType | None = None, *, is_narrow: bool = False) -> str:
        """Return one C++ expression over the texts `args`, which already have the type that the op computes in.

        is_narrow: the result is seen in 16 bits at most. Errors: UnsupportedDtype when the op has no text for `compute`.
        """
        template = self._template(compute)
        if is_narrow and compute is DataType.Float:
            template = self.text.get("narrow", template)
        if template is None:
            raise UnsupportedDtype(self.name, compute)
        out = out if out is not None else self.result.dtype(compute)
        return template.format(*args, T=CUDA_NAMES.get(compute, "long long"), O=CUDA_NAMES.get(out, "long long"))

    def instructions(self, operands: Sequence[Any], *, is_narrow: bool) -> int:
        """Return the cost per element over the operands of a node; is_narrow: the result is seen in 16 bits at most."""
        return self.narrow_flops if is_narrow and self.narrow_flops else self.flops

    def supports(self, compute: DataType) -> bool:
        """True when the op can be computed in this type."""
        return self._template(compute) is not None

    def _template(self, compute: DataType) -> str | None:
        return next((self.text[key] for key in _FALLBACKS[type_class(compute)] if key in self.text), None)

    def blocks_for(self, compute: DataType) -> tuple[str, ...]:
        """Return the device library blocks for one type: the op's, and `complex` for complex types."""
        return (*self.blocks, "complex") if compute.is_complex else self.blocks

    def ref(self, *operands: Any) -> Any:
        """Compute the op on torch tensors of the type that it computes in."""
        return self.reference(*operands)

    def evaluate(self, *numbers: expr.Number) -> expr.Number:
        """Compute the op on Python numbers, with IEEE results where Python would raise."""
        if self.python is not None:
            try:
                return self.python(*numbers)
            except UserError:
                raise
            except (ZeroDivisionError, ValueError, OverflowError, TypeError):
                pass
        result: expr.Number = self.reference(*(torch.tensor(n, dtype=_torch_number_type(n)) for n in numbers)).item()
        return result

    @property
    def sym_name(self) -> str:
        """The name of the op among scalar expressions (`weft.expr` has integer ops of its own under some of the names)."""
        return f"scalar_{self.name}" if self.name in ("add", "mul", "mod", "lt", "eq") else self.name


def flat(o: Any, g: Any, *operands: Any) -> None:
    """The gradient of an op whose result does not change where its operands change a little: nothing."""


def _torch_number_type(number: expr.Number) -> Any:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        return torch.int64
    return torch.complex128 if isinstance(number, complex) else torch.float64


OPS: dict[str, OpDef] = {}
FIELD_OPS: dict[str, OpDef] = {}
"""The ops `KIND.FIELD` that read a field of a monoid's state: no user calls them."""


def define(op: OpDef) -> OpDef:
    """Add `op` to the registry."""
    if op.name in OPS:
        raise ValueError(f"op {op.name} is defined twice")
    OPS[op.name] = op
    expr.EVALUATORS[op.sym_name] = op.evaluate
    return op


def lookup(name: str) -> OpDef:
    """Return the definition of the op `name`. Errors: UnknownOp, which lists the nearest names."""
    found = OPS.get(name) or FIELD_OPS.get(name)
    if found is None:
        raise UnknownOp(name=name, nearest=nearest_names(name, OPS))
    return found


def nearest_names(name: str, names: Sequence[str] | Mapping[str, object]) -> str:
    """Return up to four names that look like `name`, for messages."""
    return ", ".join(difflib.get_close_matches(name, list(names), n=4, cutoff=0.4)) or "none"
