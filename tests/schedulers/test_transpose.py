"""Transpose: tiles through shared memory, with inputs and outputs on either side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.ir.enums import MemoryType
from weft.ir.values import SharedSwizzle
from weft.options import options
from weft.schedule.caching import cache_after
from weft.schedule.primitives import BadSharedSwizzle, set_memory_type, swizzle_shared
from weft.schedulers.transpose import TransposeParams

TYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float, torch.float64: DataType.Double, torch.int64: DataType.Int, torch.bool: DataType.Bool}


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (made * 100).to(dtype) if dtype is torch.int64 else (made > 0 if dtype is torch.bool else made.to(dtype))


def declared(fd: FusionDefinition, tensor: torch.Tensor):
    return fd.define_tensor(shape=[-1] * tensor.dim(), contiguity=True, dtype=TYPES[tensor.dtype])


def rows_first(fd: FusionDefinition, tensor, dims: list[int]):
    """The permuted tensor, in memory as it prints: its last axis innermost."""
    return fd.ops.stride_order(fd.ops.permute(tensor, dims=dims), stride_order=list(range(len(dims)))[::-1])


def permuted(inputs: list[torch.Tensor], dims: list[int]) -> tuple[FusionDefinition, torch.Tensor]:
    """A definition that permutes one input, run with all checks; and its result."""
    with FusionDefinition() as fd:
        fd.add_output(rows_first(fd, declared(fd, inputs[0]), dims))
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute(inputs)
    return fd, out


def params_of(fd: FusionDefinition) -> TransposeParams:
    (kernel,) = fd.fec.kernel_runtimes
    assert kernel.scheduler == "transpose"
    return kernel.proposal.params


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows, columns", [(96, 200), (67, 41), (64, 64)])
def test_a_matrix_is_transposed_bit_by_bit(dtype: torch.dtype, rows: int, columns: int) -> None:
    x = numbers(rows, columns, dtype=dtype)
    fd, out = permuted([x], [1, 0])
    assert torch.equal(out, x.t()) and out.is_contiguous()
    params_of(fd)


@pytest.mark.parametrize("shape, dims", [((3, 50, 64), [0, 2, 1]), ((2, 24, 7, 7), [0, 2, 3, 1]), ((2, 5, 5, 40), [0, 3, 1, 2]), ((40, 3, 33), [2, 1, 0])])
def test_batch_axes_and_runs_of_axes(shape: tuple[int, ...], dims: list[int]) -> None:
    """Axes that are neighbours on both sides are one side of the tile: 7 x 7 pixels are 49 elements."""
    x = numbers(*shape, dtype=torch.bfloat16)
    fd, out = permuted([x], dims)
    assert torch.equal(out, x.permute(dims))
    params_of(fd)


@pytest.mark.parametrize("shape, dims, cut", [
    ((70, 9, 4), [2, 1, 0], 1), ((33, 50, 3), [2, 1, 0], 1), ((40, 3, 5, 7), [3, 2, 1, 0], 1), ((2, 40, 6, 5), [0, 3, 2, 1], 1),
    ((4, 9, 70), [2, 1, 0], 2), ((3, 50, 33), [2, 1, 0], 2), ((40, 3, 133), [2, 1, 0], 0),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_short_innermost_axis_is_merged_with_the_one_before(dtype: torch.dtype, shape: tuple[int, ...], dims: list[int], cut: int) -> None:
    """The other side, where these axes are no neighbours, divides for the row of a tile."""
    x = numbers(*shape, dtype=dtype)
    fd, out = permuted([x], dims)
    assert torch.equal(out, x.permute(dims))
    assert params_of(fd).cut == cut


def test_arithmetic_beside_a_short_innermost_axis() -> None:
    x, y = numbers(70, 9, 4, dtype=torch.bfloat16), numbers(4, 9, 70, dtype=torch.bfloat16)
    with FusionDefinition() as fd:
        a, b = declared(fd, x), declared(fd, y)
        fd.add_output(rows_first(fd, narrow(fd, fd.ops.add(fd.ops.permute(wide(fd, a), dims=[2, 1, 0]), wide(fd, b))), [0, 1, 2]))
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute([x, y])
    torch.testing.assert_close(out.double(), x.double().permute(2, 1, 0) + y.double(), rtol=2**-8, atol=2**-8)  # one rounding to bfloat16
    assert params_of(fd).cut == 1


def test_vectors_are_as_wide_as_each_side_allows() -> None:
    fd, _ = permuted([numbers(72, 132, dtype=torch.bfloat16)], [1, 0])
    assert (params_of(fd).along_vector, params_of(fd).across_vector) == (8, 4)


def test_a_misaligned_input_is_read_in_narrower_vectors() -> None:
    x = numbers(64 * 64 + 2, dtype=torch.bfloat16)[2:].view(64, 64)
    fd, out = permuted([x], [1, 0])
    assert torch.equal(out, x.t()) and params_of(fd).across_vector == 2


def test_zero_rows() -> None:
    _, out = permuted([numbers(0, 64)], [1, 0])
    assert out.shape == (64, 0)


@pytest.mark.parametrize("shape", [(1, 500), (500, 1), (501, 3)])
def test_odd_columns_shorter_than_a_sector_stay_with_pointwise(shape: tuple[int, int]) -> None:
    x = numbers(*shape, dtype=torch.bfloat16)
    fd, out = permuted([x], [1, 0])
    assert torch.equal(out, x.t())
    assert all(kernel.scheduler == "pointwise" for kernel in fd.fec.kernel_runtimes)  # none: the result is a view


def wide(fd: FusionDefinition, tensor):
    return fd.ops.cast(tensor, dtype=DataType.Float)


def narrow(fd: FusionDefinition, tensor):
    return fd.ops.cast(tensor, dtype=DataType.BFloat16)


def one_of_two(fd: FusionDefinition, x, y, b) -> None:
    """x + y.t() + b: one input lies across."""
    bias = fd.ops.broadcast_in_dim(wide(fd, b), shape=x.shape(), broadcast_dims=[1])
    fd.add_output(narrow(fd, fd.ops.add(fd.ops.add(wide(fd, x), fd.ops.permute(wide(fd, y), dims=[1, 0])), bias)))


def output_across(fd: FusionDefinition, x, y, b) -> None:
    """(x * x + b).t(), and the sum beside it: two tensors along x, one output across."""
    bias = fd.ops.broadcast_in_dim(wide(fd, b), shape=x.shape(), broadcast_dims=[1])
    total = narrow(fd, fd.ops.add(fd.ops.mul(wide(fd, x), wide(fd, x)), bias))
    fd.add_output(total)
    fd.add_output(rows_first(fd, narrow(fd, fd.ops.add(fd.ops.permute(wide(fd, total), dims=[1, 0]), wide(fd, y))), [0, 1]))


def reference_one(x, y, b) -> list[torch.Tensor]:
    return [x.double() + y.double().t() + b.double()]


def reference_across(x, y, b) -> list[torch.Tensor]:
    total = (x.float() * x.float() + b.float()).bfloat16()
    return [total.double(), total.double().t() + y.double()]


@pytest.mark.parametrize("rows, columns", [(96, 72), (37, 45)])
@pytest.mark.parametrize("define, reference", [(one_of_two, reference_one), (output_across, reference_across)])
def test_arithmetic_with_tensors_of_both_orders(define: Callable, reference: Callable, rows: int, columns: int) -> None:
    inputs = [numbers(rows, columns, dtype=torch.bfloat16), numbers(columns, rows, dtype=torch.bfloat16), numbers(columns, dtype=torch.bfloat16)]
    with FusionDefinition() as fd:
        define(fd, *(declared(fd, t) for t in inputs))
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute(inputs)
    for out, want in zip(outs, reference(*inputs), strict=True):
        torch.testing.assert_close(out.double(), want, rtol=2**-8, atol=2**-8)  # one rounding to bfloat16
    params_of(fd)


@pytest.mark.parametrize("shape", [(6, 20, 16), (5, 13, 33)])
def test_readers_of_a_part_share_nothing_else(shape: tuple[int, int, int]) -> None:
    """Two results lie across, one along the part of the input that all of them read, each by a cast of its own."""
    x = numbers(2 * shape[0], *shape[1:], dtype=torch.bfloat16)
    with FusionDefinition() as fd:
        part = fd.ops.slice(declared(fd, x), [0, 0, 0], list(shape))
        fd.add_output(fd.ops.abs(part))
        fd.add_output(fd.ops.neg(fd.ops.permute(part, dims=[2, 0, 1])))
        fd.add_output(fd.ops.mul(fd.ops.permute(part, dims=[2, 0, 1]), 2.0))
    with poisoned_outputs(), options(check="races"):
        along, *across = fd.execute([x])
    part = x[: shape[0]].float()
    turned = part.permute(2, 0, 1)
    assert torch.equal(along, part.abs()) and torch.equal(across[0], -turned) and torch.equal(across[1], 2 * turned)
    params_of(fd)


@pytest.mark.parametrize("shape", [(37, 45), (64, 96)])
@pytest.mark.parametrize("is_padded", [False, True])
def test_a_part_that_lies_across_is_all_that_is_stored(is_padded: bool, shape: tuple[int, int]) -> None:
    """Of a matrix by columns, into the memory by rows that a scatter then writes to: nothing is computed between the load and the store."""
    x, index, added = numbers(*shape[::-1]).t(), torch.randint(0, shape[1] - 1, (shape[0], 4)), numbers(shape[0], 4)
    with FusionDefinition() as fd:
        source, i, more = (fd.from_pytorch(t) for t in (x, index, added))
        part = fd.ops.pad(source, [2, 1, 0, 7], -1.25) if is_padded else fd.ops.slice(source, [0, 1], list(shape))
        fd.add_output(fd.ops.scatter_add(part, i, more, 1))
    wanted = torch.nn.functional.pad(x, [2, 1, 0, 7], value=-1.25) if is_padded else x[:, 1:]
    with poisoned_outputs(), options(check="races", strict_schedules=True):
        (out,) = fd.execute([x, index, added])
    torch.testing.assert_close(out, wanted.scatter_add(1, index, added))
    assert "transpose" in [kernel.scheduler for kernel in fd.fec.kernel_runtimes]


def test_one_definition_serves_many_shapes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(rows_first(fd, x, [1, 0]))
    for rows, columns in [(64, 128), (128, 64), (68, 260), (33, 65), (1, 65)]:
        a = numbers(rows, columns)
        with poisoned_outputs():
            assert torch.equal(fd.execute([a])[0], a.t())


@pytest.mark.parametrize("written, read, elem_bytes, tile, most", [(8, 8, 2, 64, 1), (8, 8, 2, 128, 2), (4, 4, 4, 64, 2), (2, 2, 8, 32, 2), (1, 1, 2, 64, 1)])
def test_few_lanes_that_read_a_column_meet_in_a_bank(written: int, read: int, elem_bytes: int, tile: int, most: int) -> None:
    """The addresses of a warp, by the formula of `SharedSwizzle`: lanes take rows `read` apart, then the next columns. Without it, all would meet."""
    chunk = max(written, 4 // elem_bytes)
    ways, period = tile // chunk, tile // chunk * read
    words: dict[int, set[int]] = {}
    for lane in range(32):
        row, column = lane % (tile // read) * read, lane // (tile // read)
        index = row * tile + column
        place = ((index // chunk) ^ (index // chunk // period % ways)) * chunk + index % chunk
        word = place * elem_bytes // 4
        words.setdefault(word % 32, set()).add(word)
    assert max(map(len, words.values())) == most


def test_bad_swizzles_are_named() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64, 64], contiguity=True)
        fd.add_output(fd.ops.neg(x))
    fusion, copies = fd.fusion.clone()
    copy = cache_after(fusion.inputs()[0])
    with pytest.raises(BadSharedSwizzle, match="is in local memory"):
        swizzle_shared(copy, SharedSwizzle(8, 8, 64))
    set_memory_type(copy, MemoryType.shared)
    with pytest.raises(BadSharedSwizzle, match="not powers of two"):
        swizzle_shared(copy, SharedSwizzle(8, 6, 64))


@pytest.mark.parametrize("fewer, reason", [(True, "have the same contiguous axis"), (False, "reduces")])
def test_what_it_does_not_take_is_told(fewer: bool, reason: str) -> None:
    from weft.schedulers.base import Decline
    from weft.schedulers.transpose import Transpose

    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.neg(x) if fewer else fd.ops.sum(x, dims=[1]))
    found = Transpose().analyze(fd.fusion)
    assert isinstance(found, Decline) and reason in found.reason
