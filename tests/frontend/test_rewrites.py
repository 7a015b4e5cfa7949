"""Graphs that are written anew: gradients of slices, biases of convolutions, dense views, sums into rows; values stay eager's, and the ops are those meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from weft.frontend import regions
from weft.frontend.backend import GRAPHS, backend
from weft.frontend.rewrites import simplify
from weft.options import options

aten = torch.ops.aten


pytestmark = pytest.mark.usefixtures("fresh")


def rewritten(function: Callable[..., Any], *inputs: torch.Tensor, splits_bias: bool = True) -> torch.fx.GraphModule:
    """Trace a function of aten ops, write it anew, and check that its values did not change."""
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    simplify(gm.graph, splits_bias=splits_bias)
    gm.graph.lint()
    gm.recompile()
    for got, want in zip(gm(*inputs), function(*inputs), strict=True):
        assert got.dtype is want.dtype and got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    return gm


def targets(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def test_gradients_of_all_positions_are_one_concatenation() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [aten.select_backward(x, [3, 4, 5], 0, index) for index, x in ((2, a), (-3, b), (1, c))]
        return (parts[0] + parts[1] + parts[2],)

    made = targets(rewritten(f, *(torch.randn(4, 5) for _ in range(3))))
    assert aten.cat.default in made and aten.add.Tensor not in made and aten.slice_scatter.default not in made


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_stack_is_a_concatenation_along_an_axis_of_its_own(dim: int) -> None:
    """A view that splits the concatenated axis would keep the kernel that reads it apart from those that compute the parts."""

    def f(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = list(parts[0].shape)
        return (aten.view(aten.cat(list(parts), dim), [*sizes[:dim], 3, *sizes[dim:]]) * 2,)

    made = rewritten(f, *(torch.randn(4, 5, 6) for _ in range(3)))
    (cat,) = (node for node in made.graph.nodes if node.target is aten.cat.default)
    assert cat.meta["val"].dim() == 4 and aten.view.default not in targets(made)


def test_parts_of_a_stack_whose_axis_is_merged_again_lie_side_by_side() -> None:
    """Gradients of queries, keys and values, which `unbind` takes from one product: each is a contiguous part of a row, and no copy permutes them later."""

    def f(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stacked = aten.view(aten.cat(list(parts)), [3, 2, 4, 7, 8])
        return (aten.view(aten.clone(aten.permute(stacked, [1, 3, 0, 2, 4]), memory_format=torch.contiguous_format), [2, 7, 96]),)

    made = rewritten(f, *(torch.randn(2, 4, 7, 8) for _ in range(3)))
    (cat,) = (node for node in made.graph.nodes if node.target is aten.cat.default)
    assert tuple(cat.meta["val"].shape) == (2, 7, 96) and aten.clone.default not in targets(made)


def test_concatenations_that_are_no_stacks_stay() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        several, uneven = aten.cat([a, a]), aten.cat([a, b])
        return aten.view(several, [4, 2, 5]), aten.view(uneven, [2, 5, 5]), several + 1

    assert targets(rewritten(f, torch.randn(4, 5), torch.randn(6, 5))).count(aten.view.default) == 2


def test_gradients_of_slices_join_beside_another_gradient() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.slice_backward(a, [4, 8], 1, 0, 3, 1) + c + aten.slice_backward(b, [4, 8], 1, 3, 2**63 - 1, 1),)

    made = targets(rewritten(f, torch.randn(4, 3), torch.randn(4, 5), torch.randn(4, 8)))
    assert made.count(aten.cat.default) == 1 and made.count(aten.add.Tensor) == 1


@pytest.mark.parametrize("bounds", [((0, 3), (4, 8)), ((0, 4), (3, 8)), ((0, 3), (0, 3))])
def test_slices_that_leave_a_gap_or_overlap_are_summed(bounds: tuple[tuple[int, int], ...]) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (one, two), (three, four) = bounds
        return (aten.slice_backward(a, [4, 8], 1, one, two, 1) + aten.slice_backward(b, [4, 8], 1, three, four, 1),)

    made = targets(rewritten(f, *(torch.randn(4, end - start) for start, end in bounds)))
    assert aten.cat.default not in made and made.count(aten.slice_scatter.default) == 2


@pytest.mark.parametrize(("transposed", "groups"), [(False, 1), (False, 2), (True, 1)])
def test_a_bias_is_added_after_its_convolution_and_its_gradient_summed(transposed: bool, groups: int) -> None:
    x, w, b = torch.randn(2, 4, 7, 5), torch.randn(4, 4 // groups, 3, 3), torch.randn(4)
    geometry = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.convolution(x, w, b, *geometry),)

    def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.convolution_backward(g, x, w, [4], *geometry, [True, True, True])

    node = next(n for n in rewritten(forward, x, w, b).graph.nodes if n.target is aten.convolution.default)
    assert node.args[2] is None
    node = next(n for n in rewritten(backward, torch.randn(2, 4, 7, 5), x, w).graph.nodes if n.target is aten.convolution_backward.default)
    assert node.args[-1] == [True, True, False]
    assert aten.sum.dim_IntList not in targets(rewritten(backward, torch.randn(2, 4, 7, 5), x, w, splits_bias=False))


@pytest.mark.parametrize("place", ["from 0", "in a batch of one", "all rows", "from 1", "backwards", "twice", "with padding"])
def test_a_table_of_positions_has_its_gradient_without_a_sort(place: str) -> None:
    """Only where the rows are taken in order, and none is left out."""
    rows = 6 if place == "all rows" else 9

    def f(table: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        index = {"from 1": torch.arange(1, 7), "backwards": torch.arange(5, -1, -1), "twice": torch.arange(6) // 2}.get(place, torch.arange(6))
        index = index.unsqueeze(0) if place == "in a batch of one" else index
        return (F.embedding(index, table, padding_idx=2 if place == "with padding" else None) * factor).sum(-1)

    table, factor = torch.randn(rows, 5, requires_grad=True), torch.randn(6, 5)
    exact = table.detach().double().requires_grad_()
    with options(row_sums="sort"):
        torch.compile(f, backend=backend, options={"emulate": True, "debug": True})(table, factor).sum().backward()
    f(exact, factor.double()).sum().backward()
    torch.testing.assert_close(table.grad.double(), exact.grad, rtol=1e-6, atol=1e-6)
    assert table.grad.is_contiguous()
    is_sorted = "aten.sort.stable" in {op for graph in GRAPHS for op in graph.torch_ops}
    assert is_sorted == (place in ("from 1", "backwards", "twice", "with padding"))


def test_a_dense_tensor_seen_as_dense_is_a_view_and_others_are_not() -> None:
    def dense(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.as_strided(x * 2, [2, 12], [12, 1]),)

    def part(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.as_strided(x * 2, [2, 5], [12, 1], 3),)

    assert aten.as_strided.default not in targets(rewritten(dense, torch.randn(2, 3, 4)))
    assert aten.as_strided.default in targets(rewritten(part, torch.randn(2, 3, 4)))


@pytest.mark.parametrize(("rows", "skips"), [(9, True), (8, False)])
def test_an_index_is_not_checked_again_where_the_same_rows_were_read(rows: int, skips: bool) -> None:
    """Nor where it holds places of a tensor's largest elements; an index from elsewhere is checked."""
    index = torch.tensor([0, 7, 3, 7])

    def read(x: torch.Tensor, index: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.index(x, [index]), aten.index_put(aten.new_zeros(x, [rows, 5]), [index], g, True)

    def placed(x: torch.Tensor, index: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.index_put(aten.new_zeros(x, [rows, 5]), [aten.topk(x, 4, 0)[1][:, 0]], g, True),)

    for function in (read, placed):
        made = targets(rewritten(function, torch.randn(9, 5), index, torch.randn(4, 5)))
        assert (aten._index_put_impl.default in made) is (skips or function is read and rows == 9)


def test_training_with_all_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unpacked heads, a convolution, a group norm in half precision, rows chosen by topk: right, and a copy for a product is written by a kernel."""
    monkeypatch.setattr(regions, "LARGE_ELEMS", 64)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    saved = counters["aot_autograd"]["autograd_cache_saved"]

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = F.group_norm(F.conv2d(x, w, b, padding=1), 2).flatten(2).transpose(1, 2)
        q, k, v = (y @ m).view(2, 9, 3, 2, 4).permute(2, 0, 3, 1, 4)
        z = ((q * 2) @ k.transpose(-1, -2) @ (v + 1)).transpose(1, 2).reshape(18, 8)
        chosen = z.square().sum(1).topk(7).indices
        return torch.zeros_like(z).index_add(0, chosen, z[chosen] * 3).square().sum()

    inputs = [torch.randn(*sizes) for sizes in ((2, 4, 3, 3), (4, 4, 3, 3), (4,), (4, 24))]
    leaves, exact = ([x.detach().clone().to(dtype).requires_grad_() for x in inputs] for dtype in (torch.float32, torch.float64))
    loss = torch.compile(f, backend=backend, options={"emulate": True, "strict": True, "debug": True})(*leaves)
    loss.backward()
    assert counters["aot_autograd"]["autograd_cache_saved"] == saved + 1  # what was written anew can be kept
    want = f(*exact)
    want.backward()
    torch.testing.assert_close(loss.double(), want, rtol=1e-4, atol=1e-4)
    for leaf, reference in zip(leaves, exact):
        torch.testing.assert_close(leaf.grad.double(), reference.grad, rtol=1e-3, atol=1e-3 * float(reference.grad.abs().max()))
    clones = [n for graph in GRAPHS if graph.kind == "backward" for region, _ in graph.regions for n in region.outputs if n.target is aten.clone.default]
    assert clones and "aten.as_strided.default" not in {op for graph in GRAPHS for op in graph.torch_ops}


def test_a_copy_of_a_copy_is_one() -> None:
    """Also behind views; not where the first one is read elsewhere, or has another order of memory."""

    def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = aten.clone(x.transpose(0, 1), memory_format=torch.contiguous_format)
        return (aten.clone(aten.view(first, [-1]), memory_format=torch.contiguous_format),)

    def read_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = aten.clone(x.transpose(0, 1), memory_format=torch.contiguous_format)
        return aten.clone(first), first

    def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.clone(aten.clone(x), memory_format=torch.channels_last),)

    x = torch.randn(2, 3, 4)
    assert targets(rewritten(twice, x)).count(aten.clone.default) == 1
    assert targets(rewritten(read_twice, x)).count(aten.clone.default) == 2
    assert targets(rewritten(turned, torch.randn(2, 3, 4, 5))).count(aten.clone.default) == 2


def test_the_gradient_of_a_pixel_shuffle_is_written_once() -> None:
    x = torch.randn(2, 8, 16, 16, requires_grad=True)
    out = torch.compile(lambda t: F.relu(F.pixel_shuffle(t, 2)), backend=backend, options={"emulate": True})(x)
    slope = torch.randn_like(out)
    (got,) = torch.autograd.grad(out, x, slope)
    torch.testing.assert_close(got, torch.autograd.grad(F.relu(F.pixel_shuffle(x, 2)), x, slope)[0])
    assert [len(list(call.kernels())) for graph in GRAPHS for call in graph.calls] == [1, 1]
    assert not any(graph.torch_ops for graph in GRAPHS)


def test_memory_that_nothing_writes_is_not_asked_for() -> None:
    """The reciprocal in the gradient of `addcdiv` is a tensor of ones, like empty memory."""
    torch._dynamo.reset()
    x = torch.randn(6, 5, requires_grad=True)
    out = torch.compile(lambda x: torch.addcdiv(x, x, x * x + 1), backend=backend, options={"emulate": True, "strict": True})(x)
    out.sum().backward()
    y = x.detach().double().requires_grad_()
    torch.addcdiv(y, y, y * y + 1).sum().backward()
    torch.testing.assert_close(x.grad.double(), y.grad)
    assert not any(graph.torch_ops for graph in GRAPHS)
