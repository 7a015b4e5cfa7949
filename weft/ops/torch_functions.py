"""The front end's functions for what torch runs: matrix products and attention.

Owns the checks of their arguments' kinds. Read first: `TORCH_FUNCTIONS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView
from . import arguments as given
from . import attention, matmuls


def _optional(op: str, name: str, value: Any) -> TensorView | None:
    return None if value is None else given.tensor(op, name, value)


def matmul(fusion: Fusion, arg1: Any, arg2: Any) -> TensorView:
    """Return the matrix product of two tensors, as torch.matmul."""
    return matmuls.matmul(fusion, given.tensor("matmul", "arg1", arg1), given.tensor("matmul", "arg2", arg2))


def linear(fusion: Fusion, arg1: Any, arg2: Any, bias: Any = None) -> TensorView:
    """Return arg1 @ arg2.T + bias."""
    return matmuls.linear(fusion, given.tensor("linear", "arg1", arg1), given.tensor("linear", "arg2", arg2), _optional("linear", "bias", bias))


def grouped_mm(
    fusion: Fusion, mat1: Any, mat2: Any, offsets: Any, scale1: Any = None, scale2: Any = None, alpha: Any = None, bias: Any = None, beta: Any = None,
    dtype: Any = DataType.BFloat16, output_block_scale_size: Any = 0, output_block_scale_dtype: Any = DataType.BFloat16, output_gamma: Any = False,
) -> Any:  # fmt: skip
    """Return products of groups that end at offsets; with scales also two Nones, for scales of the result, which it has none of."""
    op = "grouped_mm"
    a, b, ends = (given.tensor(op, name, value) for name, value in (("mat1", mat1), ("mat2", mat2), ("offsets", offsets)))
    matmuls.refuse(op, alpha=alpha, bias=bias, beta=beta, output_block_scale_size=output_block_scale_size, output_gamma=output_gamma)
    if scale1 is None and scale2 is None:
        return matmuls.grouped_mm(fusion, a, b, ends)
    x, y = given.tensor(op, "scale1", scale1), given.tensor(op, "scale2", scale2)
    return matmuls.scaled_grouped_mm(fusion, a, b, ends, x, y, given.data_type(op, "dtype", dtype)), None, None


def scaled_mm(
    fusion: Fusion, mat1: Any, mat2: Any, scale1: Any, scale2: Any, alpha: Any = None, bias: Any = None, beta: Any = None, dtype: Any = DataType.BFloat16,
    output_block_scale_size: Any = 0, output_block_scale_dtype: Any = DataType.BFloat16, output_gamma: Any = False,
) -> Any:  # fmt: skip
    """Return (product of two matrices with scales, None, None)."""
    op = "scaled_mm"
    matmuls.refuse(op, beta=beta, output_block_scale_size=output_block_scale_size, output_gamma=output_gamma)
    a, b, x, y = (given.tensor(op, name, value) for name, value in (("mat1", mat1), ("mat2", mat2), ("scale1", scale1), ("scale2", scale2)))
    out = matmuls.scaled_mm(fusion, a, b, x, y, _optional(op, "alpha", alpha), _optional(op, "bias", bias), given.data_type(op, "dtype", dtype))
    return out, None, None


def _or_numbers_by_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let `function` be called with (query, key, value, dropout_p, is_causal, scale), too.

    This was nvFuser's order before it had bias and mask, which are tensors; Thunder's executor passes numbers in these places.
    """

    @functools.wraps(function)
    def in_either_order(fusion: Fusion, *args: Any, **kwargs: Any) -> Any:
        tensors, numbers = args[:3], dict(zip(("dropout_p", "is_causal", "scale"), args[3:6]))
        is_by_place = any(isinstance(given.number(value), (Scalar, bool, int, float)) for value in args[3:5])
        if not is_by_place or len(args) > 6 or numbers.keys() & kwargs.keys():
            return function(fusion, *args, **kwargs)
        return function(fusion, *tensors, **numbers, **kwargs)

    return in_either_order


@_or_numbers_by_place
def sdpfa_fwd(
    fusion: Fusion, query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, dropout_p: Any = None, is_causal: Any = None, scale: Any = None
) -> tuple[TensorView, ...]:  # fmt: skip
    """Return (output, logsumexp, philox_seed, philox_offset) of scaled dot product attention."""
    op = "sdpfa_fwd"
    q, k, v = (given.tensor(op, name, tensor) for name, tensor in (("query", query), ("key", key), ("value", value)))
    dropout_p, is_causal, scale = _numbers(op, dropout_p, is_causal, scale)
    return attention.forward(fusion, q, k, v, _optional(op, "bias", bias), _optional(op, "mask", mask), dropout_p, is_causal, scale)


def _numbers(op: str, *values: Any) -> list[Any]:
    """Check dropout_p, is_causal and scale, each of which may be left out."""
    return [None if value is None else given.scalar(op, name, value) for name, value in zip(("dropout_p", "is_causal", "scale"), values)]


def sdpfa_bwd(
    fusion: Fusion, grad_output: Any, query: Any, key: Any, value: Any, output: Any, logsumexp: Any, dropout_p: Any, is_causal: Any, philox_seed: Any,
    philox_offset: Any, scale: Any,
) -> tuple[TensorView, ...]:  # fmt: skip
    """Return the gradients of query, key and value."""
    op = "sdpfa_bwd"
    named = {"grad_output": grad_output, "query": query, "key": key, "value": value, "output": output, "logsumexp": logsumexp}
    g, q, k, v, out, sums = (given.tensor(op, name, tensor) for name, tensor in named.items())
    seed, offset = given.tensor(op, "philox_seed", philox_seed), given.tensor(op, "philox_offset", philox_offset)
    dropout_p, is_causal, scale = _numbers(op, dropout_p, is_causal, scale)
    return attention.backward(fusion, g, q, k, v, out, sums, dropout_p, is_causal, seed, offset, scale)


TORCH_FUNCTIONS: tuple[Callable[..., Any], ...] = (matmul, linear, grouped_mm, scaled_mm, sdpfa_fwd, sdpfa_bwd)
