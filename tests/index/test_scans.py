"""cumsum, cumprod, cummin and cummax as kernels: along rows and down columns, with pointwise work around them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lookup_cases import TYPES, numbers
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.arch import H100
from weft.check.records import programs
from weft.compiler import program_of_scheduled
from weft.lower.scans import BadScan
from weft.schedulers.scans import ScanParams, Scans

SHAPES = [((3, 1000), 1), ((2, 4100), 1), ((5, 33), 1), ((1, 1, 7), 2), ((700, 9), 0), ((40, 64), 0), ((1, 5), 0), ((5, 1), 0), ((3, 50, 17), 1), ((2, 3, 4), 0), ((0, 5), 1)]


def wanted(name: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    out = getattr(torch, name)(x.double() if x.is_floating_point() else x, dim)
    return out if isinstance(out, torch.Tensor) else out.values


def check(define: Callable[..., Any], x: torch.Tensor, want: torch.Tensor, tolerance: float, kernels: int = 1) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(define(fd, fd.define_tensor([-1] * x.dim(), contiguity=[True] * x.dim(), dtype=TYPES[x.dtype])))
    with poisoned_outputs():
        result = fd.execute([x])[0]
    assert result.shape == want.shape
    torch.testing.assert_close(result.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    if x.numel():
        assert len(fd.fec.kernel_runtimes) == kernels  # type: ignore[attr-defined]
    return fd


@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
def test_running_sums(shape: tuple[int, ...], dim: int) -> None:
    x = numbers(*shape)
    check(lambda fd, x: fd.ops.cumsum(x, dim), x, wanted("cumsum", x, dim), 1e-4)


@pytest.mark.parametrize("name", ["cummax", "cummin", "cumprod"])
@pytest.mark.parametrize("dim", [0, 1])
def test_other_running_folds(name: str, dim: int) -> None:
    x = numbers(90, 100)
    x = 1 + 0.01 * x if name == "cumprod" else x
    check(lambda fd, x: getattr(fd.ops, name)(x, dim), x, wanted(name, x, dim), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_types_stay(dtype: torch.dtype, dim: int) -> None:
    """Integers stay as wide as they are, and half is folded in float."""
    x = numbers(60, 70, dtype=dtype)
    fd = check(lambda fd, x: fd.ops.cumsum(x, dim), x, wanted("cumsum", x, dim), 2e-2 if dtype.itemsize == 2 else 1e-12)
    assert fd.execute([x])[0].dtype == dtype


def test_a_nan_stays_in_running_extrema() -> None:
    x = numbers(4, 300)
    x[1, 100] = x[3, 0] = float("nan")
    check(lambda fd, x: fd.ops.cummax(x, 1), x, wanted("cummax", x, 1), 0)
    check(lambda fd, x: fd.ops.cummin(x, 0), x, wanted("cummin", x, 0), 0)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_start_value(dim: int) -> None:
    x = numbers(30, 40)
    check(lambda fd, x: fd.ops.cumsum(x, dim, 2.5), x, wanted("cumsum", x, dim) + 2.5, 1e-5)


@pytest.mark.parametrize("dim", [0, 1])
def test_pointwise_work_around_a_scan_is_in_its_kernel(dim: int) -> None:
    """Two running folds too, of which one reads the other."""
    x = numbers(50, 80)

    def define(fd: FusionDefinition, x: Any) -> Any:
        total = fd.ops.cumsum(fd.ops.mul(x, x), dim)
        return fd.ops.sqrt(fd.ops.cummax(fd.ops.add(total, fd.ops.abs(x)), dim))

    check(define, x, ((x.double() ** 2).cumsum(dim) + x.double().abs()).cummax(dim).values.sqrt(), 1e-5)


def test_running_sums_of_what_strides_and_is_misaligned() -> None:
    x = numbers(5000)[3:4003].reshape(50, 80)[:, 5:70]
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=DataType.Float)
        fd.add_output(fd.ops.cumsum(t, 1))
        fd.add_output(fd.ops.cumsum(t, 0))
    for result, dim in zip(fd.execute([x]), (1, 0)):
        torch.testing.assert_close(result.double(), x.double().cumsum(dim), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape, dim", [*SHAPES, ((1, 100003), 1), ((40000,), 0), ((30011, 3), 0), ((90, 1501), 1)], ids=str)
def test_logarithms_of_running_sums_of_exponentials(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """Also of rows that several blocks share, and of nothing but -infinity; `validate` bounds the error by the number of steps."""
    x = (8 * numbers(*shape)).to(dtype)
    if x.numel() > 100:
        x.view(-1)[:50] = -math.inf
    steps = max(64, 4 * shape[dim] ** 0.5)  # of the reference, too, which takes them one after the other; each rounds a logarithm
    eps = max(torch.finfo(dtype).eps, torch.finfo(dtype if dtype is torch.float64 else torch.float32).eps)
    fd = check(lambda fd, x: fd.ops.logcumsumexp(x, dim), x, wanted("logcumsumexp", x, dim), steps * eps)
    fd.validate([x])


@pytest.mark.parametrize("dim", [0, 1])
def test_logarithms_of_running_sums_from_a_start_value_on(dim: int) -> None:
    x = numbers(30, 40)
    want = torch.logaddexp(x.double().logcumsumexp(dim), torch.tensor(2.5, dtype=torch.float64))
    check(lambda fd, x: fd.ops.logcumsumexp(x, dim, 2.5), x, want, 1e-5)
    with FusionDefinition() as fd:
        whole = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        with pytest.raises(RuntimeError, match="real floating-point numbers"):
            fd.ops.logcumsumexp(whole, 0)
        fd.add_output(whole)


def test_complex_numbers_are_summed_and_have_no_extrema() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.ComplexFloat)
        for name in ("cumsum", "cumprod"):
            getattr(fd.ops, name)(x, 1)
        for name in ("cummax", "cummin"):
            with pytest.raises(RuntimeError, match="real numbers"):
                getattr(fd.ops, name)(x, 1)
        fd.add_output(x)


def test_an_axis_that_is_expanded_in_a_call_has_elements_of_its_own() -> None:
    """Whether a reshape leaves an expanded axis as it is, is known with the sizes of the call. Seed 420149 of the random graphs."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[1, -1], contiguity=[None, None])
        fd.add_output(fd.ops.cumsum(fd.ops.reshape(x, [-1]), 0))
    for count in (2, 1, 5):
        x = torch.full((1, 1), 3.0).expand(1, count)
        (y,) = fd.execute([x])
        assert torch.equal(y, x.reshape(-1).cumsum(0))


