"""Lookups in kernels that reduce: cross entropy, embedding with a norm, sums of slices and pads, columns of gathered rows; one kernel each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lookup_cases import numbers, places, run, window

from weft import DataType, FusionDefinition
from weft.ir.values import TensorView
from weft.options import options

WAYS = ["register", "tma", "specialized"]


def along(fd: FusionDefinition, t: TensorView, like: TensorView, dims: list[int]) -> TensorView:
    return fd.ops.broadcast_in_dim(t, shape=like.shape(), broadcast_dims=dims)  # type: ignore[no-any-return]


def cross_entropy(fd: FusionDefinition, x: TensorView, t: TensorView) -> TensorView:
    f, t = fd.ops.cast(x, DataType.Float), fd.ops.broadcast(t, [False, True])
    largest = fd.ops.max(f, dims=[1])
    total = fd.ops.sum(fd.ops.exp(fd.ops.sub(f, along(fd, largest, f, [0]))), dims=[1])
    picked = fd.ops.cast(fd.ops.squeeze(fd.ops.take_along_axis(x, t, 1), dims=[1]), DataType.Float)
    return fd.ops.sub(fd.ops.add(fd.ops.log(total), largest), picked)  # type: ignore[no-any-return]


def rms_norm(fd: FusionDefinition, h: TensorView, w: TensorView, width: int) -> TensorView:
    h, w = fd.ops.cast(h, DataType.Float), fd.ops.cast(w, DataType.Float)
    r = fd.ops.rsqrt(fd.ops.add(fd.ops.mul(fd.ops.sum(fd.ops.mul(h, h), dims=[1]), 1 / width), 1e-6))
    return fd.ops.mul(fd.ops.mul(h, along(fd, r, h, [0])), along(fd, w, h, [1]))  # type: ignore[no-any-return]


def wanted_norm(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = h.double()
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * w.double()


def one_kernel(fd: FusionDefinition) -> None:
    assert len(fd.fec.kernel_runtimes) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows, columns", [(3, 4096), (4, 1000), (1, 1), (5, 33), (2, 40_000), (0, 8)])
def test_cross_entropy_is_one_kernel(rows: int, columns: int, dtype: torch.dtype) -> None:
    x, labels = numbers(rows, columns, dtype=dtype), places(columns, rows)
    wanted = torch.nn.functional.cross_entropy(x.double(), labels, reduction="none")
    fd = run(cross_entropy, [x, labels], wanted, 1e-5)
    if rows:
        one_kernel(fd)


@pytest.mark.parametrize("way", WAYS)
def test_cross_entropy_however_rows_are_kept(way: str) -> None:
    x, labels = numbers(3, 5000, dtype=torch.bfloat16), places(5000, 3)
    with options(rows=way):
        run(cross_entropy, [x, labels], torch.nn.functional.cross_entropy(x.double(), labels, reduction="none"), 1e-5)


@pytest.mark.parametrize("rows, entries, width", [(5, 100, 1024), (3, 10, 1000), (1, 7, 1), (5, 3, 33), (2, 5, 20_000)])
def test_embedding_and_norm_are_one_kernel(rows: int, entries: int, width: int) -> None:
    index, table, w = places(entries, rows), numbers(entries, width, dtype=torch.bfloat16), numbers(width, dtype=torch.bfloat16)
    fd = run(lambda fd, i, e, w: rms_norm(fd, fd.ops.index_select(e, i, 0), w, width), [index, table, w], wanted_norm(table[index], w), 1e-5)
    one_kernel(fd)


@pytest.mark.parametrize("way", WAYS)
def test_embedding_and_norm_however_rows_are_kept(way: str) -> None:
    index, table, w = places(9, 4), numbers(9, 5000), numbers(5000)
    with options(rows=way):
        run(lambda fd, i, e, w: rms_norm(fd, fd.ops.index_select(e, i, 0), w, 5000), [index, table, w], wanted_norm(table[index], w), 1e-5)


@pytest.mark.parametrize("low, size, fill", [(0, 96, None), (16, 64, None), (5, 77, None), (-8, 112, 2.0), (-3, 101, 1.5)])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_slices_and_pads(low: int, size: int, fill: float | None, dim: int) -> None:
    x = numbers(96, 96)
    lows, sizes = [0, 0], [96, 96]
    lows[dim], sizes[dim] = low, size
    widths = [-lows[1], lows[1] + sizes[1] - 96, -lows[0], lows[0] + sizes[0] - 96]
    padded = torch.nn.functional.pad(x.double(), widths, value=0.0 if fill is None else fill)
    for axis in (0, 1):
        run(lambda fd, x, axis=axis: fd.ops.sum(window(fd, x, lows, sizes, fill), [axis]), [x], padded.sum(axis), 1e-5)


def test_columns_of_gathered_rows_are_normalized() -> None:
    x, index = numbers(20, 64), places(20, 30)

    def define(fd: FusionDefinition, x: TensorView, i: TensorView) -> TensorView:
        rows = fd.ops.index_select(x, i, 0)
        return fd.ops.sub(rows, along(fd, fd.ops.max(rows, [0]), rows, [1]))  # type: ignore[no-any-return]

    run(define, [x, index], x[index] - x[index].amax(0))


def test_softmax_of_a_slice_beside_the_rest() -> None:
    """The row is read twice, at its own positions and at others; both parts are kept."""
    x = numbers(6, 64)

    def define(fd: FusionDefinition, x: TensorView) -> tuple[Any, Any]:
        part = window(fd, x, [0, 16], [None, 32])
        e = fd.ops.exp(fd.ops.sub(part, along(fd, fd.ops.max(part, [1]), part, [0])))
        return fd.ops.mul(e, along(fd, fd.ops.reciprocal(fd.ops.sum(e, [1])), e, [0])), fd.ops.max(part, [1])

    run(define, [x], (x[:, 16:48].double().softmax(1), x[:, 16:48].amax(1)), 1e-5)


def test_a_row_is_gathered_along_itself_after_its_sum() -> None:
    x, index = numbers(5, 40), places(40, 5, 40)

    def define(fd: FusionDefinition, x: TensorView, i: TensorView) -> TensorView:
        return fd.ops.mul(fd.ops.gather(x, i, 1), along(fd, fd.ops.sum(x, [1]), x, [0]))  # type: ignore[no-any-return]

    run(define, [x, index], x.double().gather(1, index) * x.double().sum(1, keepdim=True), 1e-5)


def test_a_lookup_behind_a_reduction_is_loaded_before_it() -> None:
    """The logit of a label: its load arrives while the row is folded."""
    with FusionDefinition() as fd:
        x, label = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        o = fd.ops
        picked = o.squeeze(o.take_along_axis(x, o.broadcast(label, [False, True]), 1), [1])
        fd.add_output(o.sub(o.log(o.sum(o.exp(x), [1])), picked))
    x, label = torch.randn(33, 1000), torch.randint(0, 1000, (33,))
    (out,) = fd.execute([x, label])
    torch.testing.assert_close(out, x.logsumexp(1) - x.gather(1, label[:, None])[:, 0])
    (kernel,) = fd.fec.kernel_runtimes
    text = kernel.program.text
    assert text.index("weft::position") < text.index("for (")
