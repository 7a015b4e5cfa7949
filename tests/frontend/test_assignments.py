"""Assignments to parts of a tensor: forward and backward are kernels, also where a mask names the places, and no memory is asked of torch for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend
from weft.options import options

pytestmark = pytest.mark.usefixtures("fresh")
TORCH = tuple(int(n) for n in torch.__version__.split(".")[:2])


def check(function: Callable[..., Any], *inputs: Tensor, kept: tuple[str, ...] = (), regions: int = 2) -> None:
    """Compare result and gradients with eager float64, and type and strides with eager; torch runs the ops `kept` alone."""
    torch._dynamo.reset()
    exact = [x.double() if x.is_floating_point() else x for x in inputs]
    runs = []
    for run, given in ((function, exact), (function, inputs), (torch.compile(function, backend=backend, options={"emulate": True, "debug": True}), inputs)):
        leaves = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in given]
        moving = [x for x in leaves if x.requires_grad]
        with poisoned_outputs():
            out = run(*leaves)
            torch.manual_seed(3)
            slope = torch.empty_like(out).copy_(torch.randn(out.shape).bfloat16())
            runs.append((out, *torch.autograd.grad(out, moving, slope, allow_unused=True)))
    for want, eager, got in zip(*runs, strict=True):
        if eager is None:
            assert got is None
            continue
        assert got.dtype is eager.dtype and got.shape == eager.shape
        assert got.numel() == 0 or got.stride() == eager.stride()
        eps = torch.finfo(got.dtype).eps
        torch.testing.assert_close(got.double(), want, rtol=32 * eps, atol=32 * eps)
    assert {op for graph in GRAPHS for op in graph.torch_ops} == set(kept)
    assert sum(len(graph.calls) for graph in GRAPHS) <= regions
    assert not any(call.fallback_reason for graph in GRAPHS for call in graph.calls)


def recurrence(x: Tensor) -> Tensor:
    out, last = torch.zeros_like(x), torch.zeros_like(x[0])
    for t in reversed(range(len(x))):
        last = x[t] + 0.9 * last
        out[t] = last
    return out


def interleaved(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[..., ::2] = x[..., ::2] * 2 - y[..., 1::2]
    out[..., 1::2] = x[..., 1::2] + y[..., ::2]
    return out


def matrices(x: Tensor) -> Tensor:
    a, b, c = x.unbind(-1)
    out = torch.zeros(*x.shape[:-1], 2, 2, dtype=x.dtype)
    out[..., 0, 0], out[..., 0, 1], out[..., 1, 0], out[..., 1, 1] = a * b, b - c, b + c, a * a
    return out


def several(x: Tensor, y: Tensor) -> Tensor:
    out = x * 2
    out[1:3] = y
    out[:, 0] += 1
    out[..., -1].mul_(3)
    out[:1, 1:] = 0.5
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows, columns", [(5, 7), (3, 1), (4, 0)])
def test_rows_one_by_one(rows: int, columns: int, dtype: torch.dtype) -> None:
    check(recurrence, torch.randn(rows, columns).to(dtype))


@pytest.mark.parametrize("rows, columns", [(5, 6), (1, 2), (0, 4)])
def test_every_second_element(rows: int, columns: int) -> None:
    check(interleaved, torch.randn(rows, columns), torch.randn(rows, columns))


@pytest.mark.parametrize("rows", [1, 13, 0])
def test_elements_of_matrices(rows: int) -> None:
    check(matrices, torch.randn(rows, 3))


def test_parts_that_overlap() -> None:
    check(several, torch.randn(4, 5), torch.randn(2, 5))


def test_a_part_of_another_type_and_size() -> None:
    """A copy broadcasts, and casts."""
    check(lambda x, y: (x * 2).copy_(y), torch.randn(4, 5, dtype=torch.float64), torch.randn(5), regions=3)
    check(lambda x, y: (x * 2).copy_(y), torch.randn(4, 5).bfloat16(), torch.randn(4, 1), regions=3)


def test_copies_keep_the_order_in_memory() -> None:
    """Of the tensor that is copied into."""
    x, y = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 4, 5)
    check(lambda x, y: torch.empty_like(x).copy_(y) * 2, x, y, regions=3)
    check(lambda x, y: torch.empty_like(x).copy_(y), x, y, regions=3)


def test_what_is_copied_into_an_argument() -> None:
    """The argument has the new values, and two arguments can be exchanged."""

    def exchanged(x: Tensor, y: Tensor) -> Tensor:
        before = x.clone()
        x.copy_(y)
        y.copy_(before * 2)
        return x + y

    x, y = torch.randn(4, 5), torch.randn(4, 5)
    ours, theirs = (x.clone(), y.clone()), (x.clone(), y.clone())
    out = torch.compile(exchanged, backend=backend, options={"emulate": True})(*ours)
    torch.testing.assert_close((out, *ours), (exchanged(*theirs), *theirs))
    assert all("is copied into it" in why for graph in GRAPHS for op, (_, why) in graph.torch_ops.items() if "copy_" in op)


# ---------------------------------------------------------------- masks
def put(values: Any, *before: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, mask: Tensor) -> Tensor:
        y = x * 2
        y[(*before, mask)] = values.to(x.dtype) if isinstance(values, Tensor) else values
        return y

    return function


@pytest.mark.parametrize("values", [0.5, torch.randn(1), torch.randn(7)], ids=["number", "one", "row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(4, 5, 7), (1, 1, 7), (0, 5, 7)], ids=str)
def test_a_value_at_the_places_of_a_mask(sizes: tuple[int, ...], dtype: torch.dtype, values: Any) -> None:
    """The mask covers the first two axes."""
    check(put(values), torch.randn(sizes).to(dtype), torch.rand(sizes[:2]) > 0.4)


@pytest.mark.parametrize("chosen", ["some", "none", "all"])
def test_masks_of_all_axes_and_of_the_last(chosen: str) -> None:
    masks = {"some": torch.rand(4, 5) > 0.4, "none": torch.zeros(4, 5, dtype=torch.bool), "all": torch.ones(4, 5, dtype=torch.bool)}
    check(put(-1e4), torch.randn(4, 5), masks[chosen])
    check(put(2.0, slice(None)), torch.randn(3, 4, 5), masks[chosen])
    check(put(torch.randn(3, 1), slice(None)), torch.randn(3, 4, 5), masks[chosen])


def test_a_mask_in_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(put(1.5), x, torch.rand(2, 3, 4, 5) > 0.5)
    check(put(1.5, slice(None), slice(None)), x, torch.rand(4, 5) > 0.5)


def test_an_added_value_at_the_places_of_a_mask() -> None:
    check(lambda x, m: (x * 2).index_put((m,), torch.tensor(0.5, dtype=x.dtype), accumulate=True), torch.randn(4, 5, 3), torch.rand(4, 5) > 0.4)


def test_an_argument_is_changed_at_the_places_of_a_mask() -> None:
    def function(x: Tensor, mask: Tensor) -> Tensor:
        x[mask] = 0.5
        return x.sum()

    x, mask = torch.randn(6, 7), torch.rand(6, 7) > 0.5
    ours, theirs = x.clone(), x.clone()
    with poisoned_outputs():
        out = torch.compile(function, backend=backend, options={"emulate": True})(ours, mask)
    torch.testing.assert_close((out, ours), (function(theirs, mask), theirs))
    assert not any("index_put" in op for graph in GRAPHS for op in graph.torch_ops)


def test_values_for_each_place_of_a_mask_stay_with_torch() -> None:
    """How many there are depends on data, so a choice between two tensors of known sizes is none."""
    x, mask, values = torch.randn(3, 4), torch.tensor([True, False, True]), torch.randn(2, 4)

    def function(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        return (x * 2).index_put((mask,), values.exp()) + 1

    out = torch.compile(function, backend=backend, options={"emulate": True, "debug": True})(x, mask, values)
    torch.testing.assert_close(out, function(x, mask, values))
    assert [op for graph in GRAPHS for op in graph.torch_ops] == ["aten.index_put.default"]


# ---------------------------------------------------------------- memory
def as_view(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.empty_like(x)
    y.copy_(x)
    return y.view(-1), y.t(), y * 2


def parts_of_a_copy(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.zeros_like(x)
    y[:] = x
    return y[1:], y.unsqueeze(0)


def copied_before_a_change(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.empty_like(x)
    y.copy_(x)
    x.add_(1)
    return y * 2, y.view(-1), x * 3


def exchanged(x: Tensor) -> tuple[Tensor, ...]:
    """Two halves, each copied before it is written."""
    a, b = x[:2], x[2:4]
    kept = torch.empty_like(a)
    kept.copy_(a)
    a.copy_(b)
    b.copy_(kept)
    return kept, x * 2


@pytest.mark.parametrize("function", [as_view, parts_of_a_copy, copied_before_a_change, exchanged])
def test_views_of_a_copy_are_no_views_of_what_was_copied(function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    ours = torch.randn(5, 3)
    theirs = ours.clone()
    out, want = torch.compile(function, backend=backend, options={"emulate": True})(ours), function(theirs)
    assert torch.equal(ours, theirs) and all(torch.equal(a, b) for a, b in zip(out, want, strict=True))
    for a, b in zip(out, want):
        a.add_(1)
        b.add_(1)
    assert torch.equal(ours, theirs) and all(torch.equal(a, b) for a, b in zip(out, want))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x, "channels last": lambda x: x.contiguous(memory_format=torch.channels_last), "turned": lambda x: x.transpose(0, 3),
    "gaps": lambda x: x[:, :, ::2], "two rows": lambda x: x[:2].transpose(1, 2),
}  # fmt: skip


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_places_that_are_filled_in_any_layout(layout: str, dim: int) -> None:
    """torch 2.11's decomposition of what is not dense assigns, which AOTAutograd refuses."""
    for value in (2.5, torch.tensor(-1.5)):
        torch._dynamo.reset()
        x = LAYOUTS[layout](torch.randn(3, 7, 5, 4))
        index = torch.tensor([1, 0, 1]) % x.shape[dim]
        ours, theirs = x.detach().requires_grad_(), x.detach().requires_grad_()
        with poisoned_outputs():
            out = torch.compile(lambda x: x.index_fill(dim, index, value), backend=backend, options={"emulate": True})(ours)
            want = theirs.index_fill(dim, index, value)
            slope = torch.randn_like(want)
            out.backward(slope)
            want.backward(slope)
        assert torch.equal(out, want) and out.stride() == want.stride()
        assert torch.equal(ours.grad, theirs.grad) and ours.grad.stride() == theirs.grad.stride()


