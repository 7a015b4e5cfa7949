"""Normalizations of so few rows that all are in work at once, and of many: the schedules differ, the results must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import row_fusions
import torch
from channel_cases import batch_norm, checked, with_params
from fusion_check import poisoned_outputs
from part_of_chip import part_of_the_chip, rows_of_part
from row_fusions import numbers, weight, wide

import weft.nn.functional
from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.check.records import programs
from weft.ir.values import TensorView
from weft.options import options

FEW, MANY = (1, 7, rows_of_part(133)), (rows_of_part(530),)
"""Rows: of multiprocessors one each or fewer, two, and more than four."""


def softmax(fd: FusionDefinition, dtype: DataType) -> TensorView:
    x = wide(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=dtype))
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    return fd.ops.div(e, fd.ops.sum(e, [1], True))


def rms_norm(fd: FusionDefinition, dtype: DataType) -> TensorView:
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
    return fd.ops.mul(row_fusions.rms_norm(fd, wide(fd, x), x), weight(fd, dtype, x))


def layer_norm(fd: FusionDefinition, dtype: DataType) -> TensorView:
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
    z = row_fusions.layer_norm(fd, wide(fd, x), x)
    return fd.ops.add(fd.ops.mul(z, weight(fd, dtype, x)), weight(fd, dtype, x))


@pytest.mark.parametrize("make", [softmax, rms_norm, layer_norm], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("columns", "dtype"),
    [(1056, DataType.BFloat16), (2049, DataType.BFloat16), (2049, DataType.Float), (4096, DataType.Float), (8000, DataType.BFloat16), (8000, DataType.Float)], ids=str,
)  # fmt: skip
def test_rows_few_and_many(make: Callable, dtype: DataType, columns: int) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cast(make(fd, dtype), dtype))
    vectors = {"softmax": 0, "rms_norm": 1, "layer_norm": 2}[make.__name__]
    for rows in (*FEW, *MANY):
        with poisoned_outputs(), part_of_the_chip():
            fd.validate([numbers(dtype, rows, columns), *(numbers(dtype, columns) + 1 for _ in range(vectors))])
    chosen = [runtime.proposal.params for runtime in fd.fec.kernel_runtimes]
    assert len({(p.batches, p.max_registers) for p in chosen}) > 1  # else this test sees one schedule only


def test_strided_and_misaligned_rows() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=DataType.BFloat16)
        y = wide(fd, x)
        scaled = fd.ops.mul(fd.ops.sub(y, fd.ops.max(y, [1], True)), weight(fd, DataType.BFloat16, x))
        fd.add_output(fd.ops.cast(scaled, DataType.BFloat16))
    for columns in (4096, 4091):
        whole = numbers(DataType.BFloat16, 9, columns + 24)
        for first in (0, 1, 8):
            with poisoned_outputs():
                fd.validate([whole[:, first : first + columns], numbers(DataType.BFloat16, columns + 1)[1:]])


@pytest.mark.parametrize(("cluster", "sizes"), [(4, (7, 5, 6, 40)), (8, (6, 3, 9, 8)), (2, (3, 2, 5, 7)), (8, (1, 3, 33, 40))])
def test_rows_read_again_by_a_cluster(cluster: int, sizes: tuple[int, ...]) -> None:
    """Shares that no block count divides, blocks without any element, rows of several runs."""
    fields = dict(kind="2d", storage="reread", batches=0, unroll=2, bdimx=64, bdimz=1, outer_batches=1, cluster_blocks=cluster, max_registers=64)
    fields |= dict(project_to_inputs=True, rows_per_block=1, row_unroll=1, is_warp_only=False, late=0, unswitch=False, weights="late", is_phased=False)
    fields |= dict(vector_elems=8 if sizes[2] * sizes[3] % 8 == 0 else 1)
    with options(check="races"):
        inputs = [numbers(DataType.BFloat16, *sizes), numbers(DataType.BFloat16, sizes[1]), numbers(DataType.BFloat16, sizes[1])]
        runtime = checked(with_params(batch_norm(), **fields), inputs)
    assert runtime.program.cluster == (cluster, 1, 1)


@pytest.mark.parametrize(("rows", "cluster"), [(9, 8), (10, 8), (60, 2), (100, 1)])
def test_blocks_share_rows_that_are_read_again_where_rows_are_few(rows: int, cluster: int) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cast(softmax(fd, DataType.BFloat16), DataType.BFloat16))
    (made,) = programs(fd, [(rows, 3_000_000)])
    assert "storage='reread'" in made.params and made.program.cluster == (cluster, 1, 1)


@pytest.mark.parametrize("long", [230, 301])
def test_two_sums_of_rows_that_blocks_share_and_read_again(long: int) -> None:
    """Both sums of layer norm's gradient read one value of an element, and a scale of the row that the result needs again."""
    x, grad = numbers(DataType.BFloat16, 2, long, 4096).requires_grad_(), numbers(DataType.BFloat16, 2, long, 4096).flip(0)
    exact = x.detach().double().requires_grad_()
    torch.nn.functional.layer_norm(exact, exact.shape[1:]).backward(grad.double())
    with poisoned_outputs(), options(strict_schedules=True):
        weft.nn.functional.layer_norm(x, x.shape[1:]).backward(grad)
    assert (x.grad.double() - exact.grad).abs().max() <= 2.0**-8 * exact.grad.abs().max()


