"""Graphs as JSON (`weft/frontend/graph_file.py`), and equal calls that become one (`weft/frontend/equal_nodes.py`)."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from weft.frontend.equal_nodes import merge_equal
from weft.frontend.graph_file import graph_of, written
from weft.frontend.origins import MODULE, module_of

aten = torch.ops.aten


def program(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    a, b = torch.split(x, [2, 3], dim=-1)
    mean = torch.var_mean(y, dim=[0], correction=0, keepdim=True)[1].to(torch.bfloat16)
    filled = torch.full((3,), -float("inf"), device=x.device).masked_fill(mean.new_zeros(3, dtype=torch.bool), -0.0)
    return a.contiguous(memory_format=torch.contiguous_format), b.mul(2).sum(), mean, y.index_select(0, torch.arange(3)), filled, None


def graph() -> tuple[GraphModule, tuple[torch.Tensor, ...]]:
    given = torch.randn(4, 5).t().contiguous().t(), torch.randn(6, 2)
    return make_fx(program, tracing_mode="fake")(*given), given


def test_a_graph_from_its_text_computes_the_same_and_says_the_same() -> None:
    made, given = graph()
    for number, node in enumerate(made.graph.nodes):
        node.meta |= {"stack_trace": f'File "p.py", line {number % 2}', MODULE: f"layer.{number % 3}"}
    text = written(made.graph, ())
    assert text is not None
    again = graph_of(text, {})
    assert [(n.name, n.op, n.target, str(n.args), str(n.kwargs)) for n in again.graph.nodes] == [
        (n.name, n.op, n.target, str(n.args), str(n.kwargs)) for n in made.graph.nodes
    ]
    for old, new in zip(made.graph.nodes, again.graph.nodes):
        assert ("val" in old.meta, old.meta["stack_trace"], module_of(old)) == ("val" in new.meta, new.meta["stack_trace"], module_of(new))
        if isinstance(old.meta.get("val"), torch.Tensor):
            assert [getattr(old.meta["val"], k) for k in ("shape", "dtype", "device")] == [getattr(new.meta["val"], k) for k in ("shape", "dtype", "device")]
            assert old.meta["val"].stride() == new.meta["val"].stride()
    for want, got in zip(made(*given), again(*given)):
        assert want is got is None or torch.equal(want, got) and torch.equal(torch.signbit(want), torch.signbit(got))


def test_constants_are_named_and_other_attributes_are_refused() -> None:
    new = Graph()
    x = new.placeholder("x")
    new.output((new.call_function(aten.add.Tensor, (x, new.get_attr("table"))),))
    made = GraphModule({"table": torch.arange(3.0)}, new)
    assert written(made.graph, ()) is None
    text = written(made.graph, ("table",))
    assert text is not None
    assert graph_of(text, {"table": torch.ones(3)})(torch.zeros(3))[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("strange", ["symbol", "lambda", "sparse"])
def test_what_is_not_written_is_left_to_torch(strange: str) -> None:
    new = Graph()
    x = new.placeholder("x")
    x.meta["val"] = {"sparse": torch.eye(3).to_sparse(), "lambda": None, "symbol": None}[strange]
    node = new.call_function((lambda v: v) if strange == "lambda" else aten.relu.default, (x,))
    if strange == "symbol":
        made = make_fx(lambda v: v.view(v.shape[0] * 2, 2), tracing_mode="symbolic")(torch.randn(4, 4))
        assert written(made.graph, ()) is None
    new.output((node,))
    if strange != "symbol":
        assert written(new, ()) is None


def merged(made: GraphModule) -> list[str]:
    merge_equal(made.graph)
    made.graph.lint()
    made.recompile()
    return [str(n.target) for n in made.graph.nodes if n.op == "call_function"]


def test_equal_calls_are_one_and_their_readers_read_it() -> None:
    def calls(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.exp().sum(0).neg() + x.exp().sum(0).neg(), x.exp().sum(1) * 1)

    given = torch.randn(3, 4)
    made = make_fx(calls, tracing_mode="fake")(given)
    left = merged(made)
    assert left.count("aten.exp.default") == 1
    assert left.count("aten.sum.dim_IntList") == 2
    assert left.count("aten.neg.default") == 1
    for want, got in zip(calls(given), made(given)):
        assert torch.equal(want, got)


@pytest.mark.parametrize(
    "one, two", [((1,), (1.0,)), ((0.0,), (-0.0,)), ((1,), (True,)), (([1, 2],), ([2, 1],)), ((slice(0, 1),), (slice(0, 2),))], ids=str
)
def test_arguments_that_python_takes_for_equal_are_apart(one: Any, two: Any) -> None:
    new = Graph()
    x = new.placeholder("x")
    a, b, c = (new.call_function(operator.getitem, (x, *key)) for key in (one, two, one))
    new.output(new.call_function(operator.add, (a, new.call_function(operator.add, (b, c)))))
    merge_equal(new)
    assert sum(n.target is operator.getitem for n in new.nodes) == 2


def test_random_numbers_results_and_what_is_written_stay() -> None:
    def calls(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = y.sum()
        y.add_(1)
        return torch.rand_like(x) - torch.rand_like(x), x * 2, x * 2, before - y.sum(), torch.empty_like(x) + torch.empty_like(x)

    with FakeTensorMode(allow_non_fake_inputs=True):
        made = make_fx(calls)(torch.randn(3), torch.randn(3))
    left = merged(made)
    assert left.count("aten.rand_like.default") == 2
    assert left.count("aten.mul.Tensor") == 2
    assert left.count("aten.sum.default") == 2
