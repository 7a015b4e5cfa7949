"""Scans of many short rows: a warp, or a part of one, has a row, and a block has several."""

from __future__ import annotations

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

SHAPES = [(700, 9), (1001, 3), (67, 1), (130, 2), (150, 32), (99, 33), (131, 100), (77, 127), (71, 5, 17), (0, 9)]


def bound(terms: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Return how far sums in float32 may be from exact ones: a rounding for each term, and that of the result."""
    scale = terms.abs().cumsum(dim)
    return (terms.shape[dim] * 2.0**-24 + (2.0**-8 if dtype is torch.bfloat16 else 0)) * scale + 1e-30


def scanned(x: torch.Tensor, define: Any, sizes: list[int] | None = None) -> tuple[torch.Tensor, ScanParams | None]:
    with FusionDefinition() as fd:
        t = fd.define_tensor(sizes or [-1] * x.dim(), contiguity=[None if n == 1 else True for n in sizes or [-1] * x.dim()], dtype=TYPES[x.dtype])
        fd.add_output(define(fd, t))
    with poisoned_outputs():
        (out,) = fd.execute([x])
    found = [r.proposal.params for r in fd.fec.kernel_runtimes if isinstance(r.proposal.params, ScanParams)]  # type: ignore[attr-defined]
    return out, found[0] if found else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lanes_of_a_warp_share_a_row(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, dim = numbers(*shape, dtype=dtype), len(shape) - 1
    out, params = scanned(x, lambda fd, t: fd.ops.cumsum(t, dim))
    want = x.double().cumsum(dim)
    assert ((out.double() - want).abs() <= bound(x.double(), dim, dtype)).all()
    if params is not None:
        lanes = -(-shape[-1] // params.neighbours)
        assert params.bdimx < 2 * lanes <= 2 * 32 and params.bdimx * params.bdimy == 256 or lanes > 32


@pytest.mark.parametrize("name", ["cumprod", "cummax", "cummin", "logcumsumexp"])
def test_other_folds_of_short_rows(name: str) -> None:
    """Some carry states, and those of logarithms know a shift of their row."""
    x = numbers(301, 13)
    x = 1 + 0.1 * x if name == "cumprod" else 30 * x
    out, params = scanned(x, lambda fd, t: getattr(fd.ops, name)(t, 1))
    want = getattr(torch, name)(x.double(), 1)
    torch.testing.assert_close(out.double(), want if isinstance(want, torch.Tensor) else want.values, rtol=1e-5, atol=1e-5)
    assert params is not None and (params.bdimx, params.bdimy) == (16, 16)


@pytest.mark.parametrize("shape", [(133, 11), (4300, 140)], ids=str)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_short_recurrences_from_both_ends(shape: tuple[int, int], is_reversed: bool) -> None:
    """Their steps do not commute."""
    x = numbers(*shape)
    out, params = scanned(x, lambda fd, t: fd.ops.linear_recurrence(fd.ops.cos(t), t, 1, is_reversed))
    steps = range(shape[1])[::-1] if is_reversed else range(shape[1])
    want, value = torch.empty(shape, dtype=torch.float64), torch.zeros(shape[0], dtype=torch.float64)
    for n in steps:
        want[:, n] = value = x[:, n].double().cos() * value + x[:, n].double()
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-4)
    assert params is not None and params.bdimx <= 32 and params.bdimy > 1


@pytest.mark.parametrize("columns", [6, 40])
def test_short_rows_with_a_start_value_and_work_around_them(columns: int) -> None:
    x = numbers(203, columns)
    out, params = scanned(x, lambda fd, t: fd.ops.mul(fd.ops.cumsum(fd.ops.exp(t), 1, 0.5), t))
    torch.testing.assert_close(out.double(), (x.double().exp().cumsum(1) + 0.5) * x.double(), rtol=1e-5, atol=1e-5)
    assert params is not None and params.bdimy > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [300, 261, 512])
def test_a_warp_scans_a_few_pieces(columns: int, dtype: torch.dtype) -> None:
    """Where rows begin anywhere, results go through the shared memory of the block."""
    x = numbers(4230, columns, dtype=dtype)
    out, params = scanned(x, lambda fd, t: fd.ops.cumsum(t, 1))
    assert ((out.double() - x.double().cumsum(1)).abs() <= bound(x.double(), 1, dtype)).all()
    assert params is not None and (params.bdimx, params.bdimy) == (32, 8) and params.is_staged == (columns == 261)


def test_few_rows_of_several_pieces_have_a_block_each() -> None:
    """So that enough warps load at once."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cumsum(fd.define_tensor([-1, -1], contiguity=True), 1))
    many, few, short = (programs(fd, [shape], H100)[0].params for shape in ((1 << 16, 500), (200, 500), (200, 64)))
    assert "bdimx=32, bdimy=8," in many and "bdimx=64, bdimy=1," in few and "bdimx=16, bdimy=16," in short


def test_rows_of_a_block_are_parts_of_warps() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cumsum(fd.define_tensor([-1, -1], contiguity=True), 1))
    fusion, _ = fd.fusion.clone()
    result = Scans().apply(fusion, Scans().analyze(fusion), ScanParams(True, 1, 1, 24, 4, 64))  # type: ignore[arg-type]
    with pytest.raises(BadScan, match="several rows of 24 threads each, which are not the lanes, or a part, of one warp"):
        program_of_scheduled(fusion, DataType.Int32, name="rows", result=result)
