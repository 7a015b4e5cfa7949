"""Functions that torch has as one op each: searches in sorted lists, running log sums, hypot, copysign and the like are in kernels, not left to torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend
from weft.options import options

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return the result; every op is in a region of weft's."""
    torch._dynamo.reset()
    with poisoned_outputs():
        out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True, "debug": True})(*inputs)
    assert not any(graph.torch_ops for graph in GRAPHS)
    return out


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 100])
def test_places_in_a_sorted_list(count: int, right: bool) -> None:
    """Also of numbers that the list has, of infinities and NaN, and of a strided tensor."""
    bounds = torch.randn(count).sort().values.round(decimals=1)
    x = torch.cat([torch.randn(300), bounds, torch.tensor([float("inf"), float("-inf"), float("nan")])]).round(decimals=1)
    x = torch.stack([x, x.flip(0)], 1)[::2]
    for find in (torch.bucketize, lambda x, b, right: torch.searchsorted(b, x, right=right, out_int32=True)):
        out = compiled(lambda x, b: find(x * 2, b, right=right), x, bounds)
        want = find(x * 2, bounds, right=right)
        assert out.dtype is want.dtype and torch.equal(out, want)


@pytest.mark.parametrize("dtypes", [(torch.int32, torch.int64), (torch.int64, torch.float32), (torch.bfloat16, torch.bfloat16)], ids=str)
def test_places_of_other_types(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Buckets, and rows of a table by their number."""
    x, bounds, table = (torch.randn(3, 5, 7) * 9).to(dtypes[0]), torch.tensor([-4, 0, 1, 9]).to(dtypes[1]), torch.randn(5, 6)
    out = compiled(lambda x, b, w: w[torch.bucketize(x, b)] * 2, x, bounds, table)
    assert torch.equal(out, table[torch.bucketize(x, bounds)] * 2)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("lists, sizes", [((5, 7), (5, 9)), ((1, 1), (1, 2)), ((2, 3, 16), (2, 3, 33)), ((2, 8), (2, 0)), ((3, 0), (3, 2))], ids=str)
def test_places_in_a_sorted_list_of_each_row(lists: tuple[int, ...], sizes: tuple[int, ...], right: bool) -> None:
    """Also of numbers that the lists have, and NaN."""
    bounds, x = torch.randn(lists).round(decimals=1).sort(-1).values, torch.randn(sizes).round(decimals=1)
    x.flatten()[::5] = float("nan")
    out = compiled(lambda b, x: torch.searchsorted(b, x * 2, right=right), bounds, x)
    want = torch.searchsorted(bounds, x * 2, right=right)
    assert out.dtype is want.dtype and torch.equal(out, want)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("counts", [[3, 0, 0, 5, 1], [0, 0, 9], [9, 0, 0], [4, 5], [2]], ids=str)
def test_rows_repeated_by_counts(counts: list[int], dtype: torch.dtype) -> None:
    """Ragged batches: which sequence an element belongs to, and its place there."""
    given, x = torch.tensor(counts).to(dtype), torch.randn(len(counts), 7)
    out = compiled(lambda c: torch.repeat_interleave(c, output_size=sum(counts)) * 1, given)
    want = torch.repeat_interleave(given)
    assert out.dtype is want.dtype and torch.equal(out, want)
    out = compiled(lambda x, c: torch.repeat_interleave(x, c, dim=0, output_size=sum(counts)) * 2, x, given)
    assert torch.equal(out, x.repeat_interleave(given, 0) * 2)


def test_rows_repeated_less_often_than_they_are_stay_with_torch() -> None:
    x, counts = torch.randn(4, 5), torch.tensor([1, 0, 1, 0])
    function = torch.compile(lambda x, c: torch.repeat_interleave(x, c, dim=0, output_size=2) * 2, backend=backend, options={"emulate": True})
    assert torch.equal(function(x, counts), x.repeat_interleave(counts, 0) * 2)
    assert [op for graph in GRAPHS for op in graph.torch_ops] == ["aten.repeat_interleave.Tensor"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape, dim", [((3, 1000), -1), ((70, 9), 0), ((1, 1), 1), ((2, 3, 33), 1)], ids=str)
def test_logarithms_of_running_sums(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """With their gradients. Differences of exponentials of rounded sums: a gradient is as exact as the largest term that it comes from."""
    x = (5 * torch.randn(shape)).to(dtype)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    out, want = compiled(lambda x: x.logcumsumexp(dim), ours), theirs.logcumsumexp(dim)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=8 * eps, atol=8 * eps)
    slope = torch.randn_like(out)
    out.backward(slope)
    want.backward(slope.double())
    size = theirs.grad.abs() + torch.autograd.grad(theirs.logcumsumexp(dim), theirs, slope.double().abs())[0]  # type: ignore[union-attr]
    assert ours.grad is not None and theirs.grad is not None and ours.grad.dtype is dtype
    exponents = 2 * (out.abs().max() + x.abs().max() + 32).double()  # rounded exponents of the terms, and their sums
    assert bool(((ours.grad.double() - theirs.grad).abs() <= exponents * eps * size + 1e-30).all())
    assert not any(graph.torch_ops for graph in GRAPHS)


def test_logarithms_of_nothing_are_minus_infinity() -> None:
    x = torch.randn(4, 70)
    x[0, :5] = x[1] = float("-inf")
    x[2, 7], x[3, 9] = float("inf"), float("nan")
    out, want = compiled(lambda x: x.logcumsumexp(1), x), x.double().logcumsumexp(1)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6, equal_nan=True)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hypot": torch.hypot, "copysign": torch.copysign, "logaddexp": torch.logaddexp, "copysign of a number": lambda x, y: torch.copysign(x, -2.0) + y,
    "fmax": lambda x, y: torch.fmax(x, y * 2), "fmin": lambda x, y: torch.fmin(x * y, y), "signbit": lambda x, y: torch.where(torch.signbit(x), y, x), "remainder of a number": lambda x, y: 5.0 % (x.detach().abs() + 1) + y, "logaddexp2": torch.logaddexp2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_two_numbers(name: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(7, 33).to(dtype), torch.randn(33).to(dtype)
    ours, theirs = [t.clone().requires_grad_() for t in (x, y)], [t.double().requires_grad_() for t in (x, y)]
    out, want = compiled(FUNCTIONS[name], *ours), FUNCTIONS[name](*theirs)
    slope = torch.randn_like(out)
    out.backward(slope)
    want.backward(slope.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=4 * eps, atol=8 * eps)
    for a, b in zip(ours, theirs):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad.double(), b.grad, rtol=32 * eps, atol=64 * eps)


def test_bits_of_a_number_and_a_tensor() -> None:
    x = torch.randint(0, 20, (5, 9), dtype=torch.int32)
    for function in (lambda x: 37 & (x + 1), lambda x: 37 | (x + 1), lambda x: 37 ^ (x + 1), lambda x: 37 << (x % 5), lambda x: 3700 >> (x % 5), lambda x: 37 % (x + 1)):
        assert torch.equal(compiled(function, x), function(x))


def test_the_other_number_where_one_is_no_number() -> None:
    x, y = torch.randn(5, 9), torch.randn(5, 9)
    x[:, 2] = y[:, 4] = x[:, 6] = y[:, 6] = float("nan")
    for function in (torch.fmax, torch.fmin):
        torch.testing.assert_close(compiled(lambda x, y: function(x, y), x, y), function(x, y), equal_nan=True, rtol=0, atol=0)
    a, b = torch.randint(-30, 30, (2, 5, 9))
    assert torch.equal(compiled(lambda a, b: torch.gcd(a, b) + torch.fmax(a, b), a, b), torch.gcd(a, b) + torch.fmax(a, b))
    assert torch.equal(compiled(lambda x: torch.nextafter(x, x + 1), y[:, :4]), torch.nextafter(y[:, :4], y[:, :4] + 1))


def rounded_at_random(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """As optimizers round to bfloat16: up with the probability of the part that is cut off."""
    bits = x.view(torch.int32)
    below = bits & -65536
    return torch.where(noise < bits - below, below + 65536, below).view(torch.float32).bfloat16()


@pytest.mark.parametrize("sizes", [(7, 33), (1, 1), (0, 5), (128, 64)], ids=str)
def test_bits_of_floats(sizes: tuple[int, int]) -> None:
    x, noise = torch.randn(sizes), torch.randint(0, 2**16, sizes, dtype=torch.int32)
    out = compiled(rounded_at_random, x, noise)
    assert torch.equal(out, rounded_at_random(x, noise)) and GRAPHS[-1].covered_nodes == GRAPHS[-1].compute_nodes and len(GRAPHS[-1].regions) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["number", "tensor", "disabled", "channels"])
def test_fake_quantization(how: str, dtype: torch.dtype) -> None:
    """Exactly torch's steps; the gradient of what is clamped is 0."""
    x = (3 * torch.randn(7, 33)).to(dtype)
    scale, zero = torch.tensor([0.0173]), torch.tensor([3], dtype=torch.int32)
    scales, zeros = torch.rand(33) * 0.05 + 0.001, torch.randint(-5, 5, (33,), dtype=torch.int32)

    def quantized(x: Tensor) -> Tensor:
        if how == "number":
            return torch.fake_quantize_per_tensor_affine(x, 0.0173, 3, -128, 127)
        if how == "channels":
            return torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -8, 100)
        enabled = torch.tensor([how == "tensor"], dtype=torch.int64)
        return torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, scale, zero, enabled, -128, 127)[0]

    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch._dynamo.reset()
    out, want = torch.compile(quantized, backend=backend, options={"emulate": True, "strict": True, "debug": True})(ours), quantized(theirs)
    assert torch.equal(out, want)
    if want.requires_grad:
        out.sum().backward()
        want.sum().backward()
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
    assert not any("fake_quantize" in op for graph in GRAPHS for op in graph.torch_ops)


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 7), (300, 300), (257, 40), (1, 70000), (0, 5)])
def test_an_identity_is_part_of_a_region(rows: int, columns: int) -> None:
    """Also where torch's decomposition counts positions in uint16, which torch's arange does not make (256 to 65535)."""
    x = torch.randn(rows, columns)
    out = compiled(lambda x: (x + torch.eye(rows, columns)) * 2, x)
    torch.testing.assert_close(out, (x + torch.eye(rows, columns)) * 2, rtol=0, atol=0)
    out = compiled(lambda x: torch.where(torch.eye(rows, columns, dtype=torch.bool), -1.0, x.double()), x)
    assert torch.equal(out, x.double().masked_fill(torch.eye(rows, columns, dtype=torch.bool), -1.0))


