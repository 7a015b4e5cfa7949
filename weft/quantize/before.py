"""The norms and activations that a recipe can be fused behind, as ops of a definition.

Each takes the inputs as Float tensors and returns what is quantized, and further results. Read first: `BEFORE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir.fusion import Fusion
from ..ir.values import TensorView, Val
from ..ops.build import pointwise
from ..ops.reductions import reduce, var_mean

Made = tuple[TensorView, list[TensorView]]


def plain(fusion: Fusion, inputs: Sequence[TensorView], eps: float) -> Made:
    """x"""
    return inputs[0], []


def rms_norm(fusion: Fusion, inputs: Sequence[TensorView], eps: float) -> Made:
    """x / sqrt(mean(x * x) + eps) * weight"""
    x = inputs[0]
    squares: Any = reduce(fusion, "sum", pointwise(fusion, "mul", x, x), [-1], True, None)  # type: ignore[arg-type]
    mean = pointwise(fusion, "div", squares, x.size(x.ndim - 1))
    normed = pointwise(fusion, "mul", x, pointwise(fusion, "rsqrt", pointwise(fusion, "add", mean, eps)))
    return pointwise(fusion, "mul", normed, inputs[1]), []  # type: ignore[return-value]


def add_rms_norm(fusion: Fusion, inputs: Sequence[TensorView], eps: float) -> Made:
    """rms_norm(x + residual), and x + residual"""
    x, residual, weight = inputs
    total: Any = pointwise(fusion, "add", x, residual)
    return rms_norm(fusion, [total, weight], eps)[0], [total]


def layer_norm(fusion: Fusion, inputs: Sequence[TensorView], eps: float) -> Made:
    """(x - mean) / sqrt(variance + eps) * weight + bias"""
    x, weight, bias = inputs
    variance, mean = var_mean(fusion, x, [-1], 0, True)
    normed = pointwise(fusion, "mul", pointwise(fusion, "sub", x, mean), pointwise(fusion, "rsqrt", pointwise(fusion, "add", variance, eps)))
    return pointwise(fusion, "add", pointwise(fusion, "mul", normed, weight), bias), []  # type: ignore[return-value]


def silu_mul(fusion: Fusion, inputs: Sequence[TensorView], eps: float) -> Made:
    """silu(x) * y"""
    return pointwise(fusion, "mul", pointwise(fusion, "silu", inputs[0]), inputs[1]), []  # type: ignore[return-value]


BEFORE: dict[str, Callable[[Fusion, Sequence[TensorView], float], Made]] = {
    "": plain, "rms_norm": rms_norm, "add_rms_norm": add_rms_norm, "layer_norm": layer_norm, "silu_mul": silu_mul,
}  # fmt: skip
BY_ROWS = frozenset(["rms_norm", "add_rms_norm", "layer_norm"])
"""Those that keep rows."""
__all__ = ["BEFORE", "BY_ROWS", "Made", "Val"]
