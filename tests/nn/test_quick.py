"""Remembered calls of functions: taken where everything is like before, and nowhere else."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.nn import functional as W
from weft.nn.quick import MOST_ATTEMPTS, TOLD, quick
from weft.options import options
from weft.runtime import engines
from weft.runtime.storage_check import StorageTooSmall


def remembered(function: Any) -> tuple[Any, ...]:
    """The attempts of a function, from its closure."""
    (found,) = [c.cell_contents for c in function.__closure__ if isinstance(c.cell_contents, list)]
    return tuple(found[0])


def twice(call: Any) -> Any:
    call()
    return call()


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_second_call_does_not_run_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(3, 8), torch.rand(8)
    twice(lambda: W.rms_norm(x, (8,), w, 1e-6))
    monkeypatch.setattr("weft.nn.norms._normalized", lambda *given: pytest.fail("checked again"))
    close(W.rms_norm(x * 2, (8,), w, 1e-6), F.rms_norm(x * 2, (8,), w, 1e-6))


def test_each_argument_counts() -> None:
    x, w = torch.randn(3, 8), torch.rand(8)
    for _ in range(2):
        close(W.rms_norm(x, (8,), w, 1e-6), F.rms_norm(x, (8,), w, 1e-6))
        close(W.rms_norm(x, (8,), w, 0.5), F.rms_norm(x, (8,), w, 0.5))
        close(W.rms_norm(x, (8,), None, 0.5), F.rms_norm(x, (8,), None, 0.5))
        close(W.rms_norm(x, 8, w, 0.5, weight_offset=1.0), F.rms_norm(x, (8,), w + 1, 0.5))
        close(W.rms_norm(x, [8], weight=w, eps=0.25), F.rms_norm(x, (8,), w, 0.25))
        close(W.rms_norm(x.double(), (8,), w.double(), 0.5).float(), F.rms_norm(x, (8,), w, 0.5))
        close(W.rms_norm(x.t().contiguous().t(), (8,), w, 0.5), F.rms_norm(x, (8,), w, 0.5))
        close(W.softmax(x, 0), F.softmax(x, 0))
        close(W.softmax(x, 1), F.softmax(x, 1))


def test_a_tensor_that_is_given_twice_is_not_taken_for_two() -> None:
    x, w, b = torch.randn(3, 8), torch.rand(8), torch.rand(8)
    for weight, bias in ((w, w), (w, b), (b, b), (b, w)):
        close(W.layer_norm(x, (8,), weight, bias), F.layer_norm(x, (8,), weight, bias))


def test_gradients_are_recorded_only_where_they_are_asked_for() -> None:
    x, w = torch.randn(3, 8), torch.rand(8)
    xg, wg = x.clone().requires_grad_(), w.clone().requires_grad_()
    for _ in range(2):
        assert W.rms_norm(x, (8,), w, 1e-6).grad_fn is None
        for leaves in ((xg, w), (x, wg), (xg, wg)):
            y, want = W.rms_norm(leaves[0], (8,), leaves[1], 1e-6), F.rms_norm(leaves[0], (8,), leaves[1], 1e-6)
            wanted = [t for t in leaves if t.requires_grad]
            for a, b in zip(torch.autograd.grad(y.sin().sum(), wanted), torch.autograd.grad(want.sin().sum(), wanted)):
                close(a, b)
        with torch.no_grad():
            assert W.rms_norm(xg, (8,), wg, 1e-6).grad_fn is None
        with torch.inference_mode():
            assert W.rms_norm(xg, (8,), wg, 1e-6).is_inference()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_call_without_gradients_is_not_taken_for_one_with(mode: Any) -> None:
    """Evaluation first, training then, with the same parameters; and back."""
    for _ in range(2):
        x, w, t = torch.randn(3, 8), torch.rand(8, requires_grad=True), torch.tensor([0, 3, 5])
        calls = (lambda a: W.rms_norm(a, (8,), w, 1e-6), lambda a: W.softmax(a, -1), lambda a: W.cross_entropy(a, t), lambda a: W.swiglu(a, a * 2))
        for call in calls:
            leaf = x.clone().requires_grad_()
            for _ in range(2):
                with mode():
                    assert not twice(lambda call=call, leaf=leaf: call(leaf)).requires_grad
                (grad,) = torch.autograd.grad(twice(lambda call=call, leaf=leaf: call(leaf)).sum(), leaf)
                assert grad.shape == leaf.shape


def test_autocast_transforms_and_modules_see_what_they_should() -> None:
    x = torch.randn(3, 8).bfloat16()
    parameter = torch.nn.Parameter(torch.randn(3, 8))
    for _ in range(2):
        assert W.softmax(x, -1).dtype is torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert W.softmax(x, -1).dtype is torch.bfloat16 and W.kl_div(x, x, reduction="sum").dtype is torch.float32
        close(torch.func.vmap(lambda row: W.softmax(row, -1))(x.float()), F.softmax(x.float(), -1))
        got = torch.func.grad(lambda row: W.softmax(row, -1)[0, 0])(x.float())
        close(got, torch.func.grad(lambda row: F.softmax(row, -1)[0, 0])(x.float()))
        assert W.softmax(parameter, -1).requires_grad


def test_wrong_arguments_are_refused_after_right_ones() -> None:
    x, w = torch.randn(3, 8), torch.rand(8)
    twice(lambda: W.rms_norm(x, (8,), w, 1e-6))
    with pytest.raises(Exception, match="W142"):
        W.rms_norm(x, (7,), w, 1e-6)
    with pytest.raises(Exception, match="W140"):
        W.rms_norm([1.0], (8,), w, 1e-6)
    with pytest.raises(Exception, match="W140"):
        W.rms_norm(torch.nested.nested_tensor([torch.randn(8), torch.randn(8)]), (8,), None, 1e-6)
    with pytest.raises(TypeError):
        W.rms_norm(x, eps=1e-6)  # type: ignore[call-arg]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_packed_inputs_are_remembered(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 10, requires_grad=True)
    with mode():
        for function, wanted in ((W.swiglu, F.silu), (W.geglu, lambda a: F.gelu(a, approximate="tanh"))):
            twice(lambda function=function: function(x))
            with monkeypatch.context() as patched:
                patched.setattr("weft.nn.activations._half", lambda *given: pytest.fail("checked again"))
                a, b = x.chunk(2, -1)
                result = function(x)
            close(result, wanted(a) * b)
            if torch.is_grad_enabled():
                g = torch.randn_like(result)
                close(torch.autograd.grad(result, x, g)[0], torch.autograd.grad(wanted(a) * b, x, g)[0])


def test_remembered_calls_without_gradients_ask_what_a_guard_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, memory that is too short, and addresses that are not aligned (tests have another check than "bounds")."""
    w = torch.rand(8)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return W.rms_norm(x, (8,), w, 1e-6)

    x = torch.randn(3, 8)
    twice(lambda: norm(x))
    checks: list[str] = []
    monkeypatch.setattr("weft.nn.norms._normalized", lambda *given: pytest.fail("not remembered"))
    monkeypatch.setattr(engines, "watchers", [lambda call: checks.append(call.kernel.check)])
    for values in (torch.randn(3, 8), torch.randn(25)[1:].view(3, 8), x):
        close(norm(values), F.rms_norm(values, (8,), w, 1e-6))
    with options(check="bounds"):
        close(norm(x), F.rms_norm(x, (8,), w, 1e-6))
    assert len(checks) == 4 and checks[2] != checks[3] == "bounds"
    short = torch.randn(3, 8)
    short.untyped_storage().resize_(64)
    with pytest.raises(StorageTooSmall):
        norm(short)


