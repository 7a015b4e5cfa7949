"""Transposes whose innermost run on one side is shorter than a sector: tiles that have all of it, with whole vectors on both sides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from test_transpose import TYPES, narrow, numbers, rows_first, wide

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.compiler import prepare
from weft.options import options
from weft.reference.torch_types import torch_dtype_to_nvfuser_dtype
from weft.schedulers.short_tiles import ShortTileParams
from weft.schedulers.transpose import Transpose

ALL = {**TYPES, torch.uint8: DataType.Byte, torch.float16: DataType.Half, torch.int32: DataType.Int32, torch.complex64: DataType.ComplexFloat}


def given(fd: FusionDefinition, x: torch.Tensor, contiguity: Any = True, sizes: Any = None):
    return fd.define_tensor(shape=sizes or [-1] * x.dim(), contiguity=contiguity, dtype=ALL[x.dtype])


def run(fd: FusionDefinition, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    with poisoned_outputs(), options(check="races"):
        return fd.execute(inputs)


def permuted(x: torch.Tensor, dims: list[int], **how: Any) -> tuple[FusionDefinition, torch.Tensor]:
    with FusionDefinition() as fd:
        fd.add_output(rows_first(fd, given(fd, x, **how), dims))
    return fd, run(fd, [x])[0]


def params_of(fd: FusionDefinition) -> ShortTileParams:
    (kernel,) = fd.fec.kernel_runtimes
    assert isinstance(kernel.proposal.params, ShortTileParams), kernel.proposal
    return kernel.proposal.params


def values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_complex:
        return torch.view_as_complex(numbers(*shape, 2))
    return numbers(*shape).mul(50).to(dtype) if dtype in (torch.uint8, torch.int32) else numbers(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype, short", [
    (torch.bfloat16, 3), (torch.float16, 8), (torch.float32, 4), (torch.float32, 7), (torch.float64, 3), (torch.int64, 2), (torch.int32, 5),
    (torch.bool, 12), (torch.uint8, 3), (torch.complex64, 2), (torch.bfloat16, 15),
])  # fmt: skip
def test_short_runs_of_every_type(dtype: torch.dtype, short: int) -> None:
    """Both ways; the last tile has 48 of its elements along the long run."""
    x = values(560, short, dtype=dtype)
    for source, dims in ((x, [1, 0]), (x.t().contiguous(), [1, 0])):
        fd, out = permuted(source, dims)
        assert torch.equal(out, source.t()) and out.is_contiguous()
        assert params_of(fd).short == (short,)


@pytest.mark.parametrize("shape, dims, short", [
    ((2, 3, 20, 28), [0, 2, 3, 1], (3,)), ((2, 20, 28, 4), [0, 3, 1, 2], (4,)), ((3, 3, 600), [2, 0, 1], (3, 3)), ((2, 600, 2, 3), [0, 2, 3, 1], (2, 3)),
    ((3, 300, 6), [2, 0, 1], (6,)),
])  # fmt: skip
@pytest.mark.parametrize("is_static", [True, False])
def test_batches_and_runs_of_axes(shape: tuple[int, ...], dims: list[int], short: tuple[int, ...], is_static: bool) -> None:
    x = numbers(*shape, dtype=torch.bfloat16)
    fd, out = permuted(x, dims, sizes=list(shape) if is_static else None)
    assert torch.equal(out, x.permute(dims)) and params_of(fd).short == short


@pytest.mark.parametrize("shape, order, short", [
    ((512, 2), [0, 1], (2,)), ((512, 3), [0, 1], (3,)), ((3, 512), [0, 1], (3,)), ((4, 16, 16, 3), [3, 1, 0, 2], (3,)), ((2, 3, 16, 16), [3, 0, 2, 1], (3,)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_copy_in_another_order_of_memory(shape: tuple[int, ...], order: list[int], short: tuple[int, ...], dtype: torch.dtype) -> None:
    """No op stands between the load and the store, so that both would share one array of registers."""
    x = values(*shape, dtype=dtype)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.stride_order(given(fd, x), order))
    (out,) = run(fd, [x])
    assert torch.equal(out, x) and out.stride() != x.stride() and params_of(fd).short == short


@pytest.mark.parametrize("shape", [(9, 144), (3, 512), (5, 1), (0, 144), (9, 6, 24)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_a_conversion_in_another_order_of_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Neighbours of the result are not neighbours in the registers that are converted. Axes lie in memory in the opposite order."""
    ranks = list(range(len(shape)))
    x = values(*reversed(shape), dtype=torch.float32).permute(ranks[::-1])
    with FusionDefinition() as fd:
        source = fd.define_tensor(shape=[-1] * len(shape), contiguity=True, stride_order=ranks)
        fd.add_output(fd.ops.stride_order(fd.ops.cast(source, torch_dtype_to_nvfuser_dtype(dtype)), ranks[::-1]))
    (out,) = run(fd, [x])
    assert torch.equal(out.float(), x.to(dtype).float())


