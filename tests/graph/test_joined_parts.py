"""Parts of a cat that the kernels of their rows store in the memory of the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.frontend.record import GRAPHS
from weft.graph.normalize import normalize
from weft.ir.graph_ops import JoinedOp
from weft.options import options


def normed(fd: FusionDefinition, x: Any, dims: list[int], kept: list[int]) -> Any:
    """x by the root of its mean square over `dims`; kept: its sizes with 1 there."""
    total = fd.ops.sum(fd.ops.mul(x, x), dims, keepdim=True)
    return fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(total, 1.0)))


def _normed(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return x * (x.square().sum(dims, keepdim=True) + 1).rsqrt()


def joined(fd: FusionDefinition) -> list[int]:
    """Return how many parts each result has that is stored in parts."""
    return [len(e.inputs) for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, JoinedOp)]


def random(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


def run(fd: FusionDefinition, *inputs: torch.Tensor) -> list[torch.Tensor]:
    with poisoned_outputs(), options(check="races"):
        return fd.execute(list(inputs))  # type: ignore[no-any-return]


def norm_beside(sizes: list[int], width: int, dtype: DataType = DataType.Float, *, is_known: bool = True) -> FusionDefinition:
    """The norm of the first elements of each row beside the others, doubled."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(sizes if is_known else [-1, sizes[1]], dtype=dtype, contiguity=True)
        y = fd.ops.cast(x, DataType.Float)
        head = fd.ops.slice(y, [0, 0], [sizes[0], width]) if is_known else fd.ops.slice(y, [0, 0], [x.size(0), width])
        tail = fd.ops.slice(y, [0, width], [sizes[0], sizes[1]]) if is_known else fd.ops.slice(y, [0, width], [x.size(0), sizes[1]])
        both = [normed(fd, head, [1], [1]), fd.ops.mul(tail, 2.0)]
        fd.add_output(fd.ops.cat([fd.ops.cast(part, dtype) for part in both], dim=1))
    return fd


