"""topk of a few values is a fold in a kernel: values, positions, ties, numbers that are none, every axis and type; more values run in torch."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.ops.largest import MOST


def largest(x: torch.Tensor, k: int, dim: int, is_largest: bool = True) -> tuple[FusionDefinition, torch.Tensor, torch.Tensor]:
    """Return a definition that was called, and its results."""
    with FusionDefinition() as fd:
        for result in fd.ops.topk(fd.from_pytorch(x), fd.define_scalar(k), dim, is_largest, True):
            fd.add_output(result)
    return fd, *fd.execute([x])


def in_order(x: torch.Tensor, k: int, dim: int, is_largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Of equal values the first: a stable sort, in which what is no number is the largest."""
    values, places = torch.sort(x, dim=dim, descending=is_largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


def has_torch_steps(fd: FusionDefinition) -> bool:
    return "op of torch" in str(fd.fec._caller.last) or "ops of torch" in str(fd.fec._caller.last)


SHAPES = [((5, 37), 1), ((37, 5), 0), ((3, 129, 7), 1), ((1, 5000), 1), ((2, 2049), -1), ((70, 8), 1), ((1000,), 0), ((70, 64), 0)]


@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize(("k", "is_largest"), [(1, False), (3, True), (5, False), (8, True)])
def test_values_and_positions_of_a_few(shape: tuple[int, ...], dim: int, k: int, is_largest: bool) -> None:
    k = min(k, shape[dim])
    x = torch.randn(shape)
    fd, values, places = largest(x, k, dim, is_largest)
    wanted = in_order(x, k, dim, is_largest)
    assert torch.equal(values, wanted[0]) and torch.equal(places, wanted[1]) and places.dtype is torch.int64
    assert not has_torch_steps(fd)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("is_largest", [True, False])
def test_types_and_equal_values(dtype: torch.dtype, is_largest: bool) -> None:
    x = torch.randint(-4, 5, (6, 301)).to(dtype)  # each value many times
    if dtype is torch.int64:
        x[0, 7], x[1, 9] = 2**62 + 1, -(2**62) - 1
    _, values, places = largest(x, 4, 1, is_largest)
    wanted = in_order(x, 4, 1, is_largest)
    assert values.dtype is dtype and torch.equal(values, wanted[0]) and torch.equal(places, wanted[1])


@pytest.mark.parametrize("shape", [(9, 8), (16, 24), (5, 1), (30, 40)], ids=str)
def test_few_threads_down_a_column(shape: tuple[int, ...]) -> None:
    """A block is made of whole warps with no more threads, whose values meet in shared memory, than that takes."""
    x = torch.randint(-40, 40, shape).half()
    _, values, places = largest(x, 5, 0)
    wanted = in_order(x, 5, 0, True)
    assert torch.equal(values, wanted[0]) and torch.equal(places, wanted[1])


@pytest.mark.parametrize("is_largest", [True, False])
def test_infinities_and_what_is_no_number(is_largest: bool) -> None:
    x = torch.randn(5, 40)
    x[0, ::3], x[1], x[2, 5:], x[3, 7], x[4, 1:] = float("nan"), float("nan"), -float("inf"), float("inf"), float("inf")
    _, values, places = largest(x, 3, 1, is_largest)
    wanted = in_order(x, 3, 1, is_largest)
    torch.testing.assert_close(values, wanted[0], equal_nan=True, rtol=0, atol=0)
    assert torch.equal(places, wanted[1])


def test_as_many_values_as_there_are_and_more() -> None:
    x = torch.randn(4, 3)
    _, values, places = largest(x, 3, 1)
    assert torch.equal(values, x.sort(1, descending=True)[0]) and torch.equal(x.gather(1, places), values)
    _, values, places = largest(x[:, :1], 1, 1)
    assert torch.equal(values, x[:, :1]) and torch.equal(places, torch.zeros(4, 1, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="out of range"):
        largest(x, 4, 1)


def test_more_than_a_few_run_in_torch() -> None:
    x = torch.randn(4, 90)
    fd, values, _ = largest(x, MOST + 1, 1)
    assert torch.equal(values, x.topk(MOST + 1, 1)[0]) and has_torch_steps(fd)


def test_one_definition_at_many_sizes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        for result in fd.ops.topk(x, fd.define_scalar(4), 1):
            fd.add_output(result)
    for rows, columns in ((3, 9), (17, 100), (1, 4), (2, 6000), (0, 5)):
        given = torch.randn(rows, columns)
        values, places = fd.execute([given])
        assert torch.equal(values, given.topk(4, 1)[0]) and torch.equal(given.gather(1, places), values)
    with pytest.raises(RuntimeError, match="out of range"):
        fd.execute([torch.randn(3, 2)])
    assert torch.equal(fd.execute([torch.ones(3, 8)])[1], torch.arange(4).expand(3, 4))


def test_a_router_takes_what_softmax_makes_in_the_kernel_of_the_softmax() -> None:
    """Shares of experts, of which each token keeps two, divided by their sum."""
    with FusionDefinition() as fd:
        x, o = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), fd.ops
        f = o.cast(x, DataType.Float)
        e = o.exp(o.sub(f, o.max(f, [1], True)))
        values, places = o.topk(o.truediv(e, o.sum(e, [1], True)), fd.define_scalar(2), 1)
        fd.add_output(o.truediv(values, o.sum(values, [1], True)))
        fd.add_output(places)
    x = torch.randn(33, 64).bfloat16()
    shares, experts = fd.execute([x])
    wanted, order = x.double().softmax(1).topk(2, 1)
    torch.testing.assert_close(shares.double(), wanted / wanted.sum(1, keepdim=True), rtol=1e-6, atol=1e-7)
    assert torch.equal(x.gather(1, experts), x.gather(1, order))
    assert not has_torch_steps(fd)


def test_values_behind_a_reshape() -> None:
    x = torch.randn(4, 6, 10)
    with FusionDefinition() as fd:
        y = fd.ops.reshape(fd.ops.neg(fd.from_pytorch(x)), [4, 60])
        for result in fd.ops.topk(y, fd.define_scalar(3), 1):
            fd.add_output(result)
    values, places = fd.execute([x])
    assert torch.equal(values, (-x).reshape(4, 60).topk(3, 1)[0]) and torch.equal((-x).reshape(4, 60).gather(1, places), values)


def test_rows_are_folded_beside_columns_that_keep_a_few() -> None:
    """States of four values are more than one access moves: no kernel for both sides takes them."""
    x = torch.randn(13, 48)
    with FusionDefinition() as fd:
        y = fd.from_pytorch(x)
        fd.add_output(fd.ops.max(y, [1]))
        for result in fd.ops.topk(y, fd.define_scalar(4), 0, False, True):
            fd.add_output(result)
    rows, values, places = fd.execute([x])
    assert torch.equal(rows, x.amax(1)) and torch.equal(values, x.topk(4, 0, False)[0]) and torch.equal(x.gather(0, places), values)
