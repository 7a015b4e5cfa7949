"""Running extrema with their positions: scans whose state has two fields, as torch.cummax and torch.cummin."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from lookup_cases import TYPES, declare

from weft import DataType, FusionDefinition
from weft.api.translate import translate_fusion
from weft.arch import H100
from weft.compiler import program_of_scheduled
from weft.lower.scans import BadScan
from weft.schedule.scan_states import translate_scans
from weft.schedulers.scans import ScanParams, Scans

ALL_TYPES = TYPES | {torch.uint8: DataType.Byte, torch.int8: DataType.Char}
REAL = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool]
SHAPES = [((3, 1000), 1), ((2, 4100), 1), ((5, 33), 1), ((1, 1, 7), 2), ((700, 9), 0), ((40, 64), 0), ((1, 5), 0), ((5, 1), 0), ((3, 50, 17), 1), ((2, 3, 4), 0), ((0, 5), 1), ((5, 0), 1), ((70, 513), 1)]
LONG = [((1, 100003), 1), ((40000,), 0), ((30011, 3), 0), ((2, 40000, 3), 1)]


def few_values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers that are often equal, with infinities and values that are no number among floats."""
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.1
    x = torch.randint(0 if dtype is torch.uint8 else -9, 10, shape, generator=generator).to(dtype)
    if dtype.is_floating_point and x.numel() > 100:
        x[torch.rand(shape, generator=generator) < 0.2] = -math.inf
        x.view(-1)[:7] = -math.inf  # nothing else at first
        x.view(-1)[x.numel() // 2 :: max(7, x.numel() // 3)] = math.nan
    return x


def run(name: str, x: torch.Tensor, dim: int) -> FusionDefinition:
    """Compare values and positions with torch's, bit by bit."""
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1] * x.dim(), contiguity=[True] * x.dim(), dtype=ALL_TYPES[x.dtype]) if x.is_contiguous() else declare(fd, x)
        for out in getattr(fd.ops, f"{name}_with_indices")(t, dim):
            fd.add_output(out)
    with poisoned_outputs():
        values, positions = fd.execute([x])
    want = getattr(torch, name)(x, dim)
    assert positions.dtype == torch.int64 and torch.equal(positions, want.indices)
    assert values.dtype == x.dtype and torch.equal(values.nan_to_num(77), want.values.nan_to_num(77)) if x.dtype.is_floating_point else torch.equal(values, want.values)
    if x.numel():
        assert len(fd.fec.kernel_runtimes) == 1  # type: ignore[attr-defined]
    return fd