def test_only_so_many_calls_are_remembered_and_all_are_right() -> None:
    for _ in range(2):
        for rows in range(1, MOST_ATTEMPTS + 4):
            x = torch.randn(rows, 4)
            close(W.silu(x), F.silu(x))
    assert len(remembered(W.silu)) == MOST_ATTEMPTS


def test_a_function_that_changes_the_result_or_the_tensors_is_never_remembered() -> None:
    calls = []

    @quick
    def doubled(x: torch.Tensor, times: int = 2) -> torch.Tensor:
        calls.append(times)
        return W.silu(x * times)

    x = torch.randn(2, 4)
    close(doubled(x), F.silu(2 * x))
    close(doubled(x, times=3), F.silu(3 * x))
    close(doubled(x), F.silu(2 * x))
    assert calls == [2, 3, 2] and not remembered(doubled) and TOLD.call is None
    assert str(inspect.signature(doubled)) == "(x: 'torch.Tensor', times: 'int' = 2) -> 'torch.Tensor'" and doubled.__name__ == "doubled"


def test_second_order_gradients_through_remembered_calls() -> None:
    x = torch.randn(3, 5, dtype=torch.float64).requires_grad_()
    for _ in range(2):
        assert torch.autograd.gradgradcheck(lambda x: W.softmax(x, -1), (x,))
