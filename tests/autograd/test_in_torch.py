"""Definitions under torch's autograd: kernels forward and backward in the emulator, layouts of gradients, second order, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft import DataType, FusionDefinition, Unsupported, UserError
from weft.runtime.gradient_check import GradientCut


def square_plus(*, dtype: torch.dtype = torch.float64, rank: int = 2) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1] * rank, contiguity=True, dtype=dtype)
        w = fd.define_tensor(shape=[-1], contiguity=True, dtype=dtype)
        fd.add_output((x.exp() * w).to(dtype))
    return fd


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def test_gradcheck_to_the_second_order() -> None:
    f = square_plus().autograd()
    inputs = (leaf(3, 5), leaf(5))
    assert torch.autograd.gradcheck(f, inputs) and torch.autograd.gradgradcheck(f, inputs)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_norm_and_its_backward(norm: str) -> None:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1], contiguity=True, dtype=torch.float64), fd.define_tensor([-1], contiguity=True, dtype=torch.float64)
        fd.add_output(getattr(x, norm)([-1], w))
    a, b = leaf(5, 7), leaf(7)
    got = fd.autograd()(a, b)
    want = getattr(F, norm)(a, (7,), b)
    grad = torch.randn(5, 7, dtype=torch.float64)
    for one, other in zip((got, *torch.autograd.grad(got, (a, b), grad)), (want, *torch.autograd.grad(want, (a, b), grad))):
        torch.testing.assert_close(one, other)


def test_gradients_in_any_layout() -> None:
    f = square_plus().autograd()
    x, w = leaf(4, 6), leaf(6)
    dense = torch.randn(4, 6, dtype=torch.float64)
    for grad in (dense, torch.randn(6, 4, dtype=torch.float64).T, torch.ones((), dtype=torch.float64).expand(4, 6), torch.randn(4, 1, dtype=torch.float64).expand(4, 6),
                 torch.randn(4, 12, dtype=torch.float64)[:, ::2]):  # fmt: skip
        got = torch.autograd.grad(f(x, w), (x, w), grad)
        want = torch.autograd.grad(x.exp() * w, (x, w), grad)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)


def test_only_what_is_asked_for_is_computed() -> None:
    fd = square_plus()
    f = fd.autograd()
    x, w = leaf(3, 4), torch.rand(4, dtype=torch.float64)
    f(x, w).sum().backward()
    assert x.grad is not None and w.grad is None
    plan = f.plan((True, False))
    assert len(next(iter(plan._steps.values())).positions) == 1
    with torch.no_grad():
        assert fd.execute([x, w])[0].grad_fn is None
    assert fd.execute([x, w])[0].requires_grad and not fd.execute([x.detach(), w])[0].requires_grad


def test_several_outputs_and_those_without_gradients() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=torch.float64)
        s = fd.define_scalar(dtype=DataType.Double)
        for value in (x * s, x > 0, x.sum(1), x * x):
            fd.add_output(value)
    a = leaf(3, 4)
    scaled, positive, total, squares = fd.autograd()(a, 2.5)
    assert not positive.requires_grad and positive.dtype is torch.bool
    (total * 3).sum().backward(retain_graph=True)
    torch.testing.assert_close(a.grad, torch.full((3, 4), 3.0, dtype=torch.float64))
    a.grad = None
    (scaled.sum() + squares.sum()).backward()
    torch.testing.assert_close(a.grad, 2.5 + 2 * a.detach())


def test_sixteen_bits_are_computed_in_float() -> None:
    fd = square_plus(dtype=torch.bfloat16)
    x, w = leaf(8, 16, dtype=torch.bfloat16), leaf(16, dtype=torch.bfloat16)
    grad = torch.randn(8, 16).bfloat16()
    got = torch.autograd.grad(fd.autograd()(x, w), (x, w), grad)
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    want = torch.autograd.grad(wide[0].exp() * wide[1], wide, grad.double())
    for a, b in zip(got, want):
        assert a.dtype is torch.bfloat16
        torch.testing.assert_close(a.double(), b, atol=0, rtol=2**-8)  # one rounding to 8 bits


def test_the_sizes_of_a_backward_need_not_be_those_of_a_saved_tensor() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=torch.float64)
        fd.add_output(x.mean(1))
    a = leaf(3, 7)
    fd.autograd()(a).sum().backward()
    torch.testing.assert_close(a.grad, torch.full((3, 7), 1 / 7, dtype=torch.float64))


def test_dropout_drops_the_same_elements_backward() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=torch.float32)
        fd.add_output(fd.ops.dropout(x, 0.5))
    a = torch.rand(1000).add(1).requires_grad_()
    y = fd.autograd()(a)
    y.sum().backward()
    assert torch.equal(y == 0, a.grad == 0) and 300 < int((y == 0).sum()) < 700


def test_checkpointing_and_accumulation_go_through() -> None:
    from torch.utils.checkpoint import checkpoint

    f = square_plus().autograd()
    x, w = leaf(3, 4), leaf(4)
    checkpoint(lambda a, b: f(a, b) * 2, x, w, use_reentrant=False).sum().backward()
    f(x, w).sum().backward()
    torch.testing.assert_close(x.grad, (3 * x.exp() * w).detach())


# ---------------------------------------------------------------- without fd.autograd()
def executed(fd: FusionDefinition, *inputs: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fd.execute(inputs)
    return [str(w.message) for w in caught if w.category is GradientCut]


def test_a_cut_gradient_is_said_once() -> None:
    fd = square_plus()
    x, w = leaf(3, 4), torch.rand(4, dtype=torch.float64)
    assert executed(fd, x.detach(), w) == []
    with torch.no_grad():
        assert executed(fd, x, w) == []
    (said,) = executed(fd, x, w)
    assert said.startswith("W138: input 0 (T0_g") and "fd.autograd()" in said and "test_in_torch.py" in said
    assert executed(fd, x, w) == executed(fd, leaf(5, 4), w) == []


def in_place() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=torch.float64)
        fd.add_output(x * 2.0, alias_input=x)
    return fd


def test_an_overwritten_input_that_requires_a_gradient_is_refused() -> None:
    fd, x = in_place(), leaf(4)
    for tensor in (x, x * 1.0):
        with pytest.raises(UserError, match="W139: input 0(.|\n)*no_grad"):
            fd.execute([tensor])
    with torch.no_grad():
        fd.execute([x])
    with pytest.raises(Unsupported, match="W137"):
        in_place().autograd()(leaf(4))


def test_an_overwritten_input_has_a_new_version() -> None:
    """y = x * x saves x; overwriting x afterwards makes the backward wrong, and torch says so."""
    x = torch.full((3,), 2.0, dtype=torch.float64)
    w = leaf(3)
    y = (w * x).sum()
    in_place().execute([x])
    assert x.tolist() == [4.0] * 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with torch.inference_mode():
        in_place().execute([torch.ones(3, dtype=torch.float64)])


def test_lookups_scans_and_products_have_gradients_by_kernels_and_torch() -> None:
    index = torch.tensor([3, 0, 3, 1, 2])

    def define(o: Any, x: Any, w: Any, i: Any) -> Any:
        return o.cumsum(o.linear(o.embedding_fwd(i, x), w), 0)

    with FusionDefinition() as fd:
        x, w = (fd.define_tensor([-1, -1], contiguity=True, dtype=torch.float64) for _ in range(2))
        i = fd.define_tensor([-1], contiguity=True, dtype=torch.int64)
        fd.add_output(define(fd.ops, x, w, i))
    table, weight = leaf(4, 6), leaf(3, 6)
    got = fd.autograd()(table, weight, index)
    want = F.linear(F.embedding(index, table), weight).cumsum(0)
    torch.testing.assert_close(got, want)
    grad = torch.randn(5, 3, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(got, (table, weight), grad), torch.autograd.grad(want, (table, weight), grad)):
        torch.testing.assert_close(a, b)
    assert "embedding_bwd" in fd.autograd().definition_of_backward(table, weight, index)


def test_attention_has_a_gradient_and_with_a_mask_says_that_it_has_none() -> None:
    def attention(*more: Any) -> FusionDefinition:
        with FusionDefinition() as fd:
            q, k, v = (fd.define_tensor([-1, -1, -1, -1], contiguity=True, dtype=torch.float64) for _ in range(3))
            masks = [fd.define_tensor([-1, -1, -1, -1], contiguity=True, dtype=torch.bool) for _ in more]
            fd.add_output(fd.ops.sdpfa_fwd(q, k, v, None, *masks, is_causal=not masks)[0])
        return fd

    inputs = [leaf(2, 3, 5, 8) for _ in range(3)]
    got, want = attention().autograd()(*inputs), F.scaled_dot_product_attention(*inputs, is_causal=True)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got.sin().sum(), inputs), torch.autograd.grad(want.sin().sum(), inputs)):
        torch.testing.assert_close(a, b)
    with pytest.raises(Unsupported, match="W135: sdpfa_fwd has no derivative rule(.|\n)*omit bias and mask"):
        attention(True).autograd()(*inputs, torch.ones(2, 3, 5, 5, dtype=torch.bool))


def test_a_cut_gradient_is_told_after_calls_without_gradients_too() -> None:
    """Grad mode is a part of what a remembered call is compared with."""
    fd, x, w = square_plus(), leaf(3, 5), leaf(5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            fd.execute([x, w])
    with pytest.warns(GradientCut, match="W138"):
        fd.execute([x, w])