# ---- several columns per thread, and rows that begin anywhere
COLUMNS = [((700, 40), 0), ((513, 2), 0), ((3, 130, 24), 1), ((9, 4096), 0), ((4100, 6), 0), ((1, 8), 0), ((300, 62), 0), ((65, 3, 10), 0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape, dim", COLUMNS, ids=str)
def test_a_thread_has_several_columns(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """Elements of 64 bits would take too many registers."""
    x = numbers(*shape, dtype=dtype)
    fd = check(lambda fd, x: fd.ops.cumsum(x, dim), x, wanted("cumsum", x, dim), 5e-2 if dtype.itemsize == 2 else 1e-3)
    params = fd.fec.kernel_runtimes[0].proposal.params  # type: ignore[attr-defined]
    inner = math.prod(shape[dim + 1 :])
    assert params.columns == (1 if dtype.itemsize == 8 else min(2, inner & -inner))
    assert params.bdimx * params.bdimy % 32 == 0


@pytest.mark.parametrize(
    "dtype, shape, wanted",
    [
        (DataType.Float, (8192, 4096), (2, 16, 512)), (DataType.BFloat16, (4096, 12288), (2, 32, 512)), (DataType.BFloat16, (4096, 4099), (1, 16, 512)),
        (DataType.Float, (4096, 4099), (1, 32, 512)), (DataType.Float, (1024, 40000), (2, 32, 128)), (DataType.Float, (250, 100000), (2, 32, 256)),
        (DataType.Float, (1 << 22, 4), (4, 1, 256)),
    ],
)  # fmt: skip
def test_columns_are_divided_into_wide_pieces_that_fill_the_chip(dtype: DataType, shape: tuple[int, int], wanted: tuple[int, int, int]) -> None:
    """(columns of a thread, threads across, threads of a block) on an H100."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cumsum(fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), 0))
    (made,) = programs(fd, [shape], H100)
    columns, across, threads = wanted
    assert f" columns={columns}," in made.params and f"bdimx={across}, bdimy={threads // across}," in made.params


@pytest.mark.parametrize(
    "shape, wanted", [((8192, 8192), (128, 2, True)), ((3000, 20000), (256, 2, True)), ((200, 20000), (512, 2, True)), ((8192, 1024), (128, 2, False)), ((9000, 6001), (128, 2, True))]
)  # fmt: skip
def test_rows_load_ahead_and_few_of_them_have_large_blocks(shape: tuple[int, int], wanted: tuple[int, int, bool]) -> None:
    """(threads, vectors loaded together, are loads of the next piece in flight) on an H100. A row of one piece has no next one."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cumsum(fd.define_tensor([-1, -1], contiguity=True), 1))
    (made,) = programs(fd, [shape], H100)
    threads, unroll, is_ahead = wanted
    assert f" unroll={unroll}, bdimx={threads}, bdimy=1," in made.params and f" is_ahead={is_ahead}," in made.params


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float64], ids=str)
def test_pieces_are_loaded_ahead_of_the_one_that_is_scanned(dtype: torch.dtype) -> None:
    """An operand of each row and one of each column are loaded ahead, too."""
    rows, columns = 70, 9 * 512
    x, y, z = numbers(rows, columns, dtype=dtype), numbers(rows, 1, dtype=dtype), numbers(columns, dtype=dtype)
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1, n], contiguity=True, dtype=TYPES[dtype]) for n in (-1, 1))
        c = fd.define_tensor([-1], contiguity=True, dtype=TYPES[dtype])
        fd.add_output(fd.ops.cumsum(fd.ops.add(fd.ops.add(a, b), c), 1))
    with poisoned_outputs():
        (out,) = fd.execute([x, y, z])
    assert fd.fec.kernel_runtimes[0].proposal.params.is_ahead  # type: ignore[attr-defined]
    want = (x.double() + y.double() + z.double()).cumsum(1)
    scale = (x.double() + y.double() + z.double()).abs().cumsum(1)
    bound = (2**-8 if dtype is torch.bfloat16 else 0) * want.abs() + 60 * torch.finfo(torch.float32 if dtype.itemsize < 8 else torch.float64).eps * scale
    assert ((out.double() - want).abs() <= bound).all()


