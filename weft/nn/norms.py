"""Norms along the last axes: of rows, after a sum, after a lookup. Read first: `layer_norm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ops import composites as c
from ..runtime.argument_kinds import checked
from .family import Family
from .quick import quick
from .results import Tensor, WrongArgument, result_type


def _layer_norm(o: Any, x: Any, weight: Any, bias: Any, *, rank: int, eps: float, out: Any) -> Any:
    return c.narrowed(o.layer_norm(c.wide(x), [-1] * rank, weight, bias, eps), out)


_LAYER_NORM = Family("layer_norm", _layer_norm, ["input", "weight", "bias"], folds=True)


def _normalized(name: str, x: Tensor, shape: Sequence[int] | int, *parameters: Tensor | None) -> int:
    """Return the number of normalized axes. Errors: WrongArgument where shapes do not fit."""
    if isinstance(shape, Tensor):
        raise WrongArgument(function=name, problem="normalized_shape is a tensor", remedy=f"write {name}(x, x.shape[-1:], weight)")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not sizes or tuple(x.shape[x.dim() - len(sizes) :]) != sizes:
        problem = f"normalized_shape is {list(sizes)}, the input has sizes {list(x.shape)}"
        raise WrongArgument(function=name, problem=problem, remedy="pass the sizes of the last axes of the input")
    for parameter in parameters:
        if parameter is not None and tuple(parameter.shape) != sizes:
            problem = f"weight or bias has sizes {list(parameter.shape)}, normalized_shape is {list(sizes)}"
            raise WrongArgument(function=name, problem=problem, remedy="use a weight and a bias with the sizes of normalized_shape")
    return len(sizes)


@quick
def layer_norm(input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """torch.nn.functional.layer_norm. weight and bias may be of another float type than input; the result has the input's."""
    rank = _normalized("layer_norm", input, normalized_shape, weight, bias)
    return _LAYER_NORM((input, weight, bias), rank=rank, eps=float(eps), out=result_type(input))


CASTINGS = ("torch", "llama", "gemma")


def _rms_norm(o: Any, x: Any, weight: Any, residual: Any, *, rank: int, eps: float | None, offset: float, casting: str, out: Any, kept: Any) -> Any:
    wide = c.wide(x)
    if residual is not None:
        wide = c.narrowed(wide + c.wide(residual), kept)
        total = wide
        wide = c.wide(wide)
    eps = c.EPSILON.get(x.dtype(), 2.0**-23) if eps is None else eps
    y = o.rms_norm(wide, [-1] * rank, None, eps)
    if weight is not None:
        w = c.wide(weight)
        if casting == "llama":
            y = c.wide(c.narrowed(y, x.dtype()))
        y = y * (w + offset if offset else w)
    y = c.narrowed(y, out)
    return y if residual is None else (y, total)


_RMS_NORM = Family("rms_norm", _rms_norm, ["input", "weight", "residual"], folds=True)


@quick
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, eps: float | None = None, *, residual: Tensor | None = None,
    residual_dtype: torch.dtype | None = None, weight_offset: float = 0.0, casting: str = "torch",
) -> Any:  # fmt: skip
    """torch.nn.functional.rms_norm, and what models add to it.

    residual: is added first; then (result, sum) is returned, the sum in residual_dtype (the residual's own unless given).
    weight_offset: is added to the weight (1.0 for weights that are stored around 0). casting: "torch" and "gemma" multiply by the weight in float32 and round
    once; "llama" rounds to the input's type before the weight, as Hugging Face's Llama does.
    """
    rank = _normalized("rms_norm", input, normalized_shape, weight)
    if casting not in CASTINGS:
        raise WrongArgument(function="rms_norm", problem=f"casting is {casting!r}", remedy=f"use one of {', '.join(CASTINGS)}")
    kept = None if residual is None else residual_dtype or residual.dtype
    eps = None if eps is None else float(eps)
    static = {"rank": rank, "eps": eps, "offset": float(weight_offset), "casting": casting, "out": result_type(input), "kept": kept}
    return _RMS_NORM((input, weight, residual), **static)


@checked
def add_rms_norm(input: Tensor, residual: Tensor, weight: Tensor | None, eps: float = 1e-6, **keywords: Any) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(input + residual), input + residual): rms_norm over the last axis with residual=."""
    return rms_norm(input, input.shape[-1:], weight, eps, residual=residual, **keywords)


def _dropout_add_layer_norm(o: Any, x: Any, residual: Any, weight: Any, bias: Any, *, p: float, eps: float, kept: Any) -> Any:
    total = c.wide(o.dropout(c.wide(x), p)) if p else c.wide(x)
    if residual is not None:
        total = total + c.wide(residual)
    total = c.narrowed(total, kept)
    return c.narrowed(o.layer_norm(c.wide(total), [-1], weight, bias, eps), x.dtype()), total


_DROPOUT_ADD = Family("dropout_add_layer_norm", _dropout_add_layer_norm, ["input", "residual", "weight", "bias"])


@quick
def dropout_add_layer_norm(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None = None, dropout_p: float = 0.0, eps: float = 1e-5, *,
    training: bool = True, residual_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (layer_norm(s), s) over the last axis, s = dropout(input) + residual in residual_dtype (the residual's, or the input's)."""
    if not 0.0 <= dropout_p <= 1.0:
        raise WrongArgument(function="dropout_add_layer_norm", problem=f"dropout_p is {dropout_p}", remedy="use a probability from 0 to 1")
    kept = residual_dtype or (input.dtype if residual is None else residual.dtype)
    return _DROPOUT_ADD((input, residual, weight, bias), p=float(dropout_p) if training else 0.0, eps=float(eps), kept=kept)


@checked
def embedding_rms_norm(indices: Tensor, table: Tensor, weight: Tensor | None, eps: float = 1e-6, *, weight_offset: float = 0.0) -> Tensor:
    """Return rms_norm(table[indices]) over the last axis. The rows are looked up by torch, whose backward adds up repeated ones deterministically."""
    _check_indices("embedding_rms_norm", indices, table)
    return rms_norm(torch.nn.functional.embedding(indices, table), table.shape[-1:], weight, eps, weight_offset=weight_offset)


def _check_indices(function: str, indices: Tensor, table: Tensor) -> None:
    if table.dim() != 2:
        raise WrongArgument(function=function, problem=f"the table has sizes {list(table.shape)}", remedy="pass a matrix with one row for each index")
    if indices.dtype not in (torch.int64, torch.int32):
        raise WrongArgument(function=function, problem=f"indices have the type {indices.dtype}", remedy="pass integers: indices.long()")


@checked
def embedding_layer_norm(indices: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Return layer_norm(table[indices]) over the last axis; see `embedding_rms_norm`."""
    _check_indices("embedding_layer_norm", indices, table)
    return layer_norm(torch.nn.functional.embedding(indices, table), table.shape[-1:], weight, bias, eps)


__all__ = ["add_rms_norm", "dropout_add_layer_norm", "embedding_layer_norm", "embedding_rms_norm", "layer_norm", "rms_norm"]
