"""Rows that are read from, or written to, rotated places, as those of shifted windows: in every way of the schedulers of rows, and of rows and columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from part_of_chip import part_of_the_chip
from two_sided_fusions import WAYS, forced, numbers, relative_error

import weft.schedulers.reduction as reduction
from weft import DataType, FusionDefinition
from weft.ir.enums import SchedulerType
from weft.options import options
from weft.schedulers.inner_outer_params import InnerOuterParams
from weft.schedulers.phased_columns import has_phases
from weft.schedulers.transpose import Transpose

TOLERANCE = {torch.bfloat16: 2.0**-8, torch.float32: 64 * 2.0**-23}
"""Of the largest value: the rounding of a bfloat16 result, 2^-9, twice; of float, some hundred roundings of 2^-24."""
DTYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float}
Sizes = tuple[int, int, int]


def roll(fd: FusionDefinition, x: Any, shifts: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    for dim, (shift, extent) in enumerate(zip(shifts, sizes)):
        if extent == 1:
            continue
        place = fd.ops.add(fd.ops.iota(extent, dtype=DataType.Int), -shift % extent)
        x = fd.ops.index_select(x, fd.ops.where(fd.ops.lt(place, extent), place, fd.ops.sub(place, extent)), dim)
    return x


def norm_backward(sizes: Sizes, dtype: torch.dtype) -> FusionDefinition:
    """The gradients of layer_norm(x) * w, of which windows are read, and of x as it was and as windows, and their sum over rows."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, g = (ops.cast(fd.define_tensor(list(sizes), contiguity=True, dtype=DTYPES[dtype]), DataType.Float) for _ in range(2))
        mean, rstd = (fd.define_tensor([*sizes[:2], 1], contiguity=True) for _ in range(2))
        w = ops.broadcast_in_dim(ops.cast(fd.define_tensor([sizes[2]], contiguity=True, dtype=DTYPES[dtype]), DataType.Float), list(sizes), [2])
        g = roll(fd, g, (1, -2), sizes)
        normed, wg = ops.mul(ops.sub(x, mean), rstd), ops.mul(g, w)
        d = ops.sub(wg, ops.mul(normed, ops.div(ops.sum(ops.mul(wg, normed), [2], True), sizes[2])))
        d = ops.mul(ops.sub(d, ops.div(ops.sum(wg, [2], True), sizes[2])), rstd)
        windows = roll(fd, d, (-1, 3), sizes)
        for out in (d, windows):
            fd.add_output(ops.cast(out, DTYPES[dtype]))
        for out in (ops.mul(g, normed), g, windows):
            fd.add_output(ops.sum(out, [0, 1]))
        fd.add_output(roll(fd, ops.sum(g, [0, 1]), (3,), sizes[2:]))
    return fd


def norm_backward_inputs(sizes: Sizes, dtype: torch.dtype) -> list[torch.Tensor]:
    x, g = numbers(*sizes).to(dtype), numbers(*reversed(sizes)).permute(2, 1, 0).to(dtype).contiguous()
    wide = x.float()
    return [x, g, wide.mean(2, keepdim=True), (wide.var(2, correction=0, keepdim=True) + 1e-3).rsqrt(), numbers(sizes[2]).to(dtype)]