@pytest.mark.parametrize("columns", [33, 41, 5])
def test_an_odd_number_of_columns(columns: int) -> None:
    x = numbers(4099, columns)
    fd = check(lambda fd, x: fd.ops.cumsum(x, 0), x, wanted("cumsum", x, 0), 1e-3)
    assert fd.fec.kernel_runtimes[0].proposal.params.columns == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(150, 1501), (3, 70001), (1, 9999), (70, 513), (2, 5, 2047)], ids=str)
def test_rows_that_begin_anywhere(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A thread has as many neighbours as in rows that begin at vectors; results go through shared memory. An operand of each row, a second output."""
    x, dim = numbers(*shape, dtype=dtype), len(shape) - 1

    def define(fd: FusionDefinition, x: Any) -> Any:
        wide = fd.ops.cast(x, DataType.Float)
        first = fd.ops.slice(wide, [0] * len(shape), [*shape[:-1], 1]) if len(shape) == 2 else 1.0
        fd.add_output(fd.ops.cast(fd.ops.neg(wide), TYPES[dtype]))
        return fd.ops.cast(fd.ops.add(fd.ops.cumsum(fd.ops.mul(wide, 0.01), dim), first), TYPES[dtype])

    want = (x.double() * 0.01).cumsum(dim) + (x[:, :1].double() if len(shape) == 2 else 1.0)
    with FusionDefinition() as fd:
        fd.add_output(define(fd, fd.define_tensor([-1] * len(shape), contiguity=True, dtype=TYPES[dtype])))
    with poisoned_outputs():
        negative, out = fd.execute([x])
    torch.testing.assert_close(negative, -x, rtol=0, atol=0, check_dtype=False)
    torch.testing.assert_close(out.double(), want, rtol=1e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-2 if dtype.itemsize == 2 else 1e-4)
    params = next(r.proposal.params for r in fd.fec.kernel_runtimes if isinstance(r.proposal.params, ScanParams))
    assert params.is_staged and params.neighbours == 16 // dtype.itemsize


def test_blocks_of_scans_are_whole_warps() -> None:
    """With fewer threads across than a warp has: threads of one column follow each other in a warp."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cumsum(fd.define_tensor([-1, -1], contiguity=True), 0))
    fusion, _ = fd.fusion.clone()
    analysis = Scans().analyze(fusion)
    result = Scans().apply(fusion, analysis, ScanParams(False, 4, 1, 8, 3, 64))
    with pytest.raises(BadScan, match="blocks of 24 threads are not whole warps"):
        program_of_scheduled(fusion, DataType.Int32, name="columns", result=result)


# ---- rows that several blocks share
LONG = [((1, 100003), 1), ((40000,), 0), ((3, 70001), 1), ((30011, 3), 0), ((16384, 20), 0), ((2, 40000, 3), 1), ((8192, 1), 0)]


def blocks_of(fd: FusionDefinition) -> int:
    return fd.fec.kernel_runtimes[-1].proposal.params.blocks  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("shape, dim", LONG, ids=str)
def test_blocks_share_few_long_rows(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = numbers(*shape, dtype=dtype)
    fd = check(lambda fd, x: fd.ops.cumsum(x, dim), x, wanted("cumsum", x, dim), 1e-3)
    assert blocks_of(fd) > 1


@pytest.mark.parametrize("name", ["cummax", "cummin", "cumprod"])
@pytest.mark.parametrize("shape, dim", [((1, 50001), 1), ((20001, 2), 0)], ids=str)
def test_other_folds_of_shared_rows(name: str, shape: tuple[int, ...], dim: int) -> None:
    x = numbers(*shape)
    x = 1 + 0.001 * x if name == "cumprod" else x
    if name != "cumprod":
        x.flatten()[12345] = float("nan")
    assert blocks_of(check(lambda fd, x: getattr(fd.ops, name)(x, dim), x, wanted(name, x, dim), 1e-4)) > 1


def test_shared_rows_with_work_around_them() -> None:
    """What is scanned is computed twice; what comes behind only once. Two scans share the loops."""
    x = numbers(2, 60001)

    def define(fd: FusionDefinition, x: Any) -> Any:
        scaled = fd.ops.mul(fd.ops.sigmoid(x), 0.01)
        return fd.ops.sub(fd.ops.mul(fd.ops.cumsum(scaled, 1), 2.0), fd.ops.cummax(fd.ops.add(x, 1.0), 1))

    wide = x.double()
    want = 2 * (wide.sigmoid() * 0.01).cumsum(1) - (wide + 1).cummax(1).values
    assert blocks_of(check(define, x, want, 1e-4)) > 1


def test_a_scan_of_a_scan_keeps_a_block_for_each_row() -> None:
    x = numbers(1, 30000) * 1e-3
    fd = check(lambda fd, x: fd.ops.cumsum(fd.ops.cumsum(x, 1), 1), x, x.double().cumsum(1).cumsum(1), 1e-2)
    assert blocks_of(fd) == 1


def test_many_rows_are_not_shared() -> None:
    x = numbers(80, 9000)
    assert blocks_of(check(lambda fd, x: fd.ops.cumsum(x, 1), x, x.double().cumsum(1), 1e-3)) == 1


def test_the_same_bits_each_time() -> None:
    x = numbers(1, 100003)
    fd = check(lambda fd, x: fd.ops.cumsum(x, 1), x, x.double().cumsum(1), 1e-3)
    assert all(torch.equal(fd.execute([x])[0], fd.execute([x])[0]) for _ in range(2))
