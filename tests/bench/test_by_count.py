"""bench/by_count.py finds what it is there to find, and finds nothing in kernels that were mended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from weft import DataType
from weft.arch import H200
from weft.options import options
from weft.schedulers import inner_persistent, scans

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import by_count  # noqa: E402

CASES = [
    ("add_layer_norm", DataType.Float, (4096, 4099)), ("standardized_columns", DataType.BFloat16, (1 << 22, 4)), ("masked_mean", DataType.BFloat16, (4096, 4099)),
    ("extent_of_rows", DataType.BFloat16, (1, 1 << 24)), ("column_sums_of_columns", DataType.BFloat16, (4096, 4099)),
    ("running_sums", DataType.Float, (2, 1 << 23)), ("running_sums_down", DataType.Float, (300000, 40)),
]  # fmt: skip


def found(name: str, dtype: DataType, shape: tuple[int, int]) -> list[str]:
    with options(chip="H200"):
        return [line for row in by_count.found_in(name, dtype, [shape], H200) for line in row["found"]]


@pytest.mark.parametrize("name, dtype, shape", CASES, ids=lambda value: str(value))
def test_nothing_is_slow_by_count(name: str, dtype: DataType, shape: tuple[int, int]) -> None:
    assert found(name, dtype, shape) == []


def test_an_idle_chip_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_persistent, "why_not_in_one_kernel", lambda *_: None)
    monkeypatch.setattr(scans, "blocks_of_a_row", lambda *_: 1)
    assert found("extent_of_rows", DataType.BFloat16, (1, 1 << 23)) and found("running_sums", DataType.Float, (3, 1 << 22)) == ["3 blocks for 132 multiprocessors"]
