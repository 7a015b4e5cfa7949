"""The setting `deterministic`: scatter and scatter_add give the same bits every time."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.options import options
from weft.ops.torch_ops import _scattered_in_order


@pytest.mark.parametrize("shape", [(7,), (4, 6), (3, 5, 2)])
@pytest.mark.parametrize("dim", [0, -1])
def test_sums_and_values_are_those_of_torch(shape: tuple[int, ...], dim: int) -> None:
    dim %= len(shape)
    base, source = torch.randint(0, 9, shape), torch.randint(0, 9, tuple(n + 1 for n in shape))
    index = torch.randint(0, shape[dim], tuple(n if d == dim else max(1, n - 1) for d, n in enumerate(shape)))
    assert torch.equal(_scattered_in_order(base, index, source, dim, adds=True), torch.scatter_add(base, dim, index, source))
    order = torch.argsort(torch.rand(index.shape), dim)  # no position twice
    assert torch.equal(_scattered_in_order(base, order, source, dim, adds=False), torch.scatter(base, dim, order, source))
    assert not torch.are_deterministic_algorithms_enabled()


def define(op: str) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, s = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        i = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Int)
        fd.add_output(getattr(fd.ops, op)(fd.ops.mul(x, 2.0), i, fd.ops.exp(s), 0))
    return fd


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["scatter_add", "scatter"])
@pytest.mark.parametrize("by", ["weft", "torch"])
def test_the_same_bits_every_time_on_a_gpu(op: str, by: str) -> None:
    fd = define(op)
    torch.manual_seed(0)
    inputs = [torch.randn(64, 257, device="cuda"), torch.randn(20000, 257, device="cuda"), torch.randint(0, 64, (20000, 257), device="cuda")]
    torch.use_deterministic_algorithms(by == "torch")
    try:
        with options(deterministic=by == "weft"):
            results = [fd.execute(inputs)[0] for _ in range(8)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(results[0], r) for r in results)
    if op == "scatter_add":
        expected = torch.scatter_add(inputs[0].double() * 2, 0, inputs[2], inputs[1].double().exp())
        torch.testing.assert_close(results[0].double(), expected, rtol=1e-4, atol=1e-3)
