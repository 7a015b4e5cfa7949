"""Scaled dot product attention, forward and backward. Torch runs it; here are its shapes, types and memory layouts.

Read first: `forward`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import Sym, const
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView
from .build import Operand, as_val, logical_axes, own_axis
from .matmuls import WrongOperand, torch_op


def forward(
    fusion: Fusion, query: TensorView, key: TensorView, value: TensorView, bias: TensorView | None, mask: TensorView | None, dropout_p: Operand | None,
    is_causal: Operand | None, scale: Operand | None,
) -> tuple[TensorView, ...]:  # fmt: skip
    """Return (output, logsumexp, philox_seed, philox_offset).

    Shapes: query [N..., H, Q, E], key [N..., Hk, K, E], value [N..., Hk, K, V] -> [N..., H, Q, V], [N..., H, Q], [2], []. The output has the query's type
    and its order in memory. bias is added to the scaled products, mask (Bool) keeps those where it is true.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 4 or tensor.ndim != query.ndim:
            raise WrongOperand(op="sdpfa_fwd", reason=f"{name} has {tensor.ndim} axes", remedy="use query, key and value of one rank, 4 or more")
        if tensor.dtype() is not query.dtype():
            text = f"Expected query and {name} to have the same dtype, got: {query.dtype()} and {tensor.dtype()}"
            raise WrongOperand(op="sdpfa_fwd", reason=text, remedy="cast one of them")
    if mask is not None and mask.dtype() is not DataType.Bool:
        raise WrongOperand(op="sdpfa_fwd", reason=f"mask has type {mask.dtype()}", remedy="use a mask of dtype Bool, or pass it as bias")
    given = {"query": query, "key": key, "value": value, "bias": bias, "mask": mask}
    operands = {name: tensor for name, tensor in given.items() if tensor is not None}
    rows = [own_axis(fusion, a) for a in logical_axes(query)[:-1]]
    results = [
        ([*rows, own_axis(fusion, logical_axes(value)[-1])], query.dtype()),
        ([own_axis(fusion, a) for a in rows], DataType.Double if query.dtype() is DataType.Double else DataType.Float),
        ([fusion.new_axis(2)], DataType.UInt64),
        ([], DataType.UInt64),
    ]
    outs = torch_op(
        fusion, "sdpfa_fwd", list(operands.values()), results, given=tuple(operands), dropout_p=_number(fusion, dropout_p, 0.0),
        is_causal=_number(fusion, is_causal, False), scale=None if scale is None else _number(fusion, scale, 1.0),
    )  # fmt: skip
    lie_like(outs[0], query)
    return tuple(outs)


def backward(
    fusion: Fusion, grad: TensorView, query: TensorView, key: TensorView, value: TensorView, output: TensorView, logsumexp: TensorView,
    dropout_p: Operand | None, is_causal: Operand | None, seed: TensorView, offset: TensorView, scale: Operand | None,
) -> tuple[TensorView, ...]:  # fmt: skip
    """Return the gradients of query, key and value, each with the shape, the type and the order in memory of its tensor."""
    results = [([own_axis(fusion, a) for a in logical_axes(t)], t.dtype()) for t in (query, key, value)]
    outs = torch_op(
        fusion, "sdpfa_bwd", [grad, query, key, value, output, logsumexp, seed, offset], results, dropout_p=_number(fusion, dropout_p, 0.0),
        is_causal=_number(fusion, is_causal, False), scale=None if scale is None else _number(fusion, scale, 1.0),
    )  # fmt: skip
    for out, tensor in zip(outs, (query, key, value)):
        lie_like(out, tensor)
    return tuple(outs)


def _number(fusion: Fusion, value: Operand | None, default: float | bool) -> Sym:
    if value is None:
        return const(default)
    found = as_val(fusion, value, "sdpfa")
    assert isinstance(found, Scalar)
    return found.sym


def lie_like(out: TensorView, tensor: TensorView) -> None:
    """Give `out` the order in memory of `tensor`, which has as many axes."""
    domain, own = tensor.domain(), out.domain()
    if domain.allocation is None:
        return
    place = {axis: dim for dim, axis in enumerate(logical_axes(tensor))}
    own.allocation = [own.logical[place[axis]] for axis in domain.allocation if axis in place]
    own.contiguity = [None if axis.is_broadcast() else True for axis in own.allocation]
