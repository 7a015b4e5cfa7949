"""bench/model_functions.py counts bytes and instructions of torch functions, and knows which inputs have gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from weft.arch import H200
from weft.options import options

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import function_cases  # noqa: E402
import model_functions  # noqa: E402


def test_bytes_and_instructions_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(model_functions.CASES, "avg_pool", function_cases.Case(model_functions.CASES["avg_pool"].function, (function_cases.R(2, 4, 16, 16),), (0,)))
    with options(chip="H200"):
        model_functions.counted("avg_pool", H200)
    told = capsys.readouterr().out
    assert "avg_pool, forward: 1.00 of 0 MB in 1 kernels" in told and "avg_pool, backward: " in told and " instructions in " in told


def test_inputs() -> None:
    assert model_functions.CASES["cross_entropy"].with_gradient == (0,) and model_functions.CASES["swiglu"].with_gradient == (0, 1)
    integers = function_cases.I(5, 3, 4).made("cpu")
    assert integers.dtype is torch.int64 and int(integers.max()) < 5