@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_the_last_of_equal_values_and_of_those_that_are_no_number(name: str, shape: tuple[int, ...], dim: int) -> None:
    run(name, few_values(*shape), dim)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_all_real_types(dtype: torch.dtype, dim: int) -> None:
    run("cummax", few_values(170, 150, dtype=dtype), dim)
    run("cummin", few_values(61, 47, dtype=dtype), dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape, dim", LONG, ids=str)
def test_blocks_that_share_rows_pass_both_fields_on(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    fd = run("cummax", few_values(*shape, dtype=dtype).nan_to_num(3), dim)
    assert fd.fec.kernel_runtimes[0].proposal.params.blocks > 1  # type: ignore[attr-defined]
    run("cummin", few_values(*shape, dtype=dtype), dim)


def test_rows_of_nothing_but_the_worst_value() -> None:
    """Each element takes the place of the one before, also of the state before the first one, and in every block that shares the row."""
    for dtype, worst in ((torch.float32, -math.inf), (torch.int32, -(2**31)), (torch.int64, -(2**63)), (torch.uint8, 0)):
        for shape in ((3, 777), (1, 30001)):
            run("cummax", torch.full(shape, worst, dtype=dtype), 1)
            run("cummin", torch.full(shape, -worst if dtype.is_floating_point else torch.iinfo(dtype).max, dtype=dtype), 1)


def test_strided_rows_that_begin_anywhere() -> None:
    x = few_values(5000)[3:4003].reshape(50, 80)[:, 5:70]
    run("cummax", x, 1)
    run("cummin", x, 0)
    fd = run("cummax", few_values(70, 2049), 1)
    params = fd.fec.kernel_runtimes[0].proposal.params  # type: ignore[attr-defined]
    assert isinstance(params, ScanParams) and params.is_staged


def test_work_around_it_and_other_scans_are_in_its_kernel() -> None:
    """Positions alone, values alone, and a sum beside them, along the same axis."""
    x = few_values(40, 90).nan_to_num(1, neginf=-20)
    with FusionDefinition() as fd:
        t = declare(fd, x)
        doubled = fd.ops.mul(t, 2.0)
        positions = fd.ops.cummax_with_indices(doubled, 1)[1]
        smallest = fd.ops.cummin_with_indices(doubled, 1)[0]
        fd.add_output(fd.ops.add(positions, 1))
        fd.add_output(fd.ops.sub(fd.ops.cumsum(t, 1), smallest))
    with poisoned_outputs():
        at, apart = fd.execute([x])
    fd.validate([x])
    assert torch.equal(at, (x * 2).cummax(1).indices + 1)
    torch.testing.assert_close(apart.double(), x.double().cumsum(1) - (x.double() * 2).cummin(1).values, rtol=1e-5, atol=1e-4)
    assert len(fd.fec.kernel_runtimes) == 1  # type: ignore[attr-defined]


def test_an_axis_that_is_expanded_or_of_one_element_in_a_call() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[1, -1], contiguity=[None, None])
        for out in fd.ops.cummax_with_indices(fd.ops.reshape(x, [-1]), 0):
            fd.add_output(out)
    for count in (2, 1, 5):
        values, positions = fd.execute([torch.full((1, 1), 3.0).expand(1, count)])
        assert torch.equal(values, torch.full((count,), 3.0)) and torch.equal(positions, torch.arange(count))


def test_of_a_constant_all_positions_count() -> None:
    """A kernel that reads nothing."""
    with FusionDefinition() as fd:
        size = fd.define_tensor([-1, -1], contiguity=True).size(1)
        fd.add_output(fd.ops.cummin_with_indices(fd.ops.full([3, size], 2.0, DataType.Float), 1)[1])
    with poisoned_outputs():
        (out,) = fd.execute([torch.zeros(1, 700)])
    assert torch.equal(out, torch.arange(700).expand(3, 700))


def test_printed_and_written_again() -> None:
    x = few_values(6, 50)
    with FusionDefinition() as fd:
        for out in fd.ops.cummin_with_indices(declare(fd, x), 1):
            fd.add_output(out)
    text = translate_fusion(fd.fusion)
    assert "cummin_with_indices(tv0, dim=1)" in text
    names: dict[str, Any] = {"DataType": DataType, "FusionDefinition": FusionDefinition}
    exec(text, names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert torch.equal(again.execute([x])[1], x.cummin(1).indices)


def test_scheduled_by_hand_it_has_to_be_a_scan_of_a_state() -> None:
    with FusionDefinition() as fd:
        for out in fd.ops.cummax_with_indices(fd.define_tensor([-1, -1], contiguity=True), 1):
            fd.add_output(out)
    params = ScanParams(True, 4, 1, 64, 1, 64)
    for is_translated in (False, True):
        fusion, _ = fd.fusion.clone()
        if is_translated:
            translate_scans(fusion)
        result = Scans().apply(fusion, Scans().analyze(fusion), params)
        if is_translated:
            assert "weft::LastExtremum<true>" in program_of_scheduled(fusion, DataType.Int32, name="rows", result=result).text
        else:
            with pytest.raises(BadScan, match="translate_scans"):
                program_of_scheduled(fusion, DataType.Int32, name="rows", result=result)


def test_positions_have_32_bits_in_a_state() -> None:
    """Longer axes are for torch: no kernel counts further."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cummax_with_indices(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), 1)[1])
    fusion, _ = fd.fusion.clone()
    translate_scans(fusion)
    analysis = Scans().analyze(fusion)
    rows, columns = (axis.sym for axis in fusion.tensor_inputs()[0].get_logical_domain())
    assert Scans().accept(analysis, {rows: 1, columns: (1 << 31) - 1}, {}, H100) is None
    assert "32 bits" in Scans().accept(analysis, {rows: 1, columns: 1 << 31}, {}, H100).reason


def test_what_has_no_order_is_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.ComplexFloat)
        with pytest.raises(RuntimeError, match="real numbers"):
            fd.ops.cummax_with_indices(x, 0)
        with pytest.raises(RuntimeError, match="no axes"):
            fd.ops.cummin_with_indices(fd.define_tensor([], dtype=DataType.Float), 0)
        fd.add_output(x)
