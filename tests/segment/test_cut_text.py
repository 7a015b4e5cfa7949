"""What print(fd.fec) and WEFT_DUMP=segments say of a cut."""

from __future__ import annotations

import re

import pytest
import torch

from weft import FusionDefinition
from weft.options import options

EXPECTED = """<FusionExecutorCache 0: 2 kernels made>
2 kernels, 1 op of torch; 2.0 kB in edges
1 pointwise weft_pointwise_NAME: relu
    reads  T0 1.0 kB
    writes T2 1.0 kB
        for step 2: one of them is not a kernel
2 torch: matmul
    reads  T2 1.0 kB, T1 1.0 kB
    writes T3 1.0 kB
        for step 3: one of them is not a kernel
3 reduction weft_reduction_NAME: sum
    reads  T3 1.0 kB
    writes T4 64 B, an output
T5 is a view of input 0"""


def test_the_steps_their_bytes_and_their_reasons_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.sum(fd.ops.matmul(fd.ops.relu(x), y), [1]))
        fd.add_output(fd.ops.permute(x, [1, 0]))
    assert "nothing was executed" in str(fd._executor_cache())
    with options(dump="segments", dump_dir=""):
        fd.execute([torch.randn(16, 16), torch.randn(16, 16)])
    text = re.sub(r"(pointwise|reduction)_[0-9a-f]{8}", r"\1_NAME", str(fd.fec))
    assert text == EXPECTED
    assert str(fd.fec).partition("\n")[2] in capsys.readouterr().out
