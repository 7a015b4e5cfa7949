"""Functions of weft.nn.functional: types, casts, layouts, running statistics, bits, transforms; what is refused. What all have is in test_every_function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from weft import UserError
from weft.nn import KLDivLoss
from weft.nn import functional as W
from weft.options import options

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
    hat = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    rounded_once_or_twice: list[tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]] = [
        (W.rms_norm(x, 64, w, 1e-6, casting="llama"), lambda h: w * h.bfloat16()),
        (W.rms_norm(x, 64, w, 1e-6), lambda h: (h * w.double()).bfloat16()),
        (W.rms_norm(x, 64, w, 1e-6, casting="gemma", weight_offset=1.0), lambda h: (h * (1 + w.double())).bfloat16()),
    ]
    for got, rounded in rounded_once_or_twice:
        above, below = rounded(hat * (1 + 2**-20)), rounded(hat * (1 - 2**-20))
        sure = above == below  # elsewhere, what float32 leaves of the mean decides
        assert sure.float().mean() > 0.97 and torch.equal(got[sure], above[sure])
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
        for ours, theirs in ((W.softmax, F.softmax), (W.log_softmax, F.log_softmax), (W.normalize, F.normalize)):
            assert ours(x, dim=-1).dtype is theirs(x, dim=-1).dtype is torch.bfloat16
        assert W.layer_norm(x, (8,), w).dtype is W.rms_norm(x, (8,)).dtype is W.gelu(x).dtype is torch.bfloat16
        assert W.kl_div(x, x, reduction="sum").dtype is F.kl_div(x, x, reduction="sum").dtype is torch.float32
        assert W.softmax(x, -1, dtype=torch.float32).dtype is torch.float32
    assert W.layer_norm(x, (8,), w).dtype is torch.bfloat16


@pytest.mark.parametrize("given", ["yes", 1, None], ids=str)
def test_log_target_is_a_bool(given: object) -> None:
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match="kl_div: log_target is"):
        W.kl_div(x, x, reduction="sum", log_target=given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kl_div: log_target is"):
        KLDivLoss(reduction="sum", log_target=given)(x, x)  # type: ignore[arg-type]


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
    (lambda: W.silu(torch.ones(3).bool()), "W142: silu: the input is of type torch.bool"), (lambda: W.silu(torch.arange(3)), "W142: silu.*torch.int64"),
    (lambda: W.softmax(torch.ones(2, 3), 0, dtype="float32"), "W142.*'float32', which is not a torch.dtype"),  # type: ignore[arg-type]
    (lambda: W.scaled_causal_softmax(torch.ones(3)), "W142: scaled_causal_softmax: the input has sizes \\[3\\]"),
    (lambda: W.group_norm(torch.ones(4), 2, torch.ones(4)), "W142: group_norm: the input has sizes \\[4\\], without"),
    (lambda: W.normalize(torch.ones(2, 3), dim=(0, 1)), "(?s)W152.*fix: pass a whole number"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[m[1][:40] for m in MISTAKES])
def test_a_mistake_has_a_code_and_a_remedy(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n  fix: " in str(caught.value) and "test_functional.py" in str(caught.value)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_target_that_is_no_class_is_an_error_in_the_emulator(reduction: str) -> None:
    """As in torch. What ignore_index says is no mistake."""
    x = torch.randn(4, 8, requires_grad=True)
    for target, outside in (([0, 1, 2, 8], 8), ([0, -1, 2, 3], -1)):
        with pytest.raises(RuntimeError, match=f"position {outside} of an axis of 8 elements"):
            W.cross_entropy(x, torch.tensor(target), reduction=reduction)
    target = torch.tensor([0, -100, 7, 3])
    torch.testing.assert_close(W.cross_entropy(x, target, reduction=reduction), F.cross_entropy(x, target, reduction=reduction))


@pytest.mark.gpu
def test_a_target_that_is_no_class_has_the_loss_nan_on_a_gpu() -> None:
    """A kernel cannot stop, and a loss that looks right would hide it; the setting `bounds` tells which."""
    x, target = torch.randn(4, 8, device="cuda"), torch.tensor([0, 1, 2, 8], device="cuda")
    assert W.cross_entropy(x, target, reduction="none").isnan().tolist() == [False, False, False, True]
    with options(bounds=True), pytest.raises(weft.PositionOutOfRange, match="position 8 of an axis of 8 elements"):
        W.cross_entropy(x, target)
        weft.synchronize()


def test_weights_of_classes_have_no_gradient_as_in_torch() -> None:
    x, t, w = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 4]), torch.rand(5, requires_grad=True)
    for function in (F.cross_entropy, W.cross_entropy):
        with pytest.raises(RuntimeError, match="weight"):
            function(x, t, w)
    with torch.no_grad():
        torch.testing.assert_close(W.cross_entropy(x, t, w), F.cross_entropy(x, t, w))
    with pytest.raises(UserError, match="weight.detach"):
        W.cross_entropy(x, t, w)
