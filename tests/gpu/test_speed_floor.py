"""Kernels stay as fast as they were: the fraction of a copy of one case per family against a stored floor.

Run it alone, since other work on the GPU slows what is measured: `pytest -m gpu tests/gpu/test_speed_floor.py`. The floors are 5 % below what one H200
measured in November 2026 (docs/benchmarks.md), which is more than runs differ by (1 %), and hold for that chip only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from cases import BY_NAME  # noqa: E402
from measure import fraction_of_copy, moved_bytes  # noqa: E402

pytestmark = pytest.mark.gpu
BF16, F32 = torch.bfloat16, torch.float32

FLOORS = {
    ("softmax", BF16, 16384, 4096): 0.91,
    ("softmax", F32, 4096, 16384): 0.90,
    ("softmax", BF16, 65536, 128): 0.92,
    ("softmax", BF16, 512, 131072): 0.65,
    ("softmax_backward", BF16, 16384, 4096): 0.97,
    ("rms_norm", BF16, 16384, 4096): 0.94,
    ("rms_norm", BF16, 512, 131072): 0.77,
    ("layer_norm", BF16, 16384, 4096): 0.89,
    ("add_rms_norm", BF16, 16384, 4096): 0.95,
    ("dropout_layer_norm", BF16, 16384, 4096): 0.81,
    ("silu_mul", BF16, 16384, 4096): 0.97,
    ("gelu_bias", BF16, 16384, 4096): 0.93,
    ("row_sum", BF16, 16384, 4096): 0.93,
    ("col_sum", BF16, 8192, 8192): 0.86,
}
"""(case, type, rows, columns) -> least fraction of a copy."""


def shown(key: tuple) -> str:
    name, dtype, rows, columns = key
    return f"{name} {str(dtype)[6:]} {rows}x{columns}"


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="speed is measured with nothing else on the GPU: run without -n")
@pytest.mark.parametrize("key", FLOORS, ids=shown)
def test_gpu_a_kernel_reaches_its_floor(key: tuple) -> None:
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip(f"the floors are those of an H200, this is {torch.cuda.get_device_name()}")
    name, dtype, rows, columns = key
    torch.manual_seed(0)
    inputs = BY_NAME[name].inputs(rows, columns, dtype, "cuda")
    fd = BY_NAME[name].definition(dtype)
    outputs = fd.execute(inputs)
    assert BY_NAME[name].error(inputs, outputs) < (2e-3 if dtype is BF16 else 5e-7)
    count = moved_bytes(inputs, outputs)
    del outputs
    best = max(fraction_of_copy(lambda: fd.execute(inputs), count, "cuda") for _ in range(2))
    assert best >= FLOORS[key], f"{shown(key)}: {best:.3f} of a copy; chosen: {fd.fec.kernel_runtimes[-1].proposal.params}"
