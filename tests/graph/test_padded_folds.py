"""Folds of padded tensors fold what is padded: values, bytes, and the cases in which the padding counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.ir.graph_ops import LookupOp
from weft.graph.normalize import normalize


def padded(kind: str, widths: list[int], dims: list[int], fill: float, dtype: DataType = DataType.Float) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 3, contiguity=True, dtype=dtype)
        fd.add_output(getattr(fd.ops, kind)(fd.ops.pad(x, widths, fd.define_scalar(fill)), dims))
    return fd


def folds_a_lookup(fd: FusionDefinition) -> bool:
    """True when a fold reads what a lookup makes."""
    exprs = normalize(fd.fusion).tensor_exprs()
    results = {e.outputs[0] for e in exprs if isinstance(e, LookupOp)}
    return any(e.inputs[0] in results for e in exprs if type(e).__name__ == "ReductionOp")


CASES = [
    ("sum", [3, 5, 2, 0], [2], 0.0, False), ("sum", [3, 5, 2, 0], [1], 0.0, False), ("sum", [3, 5, 2, 1], [1, 2], 0.0, False), ("sum", [0, 0, 2, 0], [2], 0.0, False),
    ("prod", [1, 0], [2], 1.0, False), ("max", [2, 2, 1, 1], [1], -float("inf"), False), ("min", [2, 2], [2], float("inf"), False),
    ("sum", [3, 5], [2], 1.0, True), ("sum", [-1, 4], [2], 0.0, True), ("max", [1, 1], [2], 0.0, True), ("sum", [-2, 3, 1, 1], [1], 0.0, False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "widths", "dims", "fill", "counts"), CASES, ids=str)
def test_folds_of_pads(kind: str, widths: list[int], dims: list[int], fill: float, counts: bool) -> None:
    fd = padded(kind, widths, dims, fill)
    for shape in ((4, 9, 17), (1, 33, 8), (3, 2, 6)):
        x = torch.rand(shape) + 0.5
        wide = torch.nn.functional.pad(x.double(), widths, value=fill)
        wanted = {"sum": wide.sum, "prod": lambda d: wide.prod(d[0]), "max": wide.amax, "min": wide.amin}[kind](dims)
        torch.testing.assert_close(fd.execute([x])[0].double(), wanted, rtol=1e-5, atol=1e-6)


def test_a_padded_tensor_that_is_an_output_is_folded_by_the_kernel_that_writes_it() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        wide = fd.ops.pad(fd.ops.mul(x, x), [0, 3])
        fd.add_output(wide)
        fd.add_output(fd.ops.sum(wide, [0]))
    assert not any(isinstance(e, LookupOp) and type(e.inputs[0].definition()).__name__ == "ReductionOp" for e in normalize(fd.fusion).tensor_exprs())
    given = torch.rand(300, 61) + 0.5
    out, total = fd.execute([given])
    wanted = torch.nn.functional.pad(given.double().square(), [0, 3])
    torch.testing.assert_close(out.double(), wanted, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(total.double(), wanted.sum(0), rtol=1e-5, atol=1e-6)


def test_halves_are_folded_before_they_are_padded_too() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 16, 24], contiguity=True, dtype=DataType.BFloat16)
        y = fd.ops.cast(fd.ops.pad(x, [3, 5, 2, 0]), DataType.Float)
        rows, columns = fd.ops.sum(y, [2]), fd.ops.mul(fd.ops.sum(y, [1]), 1 / 18)
        for out in (rows, columns):
            fd.add_output(fd.ops.cast(out, DataType.BFloat16))
    assert not folds_a_lookup(fd)
    x = torch.randn(4, 16, 24).bfloat16()
    wide = torch.nn.functional.pad(x.double(), (3, 5, 2, 0))
    for out, wanted in zip(fd.execute([x]), (wide.sum(2), wide.mean(1))):
        torch.testing.assert_close(out.double(), wanted, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("counts", [False, True])
def test_sizes_decide_whether_all_of_the_source_is_folded(counts: bool) -> None:
    with FusionDefinition() as fd:
        x, left = fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.sum(fd.ops.pad(x, [left, 2]), [1]))
    x = torch.randn(5, 9)
    n = -3 if counts else 3
    torch.testing.assert_close(fd.execute([x, n])[0], torch.nn.functional.pad(x, (n, 2)).sum(1))
    torch.testing.assert_close(fd.execute([x, -n])[0], torch.nn.functional.pad(x, (-n, 2)).sum(1))


def test_constants_show_which_folds_read_the_source() -> None:
    for kind, widths, dims, fill, counts in CASES:
        with FusionDefinition() as fd:
            x: Any = fd.define_tensor([4, 9, 17], contiguity=True)
            fd.add_output(getattr(fd.ops, kind)(fd.ops.pad(x, widths, fd.define_scalar(fill)), dims))
        assert folds_a_lookup(fd) is counts, (kind, widths, dims, fill)