@pytest.mark.parametrize("size", [1, 43])
def test_energies_of_all_pairs(size: int) -> None:
    """The identity is not saved for the backward, which is one kernel: forces are opposite, so one sum has them all."""

    def energy(x: torch.Tensor, box: torch.Tensor) -> torch.Tensor:
        d = x[:, None] - x
        d = d - box * torch.round(d / box)
        inverse = 1 / (d.square().sum(-1) + torch.eye(len(x), dtype=x.dtype)) ** 3
        return torch.where(torch.eye(len(x), dtype=torch.bool), 0.0, inverse * inverse - inverse).sum()

    made = torch.Generator().manual_seed(size)
    x, box, saved = torch.rand(size, 3, generator=made) * 9, torch.tensor([7.0, 8.0, 9.5]), []
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    torch._dynamo.reset()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t), poisoned_outputs():
        out = torch.compile(energy, backend=backend, options={"emulate": True, "strict": True, "debug": True})(ours, box)
        (gradient,) = torch.autograd.grad(out, ours)
    assert max(saved) == 3 * size
    assert [len(call.kernels()) for graph in GRAPHS if graph.kind == "backward" for _, call in graph.regions] == [1]
    want = energy(theirs, box.double())
    (wanted,) = torch.autograd.grad(want, theirs)
    torch.testing.assert_close(out.double(), want, rtol=1e-3, atol=1e-6)
    scale = float(wanted.abs().max()) if size > 1 else 1.0
    torch.testing.assert_close(gradient.double() / scale, wanted / scale, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 8190, 65536])
def test_a_smoothed_loss_with_weights_of_classes(rows: int) -> None:
    """Two quotients of four sums, whose divisors are stored for the backward: blocks meet once for all of them, and the stores wait for the last sum."""
    x, target, weight = torch.randn(rows, 5), torch.randint(5, (rows,)), torch.rand(5) + 0.1
    target[1::7] = -100
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()

    def loss(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(x, target, weight=weight, label_smoothing=0.1)

    with options(strict_schedules=True):
        out = compiled(loss, ours, target, weight)
    want = loss(theirs, target, weight.double())
    out.backward()
    want.backward()
    torch.testing.assert_close(out.double(), want, rtol=2.0**-18, atol=0)  # of sums of positive numbers
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=2.0**-16, atol=2.0**-20 / rows)
