"""Truths that a row keeps in registers are four to a register: a kernel that holds masks from one pass to the next hardly spills."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.check.records import make_record
from weft.options import options

ROWS, COLUMNS = 64, 240000
"""Rows that lie in the registers of a cluster, 32 elements of each tensor in a thread."""


def masked_rows() -> FusionDefinition:
    """Return a definition with three masks in the first pass, one of which the last pass asks again, beside an input that only the last pass reads."""
    with FusionDefinition() as fd:
        masks = [fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Bool) for _ in range(3)]
        g, x = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        halved = fd.ops.where(masks[0], fd.ops.mul(g, 0.5), g)
        total = fd.ops.broadcast(fd.ops.sum(fd.ops.where(masks[1], 0.0, halved), [1]), [False, True])
        ties = fd.ops.broadcast(fd.ops.sum(fd.ops.cast(masks[2], DataType.Float), [1]), [False, True])
        shared = fd.ops.where(masks[2], fd.ops.div(total, ties), 0.0)
        fd.add_output(fd.ops.div(fd.ops.add(halved, shared), fd.ops.add(fd.ops.abs(x), 1.0)))
    return fd


def test_masks_hardly_spill() -> None:
    (kernel,) = make_record({"masked": (masked_rows(), [(ROWS, COLUMNS)] * 5)}, ("sm_90a",))["cases"]["masked"]["kernels"]
    assert "cluster_blocks=16" in kernel["params"] and "Array<bool, 32>" in kernel["text"]
    machine = kernel["machine"]["sm_90a"]
    assert machine["registers"] <= 64 and machine["spill_store_bytes"] <= 64  # 476 with 88 registers, where each truth has one


@pytest.mark.parametrize("columns", [1, 33, 4096, 70001], ids=str)
def test_masks_of_any_values(columns: int) -> None:
    torch.manual_seed(columns)
    masks = [torch.rand(3, columns) < 0.5 for _ in range(3)]
    masks[2][:, 0] = True
    g, x = torch.randn(3, columns), torch.randn(3, columns)
    with options(check="races"):
        (out,) = masked_rows().execute([*masks, g, x])
    halved = torch.where(masks[0], g.double() / 2, g.double())
    shared = torch.where(masks[1], 0, halved).sum(1, keepdim=True) / masks[2].sum(1, keepdim=True)
    expected = (halved + torch.where(masks[2], shared, 0)) / (x.double().abs() + 1)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)
