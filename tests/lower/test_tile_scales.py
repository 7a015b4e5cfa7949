"""Blocks that take four rows of a tile of scales: their scales leave together, and rows that are not there give zeros."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from weft import DataType, quantize
from weft.check.records import Made, programs
from weft.options import options
from weft.quantize import functions
from weft.quantize.formats import NvFp4
from weft.runtime.runtimes import forget_kernels
from weft.schedulers import async_rows_heuristic as heuristic

BF16 = DataType.BFloat16


def results(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, w: torch.Tensor, is_tiled: bool, norm: str = "rms") -> tuple[torch.Tensor, ...]:
    """Quantize behind a norm with the same threads, four rows per block or one."""

    def chosen(facts, arch, row):  # noqa: ANN001, ANN202
        vectors = facts.reduction_elems // row.vector_elems
        batches = heuristic.TILE_BATCHES
        params = replace(row, batches=batches, bdimx=vectors // batches, fill="whole", max_registers=255)
        return replace(params, stages=2, tile_rows=4) if is_tiled else params

    monkeypatch.setattr(heuristic, "tile_per_block", chosen)
    functions._definition.cache_clear()
    forget_kernels()
    with options(rows="tma"):
        return quantize.rms_norm_nvfp4(x, w, layout="128x4") if norm == "rms" else quantize.layer_norm_nvfp4(x, w, w, layout="128x4")


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("rows, columns", [(128, 1024), (256, 2048), (130, 1024), (5, 1024), (1, 2048)])
def test_bytes_are_those_of_a_row_per_block(monkeypatch, rows, columns, norm):
    """Padding among them, also where a tile has few rows."""
    generator = torch.Generator().manual_seed(rows)
    x, w = torch.randn(rows, columns, generator=generator).bfloat16(), torch.randn(columns, generator=generator).bfloat16()
    x[rows // 2, :32] = 0
    x[0, 17] = float("nan")
    wanted = results(monkeypatch, x, w, False, norm)
    found = results(monkeypatch, x, w, True, norm)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(found, wanted, strict=True))


def made(rows: int, columns: int, layout: str = "128x4") -> Made:
    definition = functions._definition(NvFp4(layout), "rms_norm", ((BF16, 2, True), (BF16, 1, True)), 1e-5)
    return programs(definition, [(rows, columns), (columns,)])[0]


def params_of(rows: int, columns: int, layout: str = "128x4") -> str:
    return made(rows, columns, layout).params


def test_four_rows_where_all_multiprocessors_have_some():
    """Rows are whole tiles, and scales lie in tiles."""
    assert "tile_rows=4" in params_of(16384, 4096) and "tile_rows=4" in params_of(8192, 4096)
    assert "tile_rows=1" in params_of(16384, 4096, "rows") and "tile_rows=1" in params_of(16385, 4096) and "tile_rows=4" not in params_of(256, 4096)


def test_scales_of_four_rows_are_one_store():
    """And none is stored within the loop."""
    text = made(16384, 4096).program.text
    assert text.count("weft::store_scales(") == 1 and "weft::with_scale(" in text and "weft::store_global<" not in text