def norm_backward_in_float64(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    x, g, mean, rstd, w = (t.double() for t in inputs)
    g = torch.roll(g, (1, -2), (0, 1))
    normed, wg = (x - mean) * rstd, g * w
    d = (wg - normed * (wg * normed).mean(2, keepdim=True) - wg.mean(2, keepdim=True)) * rstd
    return [d, torch.roll(d, (-1, 3), (0, 1)), *(t.sum((0, 1)) for t in (g * normed, g, d)), torch.roll(g.sum((0, 1)), 3)]


def run(fd: FusionDefinition, inputs: list[torch.Tensor], wanted: list[torch.Tensor], dtype: torch.dtype, scheduler: SchedulerType) -> list[torch.Tensor]:
    with poisoned_outputs():
        outputs = fd.execute(inputs)
    assert {kernel.proposal.scheduler for kernel in fd.fec.kernel_runtimes} == {scheduler}
    for got, expected in zip(outputs, wanted, strict=True):
        assert got.shape == expected.shape
        assert relative_error(got, expected) <= TOLERANCE[dtype if got.dtype is dtype else torch.float32]
    return outputs


@pytest.mark.parametrize("sizes", [(3, 4, 24), (1, 9, 24), (7, 5, 28), (2, 35, 260), (5, 3, 1000), (3, 7, 27), (2, 40, 501)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_a_norm_of_shifted_windows(sizes: Sizes, dtype: torch.dtype) -> None:
    inputs = norm_backward_inputs(sizes, dtype)
    with options(check="races"):
        run(norm_backward(sizes, dtype), inputs, norm_backward_in_float64(inputs), dtype, SchedulerType.inner_outer_persistent)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_right_and_gives_the_same_bits_in_every_run(way: str) -> None:
    sizes = (5, 7, 252 if "anywhere" in way else 512)
    inputs, fd = norm_backward_inputs(sizes, torch.bfloat16), norm_backward(sizes, torch.bfloat16)
    with forced(way), options(check="races", strict_schedules=True):
        first = run(fd, inputs, norm_backward_in_float64(inputs), torch.bfloat16, SchedulerType.inner_outer_persistent)
        assert all(torch.equal(a, b) for a, b in zip(first, fd.execute(inputs)))


@pytest.mark.parametrize("rows", ["auto", "register", "tma", "specialized"])
@pytest.mark.parametrize("sizes", [(3, 5, 512), (2, 3, 4096), (3, 4, 75), (9, 1, 1001)], ids=str)
def test_softmax_of_rolled_rows_beside_itself(sizes: Sizes, rows: str) -> None:
    """The input is read rolled and as it is, and the result written rolled and as it is."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor(list(sizes), contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        y = fd.ops.add(x, roll(fd, x, (1, -2), sizes))
        e = fd.ops.exp(fd.ops.sub(y, fd.ops.max(y, [2], True)))
        y = fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [2], True)), DataType.BFloat16)
        fd.add_output(y)
        fd.add_output(roll(fd, y, (2, 1), sizes))
    x = numbers(*sizes).bfloat16()
    want = (x.double() + torch.roll(x.double(), (1, -2), (0, 1))).softmax(2)
    with options(check="races", rows=rows, strict_schedules=True):
        run(fd, [x], [want, torch.roll(want, (2, 1), (0, 1))], torch.bfloat16, SchedulerType.inner_persistent)


@pytest.mark.parametrize("sizes", [(3, 5, 512), (4, 6, 33)], ids=str)
def test_softmax_of_rows_that_are_rotated(sizes: Sizes) -> None:
    """The elements of a row are not neighbours in memory, so that no bulk copy has it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True)
        e = fd.ops.exp(roll(fd, x, (0, 0, 3), sizes))
        fd.add_output(roll(fd, fd.ops.div(e, fd.ops.sum(e, [2], True)), (0, 1, 2), sizes))
    x = numbers(*sizes)
    for rows in ("auto", "tma"):
        with options(check="races", rows=rows, strict_schedules=True):
            run(fd, [x], [torch.roll(x.double(), 3, 2).softmax(2).roll((1, 2), (1, 2))], torch.float32, SchedulerType.inner_persistent)


@pytest.mark.parametrize("sizes", [(3, 5, 512), (2, 6, 32)], ids=str)
@pytest.mark.parametrize("is_written", [False, True])
def test_rows_of_two_axes_of_which_the_outer_is_rolled(sizes: Sizes, is_written: bool) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True)
        e = fd.ops.exp(x if is_written else roll(fd, x, (0, 2), sizes))
        y = fd.ops.div(e, fd.ops.sum(e, [1, 2], True))
        fd.add_output(roll(fd, y, (0, 2), sizes) if is_written else y)
    x = numbers(*sizes)
    for rows in ("auto", "tma"):
        with options(check="races", rows=rows, strict_schedules=True):
            run(fd, [x], [torch.roll(x.double().flatten(1).softmax(1).view(sizes), 2, 1)], torch.float32, SchedulerType.inner_persistent)


@pytest.mark.parametrize("sizes", [(5, 6, 33), (3, 4, 64), (64, 3, 7), (2, 2, 1001)], ids=str)
def test_sums_of_columns_that_are_written_rolled(sizes: Sizes) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True)
        y = roll(fd, fd.ops.broadcast_in_dim(fd.ops.sum(x, [0]), [1, *sizes[1:]], [1, 2]), (0, 1, 2), (1, *sizes[1:]))
        fd.add_output(y)
    x = numbers(*sizes)
    with options(check="races"):
        run(fd, [x], [x.double().sum(0, keepdim=True).roll((1, 2), (1, 2))], torch.float32, SchedulerType.reduction)