def test_one_definition_serves_many_lengths_of_both_runs() -> None:
    with FusionDefinition() as fd:
        fd.add_output(rows_first(fd, given(fd, torch.empty(2, 2)), [1, 0]))
    for rows, columns in [(512, 3), (1000, 3), (5, 776), (516, 4), (4, 516), (131, 3), (1001, 3), (900, 7)]:
        x = numbers(rows, columns)
        assert torch.equal(run(fd, [x])[0], x.t())


@pytest.mark.parametrize("first, vector", [(4, 4), (2, 2), (1, None)])
def test_memory_that_begins_within_a_vector(first: int, vector: int | None) -> None:
    x = numbers(640 * 3 + first, dtype=torch.bfloat16)[first:].view(640, 3)
    fd, out = permuted(x, [1, 0])
    assert torch.equal(out, x.t())
    if vector:
        assert params_of(fd).vector_elems == vector


@pytest.mark.parametrize("rows", [639, 642, 644])
def test_lengths_that_wider_vectors_do_not_divide(rows: int) -> None:
    x = numbers(rows, 3, dtype=torch.bfloat16)
    fd, out = permuted(x, [1, 0])
    assert torch.equal(out, x.t())
    if rows % 2 == 0:
        assert params_of(fd).vector_elems == rows & -rows


def test_gaps_along_the_long_run_are_fine_and_along_the_short_one_are_not() -> None:
    apart = numbers(3, 700, dtype=torch.bfloat16)[:, :640]
    fd, out = permuted(apart, [1, 0], contiguity=[False, True])
    assert torch.equal(out, apart.t()) and params_of(fd).short == (3,)
    apart = numbers(640, 4, dtype=torch.bfloat16)[:, :3]
    fd, out = permuted(apart, [1, 0], contiguity=[False, True])
    assert torch.equal(out, apart.t()) and fd.fec.kernel_runtimes[0].scheduler == "pointwise"


def test_images_are_normalized_on_the_way() -> None:
    """Bytes in channels last become bfloat16 in channels first: (x - mean[c]) * scale[c], and a sum of tensors of both orders."""
    x, y = values(2, 20, 28, 3, dtype=torch.uint8), numbers(2, 3, 20, 28, dtype=torch.bfloat16)
    mean, scale = numbers(3), numbers(3)
    with FusionDefinition() as fd:
        a, b, m, s = given(fd, x), given(fd, y), given(fd, mean), given(fd, scale)
        first = fd.ops.permute(wide(fd, a), dims=[0, 3, 1, 2])
        m, s = (fd.ops.broadcast_in_dim(t, shape=first.shape(), broadcast_dims=[1]) for t in (m, s))
        made = fd.ops.mul(fd.ops.sub(first, m), s)
        fd.add_output(narrow(fd, made))
        fd.add_output(rows_first(fd, narrow(fd, fd.ops.permute(fd.ops.add(made, wide(fd, b)), dims=[0, 2, 3, 1])), [0, 1, 2, 3]))
    outs = run(fd, [x, y, mean, scale])
    want = (x.double().permute(0, 3, 1, 2) - mean.double()[:, None, None]) * scale.double()[:, None, None]
    torch.testing.assert_close(outs[0].double(), want, rtol=2**-8, atol=2**-8)
    torch.testing.assert_close(outs[1].double(), (want + y.double()).permute(0, 2, 3, 1), rtol=2**-8, atol=2**-7)
    params_of(fd)


