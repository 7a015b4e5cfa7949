"""Memory formats of outputs: what an input that is not row-major hands on."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from weft import FusionDefinition
from weft.reference.torch_types import torch_dtype_to_nvfuser_dtype


def run(build: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(list(x.shape), list(x.stride()), static_sizes=False) for x in inputs]
        out = build(fd.ops, *tensors)
        for value in out if isinstance(out, list) else [out]:
            fd.add_output(value)
    outs = fd.execute(list(inputs))
    return outs


def last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


def same(out: torch.Tensor, expected: torch.Tensor, strides: tuple[int, ...] | None = None) -> None:
    torch.testing.assert_close(out.double(), expected.double(), rtol=1e-5, atol=1e-5)
    assert out.stride() == (expected.stride() if strides is None else strides)


def test_pointwise_keeps_channels_last() -> None:
    x, w = last(2, 5, 3, 4), torch.randn(5)
    (out,) = run(lambda o, x, w: o.relu(o.mul(x, o.broadcast(w, [True, False, True, True]))), x, w)
    same(out, (x * w[:, None, None]).relu(), x.stride())


def test_a_norm_keeps_channels_last_and_its_statistics_are_row_major() -> None:
    x = last(2, 5, 3, 4)

    def build(o: Any, x: Any) -> list[Any]:
        variance, mean = o.var_mean(x, [0, 2, 3], 0, True)
        return [o.mul(o.sub(x, mean), o.rsqrt(o.add(variance, 1e-5))), o.squeeze(mean, [0, 2, 3])]

    out, mean = run(build, x)
    same(out, torch.nn.functional.batch_norm(x.double(), None, None, training=True), x.stride())
    same(mean, x.mean((0, 2, 3)))


def test_sums_over_channels_keep_the_order_of_what_is_left() -> None:
    x = last(2, 5, 3, 4)
    (out,) = run(lambda o, x: o.sum(x, [1]), x)
    same(out, x.sum(1), (12, 4, 1))


def test_inputs_that_disagree_give_row_major() -> None:
    x, y = last(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    (out,) = run(lambda o, x, y: o.add(x, y), x, y)
    same(out, x + y, (60, 12, 4, 1))


def test_a_requested_order_wins() -> None:
    x = last(2, 5, 3, 4)
    (out,) = run(lambda o, x: o.stride_order(o.relu(x), [3, 2, 1, 0]), x)
    same(out, x.relu(), (60, 12, 4, 1))


def test_a_split_of_the_channels_of_a_channels_last_input() -> None:
    x = last(2, 6, 3, 4)
    (out,) = run(lambda o, x: o.exp(o.reshape(x, [2, 2, 3, 3, 4])), x)
    torch.testing.assert_close(out, x.reshape(2, 2, 3, 3, 4).exp())


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_every_order_of_three_axes(order: tuple[int, ...]) -> None:
    x = torch.randn(4, 3, 5).permute(order).contiguous().permute([order.index(d) for d in range(3)])
    (out,) = run(lambda o, x: o.exp(x), x)
    same(out, x.exp(), x.stride())
    asked = [2 - order.index(d) for d in range(3)]
    (out,) = run(lambda o, x: o.stride_order(o.exp(x), asked), torch.randn(4, 3, 5))
    assert out.stride() == x.stride()


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))), ids=str)
def test_an_order_asked_for_behind_a_reduction(order: tuple[int, ...]) -> None:
    x = torch.randn(4, 3, 5)
    (out,) = run(lambda o, x: o.stride_order(o.sum(x, [1]), list(order)), x)
    same(out, x.sum(1), (1, 4) if order == (0, 1) else (5, 1))


def test_results_of_a_byte_keep_channels_last() -> None:
    x = last(2, 5, 3, 4)
    (mask,) = run(lambda o, x: o.gt(x, 0.0), x)
    assert torch.equal(mask, x > 0) and mask.stride() == x.stride()
    (small,) = run(lambda o, x: o.cast(x, dtype=torch_dtype_to_nvfuser_dtype(torch.int8)), x * 20)
    assert torch.equal(small, (x * 20).to(torch.int8)) and small.stride() == x.stride()


def test_what_a_pad_or_slice_leaves_as_it_is_stays_fastest() -> None:
    """The axis of channels is the same before and after; the padded axis is another one, so that the axes around it come in logical order."""
    x = last(2, 5, 3, 4)
    for widths in ([1, 2], [0, 0, 1, -1]):
        (out,) = run(lambda o, x: o.pad(x, widths), x)
        same(out, torch.nn.functional.pad(x, widths).contiguous(memory_format=torch.channels_last))
    (out,) = run(lambda o, x: o.exp(o.slice(x, [0, 0, 0, 1], [2, x.size(1), 3, 3])), x)
    same(out, x[..., 1:3].exp().contiguous(memory_format=torch.channels_last))
    (out,) = run(lambda o, x: o.pad(x, [0, 0, 0, 0, 1, 1]), x)
    same(out, torch.nn.functional.pad(x, [0, 0, 0, 0, 1, 1]).contiguous())
