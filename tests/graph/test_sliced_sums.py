"""Sums of slices beside sums of the whole tensor, and slices of the rows of a normalization: what the normal form has, and that results are torch's in float64."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.ir.graph_ops import LookupOp
from weft.ir.values import ReductionOp

TOLERANCE = {DataType.Float: 1e-5, DataType.BFloat16: 2.0**-7}


def reductions(fd: FusionDefinition) -> int:
    return sum(isinstance(e, ReductionOp) for e in normalize(fd.fusion).tensor_exprs())


@pytest.mark.parametrize("begin, end, folded", [(0, 1, [0]), (1, 6, [0]), (2, 5, [0, 2]), (1, 3, [2])])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_sum_of_a_slice_is_a_slice_of_the_sum(begin, end, folded, dtype):
    with FusionDefinition() as fd:
        ops = fd.ops
        x, y = (fd.define_tensor([5, 6, 20], contiguity=[False, True, True], dtype=dtype) for _ in range(2))
        made = ops.mul(ops.cast(x, DataType.Float), ops.cast(y, DataType.Float))
        part = ops.slice(made, [0, begin, 0], [5, end, 20])
        for out in (ops.sum(made, folded), ops.sum(part, folded)):
            fd.add_output(ops.cast(out, dtype))
    assert reductions(fd) == 1
    check(fd, lambda x, y: [(x * y).sum(folded), (x * y)[:, begin:end].sum(folded)], dtype)


def check(fd, wanted, dtype=DataType.Float):  # noqa: ANN001, ANN201
    """Compare with float64 on strided inputs. dtype: the narrowest type of the definition."""
    kind = torch.bfloat16 if fd.fusion.inputs()[0].dtype() is DataType.BFloat16 else torch.float32
    given = [torch.randn(5, 6 + n, 20, generator=torch.Generator().manual_seed(n)).to(kind)[:, n:] for n in (0, 1)]
    with poisoned_outputs():
        outputs = fd.execute(given)
    for got, want in zip(outputs, wanted(*(t.double() for t in given)), strict=True):
        assert got.shape == want.shape
        assert (got.double() - want).norm() <= TOLERANCE[dtype] * max(1.0, float(want.norm()))


def test_ops_of_one_operand_may_lie_between():
    """The sum in float32 of a slice in bfloat16, beside that of the whole."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, y = (fd.define_tensor([5, 6, 20], contiguity=[False, True, True], dtype=DataType.Float) for _ in range(2))
        narrow = ops.cast(ops.mul(x, y), DataType.BFloat16)
        part = ops.exp(ops.cast(ops.slice(narrow, [0, 1, 0], [5, 6, 20]), DataType.Float))
        for out in (ops.sum(ops.exp(ops.cast(narrow, DataType.Float)), [0]), ops.sum(part, [0])):
            fd.add_output(out)
    assert reductions(fd) == 1
    check(fd, lambda x, y: [(x * y).bfloat16().double().exp().sum(0), (x * y).bfloat16().double().exp()[:, 1:].sum(0)], DataType.BFloat16)


@pytest.mark.parametrize("what", ["the sliced axis", "another op", "a sum of less", "another kind"])
def test_sums_that_stay(what):
    with FusionDefinition() as fd:
        ops = fd.ops
        x, y = (fd.define_tensor([5, 6, 20], contiguity=[False, True, True], dtype=DataType.Float) for _ in range(2))
        made = ops.mul(x, y)
        part = ops.slice(made, [0, 1, 0], [5, 6, 20])
        part = ops.neg(part) if what == "another op" else part
        whole = ops.max(made, [0]) if what == "another kind" else ops.sum(made, {"the sliced axis": [0, 1], "a sum of less": [0, 2]}.get(what, [0]))
        fd.add_output(whole)
        fd.add_output(ops.sum(part, [0, 1] if what == "the sliced axis" else [0]))
    assert reductions(fd) == 2

    def wanted(x, y):  # noqa: ANN001, ANN202
        made = x * y
        part = made[:, 1:] * (-1 if what == "another op" else 1)
        whole = made.amax(0) if what == "another kind" else made.sum({"the sliced axis": [0, 1], "a sum of less": [0, 2]}.get(what, [0]))
        return [whole, part.sum([0, 1] if what == "the sliced axis" else [0])]

    check(fd, wanted)


@pytest.mark.parametrize("begin, is_kept", [(1, True), (5, False)])
def test_most_rows_of_a_normalization_are_read_from_what_it_stores(begin, is_kept):
    """The slice of a gradient from three inputs of 32 bits, in 16: storing all rows is fewer bytes than reading the inputs again; not for few rows."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, y = (fd.define_tensor([5, 6, 20], contiguity=[False, True, True], dtype=DataType.Float) for _ in range(2))
        more = ops.mul(y, x)
        d = ops.sub(ops.add(ops.mul(x, y), ops.exp(y)), ops.sum(more, [2], True))
        fd.add_output(ops.sum(d, [0]))
        fd.add_output(ops.cast(ops.slice(d, [0, begin, 0], [5, 6, 20]), DataType.BFloat16))
    lookups = [e for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, LookupOp)]
    assert (len(lookups) == 1 and lookups[0].source.dtype() is DataType.BFloat16) is is_kept

    def wanted(x, y):  # noqa: ANN001, ANN202
        d = x * y + y.exp() - (x * y).sum(2, keepdim=True)
        return [d.sum(0), d[:, begin:]]

    check(fd, wanted, DataType.BFloat16)
