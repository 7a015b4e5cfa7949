"""What primitives return, in the emulator; tests/device/test_on_gpu.py runs the same kernels on a GPU."""

from __future__ import annotations

import pytest
from primitive_values import VALUES, Value
from rule_kernels import run_rule


@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.claim)
def test_primitive_returns(value: Value) -> None:
    for check in ("bounds", "races"):
        for seed in (None, 1, 2):
            report, t1 = run_rule(value.body, check=check, cluster=value.cluster, seed=seed)
            assert report.findings == (), "\n".join(f.text() for f in report.findings)
            assert t1[:128].tolist() == [value.expected(t, b) for b in (0, 1) for t in range(64)]