def _norm_beside(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.cat([_normed(x[:, :width], [1]), x[:, width:] * 2], 1)


@pytest.mark.parametrize("rows", [1, 7, 133])
@pytest.mark.parametrize("widths", [(32, 32), (512, 64), (36, 1028), (1000, 40)], ids=str)
@pytest.mark.parametrize("way", ["auto", "register", "tma"])
def test_the_kernel_of_rows_stores_its_part(rows: int, widths: tuple[int, int], way: str) -> None:
    fd = norm_beside([rows, sum(widths)], widths[0])
    assert joined(fd) == ([2] if rows > 1 else [])  # a single row is all that there is
    x = random(rows, sum(widths))
    with options(rows=way):
        (got,) = run(fd, x)
    torch.testing.assert_close(got.double(), _norm_beside(x.double(), widths[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_rows_of_any_number(rows: int) -> None:
    fd = norm_beside([rows, 600], 520, DataType.BFloat16, is_known=False)
    assert joined(fd) == [2]
    x = random(rows, 600, dtype=torch.bfloat16)
    (got,) = run(fd, x)
    torch.testing.assert_close(got.double(), _norm_beside(x.double(), 520), rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("widths", [(33, 31), (16, 600), (34, 62)], ids=str)
def test_pieces_that_are_short_or_begin_anywhere_are_selected(widths: tuple[int, int]) -> None:
    fd = norm_beside([7, sum(widths)], widths[0])
    assert joined(fd) == []
    x = random(7, sum(widths))
    torch.testing.assert_close(run(fd, x)[0].double(), _norm_beside(x.double(), widths[0]), rtol=1e-5, atol=1e-5)


def test_parts_without_sums_are_selected_in_one_kernel() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([9, 128], contiguity=True)
        fd.add_output(fd.ops.cat([fd.ops.exp(x), fd.ops.neg(x)], dim=1))
        fd.add_output(fd.ops.cat([fd.ops.exp(x), fd.ops.div(x, fd.ops.sum(x))], dim=1))  # the sum of everything is no sum of rows
    assert joined(fd) == []


def test_sums_of_the_whole_rows_leave_one_kernel() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([9, 128], contiguity=True)
        head, tail = (fd.ops.slice(x, [0, begin], [9, begin + 64]) for begin in (0, 64))
        total = fd.ops.sum(x, [1], keepdim=True)
        fd.add_output(fd.ops.cat([fd.ops.exp(head), fd.ops.mul(tail, total)], dim=1))
    assert joined(fd) == []


def test_neighbours_without_sums_are_one_part() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([9, 64], contiguity=True)
        parts = [fd.ops.exp(x), fd.ops.neg(x), normed(fd, x, [1], [1]), fd.ops.tanh(x), normed(fd, fd.ops.sin(x), [1], [1])]
        fd.add_output(fd.ops.cat(parts, dim=1))
    assert joined(fd) == [4]
    x = random(9, 64)
    wide = x.double()
    want = torch.cat([wide.exp(), -wide, _normed(wide, [1]), wide.tanh(), _normed(wide.sin(), [1])], 1)
    torch.testing.assert_close(run(fd, x)[0].double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dims", [[2], [1, 2], [1]], ids=str)
@pytest.mark.parametrize("order", [None, [2, 0, 1], [1, 2, 0]], ids=str)
@pytest.mark.parametrize("way", ["auto", "register", "tma"])
def test_any_axis_in_any_order(dim: int, dims: list[int], order: list[int] | None, way: str) -> None:
    """Parts before, in and behind the axes of sums, of which the elements are then no longer behind one another in memory."""
    first, second = [5 + 4 * (dim == 0), 32, 64], [5, 32 + 20 * (dim == 1), 64 + 32 * (dim == 2)]
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(sizes, contiguity=True) for sizes in (first, second))
        out = fd.ops.cat([normed(fd, x, dims, dims), fd.ops.neg(y)], dim=dim)
        fd.add_output(out if order is None else fd.ops.stride_order(out, order))
    assert joined(fd) == [2]
    a, b = random(*first), random(*second)
    with options(rows=way):
        (got,) = run(fd, a, b)
    torch.testing.assert_close(got.double(), torch.cat([_normed(a.double(), dims), -b.double()], dim), rtol=1e-5, atol=1e-5)


def test_a_part_that_is_a_result_itself() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([9, 64], contiguity=True)
        y = normed(fd, x, [1], [1])
        fd.add_output(y)
        fd.add_output(fd.ops.cat([y, x, y], dim=1))
    assert joined(fd) == [3]
    x = random(9, 64)
    got, wide = run(fd, x)
    torch.testing.assert_close(got.double(), _normed(x.double(), [1]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(wide, torch.cat([got, x, got], 1), rtol=0, atol=0)


def test_equal_parts_of_results_of_other_widths() -> None:
    """Kernels of one structure are one kernel, whose strides are arguments."""
    with FusionDefinition() as fd:
        x, y, z = (fd.define_tensor([9, width], contiguity=True) for width in (64, 64, 96))
        fd.add_output(fd.ops.cat([normed(fd, x, [1], [1]), y], dim=1))
        fd.add_output(fd.ops.cat([z, normed(fd, y, [1], [1])], dim=1))
    assert joined(fd) == [2, 2]
    x, y, z = random(9, 64), random(9, 64) + 1, random(9, 96)
    got = run(fd, x, y, z)
    want = [torch.cat([_normed(x.double(), [1]), y], 1), torch.cat([z, _normed(y.double(), [1])], 1)]
    torch.testing.assert_close([t.double() for t in got], want, rtol=1e-5, atol=1e-5)


def test_what_torch_reads_is_stored_in_parts() -> None:
    with FusionDefinition() as fd:
        x, y, w = (fd.define_tensor(sizes, contiguity=True) for sizes in ([9, 64], [9, 32], [96, 7]))
        wide = fd.ops.cat([normed(fd, x, [1], [1]), fd.ops.exp(y)], dim=1)
        fd.add_output(fd.ops.relu(fd.ops.matmul(wide, w)))
    assert joined(fd) == [2]
    x, y, w = random(9, 64), random(9, 32), random(96, 7)
    want = (torch.cat([_normed(x.double(), [1]), y.double().exp()], 1) @ w.double()).relu()
    torch.testing.assert_close(run(fd, x, y, w)[0].double(), want, rtol=1e-5, atol=1e-4)


def test_what_a_kernel_reads_or_an_input_takes_is_selected() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([9, 64], contiguity=True)
        y = fd.define_tensor([9, 128], contiguity=True)
        fd.add_output(fd.ops.exp(fd.ops.cat([normed(fd, x, [1], [1]), x], dim=1)))
        fd.add_output(fd.ops.cat([normed(fd, x, [1], [1]), x], dim=1), y)
    assert joined(fd) == []
    x, y = random(9, 64), random(9, 128)
    want = torch.cat([_normed(x.double(), [1]), x.double()], 1)
    got = run(fd, x, y)
    torch.testing.assert_close(got[0].double(), want.exp(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 37])
def test_the_gradient_of_a_packed_projection(tokens: int) -> None:
    """Norms of queries and keys behind one product: each kernel of a gradient's rows stores its part."""
    d, heads = 32, [4, 2, 2]

    def made(qkv: torch.Tensor, wq: torch.Tensor, wk: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = qkv.unflatten(-1, (-1, d)).split(heads, 2)
        norm = torch.nn.functional.rms_norm
        return norm(q, (d,), wq, 1e-6).transpose(1, 2), norm(k, (d,), wk, 1e-6).transpose(1, 2), v.transpose(1, 2)

    inputs = [random(3, tokens, sum(heads) * d, dtype=torch.bfloat16), random(d, dtype=torch.bfloat16), random(d, dtype=torch.bfloat16) + 1]
    leaves = [t.requires_grad_() for t in inputs]
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="weft", options={"emulate": True})
    compiled(*leaves)
    with poisoned_outputs(), options(check="races"):
        out = compiled(*leaves)
        slopes = [random(*t.shape, dtype=torch.bfloat16) for t in out]
        got = torch.autograd.grad(out, leaves, slopes)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    wide = made(*exact)
    want = torch.autograd.grad(wide, exact, [t.double() for t in slopes])
    for result, whole in zip((*out, *got), (*wide, *want)):
        torch.testing.assert_close(result.double(), whole, rtol=2**-6, atol=2**-6 * float(whole.detach().abs().max()))


@pytest.mark.parametrize("rows", [1, 35])
def test_the_gradient_of_a_norm_of_a_part_of_each_row(rows: int) -> None:
    """One kernel for the gradients of the weight and of the part, although the largest tensor that it reads, the whole rows, is only looked up."""

    def made(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        head, tail = x.split([128, 64], -1)
        return torch.cat([torch.nn.functional.rms_norm(head, (128,), w, 1e-6), tail * c], -1)

    inputs = [random(rows, 192, dtype=torch.bfloat16).requires_grad_(), random(128, dtype=torch.bfloat16).requires_grad_(), random(rows, 64, dtype=torch.bfloat16)]
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="weft", options={"emulate": True})
    slope = random(rows, 192, dtype=torch.bfloat16)
    torch.autograd.grad(compiled(*inputs), inputs[:2], slope)
    with poisoned_outputs(), options(check="races"):
        out = compiled(*inputs)
        got = torch.autograd.grad(out, inputs[:2], slope)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    wide = made(*exact)
    want = torch.autograd.grad(wide, exact[:2], slope.double())
    for result, whole in zip((out, *got), (wide, *want)):
        torch.testing.assert_close(result.double(), whole, rtol=2**-6, atol=2**-6 * float(whole.detach().abs().max()))
    backward = next(graph for graph in reversed(GRAPHS) if graph.kind == "backward")
    assert rows == 1 or sum(len(list(call.kernels())) for call in backward.calls) == 2
