"""Operators: torch's own checks, graphs without breaks, export, batches, and operators made from definitions."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nn_functions import CASES, SMALL

import weft
from weft import UserError
from weft.nn import functional as W
from weft.nn.family import NAMES
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


def test_derivatives_of_derivatives_of_an_operator_under_torch_func() -> None:
    """Forward over reverse, reverse over that, and an operator with two outputs and a number."""
    op, x, t = sigmoid_operator(), torch.randn(1, 3, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    value, tangent = torch.func.jvp(op, (x,), (t,))
    want = torch.func.jvp(torch.sigmoid, (x,), (t,))
    torch.testing.assert_close((value, tangent), want)
    for derivative in (torch.func.hessian, lambda f: torch.func.grad(lambda a: torch.func.hessian(f)(a).sum())):
        torch.testing.assert_close(derivative(lambda a: op(a).sum())(x), derivative(lambda a: a.sigmoid().sum())(x))
    if not hasattr(torch.ops.weft_test, "scaled_twice"):
        weft.op("weft_test::scaled_twice", scaled_square())
    scaled, y = torch.ops.weft_test.scaled_twice.default, torch.randn(2, 4)
    found = torch.func.hessian(lambda a: (scaled(a, 3.0)[0].sum() + scaled(a, 3.0)[1].square().sum()))(y)
    torch.testing.assert_close(found, torch.func.hessian(lambda a: (3 * a * a).sum() + a.sum(1).square().sum())(y))


def test_a_derivative_in_a_graph() -> None:
    """torch.func inside of what is compiled."""
    torch._dynamo.reset()
    op, x = sigmoid_operator(), torch.randn(2, 3, dtype=torch.float64)
    found = torch.compile(lambda a: torch.func.grad(lambda b: op(b).sum())(a), fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, x.sigmoid() * (1 - x.sigmoid()))
    first = torch.func.grad(lambda a: op(a).sum())
    for lost in (lambda a: torch.func.jvp(op, (a,), (a,)), lambda a: torch.func.grad(lambda b: first(b).sum())(a)):
        with pytest.raises(Exception, match="W188"):
            torch.compile(lost, fullgraph=True, backend="aot_eager")(x)


def test_exported_programs_are_saved_and_shapes_are_worked_out() -> None:
    """Also of operators without numbers; tensors without data, of the device "meta" or fake ones, give results without data."""
    norm, x = weft.nn.RMSNorm(8), torch.randn(3, 8)
    file = io.BytesIO()
    torch.export.save(torch.export.export(norm, (x,)), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), norm(x))
    made = weft.nn.LayerNorm(8, device="meta")(torch.empty(3, 8, device="meta"))
    assert made.is_meta and made.shape == (3, 8) and made.requires_grad
    with torch._subclasses.FakeTensorMode():
        assert weft.nn.functional.softmax(torch.empty(3, 8), -1).shape == (3, 8)


def test_a_number_of_groups_may_change_in_a_graph() -> None:
    """Dynamo makes it an open size, and whether the view is contiguous a condition."""
    compiled = torch.compile(W.group_norm, backend="aot_eager")
    x = torch.randn(3, 16, 9)
    for groups in (1, 2, 4, 8):
        torch.testing.assert_close(compiled(x, groups).double(), F.group_norm(x.double(), groups), atol=1e-5, rtol=1e-5)


def test_an_exported_program_is_read_by_a_process_that_imports_only_weft(tmp_path: Path) -> None:
    """The operators of weft.nn are found by their names in the file."""
    norm, x = weft.nn.RMSNorm(9), torch.randn(3, 9)
    torch.export.save(torch.export.export(norm, (x,)), tmp_path / "norm.pt2")
    torch.save((x, F.rms_norm(x.double(), (9,))), tmp_path / "tensors.pt")
    text = """
import sys, torch, weft
x, wanted = torch.load(sys.argv[1] + "/tensors.pt")
torch.testing.assert_close(torch.export.load(sys.argv[1] + "/norm.pt2").module()(x).double(), wanted, atol=1e-5, rtol=1e-5)
assert not hasattr(torch.ops.weft, "no_such_operator")
"""
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {*weft._OPERATORS} == {*NAMES}


def test_operators_are_named_as_those_of_torch() -> None:
    """torch stores graphs with the module of an operator, and looks for it there."""
    operator = torch.ops.weft.rms_norm
    assert operator.__module__ == operator.default.__module__ == torch.ops.aten.add.__module__.replace("aten", "weft")


def test_a_trace_of_torchscript_is_refused_by_name() -> None:
    with pytest.raises(weft.WeftError, match="W191(.|\n)*torch.export"):
        torch.jit.trace(weft.nn.LayerNorm(8), (torch.randn(2, 8),))


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
