"""weft's own operators (`weft.nn`, `weft.op`) in a compiled model: their definitions become a part of the region around them.

An operator's definition is written out as Python text, which is run again with the region's values in place of its inputs: so forwards, forwards that save,
and backwards are inlined by one rule. Under other backends they stay single ops. Read first: `own_rule`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...api.definition import FusionDefinition
from ...api.translate import translate_fusion
from ...dtypes import DataType
from ...errors import WeftError
from ...ir.fusion import Fusion
from ...ir.values import Scalar, TensorView
from .rules import RULES, Declined, Operand, Rule, Translation

_LEFT_ALONE = re.compile(r"fd\.ops\.(uniform|normal|rand|randn|rng)\w*\(|add_output\([^)]*,")
"""Parts of a definition's text that prevent inlining: random numbers, outputs that are written into inputs."""


def own_rule(target: Any) -> Rule | None:
    """Return the rule of one of weft's operators, made on first use; None for any other op."""
    library = sys.modules.get("weft.nn.library")
    found = None if library is None else library.OPERATORS.get(target)
    if found is None:
        return None
    rule = RULES[target] = Rule(functools.partial(_inlined, *found), False, functools.partial(_claims, *found))
    return rule


def _claims(registered: Any, which: str, node: torch.fx.Node) -> str:
    try:
        text = _text(_definition(registered, which, node.args)[0])
    except (WeftError, TypeError, ValueError, LookupError, RuntimeError, StopIteration) as error:
        return f"its definition cannot be written as Python: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return "it draws random numbers, or writes into an input" if _LEFT_ALONE.search(text) else ""


def _inlined(registered: Any, which: str, t: Translation, *values: Operand) -> list[Operand]:
    """The operator's results; `values` are its arguments as the region has them."""
    fusion, order, finish = _definition(registered, which, t.node.args)
    namespace: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType, "torch": torch, "inf": float("inf"), "nan": float("nan")}
    exec(_code(_text(fusion)), namespace)  # noqa: S102  (text of this package)
    part = _Part(t, order(values))
    namespace["nvfuser_fusion"](part)
    return finish(part.outputs, t)


def _text(fusion: Fusion) -> str:
    found = fusion.findings.get("text", (None, ""))[1]
    if not found:
        found = translate_fusion(fusion)
        fusion.findings["text"] = None, found
    return str(found)


@functools.lru_cache(maxsize=256)
def _code(text: str) -> Any:
    return compile(text, "<a definition of weft's>", "exec")


class _Part:
    """Used in place of a FusionDefinition: its inputs are values of another definition, in order."""

    def __init__(self, t: Translation, values: Sequence[Any]) -> None:
        self._t, self._left, self.ops = t, iter(values), t.ops
        self.outputs: list[Operand] = []

    def define_tensor(self, **_: Any) -> TensorView:
        value = next(self._left)
        if not isinstance(value, TensorView):
            raise Declined("a number where weft's definition needs a tensor")
        return value

    def define_scalar(self, value: Any = None, dtype: Any = None) -> Scalar:
        value = self._t.extent(next(self._left)) if value is None else value
        return value if isinstance(value, Scalar) else self._t.fd.define_scalar(value, dtype=dtype)

    def add_output(self, value: Operand) -> None:
        self.outputs.append(value)


Order = Callable[[Sequence[Any]], list[Any]]
Finish = Callable[[list[Operand], Translation], list[Operand]]


def _definition(registered: Any, which: str, args: Any) -> tuple[Fusion, Order, Finish]:
    """Return (what computes an operator's results, its inputs from the operator's arguments, its results from the outputs)."""
    if which == "backward":
        return _backward(registered, args)
    tensors, static = args[0], args[-1]
    found = registered.resolve([node.meta["val"] for node in tensors], static)[0]
    fusion = found.fusion if which == "plain" else found.plan(tuple(args[2])).executor.fusion()
    return fusion, lambda values: registered._arguments(found, values[0], values[1]), lambda outputs, t: outputs


def _backward(registered: Any, args: Any) -> tuple[Fusion, Order, Finish]:
    """As `Registered.run_back`, of nodes."""
    _, grads, sizes, _, requires, form = args
    found = registered.recall(form)
    step = found.plan(tuple(requires)).step(tuple(False if g is None else None for g in grads))
    shapes = registered._shapes(found, [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in sizes])
    wanted = [i for i, needed in zip(found._floats, requires) if needed]

    def order(values: Sequence[Any]) -> list[Any]:
        saved, flowing, _, numbers, *_ = values
        left = iter(numbers or ())
        kept = [shape if shape is not None else next(left) for shape in shapes]
        return [*(saved[i] for i in step.used), *(registered.kept_value(found, s, kept) for s in step.scalars), *(g for g in flowing if g is not None)]

    def finish(outputs: list[Operand], t: Translation) -> list[Operand]:
        made = dict(zip(step.positions, outputs))
        return [made[i] if i in made else _zeros(t, shapes[i], found.fusion.inputs()[i].dtype()) for i in wanted]

    return step.executor.fusion(), order, finish


def _zeros(t: Translation, shape: Sequence[Any], dtype: DataType) -> Operand:
    return t.ops.full(t.extents(shape), t.fd.define_scalar(0.0, dtype=dtype), dtype=dtype)


__all__ = ["own_rule"]
