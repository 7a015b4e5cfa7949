"""A definition cut into steps: kernels, ops that torch runs, views of what is in memory.

Owns the steps and their order. How the cut is chosen is in `partition.py`; how steps run, in `weft.runtime`.
Read first: `Plan`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Union

from ..expr import Sym
from ..ir.fusion import Fusion
from ..ir.structure import _KeyBuilder
from ..ir.values import Expr, TensorView, Val


@dataclass(frozen=True, eq=False)
class KernelStep:
    """One kernel. fusion: what it computes. inputs: the values of the definition that correspond to its inputs; outputs: the tensors that it writes.

    Steps of equal structure share a fusion, with the names of the first of them; `variables` maps its variables to those of this step.
    """

    fusion: Fusion
    inputs: tuple[Val, ...]
    outputs: tuple[TensorView, ...]
    variables: Mapping[Sym, Sym] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[Val, ...]:
        return self.inputs


@dataclass(frozen=True, eq=False)
class _OneOp:
    """A step of one op, whose operands and results are in memory."""

    expr: Expr

    @property
    def reads(self) -> tuple[Val, ...]:
        return tuple(self.expr.tensor_inputs)

    @property
    def outputs(self) -> tuple[TensorView, ...]:
        return tuple(self.expr.tensor_outputs)


class TorchStep(_OneOp):
    """One op that torch runs."""


class JoinStep(_OneOp):
    """The output of a `JoinedOp`, whose parts earlier steps have stored. Nothing runs on the device."""


@dataclass(frozen=True, eq=False)
class ViewStep:
    """`output` is a view of `source`, with other sizes and strides; `exprs` are the ops between them. Nothing runs on the device.

    after: tensors whose steps write into the source.
    """

    exprs: tuple[Expr, ...]
    source: TensorView
    output: TensorView
    after: tuple[TensorView, ...] = ()

    @property
    def reads(self) -> tuple[Val, ...]:
        return (self.source, *self.after)

    @property
    def outputs(self) -> tuple[TensorView, ...]:
        return (self.output,)


Step = Union[KernelStep, TorchStep, ViewStep, JoinStep]


@dataclass(frozen=True, eq=False)
class Plan:
    """The steps of a definition in the order in which they run.

    edges: tensors that one step writes and only later steps read. reasons: (tensor, step that reads it) -> why its writer is another step.
    declined: groups that no scheduler accepted at the sizes of the plan, although one may at other sizes, for which another plan may be better.
    """

    steps: tuple[Step, ...]
    edges: tuple[TensorView, ...] = ()
    reasons: Mapping[tuple[TensorView, Step], str] = field(default_factory=dict)
    declined: tuple[Fusion, ...] = ()

    @property
    def kernels(self) -> tuple[KernelStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, KernelStep))


class SegmentKey(_KeyBuilder):
    """The structure of a segment: `structural_key`, in which variables are numbered in order of appearance, so that layers that differ only in their size
    variables are equal.

    variables_found: the variables in the order of their numbers; with equal keys they correspond one to one.
    """

    def __init__(self, fusion: Fusion) -> None:
        super().__init__(fusion)
        self.variables_found: list[Sym] = []

    def _input(self, value: Val) -> Hashable:
        key = super()._input(value)
        self.variables.clear()
        if not isinstance(value, TensorView):
            return key, self._sym(value.sym)  # type: ignore[attr-defined]
        return key

    def _new_sym(self, sym: Sym) -> Hashable:
        if sym.op != "var":
            return super()._new_sym(sym)
        self.variables_found.append(sym)
        return "variable", len(self.variables_found), sym.dtype, sym.lower


def variables_of_tensors(fusion: Fusion) -> list[Sym]:
    """Return the variables of inputs and outputs other than sizes: strides, values of CPU scalars."""
    from ..expr import var

    out: list[Sym] = []
    for value in (*fusion.inputs(), *fusion.outputs()):
        if isinstance(value, TensorView):
            out += [value.stride_var(position) for position, flag in enumerate(value.domain().contiguity) if flag is False]
            if value.is_cpu_scalar:
                out.append(var(f"T{value.name}.value", value.dtype()))
    return out


__all__ = ["JoinStep", "KernelStep", "Plan", "SegmentKey", "Step", "TorchStep", "ViewStep", "variables_of_tensors"]
