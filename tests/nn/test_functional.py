"""Functions of weft.nn.functional: equal to torch's in float64, with gradients, for strided inputs, other types, empty batches; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft import UserError
from weft.nn import functional as W

G = torch.Generator().manual_seed(11)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=G, dtype=torch.float64)


COS, SIN = rand(1, 1, 5, 8), rand(1, 1, 5, 8)
MASK = torch.rand(5, 5, generator=G) > 0.3
MASK[:, 0] = True
TARGET = torch.tensor([0, 2, -100, 6])


def rms_reference(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x + r, (6,), w, 1e-6)


def turned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)


# name -> (ours, torch's, inputs of which floats get gradients)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "softmax": (lambda x: W.softmax(x, -1), lambda x: F.softmax(x, -1), (rand(3, 7),)), "softmax of columns": (lambda x: W.softmax(x, 0), lambda x: F.softmax(x, 0), (rand(3, 7),)),
    "log_softmax": (lambda x: W.log_softmax(x, -1), lambda x: F.log_softmax(x, -1), (rand(2, 3, 7),)),
    "scaled_masked_softmax": (lambda x: W.scaled_masked_softmax(x, MASK, 0.5), lambda x: F.softmax((x * 0.5).masked_fill(~MASK, -torch.inf), -1), (rand(2, 5, 5),)),
    "scaled_causal_softmax": (lambda x: W.scaled_causal_softmax(x, 0.5), lambda x: F.softmax((x * 0.5).masked_fill(torch.ones(4, 6).tril(2) == 0, -torch.inf), -1), (rand(2, 4, 6),)),
    "layer_norm": (lambda x, w, b: W.layer_norm(x, (6,), w, b), lambda x, w, b: F.layer_norm(x, (6,), w, b), (rand(4, 6), rand(6), rand(6))),
    "layer_norm of two axes": (lambda x: W.layer_norm(x, (3, 4)), lambda x: F.layer_norm(x, (3, 4)), (rand(2, 3, 4),)),
    "rms_norm": (lambda x, w: W.rms_norm(x, (6,), w), lambda x, w: F.rms_norm(x, (6,), w), (rand(2, 4, 6), rand(6))),
    "rms_norm with offset": (lambda x, w: W.rms_norm(x, 6, w, 1e-6, weight_offset=1.0), lambda x, w: F.rms_norm(x, (6,), w + 1, 1e-6), (rand(4, 6), rand(6))),
    "add_rms_norm": (lambda x, r, w: W.add_rms_norm(x, r, w)[0], rms_reference, (rand(4, 6), rand(4, 6), rand(6))),
    "add_rms_norm, the sum": (lambda x, r, w: sum(W.add_rms_norm(x, r, w)), lambda x, r, w: rms_reference(x, r, w) + x + r, (rand(4, 6), rand(4, 6), rand(6))),
    "dropout_add_layer_norm": (lambda x, r, w, b: sum(W.dropout_add_layer_norm(x, r, w, b)), lambda x, r, w, b: F.layer_norm(x + r, (6,), w, b) + x + r, (rand(4, 6), rand(4, 6), rand(6), rand(6))),
    "group_norm": (lambda x, w, b: W.group_norm(x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b), (rand(2, 4, 3, 3), rand(4), rand(4))),
    "batch_norm": (lambda x, w, b: W.batch_norm(x, None, None, w, b, True), lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (rand(3, 4, 2, 2), rand(4), rand(4))),
    "instance_norm": (lambda x, w, b: W.instance_norm(x, weight=w, bias=b), lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (rand(2, 3, 4, 2), rand(3), rand(3))),
    "normalize": (lambda x: W.normalize(x, dim=-1), lambda x: F.normalize(x, dim=-1), (rand(4, 6),)), "gelu": (lambda x: W.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), (rand(4, 6),)),
    "gelu by erf": (W.gelu, F.gelu, (rand(4, 6),)), "silu": (W.silu, F.silu, (rand(4, 6),)), "swiglu": (W.swiglu, lambda a, b: F.silu(a) * b, (rand(4, 6), rand(4, 6))),
    "swiglu packed": (W.swiglu, lambda x: F.silu(x[..., :3]) * x[..., 3:], (rand(2, 4, 6),)), "geglu": (W.geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, (rand(4, 6), rand(4, 6))),
    "rope": (lambda x: W.rope(x, COS, SIN), lambda x: x * COS + turned(x) * SIN, (rand(2, 3, 5, 8),)),
    "cross_entropy": (lambda x: W.cross_entropy(x, TARGET), lambda x: F.cross_entropy(x, TARGET), (rand(4, 7),)),
    "cross_entropy, smoothed and weighed": (lambda x, w=rand(7).abs(): W.cross_entropy(x, TARGET, w, label_smoothing=0.1), None, (rand(4, 7),)),
    "cross_entropy of images": (lambda x: W.cross_entropy(x, torch.arange(6).reshape(2, 3) % 4, reduction="none"), lambda x: F.cross_entropy(x, torch.arange(6).reshape(2, 3) % 4, reduction="none"), (rand(2, 4, 3),)),
    "kl_div": (lambda x, y: W.kl_div(x, y, reduction="batchmean", log_target=True), lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True), (rand(4, 6), rand(4, 6))),
    "embedding_rms_norm": (lambda t, w: W.embedding_rms_norm(TARGET.abs() % 5, t, w), lambda t, w: F.rms_norm(F.embedding(TARGET.abs() % 5, t), (6,), w, 1e-6), (rand(5, 6), rand(6))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_function_and_its_gradients_are_torchs(name: str) -> None:
    ours, reference, inputs = CASES[name]
    if reference is None:
        weight = ours.__defaults__[0]  # type: ignore[attr-defined]
        reference = lambda x: F.cross_entropy(x, TARGET, weight, label_smoothing=0.1)  # noqa: E731
    leaves = [t.clone().requires_grad_() for t in inputs]
    got, want = ours(*leaves), reference(*leaves)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(got, leaves, grad), torch.autograd.grad(want, leaves, grad)):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm", "swiglu", "cross_entropy"])
def test_gradcheck(name: str) -> None:
    ours, _, inputs = CASES[name]
    assert torch.autograd.gradcheck(ours, [t.clone().requires_grad_() for t in inputs], fast_mode=True)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "gelu"])
def test_strided_inputs_and_gradients(name: str) -> None:
    ours, reference, inputs = CASES[name]
    wide = torch.randn(*inputs[0].shape[:-1], 2 * inputs[0].shape[-1], dtype=torch.float64)
    for x in (wide[..., ::2], inputs[0].T.contiguous().T, inputs[0][:1].expand(inputs[0].shape)):
        leaves = [x.detach().requires_grad_(), *(t.clone().requires_grad_() for t in inputs[1:])]
        got, want = ours(*leaves), reference(*leaves)
        torch.testing.assert_close(got, want)
        for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves)):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(0, 6), (2, 0, 6), (1, 6), (6,)], ids=str)
def test_empty_and_single_rows(shape: tuple[int, ...]) -> None:
    x, w = torch.randn(shape, dtype=torch.float64).requires_grad_(), torch.rand(6, dtype=torch.float64).requires_grad_()
    got, want = W.rms_norm(x, (6,), w), F.rms_norm(x, (6,), w)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got.sum(), (x, w)), torch.autograd.grad(want.sum(), (x, w))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_narrow_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    x, w = torch.randn(8, 64).to(dtype).requires_grad_(), torch.rand(64).requires_grad_()  # a weight of float32 beside it
    y = W.rms_norm(x, (64,), w)
    y.sum().backward()
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    want = F.rms_norm(wide[0], (64,), wide[1], 2.0**-23)
    want.sum().backward()
    assert y.dtype is dtype and x.grad.dtype is dtype and w.grad.dtype is torch.float32
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), want, atol=4e-6, rtol=rounding)
    torch.testing.assert_close(x.grad.double(), wide[0].grad, atol=max(rounding, 1e-5), rtol=rounding)
    torch.testing.assert_close(w.grad.double(), wide[1].grad, atol=1e-4, rtol=1e-4)


def test_casting_modes_round_where_they_say() -> None:
    x, w = torch.randn(16, 64).bfloat16(), (torch.rand(64) + 0.5).bfloat16()
    hat = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(W.rms_norm(x, 64, w, 1e-6, casting="llama"), w * hat.bfloat16())
    assert torch.equal(W.rms_norm(x, 64, w, 1e-6), (hat * w.float()).bfloat16())
    assert torch.equal(W.rms_norm(x, 64, w, 1e-6, casting="gemma", weight_offset=1.0), (hat * (1 + w.float())).bfloat16())
    out, total = W.rms_norm(x, 64, w, 1e-6, residual=x, residual_dtype=torch.float32)
    assert out.dtype is torch.bfloat16 and torch.equal(total, x.float() * 2)


def test_channels_last_stays() -> None:
    x = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    for y in (W.gelu(x), W.batch_norm(x, None, None, None, None, True), W.group_norm(x, 2)):
        assert y.is_contiguous(memory_format=torch.channels_last) and y.shape == x.shape
    torch.testing.assert_close(W.group_norm(x, 2), F.group_norm(x, 2))


def test_running_statistics_are_torchs() -> None:
    x = torch.randn(5, 3, 4)
    ours, theirs = (torch.zeros(3), torch.ones(3)), (torch.zeros(3), torch.ones(3))
    for _ in range(2):
        torch.testing.assert_close(W.batch_norm(x, *ours, training=True), F.batch_norm(x, *theirs, training=True))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(W.batch_norm(x, *ours), F.batch_norm(x, *theirs))


def test_autocast_returns_what_torch_returns() -> None:
    x, w = torch.randn(4, 8).bfloat16(), torch.rand(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert W.layer_norm(x, (8,), w).dtype is W.softmax(x, -1).dtype is W.rms_norm(x, (8,)).dtype is torch.float32
        assert W.gelu(x).dtype is torch.bfloat16
    assert W.layer_norm(x, (8,), w).dtype is torch.bfloat16


def test_the_same_bits_every_time() -> None:
    x = torch.randn(64, 33).requires_grad_()
    w = torch.rand(33).requires_grad_()
    runs = [torch.autograd.grad(W.layer_norm(x, (33,), w).sum(), (x, w)) for _ in range(3)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run))


def test_vmap_and_functional_gradients() -> None:
    x, w = torch.randn(3, 4, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(lambda a: W.rms_norm(a, (6,), w))(x), F.rms_norm(x, (6,), w))
    ws = torch.rand(3, 6, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(lambda a, b: W.rms_norm(a, (6,), b))(x, ws), torch.func.vmap(lambda a, b: F.rms_norm(a, (6,), b))(x, ws))
    ours = torch.func.grad(lambda b: W.rms_norm(x, (6,), b).sin().sum())(w)
    torch.testing.assert_close(ours, torch.func.grad(lambda b: F.rms_norm(x, (6,), b).sin().sum())(w))


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: W.softmax(torch.ones(2, 3)), "W142: softmax: dim is None"), (lambda: W.layer_norm(torch.ones(2, 3), (4,)), "W142: layer_norm: normalized_shape is \\[4\\]"),
    (lambda: W.layer_norm(torch.ones(2, 3), 3, torch.ones(4)), "W142.*weight or bias has sizes \\[4\\]"), (lambda: W.rms_norm(torch.ones(2, 3), 3, casting="half"), "W142.*casting is 'half'"),
    (lambda: W.group_norm(torch.ones(2, 3, 4), 2), "W142.*3 channels cannot be split into 2"), (lambda: W.batch_norm(torch.ones(1, 3), None, None, training=True), "W142.*one value per channel"),
    (lambda: W.silu(torch.ones(2), inplace=True), "W142.*inplace"), (lambda: W.swiglu(torch.ones(2, 3)), "W142.*3 elements"), (lambda: W.geglu(torch.ones(2, 4), approximate="erf"), "W142"),
    (lambda: W.rope(torch.ones(2, 3), torch.ones(3), torch.ones(3)), "W142: rope"), (lambda: W.cross_entropy(torch.ones(2, 3), torch.ones(2, 3)), "W142.*probabilities"),
    (lambda: W.cross_entropy(torch.ones(2, 3), torch.ones(3).long()), "W142.*sizes \\[2, 3\\]"), (lambda: W.kl_div(torch.ones(2), torch.ones(2), reduction="avg"), "W142.*'avg'"),
    (lambda: W.gelu([1.0, 2.0]), "W140: gelu: input is list"), (lambda: W.gelu(torch.eye(3).to_sparse()), "W140.*sparse"),  # type: ignore[arg-type]
    (lambda: W.gelu(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])), "W140.*nested"), (lambda: W.gelu(torch.ones(3).long()), "W303"),
    (lambda: W.gelu(torch.ones(3), "erf"), "W328"), (lambda: W.dropout_add_layer_norm(torch.ones(2, 3), None, None, dropout_p=2.0), "W142.*dropout_p is 2.0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[m[1][:40] for m in MISTAKES])
def test_a_mistake_has_a_code_and_a_remedy(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n  fix: " in str(caught.value) and "test_functional.py" in str(caught.value)
