"""Operators: torch's own checks, graphs without breaks, export, batches, and operators made from definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nn_functions import CASES, SMALL

import weft
from weft import UserError
from weft.nn import functional as W
from weft.nn.library import decoded, encoded

RMS = {"rank": 1, "eps": 1e-6, "offset": 0.0, "casting": "torch", "out": torch.float32, "kept": None}


def test_texts_say_what_was_encoded() -> None:
    value = ((True, None), {"a": 1e-5, "b": torch.bfloat16, "c": "mean", "d": float("-inf")})
    assert decoded(encoded(value)) == value


@pytest.mark.parametrize("layout", ["contiguous", "permuted", "empty"])
def test_torchs_checks_of_an_operator_pass(layout: str) -> None:
    x = {"contiguous": torch.randn(4, 8), "permuted": torch.randn(8, 4).T, "empty": torch.randn(0, 8)}[layout].requires_grad_()
    arguments = ([x, torch.rand(8, requires_grad=True)], [], encoded(((True, True, False), RMS)))
    assert set(torch.library.opcheck(torch.ops.weft.rms_norm.default, arguments).values()) == {"SUCCESS"}


class Operators(torch.fx.Interpreter):
    """Runs a graph and keeps the calls of weft's operators: (operator, arguments)."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: list[tuple[Any, Any]] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "weft." in str(target):
            self.seen.append((target, args))
        return super().call_function(target, args, kwargs)


