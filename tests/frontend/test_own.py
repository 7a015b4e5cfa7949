"""weft's own functions and operators in a compiled model: parts of regions under this backend, single ops under others; values and gradients are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
import weft.nn.functional as W
from weft import FusionDefinition
from weft.frontend.backend import GRAPHS, backend


pytestmark = pytest.mark.usefixtures("fresh")


Cases = dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]]
CASES: Cases = {
    "rms norm": (lambda x, w: torch.tanh(W.rms_norm(x * 2, (24,), w)) + x, [(3, 5, 24), (24,)]),
    "layer norm": (lambda x, w, b: W.layer_norm(x.sin(), (24,), w, b) * 3, [(5, 24), (24,), (24,)]),
    "swiglu": (lambda x, y: W.swiglu(x + 1, y * 2).square(), [(4, 16), (4, 16)]),
    "softmax": (lambda x: W.softmax(x * 3, -1) + 1, [(5, 24)]),
}


def judge(cases: Cases, dynamic: bool, gradients: bool) -> None:
    """All in one graph, each with inputs and a region of its own."""
    inputs = {name: [torch.randn(shape, requires_grad=gradients) for shape in shapes] for name, (_, shapes) in cases.items()}
    plain = {name: [x.detach().clone().requires_grad_(gradients) for x in xs] for name, xs in inputs.items()}

    def together(given: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: function(*given[name]) for name, (function, _) in cases.items()}

    fast = torch.compile(together, backend=backend, options={"emulate": True, "strict": True, "debug": True}, dynamic=dynamic)
    out, want = fast(inputs), together(plain)
    seeds = [torch.randn_like(x) for x in want.values()]
    if gradients:
        torch.autograd.backward(list(out.values()), seeds)
        torch.autograd.backward(list(want.values()), seeds)
    for name in cases:
        torch.testing.assert_close(out[name], want[name], rtol=1e-4, atol=1e-5)
        for a, b in zip(inputs[name], plain[name]):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    assert not {op for graph in GRAPHS for op in graph.torch_ops}, GRAPHS
    assert [len(graph.calls) for graph in GRAPHS] == [len(cases)] * (1 + gradients)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_functions_of_ours_are_parts_of_the_regions_around_them(dynamic: bool, gradients: bool) -> None:
    judge(CASES, dynamic, gradients)


def test_an_operator_from_a_definition_is_part_of_the_region_around_it() -> None:
    with FusionDefinition() as fd:
        x, scale = fd.define_tensor(shape=[-1, -1], contiguity=[True, True]), fd.define_scalar()
        fd.add_output(fd.ops.mul(fd.ops.tanh(x), scale))
        fd.add_output(fd.ops.sum(x, dims=[0]))
    op = weft.op("tests_frontend::scaled_tanh", fd)
    judge({"op": (lambda x: op(x.cos(), 1.5)[0] * 2 + op(x.cos(), 1.5)[1], [(5, 8)])}, False, True)


def test_what_draws_numbers_stays_an_op_and_is_told() -> None:
    x, w = torch.randn(6, 16), torch.randn(16)
    fast = torch.compile(lambda x, w: W.dropout_add_layer_norm(x + 1, None, w, None, 0.5)[0] * 2, backend=backend, options={"emulate": True})
    assert fast(x, w).shape == x.shape
    assert [why for graph in GRAPHS for op, (_, why) in graph.torch_ops.items()] == ["it draws random numbers, or writes into an input"]


def test_other_backends_see_one_op() -> None:
    seen: list[Any] = []

    def look(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(n.target for n in gm.graph.nodes if n.op == "call_function")
        return gm

    from torch._dynamo.backends.common import aot_autograd

    x, w = torch.randn(5, 24), torch.randn(24)
    torch.compile(lambda x, w: W.rms_norm(x, (24,), w) + 1, backend=aot_autograd(fw_compiler=look))(x, w)
    assert torch.ops.weft.rms_norm.default in seen
