"""What pointwise expressions cost, from the op registry.

Owns the sums over expressions; the figures of one op are in `weft.ops`.
Read first: `cost_of`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from ..ir.values import Expr, PointwiseOp, RandomOp, ReductionOp, TensorView, WelfordOp
from ..ops import binary, cast, ternary, unary  # noqa: F401  (they fill the registry)
from ..ops.monoids import MONOIDS
from ..ops.registry import OPS

INSTRUCTIONS_PER_BYTE, MUFU_SLOTS = 6, 8
"""Instructions that all threads of a chip execute while it moves a byte, counted: docs/constants.md; and those that a special function takes the place of: 16
lanes of 128 compute them."""
LAUNCH_BYTES = 10 << 20
"""A launch costs as much time as moving these. Measured: docs/constants.md."""
RANDOM_INSTRUCTIONS = 40
"""Instructions per number of Philox 4x32-10: 10 rounds of about 14 instructions make 4 numbers, plus the conversion."""


DOUBLE_SLOTS, CONVERSION_SLOTS = 2, 8
"""Throughput of float ops relative to double ops, and to conversions from or to double. Source: CUDA C++ programming guide, throughput of arithmetic, 9.0."""


@dataclass(frozen=True)
class OpCost:
    """instructions: issue slots per element, about. mufu: special-function instructions per element (they have a separate pipe). has_exp: there are
    exponentials or similar ops; has_exact_exp: with the full accuracy of float, which takes four times the instructions.
    """

    instructions: int
    mufu: int
    has_exp: bool
    has_rng: bool
    has_exact_exp: bool

    @property
    def slots(self) -> int:
        """Issue slots per element of all instructions, special functions among them."""
        return self.instructions + MUFU_SLOTS * self.mufu


def _slots(expr: PointwiseOp) -> int:
    """Return the issue slots of an expression, relative to a float op."""
    types = {t.dtype() for t in (*expr.tensor_inputs, *expr.tensor_outputs)}
    if not any(dtype.bits == 64 and dtype.is_float for dtype in types):
        return 1
    return CONVERSION_SLOTS if expr.op_name == "cast" and not all(dtype.bits == 64 for dtype in types) else DOUBLE_SLOTS


def cost_of(exprs: Iterable[Expr], wide: Container[TensorView]) -> OpCost:
    """Sum the cost per element of `exprs`. wide: the tensors that are used with more than 16 bits, see `precision.wide_tensors`."""
    instructions = mufu = 0
    has_exp = has_rng = has_exact_exp = False
    for expr in exprs:
        if isinstance(expr, RandomOp):
            has_rng = True
            instructions += RANDOM_INSTRUCTIONS
        elif isinstance(expr, WelfordOp):
            instructions += 6
        elif isinstance(expr, ReductionOp):
            monoid = MONOIDS[expr.attributes["kind"]]
            instructions += monoid.instructions
            mufu += monoid.mufu
        elif isinstance(expr, PointwiseOp):
            definition = OPS.get(expr.op_name)
            if definition is None:
                instructions += 1
                continue
            is_narrow = definition.narrow_flops > 0 and expr.outputs[0] not in wide
            instructions += max(1, definition.instructions(expr.inputs, is_narrow=is_narrow)) * _slots(expr)
            mufu += definition.is_mufu
            has_exp = has_exp or definition.is_exp
            has_exact_exp = has_exact_exp or definition.is_exp and not is_narrow
    return OpCost(instructions, mufu, has_exp, has_rng, has_exact_exp)