class Calls(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


@pytest.mark.parametrize("name", CASES)
def test_torchs_checks_of_every_operator_pass(name: str) -> None:
    """Schema, autograd registration, fake tensors, and AOTAutograd with symbolic sizes: forward and backward equal those without it."""
    inputs = [t.detach() for t in CASES[name].make(SMALL)]
    operators = Operators(torch.export.export(Calls(CASES[name].ours), tuple(inputs)).module())
    operators.run(*inputs)
    assert operators.seen
    for operator, (tensors, *rest) in operators.seen:
        leaves = [t.clone().requires_grad_(t.is_floating_point() and (name != WEIGHED or t.dim() > 1)) for t in tensors]
        assert set(torch.library.opcheck(operator, (leaves, *rest)).values()) == {"SUCCESS"}


WEIGHED = "cross_entropy, weighed and smoothed"  # no gradient flows to the weights of its classes, in torch neither


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return W.swiglu(W.rms_norm(x, (8,), w, 1e-6)) * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_graph_has_no_breaks(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    w = torch.rand(8, requires_grad=True)
    for rows in (3, 5) if dynamic else (3,):
        x = torch.randn(rows, 8, requires_grad=True)
        for a, b in zip(torch.autograd.grad(compiled(x, w).sum(), (x, w)), torch.autograd.grad(block(x, w).sum(), (x, w))):
            torch.testing.assert_close(a, b)


def test_modules_compile_and_update_their_statistics() -> None:
    torch._dynamo.reset()
    ours, theirs, x = weft.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4), torch.randn(6, 4)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), theirs(x))
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_an_exported_program_holds_the_operator() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = weft.nn.RMSNorm(8, eps=1e-6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x).relu()  # type: ignore[no-any-return]

    x = torch.randn(3, 8)
    program = torch.export.export(Model(), (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert any("weft.rms_norm" in str(node.target) for node in program.graph.nodes)
    other = torch.randn(5, 8)
    torch.testing.assert_close(program.module()(other), F.rms_norm(other, (8,), eps=1e-6).relu())


def test_checkpointing_and_vmap_of_an_operator() -> None:
    from torch.utils.checkpoint import checkpoint

    torch._dynamo.reset()
    x, w = torch.randn(3, 8, requires_grad=True), torch.rand(8)
    compiled = torch.compile(lambda a: checkpoint(block, a, w, use_reentrant=False), fullgraph=True, backend="aot_eager")
    (got,), (want,) = torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(block(x, w).sum(), x)
    torch.testing.assert_close(got, want)
    text = encoded(((True, True, False), RMS))
    batch = torch.func.vmap(lambda a: torch.ops.weft.rms_norm([a, w], [], text)[0])(x.detach())
    torch.testing.assert_close(batch, F.rms_norm(x.detach(), (8,), w, 1e-6))


def scaled_square() -> weft.FusionDefinition:
    with weft.FusionDefinition() as fd:
        x, s = fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(dtype=torch.float64)
        fd.add_output(x * x * s)
        fd.add_output(x.sum(1))
    return fd


def test_an_operator_from_a_definition() -> None:
    torch._dynamo.reset()
    square = weft.op("weft_test::scaled_square", scaled_square())
    assert square is torch.ops.weft_test.scaled_square.default
    x = torch.randn(3, 4, requires_grad=True)

    def loss(a: torch.Tensor) -> torch.Tensor:
        squares, sums = square(a, 3.0)
        return squares.sum() + 2 * sums.sum()

    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        (grad,) = torch.autograd.grad(function(x), x)
        torch.testing.assert_close(grad, 6 * x.detach() + 2)


def sigmoid_operator() -> torch._ops.OpOverload:
    if not hasattr(torch.ops.weft_test, "sigmoid"):
        with weft.FusionDefinition() as fd:
            fd.add_output(fd.ops.sigmoid(fd.define_tensor([-1, -1], contiguity=True, dtype=torch.float64)))
        weft.op("weft_test::sigmoid", fd)
    return torch.ops.weft_test.sigmoid.default


def test_derivatives_of_an_operator_are_right() -> None:
    """Of both orders, both modes, and those of torch.func."""
    op, x, t = sigmoid_operator(), torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    slope = x.sigmoid() * (1 - x.sigmoid())
    assert torch.autograd.gradgradcheck(op, (x.clone().requires_grad_(),))
    with torch.autograd.forward_ad.dual_level():
        dual = op(torch.autograd.forward_ad.make_dual(x, t))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, t * slope)
    torch.testing.assert_close(torch.func.grad(lambda a: op(a).sum())(x), slope)
    per_sample = torch.vmap(torch.func.grad(lambda a: op(a[None]).sum()))(x)
    torch.testing.assert_close(per_sample, slope)


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f: torch.func.jvp(f, (torch.ones(1, 2, dtype=torch.float64),), (torch.ones(1, 2, dtype=torch.float64),)),
        lambda f: torch.func.hessian(lambda a: f(a).sum())(torch.ones(1, 2, dtype=torch.float64)),
        lambda f: torch.func.grad(lambda a: torch.func.grad(lambda b: f(b).sum())(a).sum())(torch.ones(1, 2, dtype=torch.float64)),
    ],
    ids=["jvp", "hessian", "grad of grad"],
)
def test_a_derivative_of_torch_func_that_an_operator_does_not_have_is_an_error(derivative: Callable[..., Any]) -> None:
    """And not zero."""
    with pytest.raises(weft.WeftError, match="W188(.|\n)*fix: use torch"):
        derivative(sigmoid_operator())


def test_a_definition_under_torch_func_says_to_make_an_operator() -> None:
    found = scaled_square().autograd()
    with pytest.raises(weft.WeftError, match="W189(.|\n)*weft.op"):
        torch.func.grad(lambda a: found(a, 3.0)[0].sum())(torch.randn(3, 4))


@pytest.mark.parametrize(("name", "message"), [("square", "namespace::name"), ("a::b::c", "namespace::name"), ("aten::add", "choose another name")])
def test_a_name_that_cannot_be_an_operator(name: str, message: str) -> None:
    with pytest.raises(UserError, match=f"W145(.|\n)*{message}"):
        weft.op(name, scaled_square())


def test_a_definition_that_writes_is_no_operator() -> None:
    with weft.FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(x * 2.0, alias_input=x)
    with pytest.raises(UserError, match="W145(.|\n)*writes into an input"):
        weft.op("weft_test::writes", fd)
