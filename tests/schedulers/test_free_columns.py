"""Sums of columns of which no tensor in memory has elements, as how often an index names each class: a thread has several, and loads what rows have once."""

from __future__ import annotations

import pytest
import torch
from channel_cases import with_params
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options


def counts(classes: int) -> FusionDefinition:
    """How often an index names each class, and the sum of the weights of the rows that do."""
    with FusionDefinition() as fd:
        ops = fd.ops
        index, w = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int), fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        n = index.size(0)
        every, own = ops.iota(classes, dtype=DataType.Int), ops.broadcast_in_dim(index, [n, classes], [0])
        is_named = ops.eq(own, ops.broadcast_in_dim(every, [n, classes], [1]))
        hot = ops.cast(ops.cast(is_named, DataType.Int), DataType.Float)
        fd.add_output(ops.sum(hot, [0]))
        fd.add_output(ops.sum(ops.mul(hot, ops.broadcast_in_dim(w, [n, classes], [0])), [0]))
    return fd


def check(fd: FusionDefinition, rows: int, classes: int) -> None:
    made = torch.Generator().manual_seed(rows + classes)
    index, w = torch.randint(-1, classes + 1, (rows,), generator=made), torch.randn(rows, generator=made)
    with poisoned_outputs(), options(check="races"):
        number, total = fd.execute([index, w])
    hot = (index[:, None] == torch.arange(classes)).double()
    assert torch.equal(number.double(), hot.sum(0))
    bound = 2.0**-24 * (rows + 1) * (hot * w.abs().double()[:, None]).sum(0)
    assert ((total.double() - (hot * w.double()[:, None]).sum(0)).abs() <= bound).all()


def params_of(fd: FusionDefinition):  # type: ignore[no-untyped-def]
    return fd.fec.kernel_runtimes[-1].proposal.params  # type: ignore[attr-defined]


@pytest.mark.parametrize("classes", [64, 33, 6, 4, 1])
@pytest.mark.parametrize("rows", [5000, 37, 1, 0])
def test_as_chosen(rows: int, classes: int) -> None:
    fd = counts(classes)
    check(fd, rows, classes)
    if rows > 1 and classes in (64, 6):
        assert (params_of(fd).kind, params_of(fd).vector_elems) == ("outer", 4 if classes == 64 else 2)


@pytest.mark.parametrize("fields", [
    {"bdimx": 8, "bdimy": 16, "unroll": 4}, {"bdimx": 2, "bdimy": 32, "unroll": 8, "unswitch": True}, {"bdimx": 16, "bdimy": 8, "unroll": 2, "grid_split": 3},
    {"bdimx": 8, "bdimy": 8, "unroll": 4, "grid_split": 2, "is_cluster": True}, {"bdimx": 1, "bdimy": 64, "unroll": 1, "grid_split": 5},
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("rows", "classes"), [(517, 60), (64, 4), (1000, 256)])
def test_ways_to_divide_them(rows: int, classes: int, fields: dict[str, int]) -> None:
    usual = {"grid_split": 1, "is_cluster": False, "unswitch": False, "max_registers": 128, "vector_elems": 4}
    check(with_params(counts(classes), **(usual | fields)), rows, classes)


def test_loads_of_rows_are_issued_together() -> None:
    """Rows have no columns, and so fewer loops than the terms; their loads still stand before the loop over the rows that a thread has at once."""
    fd = with_params(counts(64), bdimx=8, bdimy=16, unroll=4, grid_split=1, unswitch=False, is_cluster=False)
    check(fd, 640, 64)
    text = fd.fec.get_cuda_kernel([torch.zeros(640, dtype=torch.int64), torch.zeros(640)])
    assert "weft::Array<long long, 4>" in text and "weft::Array<float, 4>" in text
