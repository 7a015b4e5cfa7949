"""The bodies of torch's control flow and of nested compiled regions run in kernels, forward and backward, also where sizes are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from program_run import Outcome, Program, Run, gradients, judged, trained
from torch import Tensor, nn

from weft.frontend.backend import GRAPHS

pytestmark = pytest.mark.usefixtures("fresh")
PRODUCTS = {"aten.mm.default", "aten.addmm.default"}


def branches(run: Run) -> list[Any]:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x, w: F.layer_norm(x @ w, (4,)).sin().t(), lambda x, w: ((x @ w).cos() - x.mean()).t(), (x, w))

    fast, x, w = run.compile(f), run.leaf(5, 3), run.leaf(3, 4)
    made = [fast(x.abs(), w), fast(-x.abs(), w)]
    sum(y.square().sum() for y in made).backward()  # type: ignore[union-attr]
    return [*made, x.grad, w.grad]


def branches_in_branches_of_open_sizes(run: Run) -> list[Any]:
    def f(x: Tensor) -> Tensor:
        return torch.cond(
            x.sum() > 0, lambda x: torch.cond(x.max() > 1, lambda x: x.softmax(-1) * 2, lambda x: x.sigmoid() + 1, (x,)), lambda x: x.cos() - 1, (x,)
        )

    fast, out = run.compile(f), []
    for rows in (4, 5, 9):
        x = run.randn(rows, 3).abs() + 1
        torch._dynamo.mark_dynamic(x, 0)
        out += [fast(x), fast(x * 0.1), fast(-x)]
    return out


def loop_until_a_limit(run: Run) -> list[Any]:
    from torch._higher_order_ops import while_loop

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        count, x = while_loop(lambda n, x: (n < 6) & (x.abs().max() < 2), lambda n, x: (n + 1, torch.tanh(x) * 1.1 + 0.1 + x.mean(0)), (torch.tensor(0), x))
        return count, x * 2

    return [*run.compile(f)(run.randn(3, 5))]


def carried_state(run: Run) -> list[Any]:
    from torch._higher_order_ops.scan import scan

    def f(x: Tensor, w: Tensor) -> Tensor:
        def step(c: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(row + c @ w)
            gate = torch.sigmoid(h)
            new = gate * c + (1 - gate) * h
            return new, new * 2

        last, each = scan(step, torch.zeros_like(x[0]), x, dim=0)
        return last.square().sum() + each.sin().sum()

    x, w = run.leaf(5, 2, 4), run.leaf(4, 4)
    total = run.compile(f)(x, w)
    total.backward()
    return [total, x.grad, w.grad]


def mapped(run: Run) -> list[Any]:
    from torch._higher_order_ops.map import map as mapped_over

    return [run.compile(lambda x, w: mapped_over(lambda row, w: (row @ w).relu() + row.sum(), x, w))(run.randn(4, 3, 5), run.randn(5, 2))]


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(self.norm(x)))


class Layers(nn.Module):
    """Layers that share one compiled body."""

    def __init__(self, count: int = 3, width: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(count))
        self.called: Callable[[nn.Module, Tensor], Tensor] = torch.compiler.nested_compile_region(lambda layer, x: layer(x))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.called(layer, x)
        return x


def nested_regions(run: Run) -> list[Any]:
    return [*trained(run, run.made(Layers()), [run.randn(3, 6) for _ in range(2)])]


def nested_regions_twice(run: Run) -> list[Any]:
    model = run.made(Layers(2))
    run.compile(model)(run.randn(3, 6)).square().mean().backward()
    return gradients(model)


def cache_hits() -> int:
    return torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]


def left_to_torch(out: Outcome) -> set[str]:
    """The ops outside of regions, without products and what calls bodies."""
    return {op for op, (_, why) in out.torch_ops.items() if why != "torch calls its bodies, which are graphs of their own"} - PRODUCTS


PROGRAMS: tuple[tuple[Program, int], ...] = (
    (branches, 6), (branches_in_branches_of_open_sizes, 5), (loop_until_a_limit, 3), (carried_state, 4), (mapped, 2), (nested_regions, 4),
)  # fmt: skip


@pytest.mark.parametrize(("program", "graphs"), PROGRAMS, ids=[program.__name__ for program, _ in PROGRAMS])
def test_bodies_are_graphs_of_their_own(program: Program, graphs: int) -> None:
    out = judged(program)
    assert not out.problem and not out.nameless
    assert out.graphs == graphs
    assert not left_to_torch(out), out.torch_ops


def test_layers_share_a_body_and_a_cached_graph_has_it_again() -> None:
    assert not judged(nested_regions_twice).problem
    first = [(graph.kind, len(graph.calls)) for graph in GRAPHS]
    hits = cache_hits()
    assert not judged(nested_regions_twice).problem
    assert [(graph.kind, len(graph.calls)) for graph in GRAPHS] == first
    assert cache_hits() == hits + 1
