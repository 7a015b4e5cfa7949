"""Rules of gradients against torch's autograd in float64, by the interpreter: no kernel runs here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition, Unsupported
from weft.api.autograd import Differentiable, _form
from weft.autograd.derive import Derivative
from weft.ops.gradients import RULES
from weft.ops.registry import OPS, flat
from weft.reference.interpreter import evaluate

G = torch.Generator().manual_seed(7)
X = torch.rand(4, 6, generator=G, dtype=torch.float64) * 0.8 + 0.1  # inside of the domain of every function but acosh
Y = torch.rand(4, 6, generator=G, dtype=torch.float64) + 0.5
INDEX = torch.tensor([[0, 3, 3, 1], [2, 2, 0, 3], [1, 0, 1, 1], [3, 3, 3, 3]])
DISTINCT = torch.stack([torch.randperm(6, generator=G) for _ in range(4)])
CUBE = torch.rand(3, 5, 6, generator=G, dtype=torch.float64)
ROW, COLUMN = Y[:1] * 1.0, Y[:, :1] * 1.0


def gradients(define: Callable[..., Any], inputs: list[torch.Tensor], seed: torch.Tensor | None = None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return (result, gradients) of a definition with respect to all of its inputs, by forward, saved tensors and backward."""
    with FusionDefinition() as fd:
        values = [fd.define_tensor(shape=[1 if n == 1 else -1 for n in t.shape], contiguity=True, dtype=t.dtype) for t in inputs]
        fd.add_output(define(fd.ops, *values))
    derivative = Derivative(fd.fusion, [i for i, t in enumerate(inputs) if t.is_floating_point()])  # type: ignore[arg-type]
    outputs = evaluate(derivative.forward, inputs, precision="double")
    grad = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) if seed is None else seed
    step = derivative.backward([_form(v, None) if i == 0 else None for i, v in enumerate(derivative.outputs)])
    saved = [inputs[s.input] if s.input is not None else outputs[s.output] for s in derivative.saved]  # type: ignore[index]
    names = {v.name: t for v, t in zip(fd.fusion.inputs(), inputs)}  # type: ignore[union-attr]
    scalars = [names[s.name].shape[s.dim] for s in step.scalars]  # type: ignore[union-attr]
    made = evaluate(step.fusion, [*(saved[i] for i in step.used), *scalars, grad], precision="double")
    return outputs[0], [made[place] for place in step.places]


