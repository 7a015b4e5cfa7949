"""Axes bound to streams: the product is computed in pieces, and everything else as if nothing were bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from weft import FusionDefinition, ParallelType, Unsupported

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def products(fd: FusionDefinition, inputs: list[torch.Tensor], op: str) -> tuple[torch.Tensor, list[list[Any]]]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        (out,) = fd.execute(inputs, _enable_options=["host_ir_lowering"])
    return out, [event.input_shapes for event in found.events() if event.name == op]


def test_columns_in_pieces_are_products_of_their_own_with_the_result_as_argument() -> None:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.matmul(x, w)
        fd.add_output(y)
        for tensor in (w, y):
            tensor.outer_split(1, 3)
            tensor.axis(1).parallelize(ParallelType.stream)
    a, b = torch.randn(5, 7, device=DEVICE), torch.randn(7, 6, device=DEVICE)
    out, calls = products(fd, [a, b], "aten::mm")
    torch.testing.assert_close(out, a @ b)
    assert calls == [[[5, 7], [7, 2], [5, 2]]] * 3


def test_rows_in_pieces_that_do_not_divide_beside_a_kernel() -> None:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.matmul(fd.ops.exp(x), w)
        fd.add_output(fd.ops.relu(y))
        y.outer_split(0, 2)
        y.axis(0).parallelize(ParallelType.stream)
    a, b = torch.randn(5, 7, device=DEVICE), torch.randn(7, 6, device=DEVICE)
    out, calls = products(fd, [a, b], "aten::mm")
    torch.testing.assert_close(out, (a.exp() @ b).relu(), rtol=1e-4, atol=1e-4)
    assert [sizes[2] for sizes in calls] == [[3, 6], [2, 6]]


def test_one_product_for_each_element_of_a_batch() -> None:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([3, 4, 5], contiguity=True), fd.define_tensor([3, 5, 2], contiguity=True)
        y = fd.ops.matmul(x, w)
        fd.add_output(y)
        y.axis(0).parallelize(ParallelType.stream)
    a, b = torch.randn(3, 4, 5, device=DEVICE), torch.randn(3, 5, 2, device=DEVICE)
    out, calls = products(fd, [a, b], "aten::matmul")
    torch.testing.assert_close(out, a @ b)
    assert [sizes[2] for sizes in calls] == [[1, 4, 2]] * 3


def test_linear_with_its_bias() -> None:
    with FusionDefinition() as fd:
        x, w, c = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1])
        y = fd.ops.linear(x, w, c)
        fd.add_output(y)
        y.outer_split(1, 2)
        y.axis(1).parallelize(ParallelType.stream)
    a, b, bias = torch.randn(5, 7, device=DEVICE), torch.randn(6, 7, device=DEVICE), torch.randn(6, device=DEVICE)
    out, calls = products(fd, [a, b, bias], "aten::mm")
    torch.testing.assert_close(out, torch.nn.functional.linear(a, b, bias))
    assert len(calls) == 2


def test_a_bound_axis_that_is_no_outer_part_is_refused() -> None:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.matmul(x, w)
        fd.add_output(y)
        y.split(1, 2)
        y.axis(1).parallelize(ParallelType.stream)
    with pytest.raises(Unsupported, match="bound to streams"):
        fd.execute([torch.randn(4, 4, device=DEVICE)] * 2)
