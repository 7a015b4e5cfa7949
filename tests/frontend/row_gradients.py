"""Gradients of rows that an index names, compiled and beside torch in float64. Read first: `check`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend


def gradient(function: Callable[..., Tensor], x: Tensor, *indices: Tensor, slope: Tensor | None = None, dynamic: bool | None = None) -> tuple[Tensor, Tensor]:
    """The gradient of x, and the slope of the result that it belongs to."""
    leaf = x.clone().requires_grad_()
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "debug": True, "strict": True}, dynamic=dynamic)
    with poisoned_outputs():
        out = compiled(leaf, *indices)
        slope = torch.randn_like(out) if slope is None else slope
        out.backward(slope)
    assert leaf.grad is not None
    return leaf.grad, slope


def check(function: Callable[..., Tensor], x: Tensor, *indices: Tensor, dynamic: bool | None = None) -> None:
    got, slope = gradient(function, x, *indices, dynamic=dynamic)
    leaf, sizes = x.double().clone().requires_grad_(), x.double().clone().requires_grad_()
    function(leaf, *indices).backward(slope.double())
    function(sizes, *indices).backward(slope.double().abs())
    assert leaf.grad is not None and sizes.grad is not None
    unit = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}.get(x.dtype, 2.0**-24)
    narrow = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}.get(x.dtype, 0.0)  # the slope times 2, and the result
    terms = max(index.numel() for index in indices)
    assert ((got.double() - leaf.grad).abs() <= terms * unit * sizes.grad.abs() + 2 * narrow * sizes.grad.abs() + 1e-30).all()
    assert got.dtype is x.dtype and got.shape == x.shape


def kept_by_torch() -> set[str]:
    """The ops of the last graph that torch runs."""
    return {name for graph in GRAPHS for name in graph.torch_ops}


def has_sums_of_torch() -> bool:
    return any("embedding_dense_backward" in name or "index_put" in name or "scatter" in name or "sorted_row_sums" in name for name in kept_by_torch())


def table(x: Tensor, i: Tensor) -> Tensor:
    return F.embedding(i, x) * 2


def padded_table(x: Tensor, i: Tensor) -> Tensor:
    return F.embedding(i, x, padding_idx=3) * 2


def taken(x: Tensor, i: Tensor) -> Tensor:
    return x[i] * 2


def taken_twice(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return x[i, j] * 2


INDICES = {
    "any": lambda rows: torch.randint(0, rows, (4, 30)),
    "one row": lambda rows: torch.full((300,), rows // 2),
    "two rows, thousands of times": lambda rows: torch.where(torch.rand(1500) < 0.8, rows - 1, 0),
    "each once": lambda rows: torch.randperm(rows),
    "one place": lambda rows: torch.tensor([rows - 1]),
    "no place": lambda rows: torch.zeros(0, dtype=torch.int64),
    "32 bits": lambda rows: torch.randint(0, rows, (70,), dtype=torch.int32),
    "scalar": lambda rows: torch.randint(0, rows, (2, 3, 5)),
}


def pooled(x: Tensor, i: Tensor) -> Tensor:
    """Sums of rows, so that a row of the gradient belongs to several positions."""
    return x[i].sum(-2 if i.dim() > 1 else 0) * 2


def pooled_over_samples(x: Tensor, i: Tensor) -> Tensor:
    return F.embedding(i, x).sum(0)


def messages(x: Tensor, source: Tensor, target: Tensor, w: Tensor) -> Tensor:
    """Rows of the nodes where edges begin, times a number for each edge, added where edges end."""
    return torch.zeros_like(x).index_add(0, target, x[source] * w)


def scattered_messages(x: Tensor, source: Tensor, target: Tensor, w: Tensor) -> Tensor:
    """The same as libraries for graphs write it."""
    rows = x.index_select(0, source) * w
    return x.new_zeros(x.shape).scatter_add_(0, target.reshape(-1, *(1 for _ in x.shape[1:])).expand_as(rows), rows)


def weighted_sums(x: Tensor, i: Tensor, w: Tensor) -> Tensor:
    return (F.embedding(i, x) * w[..., None]).sum(1)


def check_messages(function: Callable[..., Tensor], dtype: torch.dtype, nodes: int, edges: int, row: tuple[int, ...]) -> None:
    """Compare values and both gradients."""
    source, target = torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,))
    source = source - nodes * (torch.rand(edges) < 0.5) if function is messages else source
    x, w = torch.randn(nodes, *row).to(dtype), torch.randn(edges, *(1 for _ in row)).to(dtype)
    slope = torch.randn_like(x)
    results = []
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "debug": True, "strict": True})
    for made, cast in ((compiled, dtype), (function, torch.float64)):
        leaves = [t.to(cast).clone().requires_grad_() for t in (x, w)]
        with poisoned_outputs():
            out = made(leaves[0], source, target, leaves[1])
            results.append([out, *torch.autograd.grad(out, leaves, slope.to(cast))])
    sizes = [t.abs() for t in (x, w, slope)]
    scale = float(max(messages(sizes[0].double(), source, target, sizes[1].double()).max() if edges else 0, *(r.abs().max() if r.numel() else 0 for r in results[1])))
    unit = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20, torch.float64: 2.0**-45}[dtype]
    for got, want in zip(*results):
        assert got.dtype is dtype and (not want.numel() or ((got.double() - want).abs() <= 4 * unit * scale).all())
