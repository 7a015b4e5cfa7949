"""The function of one signature: its backward is taken where everything is as it was, and gives way wherever something is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F


from weft.api import warm_gradient
from weft.nn import functional as W
from weft.options import options
from weft.runtime.storage_check import StorageTooSmall


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.float64).requires_grad_()


def compared(ours: Callable[..., Any], theirs: Callable[..., Any], leaves: list[torch.Tensor], grad: torch.Tensor) -> None:
    wanted = [t for t in leaves if t.requires_grad]
    got, want = torch.autograd.grad(ours(*leaves), wanted, grad), torch.autograd.grad(theirs(*leaves), wanted, grad)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def norm(x: torch.Tensor, w: torch.Tensor) -> Any:
    return W.rms_norm(x, (8,), w, 1e-6)


def torchs_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (8,), w, 1e-6)


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets an entry for each backward, of functions made from now on, that does not go the quick way."""
    calls: list[Any] = []
    plain = warm_gradient._Kept.general

    def counted(self: Any, ctx: Any, *given: Any) -> Any:
        calls.append(given)
        return plain(self, ctx, *given)

    monkeypatch.setattr(warm_gradient._Kept, "general", counted)
    return calls


def test_later_backwards_go_the_quick_way(general: list[Any]) -> None:
    leaves = [leaf(3, 8), leaf(8)]
    for _ in range(6):
        compared(norm, torchs_norm, leaves, torch.randn(3, 8, dtype=torch.float64))
    assert len(general) == 1  # the first call went through the function of the plan, the second told the quick way
    y = norm(norm(*leaves), leaves[1])
    want = torchs_norm(torchs_norm(*leaves), leaves[1])
    grad = torch.randn(3, 8, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(y, leaves, grad), torch.autograd.grad(want, leaves, grad)):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_gradients_that_lie_otherwise_in_memory(general: list[Any]) -> None:
    leaves = [leaf(5, 8), leaf(8)]
    plain = torch.randn(5, 8, dtype=torch.float64)
    others = [torch.randn(8, 5, dtype=torch.float64).t(), torch.ones(1, dtype=torch.float64).expand(5, 8), torch.randn(5, 16, dtype=torch.float64)[:, ::2]]
    for _ in range(2):
        for grad in [plain, plain, *others, plain, torch.empty(41, dtype=torch.float64).normal_()[1:].view(5, 8)]:
            compared(norm, torchs_norm, leaves, grad)
    assert general


@pytest.mark.parametrize("function", ["rms_norm", "layer_norm", "softmax", "add_rms_norm"])
def test_gradients_of_gradients_after_quick_ones(function: str) -> None:
    """What the forward saves for its backward only is no result of the function, and yet gradients flow through it."""
    x, r, w, b = leaf(4, 6), leaf(4, 6), leaf(6), leaf(6)  # as tests/nn/nn_functions.py has them, so that kernels are compiled once
    calls: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "rms_norm": (lambda x, w: W.rms_norm(x, (6,), w, 1e-6), (x, w)), "layer_norm": (lambda x, w, b: W.layer_norm(x, (6,), w, b), (x, w, b)),
        "softmax": (lambda x: W.softmax(x, -1), (x,)), "add_rms_norm": (lambda x, r, w: W.rms_norm(x, (6,), w, 1e-6, residual=r), (x, r, w)),
    }  # fmt: skip
    f, leaves = calls[function]
    for _ in range(3):
        made = f(*leaves)
        torch.autograd.grad([o.sum() for o in made] if isinstance(made, tuple) else made.sum(), leaves)
        assert torch.autograd.gradgradcheck(f, leaves, fast_mode=True)


def test_another_thread_and_other_settings() -> None:
    leaves, grad = [leaf(3, 8), leaf(8)], torch.randn(3, 8, dtype=torch.float64)
    for _ in range(3):
        compared(norm, torchs_norm, leaves, grad)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            compared(norm, torchs_norm, leaves, grad)
        except BaseException as error:  # noqa: BLE001  (raised again below)
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    with options(check="races"):
        compared(norm, torchs_norm, leaves, grad)
    compared(norm, torchs_norm, leaves, grad)


def test_a_gradient_without_its_memory_is_refused() -> None:
    leaves = [leaf(3, 8), leaf(8)]
    for _ in range(3):
        torch.autograd.grad(norm(*leaves), leaves, torch.randn(3, 8, dtype=torch.float64))
    grad = torch.randn(3, 8, dtype=torch.float64)
    grad.untyped_storage().resize_(64)
    with pytest.raises(StorageTooSmall):
        torch.autograd.grad(norm(*leaves), leaves, grad)
    shrunk = torch.randn(3, 8, dtype=torch.float64).requires_grad_()
    shrunk.untyped_storage().resize_(64)
    with pytest.raises(StorageTooSmall):
        norm(shrunk, leaves[1])


def test_terms_of_a_sum_share_their_gradient() -> None:
    """x and the residual have one gradient: it is computed and written once, as torch does for x + r."""
    x, r, w = leaf(3, 8), leaf(3, 8), leaf(8)
    for _ in range(3):
        y, total = W.rms_norm(x, (8,), w, 1e-6, residual=r)
        for_x, for_r, _ = torch.autograd.grad((y * y).sum() + total.sum(), (x, r, w))
        assert for_x is for_r or for_x.data_ptr() == for_r.data_ptr()
        W.rms_norm(x, (8,), w, 1e-6, residual=r)[0].sum().backward()
        assert x.grad is not None and r.grad is not None and x.grad.data_ptr() != r.grad.data_ptr()  # torch copies one of them
        x.grad = r.grad = w.grad = None


def test_dropout_keeps_its_mask_in_gradients_of_gradients() -> None:
    """Random numbers are not drawn again: what depends on them stays a result of the function."""
    x, r, w = leaf(4, 16), leaf(4, 16), leaf(16)
    for _ in range(3):
        torch.manual_seed(3)
        y, total = W.dropout_add_layer_norm(x, r, w, dropout_p=0.5)
        (first,) = torch.autograd.grad(total.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        mask = first != 0
        assert torch.equal(second != 0, mask) and 0 < int(mask.sum()) < mask.numel()


def test_graphs_and_profilers_name_the_function() -> None:
    x = leaf(2, 7)
    for _ in range(3):
        node = W.rms_norm(x, (7,)).grad_fn
        assert node is not None and node.name() == "RmsNormBackward"