def standardized(shape: tuple[int, ...], dims: list[int], dtype: DataType = DataType.BFloat16) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = wide(fd, fd.define_tensor([-1] * len(shape), contiguity=True, dtype=dtype))
        variance, mean = fd.ops.var_mean(x, dims, correction=0, keepdim=True)
        fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5))), dtype))
    return fd


@pytest.mark.parametrize(
    "shape, dims",
    [
        ((1, 1 << 24), [1]), ((2, 1 << 23), [1]), ((4, 1234567), [1]), ((1 << 22, 4), [0]), ((1000000, 3), [0]), ((8000000, 1), [0]),
        ((1, 3, 1024, 8000), [1, 2, 3]), ((40, 2, 1000, 1000), [0, 2, 3]), ((16, 1 << 21), [1]), ((70, 1 << 21), [1]),
    ],
    ids=str,
)  # fmt: skip
def test_few_long_rows_or_columns_that_no_cluster_keeps_are_several_kernels(shape: tuple[int, ...], dims: list[int]) -> None:
    """One kernel would use 8 to 70 of 132 multiprocessors, and read what it has twice."""
    assert [made.scheduler for made in programs(standardized(shape, dims), [shape], H200)] == ["reduction", "pointwise"]


@pytest.mark.parametrize("shape, dims", [((64, 1 << 21), [1]), ((1, 300000), [1]), ((20000, 300), [0]), ((132, 1 << 20), [1]), ((30, 1000), [0])], ids=str)
def test_rows_and_columns_that_fill_the_chip_or_are_kept_are_one_kernel(shape: tuple[int, ...], dims: list[int]) -> None:
    assert len(programs(standardized(shape, dims), [shape], H200)) == 1


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16], ids=str)
@pytest.mark.parametrize("shape, dims", [((2, 300001), [1]), ((1, 262144), [1]), ((200003, 3), [0]), ((131072, 8), [0])], ids=str)
def test_few_long_rows_and_columns(shape: tuple[int, ...], dims: list[int], dtype: DataType) -> None:
    fd = standardized(shape, dims, dtype)
    with options(chip="A100"), poisoned_outputs():
        fd.validate([numbers(dtype, *shape)])
    assert len(fd.fec.kernel_runtimes) == 2


def masked_mean(dims: list[int]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = wide(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16))
        mask = fd.ops.cast(fd.ops.gt(x, 0.0), DataType.Float)
        fd.add_output(fd.ops.div(fd.ops.sum(fd.ops.mul(x, mask), dims), fd.ops.sum(mask, dims)))
    return fd


def largest_share(dims: list[int]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = wide(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16))
        fd.add_output(fd.ops.div(fd.ops.max(x, dims), fd.ops.sum(fd.ops.abs(x), dims)))
    return fd


@pytest.mark.parametrize("shape, dims", [((4096, 4096), [0, 1]), ((2, 1 << 22), [1]), ((1 << 20, 64), [0])], ids=str)
def test_results_that_meet_where_rows_are_few_and_long(shape: tuple[int, ...], dims: list[int]) -> None:
    """Blocks that share a row exchange sums together, so the last block has all of them. It has the sum alone where the maximum is exchanged for itself: one block
    per row had to have both, and another kernel divides."""
    for make, wanted in ((masked_mean, ["reduction"]), (largest_share, ["reduction", "pointwise"])):
        found = programs(make(dims), [shape], H200)
        assert [made.scheduler for made in found] == wanted
        assert any(int(extent.value) > 1 for extent in found[0].program.grid if extent.is_const)


@pytest.mark.parametrize("shape, dims", [((8, 2048), [0, 1]), ((16384, 4096), [1]), ((4096, 4096), [0])], ids=str)
def test_results_meet_in_a_kernel_that_need_not_share_rows(shape: tuple[int, ...], dims: list[int]) -> None:
    assert [made.scheduler for made in programs(masked_mean(dims), [shape], H200)] == ["reduction"]


@pytest.mark.parametrize("shape, dims", [((2, 300001), [1]), ((1000, 1001), [0, 1]), ((100003, 8), [0])], ids=str)
@pytest.mark.parametrize("make", [masked_mean, largest_share])
def test_results_that_meet(make: Callable[[list[int]], FusionDefinition], shape: tuple[int, ...], dims: list[int]) -> None:
    fd = make(dims)
    with part_of_the_chip(), poisoned_outputs():
        fd.validate([numbers(DataType.BFloat16, *shape)])
    assert len(fd.fec.kernel_runtimes) <= 2


@pytest.mark.parametrize("dims", [[0, 1], [0], [1]], ids=str)
@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float], ids=str)
def test_blocks_exchange_all_sums_at_once(dtype: DataType, dims: list[int]) -> None:
    """Three sums and a product, which is exchanged for itself; each block arrives twice, not four times."""
    with FusionDefinition() as fd:
        x = wide(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=dtype))
        sums = [fd.ops.sum(t, dims) for t in (x, fd.ops.mul(x, x), fd.ops.abs(x))]
        outs = [*sums, fd.ops.sub(fd.ops.mul(sums[0], sums[2]), sums[1]), fd.ops.prod(fd.ops.add(fd.ops.mul(x, 1e-6), 1.0), dims)]
        for t in outs:
            fd.add_output(t)
    shape = (3, 100003) if dims == [1] else (70001, 3) if dims == [0] else (333, 1001)
    with part_of_the_chip(), poisoned_outputs():
        fd.validate([numbers(dtype, *shape)])
    texts = [r.program.text for r in fd.fec.kernel_runtimes]
    assert [text.count("weft::arrive_grid<") for text in texts if "arrive_grid" in text] == [2], texts
