"""Steps that torch runs, and views: called from the function of a signature like the launches around them.

Owns what surrounds torch's own function: no gradients are recorded, numbers of the call are put in, and the results lie in memory as the kernels that
read them were told. Read first: `TorchCall`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..dtypes import DataType
from ..errors import InternalError, UserError
from ..expr import Number, Sym, const, evaluate, substitute, variables
from ..ir.values import Expr, Scalar, TensorView
from ..ops import torch_ops
from ..reference.torch_types import torch_dtype
from . import host_scalars
from .outputs import Layout


class WrongResult(InternalError):
    code = "W930"
    what = "torch's {op} gave a tensor of {given}; the definition says {expected}"


class TorchRefusedStep(UserError):
    code = "W759"
    what = "torch, which runs {op} here, refuses its operands: {said}"
    fix = "pass operands that {op} accepts; these are {operands}"


class TorchCall:
    """One op of the table, complete except for its operands and the numbers that change from call to call."""

    __slots__ = ("attributes", "layouts", "name", "run")

    def __init__(self, name: str, attributes: Mapping[str, Any], layouts: Sequence[Layout]) -> None:
        self.name, self.layouts = name, tuple(layouts)
        compute, fixed = torch_ops.TORCH_OPS[name], dict(attributes)
        self.attributes = fixed
        self.run: Callable[..., Any] = lambda operands, changing: compute(operands, {**fixed, **changing} if changing else fixed)

    def __call__(self, *operands: Any, **changing: Number) -> tuple[torch.Tensor, ...]:
        try:
            with torch.no_grad():
                return tuple(map(self._fitted, self.run(operands, changing), self.layouts))
        except (RuntimeError, IndexError) as error:
            if type(error) not in (RuntimeError, NotImplementedError, IndexError):  # out-of-memory errors and weft's own errors are more specific
                raise
            numbers = {name: value for name, value in {**self.attributes, **changing}.items() if isinstance(value, (int, float))}
            given = [*(list(t.shape) if isinstance(t, torch.Tensor) else t for t in operands), *(f"{name}={value}" for name, value in numbers.items())]
            raise TorchRefusedStep(op=self.name, said=str(error).splitlines()[0], operands=", ".join(map(str, given))) from error

    def _fitted(self, result: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return a result with the layout that later steps expect; mostly it has it already."""
        if result.dtype is not layout.dtype or result.numel() != _count(layout.sizes):
            raise WrongResult(op=self.name, given=f"{tuple(result.shape)} of {result.dtype}", expected=f"{layout.sizes} of {layout.dtype}")
        if tuple(result.shape) != layout.sizes:
            result = result.reshape(layout.sizes)
        if layout.is_like(result.shape, result.stride()):
            return result
        laid = torch.empty_strided(layout.sizes, layout.strides, dtype=layout.dtype, device=result.device)
        target = laid
        for axis, (size, stride) in enumerate(zip(layout.sizes, layout.strides)):
            if size > 1 and not stride:  # an expanded axis: all elements are equal, and one of them is stored
                target, result = target.narrow(axis, 0, 1), result.narrow(axis, 0, 1)
        target.copy_(result)
        return laid


def _count(sizes: Sequence[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def call_text(
    number: int, expr: Expr, tensors: Sequence[str], layouts: Sequence[Layout], env: Mapping[Sym, Number], names: Mapping[Sym, str], constants: dict[str, Any]
) -> str:
    """Return the call of `expr` as text; names that it uses are put into `constants`.

    tensors: the text of each tensor operand. names: the variables that change from call to call, with their text.
    """
    name = torch_ops.entry_of(expr)
    if name is None:
        raise InternalError(f"{expr.op_name} is not among the ops that torch runs")

    def text_of(sym: Sym) -> str | None:
        changing = {v: names[v] for v in variables(sym) if v in names}
        if not changing:
            return None
        fixed = {v: const(env[v], v.dtype) for v in variables(sym) if v not in changing}
        return host_scalars.expression(substitute(sym, fixed), changing, constants)

    fixed: dict[str, Any] = {}
    changing: list[str] = []
    for key, value in expr.attributes.items():
        text = text_of(value) if isinstance(value, Sym) else None
        if text is not None:
            changing.append(f"{key}={text}")
        else:
            fixed[key] = evaluate(value, env) if isinstance(value, Sym) else torch_dtype(value) if isinstance(value, DataType) else value
    operands, rest = [], iter(tensors)
    for place, operand in enumerate(expr.inputs):
        if isinstance(operand, TensorView):
            operands.append(next(rest))
            continue
        assert isinstance(operand, Scalar)
        text = text_of(operand.sym)
        if text is None:
            text = f"torch{number}_{place}"
            constants[text] = evaluate(operand.sym, env)
        operands.append(text)
    constants[f"torch{number}"] = TorchCall(name, fixed, layouts)
    return f"torch{number}({', '.join([*operands, *changing])})"