@pytest.mark.parametrize("sizes", [(3, 8, 1001), (2, 64, 96), (5, 7, 3), (2, 300, 3)], ids=str)
@pytest.mark.parametrize("is_turned", [False, True])
def test_copies_of_rows_of_any_length(sizes: Sizes, is_turned: bool) -> None:
    """Read in place and rolled, written in place and rolled; also transposed."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True, dtype=DataType.BFloat16)
        place = fd.ops.broadcast_in_dim(fd.ops.iota(sizes[2], dtype=DataType.Float), list(sizes), [2])
        y = fd.ops.add(fd.ops.add(fd.ops.cast(x, DataType.Float), fd.ops.cast(roll(fd, x, (1, 3), sizes), DataType.Float)), place)
        for out in (y, roll(fd, y, (1, 2), sizes)):
            fd.add_output(fd.ops.cast(fd.ops.permute(out, [0, 2, 1]) if is_turned else out, DataType.BFloat16))
    x = numbers(*sizes).bfloat16()
    y = x.double() + torch.roll(x.double(), (1, 3), (0, 1)) + torch.arange(sizes[2]).double()
    wanted = [t.transpose(1, 2) if is_turned else t for t in (y, torch.roll(y, (1, 2), (0, 1)))]
    with poisoned_outputs(), options(check="races"):
        outputs = fd.execute([x])
    assert len(fd.fec.kernel_runtimes) == 1
    for got, want in zip(outputs, wanted, strict=True):
        assert relative_error(got, want) <= TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("sizes", [(2, 127, 255), (3, 64, 128), (2, 600, 3)], ids=str)
@pytest.mark.parametrize("shifts", [(1, 0, 0), (0, 3, 0), (0, 0, 5)], ids=str)
def test_a_rolled_tensor_is_transposed(sizes: Sizes, shifts: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in tiles that are moved whole, which would be chosen here for odd sizes."""
    ranked = Transpose._ranked

    def whole_first(self: Transpose, *given: Any) -> Any:
        found = sorted(zip(*ranked(self, *given)), key=lambda pair: not getattr(pair[0], "is_whole", False))
        return [params for params, _ in found], [time for _, time in found]

    monkeypatch.setattr("weft.schedulers.transpose.WHOLE_FILLED", 0)
    monkeypatch.setattr(Transpose, "_ranked", whole_first)
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True, dtype=DataType.BFloat16)
        fd.add_output(fd.ops.permute(roll(fd, x, shifts, sizes), [0, 2, 1]))
    x = numbers(*sizes).bfloat16()
    with poisoned_outputs(), options(check="races", strict_schedules=True):
        (got,) = fd.execute([x])
    assert len(fd.fec.kernel_runtimes) == 1 and torch.equal(got, torch.roll(x, shifts, (0, 1, 2)).transpose(1, 2))


def test_column_sums_by_phase_are_written_rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are stored one by one, because neighbours of the result are not neighbours in memory."""
    params = InnerOuterParams(False, 8, 1, 8, 4, 2, 2, 16, "now", 1, False, "registers", 4, 1, 128, 1, "partial", is_phased=True)
    monkeypatch.setattr(reduction, "phased_candidates", lambda facts, arch: [(0.0, params)] if has_phases(facts) else [])
    with FusionDefinition() as fd:
        x = fd.define_tensor([70, 260], contiguity=True, dtype=DataType.BFloat16)
        fd.add_output(roll(fd, fd.ops.sum(fd.ops.cast(x, DataType.Float), [0]), (5,), (260,)))
    x = numbers(70, 260).bfloat16()
    with options(check="races", strict_schedules=True):
        run(fd, [x], [torch.roll(x.double().sum(0), 5)], torch.float32, SchedulerType.reduction)
    assert fd.fec.kernel_runtimes[-1].proposal.params.is_phased


def test_rolled_rows_have_no_common_phase() -> None:
    """A row that is read at another place begins elsewhere within a vector than the row that is written."""
    rows, columns = 1024, 513
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], contiguity=True, dtype=DataType.BFloat16)
        b = fd.ops.broadcast(fd.define_tensor([columns], contiguity=True, dtype=DataType.BFloat16), [True, False])
        turned = fd.ops.add(fd.ops.cast(roll(fd, x, (3,), (rows, columns)), DataType.Float), fd.ops.cast(b, DataType.Float))
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.cast(x, DataType.Float), turned), DataType.BFloat16))
    x, b = numbers(rows, columns).bfloat16(), numbers(columns).bfloat16()
    with poisoned_outputs(), part_of_the_chip(), options(check="races", strict_schedules=True):
        (got,) = fd.execute([x, b])
    assert not fd.fec.kernel_runtimes[-1].proposal.params.is_phased
    assert relative_error(got, x.double() + torch.roll(x.double(), 3, 0) + b.double()) <= TOLERANCE[torch.bfloat16]