def check(define: Callable[..., Any], reference: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Compare a definition's gradients with those of torch's function."""
    result, got = gradients(define, list(inputs))
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    out = reference(*leaves)
    torch.testing.assert_close(result, out.detach(), atol=1e-12, rtol=1e-12)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    want = torch.autograd.grad(out, [t for t in leaves if t.requires_grad], grad)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.shape == b.shape and a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


UNARY = [name for name, op in OPS.items() if op.arity == 1 and op.gradient not in (None, flat) and name != "cast"]
BINARY = [name for name, op in OPS.items() if op.arity == 2 and op.gradient not in (None, flat)]
TORCH = {"div": torch.div, "truediv": torch.true_divide, "mod": torch.fmod, "silu": torch.nn.functional.silu, "erfcinv": lambda x: torch.special.erfinv(1 - x)}
TORCH["rounded_mul"] = torch.mul
TORCH["digamma"] = lambda x: torch.digamma(x + 20) - sum(1 / (x + k) for k in range(20))  # torch.polygamma has nine digits, unless its operand is large


@pytest.mark.parametrize("name", UNARY)
def test_the_gradient_of_a_function_of_one_operand(name: str) -> None:
    reference = TORCH.get(name) or getattr(torch, name, None) or getattr(torch.special, name, None) or OPS[name].reference
    check(lambda o, x: getattr(o, name)(x), reference, X + 1.5 if name == "acosh" else X)


@pytest.mark.parametrize("name", BINARY)
def test_the_gradient_of_a_function_of_two_operands(name: str) -> None:
    check(lambda o, a, b: getattr(o, name)(a, b), TORCH.get(name) or getattr(torch, name), X, Y)


@pytest.mark.parametrize("name", ["add", "mul", "div", "pow", "maximum"])
@pytest.mark.parametrize("other", [ROW, COLUMN], ids=["row", "column"])
def test_a_repeated_operand_gets_the_sum(name: str, other: torch.Tensor) -> None:
    check(lambda o, a, b: getattr(o, name)(a, b), getattr(torch, name), X, other)
    check(lambda o, a, b: getattr(o, name)(b, a), lambda a, b: getattr(torch, name)(b, a), X, other)


def test_equal_operands_share() -> None:
    same = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    check(lambda o, a, b: o.maximum(a, b), torch.maximum, same, same.clone())
    check(lambda o, a: o.amax(a, [1]), lambda a: a.amax(1), torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=torch.float64))


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "where": (lambda o, x, y: o.where(o.gt(x, 0.5), x * y, y), lambda x, y: torch.where(x > 0.5, x * y, y), (X, Y)),
    "lerp": (lambda o, x, y: o.lerp(x, y, x), lambda x, y: torch.lerp(x, y, x), (X, Y)), "clamp": (lambda o, x: o.clamp(x, 0.3, 0.6), lambda x: x.clamp(0.3, 0.6), (X,)),
    "threshold": (lambda o, x: o.threshold(x, 0.5, 2.0), lambda x: torch.nn.functional.threshold(x, 0.5, 2.0), (X,)),
    "pow of a number": (lambda o, x: x**3 + x**2 + x**0.5 + x**-1.5, lambda x: x**3 + x**2 + x**0.5 + x**-1.5, (X,)),
    "number to the power": (lambda o, x: 2.0**x, lambda x: 2.0**x, (X,)), "addcmul": (lambda o, x, y: o.addcmul(x, y, x, 0.5), lambda x, y: torch.addcmul(x, y, x, value=0.5), (X, Y)),
    "cast": (lambda o, x: o.cast(o.cast(x, DataType.Double) * 2.0, DataType.Double), lambda x: x * 2, (X,)),
    "sum": (lambda o, x: o.sum(x, [0]) * 3.0, lambda x: x.sum(0) * 3, (X,)), "sum to a scalar": (lambda o, x: o.sum(x * x), lambda x: (x * x).sum(), (X,)),
    "prod": (lambda o, x: o.prod(x, [1]), lambda x: x.prod(1), (X,)),
    "prod with zeros": (lambda o, x: o.prod(x, [1]), lambda x: x.prod(1), (torch.tensor([[0.0, 2, 3], [0, 0, 5], [1, 2, 3]], dtype=torch.float64),)),
    "max": (lambda o, x: o.max(x, [0], True) * x, lambda x: x.amax(0, True) * x, (X,)), "var": (lambda o, x: o.var(x, [1]), lambda x: x.var(1), (X,)),
    "var_mean": (lambda o, x: o.var_mean(x, [0], 0, True)[0] * o.var_mean(x, [0], 0, True)[1] * x, lambda x: x.var(0, correction=0, keepdim=True) * x.mean(0, keepdim=True) * x, (X,)),
    "permute": (lambda o, x, y: o.permute(x, [1, 0]) * o.permute(y, [1, 0]), lambda x, y: x.T * y.T, (X, Y)),
    "broadcast, squeeze": (lambda o, x: o.squeeze(o.broadcast(x * x, [False, True, False]), [1]), lambda x: x * x, (X,)),
    "expand": (lambda o, x: o.expand(o.unsqueeze(x, 0), [3, -1, -1]) * 2.0, lambda x: x[None].expand(3, -1, -1) * 2, (X,)),
    "sum over expanded": (lambda o, x: o.sum(o.expand(o.unsqueeze(x, 0), [3, -1, -1]), [0]) * x, lambda x: x * 3 * x, (X,)),
    "reused": (lambda o, x: (x + x) * x, lambda x: (x + x) * x, (X,)), "detach": (lambda o, x: o.detach(x) * x, lambda x: x.detach() * x, (X,)),
    "stride_order": (lambda o, x: o.stride_order(x * x, [0, 1]), lambda x: x * x, (X,)), "copies": (lambda o, x: o.set(o.segment_set(x * x)), lambda x: x * x, (X,)),
    "softmax": (lambda o, x: x.softmax(0), lambda x: x.softmax(0), (X,)), "log_softmax": (lambda o, x: x.log_softmax(1), lambda x: x.log_softmax(1), (X,)),
    "logsumexp": (lambda o, x: o.logsumexp(x, [1]), lambda x: x.logsumexp(1), (X,)), "layer_norm": (lambda o, x, w: x.layer_norm([-1], w[0], w[0]) if False else o.layer_norm(x, [-1]) * w, lambda x, w: torch.nn.functional.layer_norm(x, (6,)) * w, (X, ROW)),
    "slice": (lambda o, x: x[1:3, 2:], lambda x: x[1:3, 2:], (X,)), "pad": (lambda o, x: o.pad(x, [1, 2, 0, 1]), lambda x: torch.nn.functional.pad(x, (1, 2, 0, 1)), (X,)),
    "cat": (lambda o, x, y: o.cat([x, y, x], 1), lambda x, y: torch.cat([x, y, x], 1), (X, Y)), "reshape": (lambda o, x: o.reshape(x * x, [-1]) * 2.0, lambda x: (x * x).reshape(-1) * 2, (X,)),
    "gather": (lambda o, x, i: o.gather(x, i, 1), lambda x, i: x.gather(1, i), (X, INDEX)),
    "gather of fewer rows": (lambda o, x, i: o.gather(x, i, 0), lambda x, i: x.gather(0, i), (X, INDEX[:, :3])),
    "take_along_axis": (lambda o, x, i: o.take_along_axis(x, i, 1), lambda x, i: x.take_along_dim(i, 1), (ROW, INDEX)),
    "index_select": (lambda o, x, i: o.index_select(x, i, 1) * 2.0, lambda x, i: x.index_select(1, i) * 2, (X, INDEX[0])),
    "select": (lambda o, x: o.select(x, -2, 1) * 3.0, lambda x: x.select(1, -2) * 3, (X,)),
    "embedding": (lambda o, w, i: o.embedding_fwd(i, w), lambda w, i: torch.nn.functional.embedding(i, w), (X, INDEX)),
    "scatter": (lambda o, x, i, y: o.scatter(x, i, y, 1), lambda x, i, y: x.scatter(1, i, y), (X, DISTINCT, Y)),
    "scatter of a part": (lambda o, x, i, y: o.scatter(x, i, y, 1), lambda x, i, y: x.scatter(1, i, y[:2, :3]), (X, DISTINCT[:2, :3], Y)),
    "rows that replace others": (lambda o, x, i, y: o.scatter_rows(x, i, y, 0, "set"), lambda x, i, y: x.index_copy(0, i[:, 0], y[:3]), (X, DISTINCT[0, :3, None] % 4, Y[:3])),
    "scatter_add": (lambda o, x, i, y: o.scatter_add(x, i, y, 1), lambda x, i, y: x.scatter_add(1, i, y[:, :4]), (X, INDEX, Y)),
    "cumsum": (lambda o, x: o.cumsum(x, 1) * x, lambda x: x.cumsum(1) * x, (X,)), "cumsum of columns": (lambda o, x: o.cumsum(x, 0), lambda x: x.cumsum(0), (X,)),
    "cummax": (lambda o, x, y: o.cummax(x, 1) * y, lambda x, y: x.cummax(1).values * y, (X, Y)),
    "cummin with positions": (lambda o, x, y: o.cummin_with_indices(x, 0)[0] * y, lambda x, y: x.cummin(0).values * y, (X, Y)),
    "logcumsumexp": (lambda o, x, y: o.logcumsumexp(x * 9.0, 1) * y, lambda x, y: (x * 9).logcumsumexp(1) * y, (X, Y - 1.0)),
    "matmul": (lambda o, x, y: o.matmul(x, o.permute(y, [1, 0])), lambda x, y: x @ y.T, (X, Y)), "matmul with a vector": (lambda o, x, y: o.matmul(x, o.select(y, 0, 0)), lambda x, y: x @ y[0], (X, Y)),
    "vector times matrix": (lambda o, x, y: o.matmul(o.select(x, 0, 0), o.permute(y, [1, 0])), lambda x, y: x[0] @ y.T, (X, Y)), "dot": (lambda o, x, y: o.matmul(o.select(x, 0, 0), o.select(y, 1, 0)), lambda x, y: x[0] @ y[1], (X, Y)),
    "matmul of batches": (lambda o, x, y: o.matmul(x, y), lambda x, y: x @ y, (CUBE, X.T.contiguous())), "matmul of repeated batches": (lambda o, x, y: o.matmul(x, y), lambda x, y: x @ y, (CUBE, CUBE[:1].mT.contiguous())),
    "linear": (lambda o, x, w, b: o.linear(x, w, b), torch.nn.functional.linear, (CUBE, Y, Y[:, 0].clone())), "linear of a matrix": (lambda o, x, w: o.linear(x, w), torch.nn.functional.linear, (X, Y)),
    "linear of a vector": (lambda o, x, w: o.linear(o.select(x, 1, 0), w), lambda x, w: torch.nn.functional.linear(x[1], w), (X, Y)),
    "triu": (lambda o, x: o.triu(x, 1), lambda x: x.triu(1), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of(name: str) -> None:
    define, reference, inputs = CASES[name]
    check(define, reference, *inputs)


def test_every_op_has_a_rule_or_is_known_to_have_none() -> None:
    without = {"nextafter", "complex", "trigamma", "real", "imag", "magnitude", "e8m0_inverse", "e4m3_inverse", "e2m1_scale", "narrow_inverse"}
    without |= {"row_scale", "fma", "log_of_share", "cancelled", "nan_without_sign", "nan_with_sign", "bitcast"}
    assert {name for name, op in OPS.items() if op.gradient is None} == without
    assert {kind.__name__ for kind in RULES} >= {"ReductionOp", "WelfordOp", "BroadcastOp", "SqueezeOp", "ExpandOp", "LoadStoreOp", "ReshapeOp", "LookupOp", "CatOp", "ScanOp", "ScatterOp", "TorchOp"}


def test_an_op_without_a_rule_is_named() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.trigamma(x))
    with pytest.raises(Unsupported, match="W135: trigamma has no derivative rule(.|\n)*ops.detach"):
        Derivative(fd.fusion, [0])  # type: ignore[arg-type]


def saved(define: Callable[..., Any], *dtypes: DataType) -> list[str]:
    """Return what is saved: in0, out0, or mid for what is neither."""
    with FusionDefinition() as fd:
        fd.add_output(define(fd.ops, *(fd.define_tensor([-1, -1], contiguity=True, dtype=d) for d in dtypes)))
    derivative = Derivative(fd.fusion, range(len(dtypes)))  # type: ignore[arg-type]
    return [f"in{s.input}" if s.input is not None else "out" if s.output == 0 else "mid" for s in derivative.saved]


def test_what_is_saved_is_chosen_by_bytes() -> None:
    f, b = DataType.Float, DataType.BFloat16
    assert saved(lambda o, x: o.exp(x), f) == ["out"]
    assert saved(lambda o, x: o.gelu(x), b) == ["in0"]  # 2 bytes, not the 4 of what it is computed in
    assert saved(lambda o, x, y: x * y, f, f) == ["in0", "in1"]
    assert saved(lambda o, x: x + 1.0, f) == []
    assert saved(lambda o, x: o.layer_norm(x, [-1]), b) == ["in0", "mid", "mid"]  # mean and sum of squares: a value per row
    assert saved(lambda o, x: o.dropout(x, 0.5), f) == ["mid"]  # a mask of one byte, not the numbers


def test_the_text_of_a_backward_is_a_definition() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(x * x)
    text = Differentiable(fd.fusion).definition_of_backward()  # type: ignore[arg-type]
    assert "def nvfuser_fusion" in text and "fd.ops.mul(tv2, tv0)" in text
