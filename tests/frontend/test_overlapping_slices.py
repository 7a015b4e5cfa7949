"""Gradients of slices that overlap or move in steps, as of filters that are written out: values of torch in float64, and one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compared_images import compare
from torch.fx.experimental.proxy_tensor import make_fx

from weft.frontend.backend import GRAPHS
from weft.frontend.overlapping_slices import join_slices
from weft.frontend.rewrites import simplify

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("fresh")


def filtered(x: torch.Tensor, taps: int, step: int, dim: int) -> torch.Tensor:
    """A filter written out: each result adds `taps` neighbours, each times a number."""
    count = (x.shape[dim] - taps) // step + 1
    ends = [k + (count - 1) * step + 1 for k in range(taps)]
    return sum(x.transpose(dim, -1)[..., k : ends[k] : step] * ((k + 0.5) / taps) for k in range(taps)).transpose(dim, -1)  # type: ignore[union-attr]


CASES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "steps of two": ((3, 5, 16), 4, 2, -1),
    "steps of two, odd": ((3, 5, 17), 4, 2, -1),
    "steps of two, more taps than that": ((3, 5, 23), 5, 2, -1),
    "steps of three": ((4, 20), 4, 3, -1),
    "steps of three that leave places out": ((4, 20), 2, 3, -1),
    "steps of seven, of which one tap": ((4, 30), 1, 7, -1),
    "neighbours": ((3, 21), 3, 1, -1),
    "along rows": ((2, 19, 7), 4, 2, 1),
    "along rows, neighbours": ((2, 19, 8), 5, 1, 1),
    "along the first axis": ((17, 3), 3, 2, 0),
    "one row": ((1, 33), 4, 2, -1),
    "one column": ((33, 1), 4, 2, 0),
    "one result": ((5, 4), 4, 2, -1),
    "one element": ((5, 1), 1, 2, -1),
    "no rows": ((0, 16), 4, 2, -1),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_of_filters(name: str) -> None:
    shape, taps, step, dim = CASES[name]
    compare(lambda x: filtered(x * 2, taps, step, dim).sin(), torch.randn(shape), gradient_atol=1e-5)


def test_the_gradient_of_a_filter_along_both_axes_in_steps_is_one_kernel() -> None:
    """Each slice had a tensor with zeros between, of a size that no reshape gives, so one was written for each."""
    compare(lambda x: filtered(filtered(x * 2, 4, 2, -1), 4, 2, -2), torch.randn(2, 15, 35), gradient_atol=1e-5)
    assert [len(call.kernels()) for call in GRAPHS[-1].calls] == [1]


def test_a_slice_beside_others_that_is_read_twice() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        part = x[:, 1:16:3]
        return part * part.cos() + x[:, 0:15:3].sin() + x[:, :5] * x[:, 4:9] + x[:, 12:]

    compare(f, torch.randn(6, 17), gradient_atol=1e-5)


@pytest.mark.parametrize(("size", "start", "step"), [(11, 1, 2), (12, 2, 3), (10, 0, 2), (9, 9, 2), (7, 5, 4), (1, 0, 2)])
def test_every_few_elements_replaced(size: int, start: int, step: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        part = (x[:, start::step] * 3).cos()
        return torch.slice_scatter(x * 2, part, 1, start, size, step).sin()

    compare(f, torch.randn(5, size), gradient_atol=1e-5)


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """Trace a function, write it anew, and check that its values did not change."""
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    join_slices(gm.graph)
    simplify(gm.graph, splits_bias=False)
    gm.graph.lint()
    gm.recompile()
    torch.testing.assert_close(gm(*inputs), function(*inputs), rtol=1e-6, atol=1e-6)
    return gm


def targets(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def spread(x: torch.Tensor, size: int, start: int, step: int) -> torch.Tensor:
    return aten.slice_backward(x, [3, size], 1, start, start + (x.shape[1] - 1) * step + 1, step)


def test_the_same_gradient_twice_and_in_two_axes_is_added_twice() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        own = spread(a, 11, 1, 2)
        return own + own + aten.slice_backward(a, [6, 5], 0, 1, 6, 2)[:3, :1] + spread(a, 11, 0, 2) + spread(a, 11, 3, 1)

    assert aten.slice_scatter.default in targets(graph_of(f, torch.randn(3, 5)))


def test_slices_that_are_places_of_an_axis_stay_reshapes() -> None:
    """Every second element, and those between: two axes, which need no lookup."""
    made = targets(graph_of(lambda a, b: spread(a, 10, 0, 2) + spread(b, 10, 1, 2), torch.randn(3, 5), torch.randn(3, 5)))
    assert made.count(aten.slice_scatter.default) == 2 and aten.index.Tensor not in made


def test_differences_of_neighbours_stay_two_slices() -> None:
    made = targets(graph_of(lambda a, b: spread(a, 6, 0, 1) + spread(b, 6, 1, 1), torch.randn(3, 5), torch.randn(3, 5)))
    assert made.count(aten.slice_scatter.default) == 2 and aten.index.Tensor not in made