def test_a_size_that_only_a_sum_of_an_input_has() -> None:
    """torch computes the pooled image, so no input of the kernel has n, but n + 1."""
    torch._dynamo.reset()

    def function(x: Tensor) -> Tensor:
        y = F.max_pool2d(x, 2, 1, 1) * 1.5
        y[..., -1:] += y[..., :1]
        return y

    compiled = torch.compile(function, backend=backend, options={"emulate": True, "strict": True}, dynamic=True)
    for n in (4, 7):
        x = torch.randn(2, 3, 5, n, dtype=torch.float64)
        with poisoned_outputs():
            torch.testing.assert_close(compiled(x), function(x))


# ---------------------------------------------------------------- positions that are in range
@pytest.mark.parametrize("find", [
    lambda x: x.argmax(-1), lambda x: x.max(-1).indices, lambda x: x.topk(2).indices[:, 0], lambda x: x.min(1)[1].unsqueeze(0), lambda x: x.argmin(1, True),
], ids=["argmax", "max", "topk", "min", "argmin"])  # fmt: skip
def test_classes_that_a_kernel_has_found_are_not_checked(find: Callable[[Tensor], Tensor]) -> None:
    check(lambda x: F.one_hot(find(x), 6) * x.sum(), torch.randn(19, 6))


@pytest.mark.skipif(TORCH < (2, 12), reason="torch 2.11 traces no check of classes")
@pytest.mark.parametrize("classes", [5, 7])
def test_classes_that_may_be_out_of_range_are_checked(classes: int) -> None:
    """Fewer classes than places; positions to which a number was added."""
    torch._dynamo.reset()
    given = (lambda x: x.argmax(-1)) if classes == 5 else (lambda x: x.argmax(-1) + 2)
    function = torch.compile(lambda x: F.one_hot(given(x), classes) * x.sum(), backend=backend, options={"emulate": True})
    x = torch.zeros(3, 6)
    x[:, 1] = 1
    assert function(x).shape == (3, classes)
    x[1, 5] = 2
    with options(), pytest.raises(RuntimeError, match="one_hot"):
        function(x)
