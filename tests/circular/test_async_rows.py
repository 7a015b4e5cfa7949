"""Normalizations whose rows TMA loads: right in the emulator with races checked, through the setting `rows` and with parameters changed; no spills on sm_90a."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.options import options
from weft.runtime.limits import BlockTooSmall

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from pipelines_on_gpu import FUSIONS, Kernel, error_of, inputs_of  # noqa: E402

H200 = arch_by_name("H200")
BF16, FLOAT = DataType.BFloat16, DataType.Float


def check(kernel: Kernel, name: str, dtype: DataType, shapes: list[tuple[int, int]]) -> None:
    assert not kernel.declined, kernel.declined
    with options(check="races"):
        for rows, cols in shapes:
            xs = inputs_of(name, dtype, rows, cols, "cpu")
            assert error_of(kernel(xs), FUSIONS[name][1](*xs)) <= 1


@pytest.mark.parametrize("dtype", [BF16, FLOAT], ids=["bf16", "float"])
@pytest.mark.parametrize("name", FUSIONS)
def test_a_row_per_block(name: str, dtype: DataType) -> None:
    for bulk in (False, True):
        kernel = Kernel(name, dtype, 4096, 1024, H200, "tma", bulk=bulk)
        check(kernel, name, dtype, [(5, 1024), (3, 1000)])
        assert "spills 0 B stored 0 B loaded" in kernel.resources()


SPECIALIZED: dict[str, dict] = {
    "as chosen": {}, "one role": {"warps": 1}, "stored": {"bulk": True}, "grouped rows": {"grouped_rows": 2, "stages": 2},
    "stored, grouped": {"bulk": True, "grouped_rows": 2, "stages": 2}, "no registers": {"registers": None, "stages": 2},
}  # fmt: skip


@pytest.mark.parametrize("changed", SPECIALIZED.values(), ids=SPECIALIZED)
@pytest.mark.parametrize("dtype", [BF16, FLOAT], ids=["bf16", "float"])
@pytest.mark.parametrize("name", FUSIONS)
def test_specialized_warps(name: str, dtype: DataType, changed: dict) -> None:
    kernel = Kernel(name, dtype, 4096, 1024, H200, "specialized", **{"stages": 3, **changed}, blocks=2)
    laps = 2 * 4 * kernel.params.grouped_rows
    check(kernel, name, dtype, [(2 * laps * kernel.params.groups - 1, 1024), (3, 1000), (1, 8)])
    assert "spills 0 B stored 0 B loaded" in kernel.resources()


@pytest.mark.parametrize("cols", [4096, 8192, 16384])
@pytest.mark.parametrize("dtype", [BF16, FLOAT], ids=["bf16", "float"])
def test_long_rows(cols: int, dtype: DataType) -> None:
    kernel = Kernel("layer_norm", dtype, 4096, cols, H200, "specialized", blocks=1)
    check(kernel, "layer_norm", dtype, [(2 * kernel.params.groups * kernel.params.stages + 1, cols)])
    assert "spills 0 B stored 0 B loaded" in kernel.resources()


@pytest.mark.parametrize("way", ["tma", "specialized"])
def test_the_setting_forces_a_way(way: str) -> None:
    with FusionDefinition() as fd:
        FUSIONS["softmax"][0](fd, FLOAT)
    x = torch.randn(5, 1000)
    with options(rows=way, chip="H200", check="races"):
        assert error_of(fd.execute([x]), FUSIONS["softmax"][1](x)) <= 1
    name = {"tma": "tma_inner_persistent", "specialized": "ws_normalization"}[way]
    assert error_of(fd.execute([x], _enable_options=[name]), FUSIONS["softmax"][1](x)) <= 1


@pytest.mark.parametrize("way", ["tma", "specialized"])
def test_where_the_forced_way_is_impossible_another_is_taken(way: str) -> None:
    """Rows of 1001 elements are no multiple of 16 bytes."""
    with FusionDefinition() as fd:
        FUSIONS["softmax"][0](fd, FLOAT)
    x = torch.randn(5, 1001)
    with options(rows=way, chip="H200"):
        assert error_of(fd.execute([x]), FUSIONS["softmax"][1](x)) <= 1


def test_a_kernel_serves_rows_that_its_block_can_hold() -> None:
    """Rows that fill their threads, that fill all batches but the last, and any others have kernels of their own."""
    kernel = Kernel("softmax", BF16, 4096, 2048, H200, "specialized", blocks=2, stages=2)
    check(kernel, "softmax", BF16, [(9, 2048), (2, 2048), (2, 1032), (17, 1040), (1, 8)])
    runtimes = kernel.definition.fec.kernel_runtimes
    assert ["threadIdx.x) <" in r.program.text or "threadIdx.x <" in r.program.text for r in runtimes] == [False, True, True]  # whole, all but the last, any
    with options(chip="H200"), pytest.raises(BlockTooSmall, match="compiled for 128 threads along threadIdx.x"):
        kernel(inputs_of("softmax", BF16, 2, 4096, "cpu"))


@pytest.mark.parametrize("cols", [2048, 1536, 1544])
@pytest.mark.parametrize("way", ["tma", "specialized"])
@pytest.mark.parametrize("name", FUSIONS)
def test_rows_that_fill_their_threads(name: str, way: str, cols: int) -> None:
    changed = {"blocks": 2, "stages": 2} if way == "specialized" else {}
    check(Kernel(name, BF16, 4096, cols, H200, way, **changed), name, BF16, [(19, cols)])