def test_the_choice_has_wide_vectors_and_longer_short_runs_keep_square_tiles() -> None:
    def chosen(rows: int, columns: int) -> Any:
        with FusionDefinition() as fd:
            fd.add_output(rows_first(fd, fd.define_tensor([rows, columns], contiguity=True, dtype=DataType.BFloat16), [1, 0]))
        analysis = prepare(fd.fusion).analysis(Transpose())
        declined = Transpose().accept(analysis, {}, {}, arch_by_name("H200"))
        return declined or Transpose().choose(analysis, {}, {}, arch_by_name("H200"))[0]

    assert chosen(4_000_000, 8).vector_elems == chosen(3, 4_000_000).vector_elems == 8
    assert not isinstance(chosen(4_000_000, 16), ShortTileParams)
    assert "mostly empty" in chosen(4_000_001, 3).reason and "mostly empty" in chosen(120, 3).reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8, torch.float64], ids=str)
@pytest.mark.parametrize("shape, dims", [
    ((37, 2, 128), [0, 2, 1]), ((37, 128, 2), [0, 2, 1]), ((59, 3, 24), [0, 2, 1]), ((1, 2, 64), [0, 2, 1]), ((3, 5, 2, 2, 6, 16), [0, 1, 4, 2, 5, 3]),
    ((3, 5, 6, 2, 16, 2), [0, 1, 3, 5, 2, 4]), ((130, 4, 40), [0, 2, 1]), ((0, 2, 32), [0, 2, 1]),
], ids=str)  # fmt: skip
def test_several_tiles_of_a_block(shape: tuple[int, ...], dims: list[int], dtype: torch.dtype) -> None:
    """Pixels shuffled: the long run has fewer vectors than a block has threads. The last block has fewer tiles."""
    x = values(*shape, dtype=dtype)
    fd, out = permuted(x, dims)
    assert torch.equal(out, x.permute(dims)) and out.is_contiguous()
    if shape[0] > 1 and x.element_size() < 8:
        params = params_of(fd)
        assert params.tiles > 1 and 128 <= params.block_threads <= 512


@pytest.mark.parametrize("is_up", [True, False])
def test_pixels_are_shuffled_with_arithmetic(is_up: bool) -> None:
    """Several inputs of both orders, and one that lacks axes; misaligned by an element."""
    x, y = numbers(7 * 2 * 48 + 1, dtype=torch.bfloat16)[1:].view(7, 2, 48), numbers(7, 48, 2, dtype=torch.bfloat16)
    bias = numbers(48, dtype=torch.float32)
    with FusionDefinition() as fd:
        a, b, c = given(fd, x), given(fd, y), given(fd, bias)
        wide_b = fd.ops.permute(fd.ops.cast(b, DataType.Float), [0, 2, 1])
        out = fd.ops.relu(fd.ops.add(fd.ops.mul(fd.ops.cast(a, DataType.Float), wide_b), fd.ops.broadcast(c, [True, True, False])))
        out = fd.ops.cast(out, DataType.BFloat16)
        fd.add_output(rows_first(fd, out, [0, 2, 1]) if is_up else out)
    (got,) = run(fd, [x, y, bias])
    want = (x.double() * y.double().transpose(1, 2) + bias.double()).relu()
    torch.testing.assert_close(got.double(), want.transpose(1, 2) if is_up else want, rtol=2**-8, atol=1e-6)
