"""What tests of channels and groups define alike: batch norm, group norm, instance norm and a softmax across memory, and kernels with params of a test's own.

Read first: `batch_norm`, `with_params`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fusion_check import poisoned_outputs
from row_fusions import wide

import torch
from weft import DataType, FusionDefinition
from weft.ir.values import TensorView
from weft.runtime import runtimes

BF16, FLOAT = DataType.BFloat16, DataType.Float


def along(fd: FusionDefinition, t: TensorView, like: TensorView, axes: list[int]) -> TensorView:
    return fd.ops.broadcast_in_dim(t, like.shape(), axes)


def normalized(fd: FusionDefinition, x: TensorView, axes: list[int]) -> TensorView:
    var, mean = fd.ops.var_mean(x, axes, correction=0, keepdim=True)
    return fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))


def batch_norm(dtype: DataType = BF16, rank: int = 4, channel: int = 1, residual: bool = False) -> FusionDefinition:
    """Training's forward: statistics of the call, weight and bias of each channel; the axis of the channels is `channel`."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype)
        w, b = (fd.define_tensor([-1], contiguity=True, dtype=dtype) for _ in range(2))
        r = fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype) if residual else None
        f = wide(fd, x)
        y = normalized(fd, f, [n for n in range(rank) if n != channel])
        y = fd.ops.add(fd.ops.mul(y, along(fd, wide(fd, w), f, [channel])), along(fd, wide(fd, b), f, [channel]))
        fd.add_output(fd.ops.cast(y if r is None else fd.ops.relu(fd.ops.add(y, wide(fd, r))), dtype))
    return fd


def batch_norm_backward(dtype: DataType = BF16, rank: int = 4, channel: int = 1) -> FusionDefinition:
    """Gradients of the input, the weight and the bias, from mean and 1 / standard deviation of each channel."""
    with FusionDefinition() as fd:
        ops, within = fd.ops, [n for n in range(rank) if n != channel]
        dy, x = (wide(fd, fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype)) for _ in range(2))
        weight, mean, rstd = (along(fd, wide(fd, fd.define_tensor([-1], contiguity=True, dtype=d)), x, [channel]) for d in (dtype, FLOAT, FLOAT))
        normal, scaled = ops.mul(ops.sub(x, mean), rstd), ops.mul(dy, weight)
        plain, tilted = (ops.mean(t, within, keepdim=True) for t in (scaled, ops.mul(scaled, normal)))
        dx = ops.mul(rstd, ops.sub(scaled, ops.add(plain, ops.mul(normal, tilted))))
        for t in (dx, ops.sum(ops.mul(dy, normal), within), ops.sum(dy, within)):
            fd.add_output(ops.cast(t, dtype))
    return fd


def group_norm(groups: int, shape: tuple[int, ...], dtype: DataType = BF16) -> FusionDefinition:
    """Groups of channels of (N, C, H, W); shape: that of the calls."""
    n, c, h, w = shape
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 4, contiguity=True, dtype=dtype)
        weight, bias = (fd.define_tensor([-1], contiguity=True, dtype=dtype) for _ in range(2))
        f = fd.ops.reshape(wide(fd, x), new_shape=[n, groups, c // groups, h, w])
        y = fd.ops.reshape(normalized(fd, f, [2, 3, 4]), new_shape=[n, c, h, w])
        y = fd.ops.add(fd.ops.mul(y, along(fd, wide(fd, weight), y, [1])), along(fd, wide(fd, bias), y, [1]))
        fd.add_output(fd.ops.cast(y, dtype))
    return fd


def softmax_across(dtype: DataType = BF16, rank: int = 2, axis: int = 0) -> FusionDefinition:
    with FusionDefinition() as fd:
        f = wide(fd, fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype))
        e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [axis], True)))
        fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [axis], True)), dtype))
    return fd


def with_params(fd: FusionDefinition, **fields: Any) -> FusionDefinition:
    """Let kernels of `fd` have these fields in place of those that the scheduler chose."""
    caller = fd._executor_cache()._caller

    def request(use: Any, sizes: Any, engine: Any, options: Any, disable: frozenset[str] = frozenset()) -> runtimes.Request:
        proposal = runtimes.propose(caller.shared, use, sizes, engine, options).proposal
        proposal = dataclasses.replace(proposal, params=dataclasses.replace(proposal.params, **fields))
        return runtimes.request_for(proposal, use.part, runtimes.index_type_for(use, sizes), engine, options)

    caller.request = request  # type: ignore[method-assign]
    return fd


def checked(fd: FusionDefinition, inputs: list[torch.Tensor]) -> Any:
    """Run in the emulator beside the reference, twice, bit for bit the same; return the runtime of the kernel."""
    with poisoned_outputs():
        fd.validate(inputs)
        first, second = fd.execute(inputs), fd.execute(inputs)
    for a, b in zip(first, second):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
    (runtime,) = fd.fec.kernel_runtimes[-1:]
    return runtime
