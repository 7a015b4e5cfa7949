"""Rows and columns in one kernel whose maximum and sum of exponentials are one reduction: right in every way, and chosen by the model."""

from __future__ import annotations

import math

import pytest
import torch
from two_sided_fusions import PHASED_WAYS, WAYS, forced, matrix, numbers, relative_error

from weft import DataType, FusionDefinition
from weft.arch import CHIPS
from weft.compiler import prepare
from weft.ir.enums import SchedulerType
from weft.schedulers.inner_outer import InnerOuterPersistent
from weft.schedulers.inner_outer_heuristic import choose_inner_outer

# Of the largest value, as in test_inner_outer.py: a rounding of the result's type, and in float sums whose errors are some roundings of 2^-24 of their terms.
TOLERANCE = {DataType.Float: 64 * 2.0**-23, DataType.BFloat16: 2.0**-8, DataType.Half: 2.0**-11, DataType.Double: 64 * 2.0**-52}


def softmax(dtype: DataType, *, is_log: bool = False, scale: float = 1.0) -> FusionDefinition:
    """Softmax of scaled rows, the sums of its columns, and the sums of exponentials of the rows."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = matrix(fd, dtype)
        x = ops.mul(x, scale) if scale != 1.0 else x
        below = ops.sub(x, ops.max(x, [1], True))
        e = ops.exp(below)
        total = ops.sum(e, [1], True)
        y = ops.sub(below, ops.log(total)) if is_log else ops.div(e, total)
        fd.add_output(ops.cast(y, dtype))
        fd.add_output(ops.cast(ops.sum(y, [0]), dtype))
        fd.add_output(total)
    return fd


def wanted_of(x: torch.Tensor, *, is_log: bool = False, scale: float = 1.0) -> list[torch.Tensor]:
    x = x.double() * scale
    y = x.log_softmax(1) if is_log else x.softmax(1)
    return [y, y.sum(0), (x - x.amax(1, keepdim=True)).exp().sum(1, keepdim=True)]


def run(fd: FusionDefinition, x: torch.Tensor, wanted: list[torch.Tensor], tolerance: float) -> list[torch.Tensor]:
    """Execute as one kernel of this scheduler with one reduction for both, and compare every output."""
    outputs = fd.execute([x])
    (kernel,) = fd.fec.kernel_runtimes[-1:]
    assert kernel.proposal.scheduler is SchedulerType.inner_outer_persistent and kernel.proposal.params.is_online
    assert "FoldMaxSum" in kernel.program.text
    for got, expected in zip(outputs, wanted, strict=True):
        assert got.shape == expected.shape
        assert relative_error(got, expected) <= tolerance
    return outputs


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("weights read by every row", "what is computed is kept")])
def test_every_way_is_right_and_gives_the_same_bits_in_every_run(way: str) -> None:
    """35 rows over 4 blocks: the last steps have rows of some blocks only."""
    x = numbers(35, 512, dtype=DataType.BFloat16) * 4
    fd = softmax(DataType.BFloat16)
    with forced(way, is_online=True, project_to_inputs=True):
        first = run(fd, x, wanted_of(x), TOLERANCE[DataType.BFloat16])
        assert all(torch.equal(a, b) for a, b in zip(first, fd.execute([x])))


@pytest.mark.parametrize("way", PHASED_WAYS)
def test_rows_that_begin_anywhere(way: str) -> None:
    x = numbers(75, 509, dtype=DataType.BFloat16) * 4
    with forced(way, is_online=True, project_to_inputs=True):
        run(softmax(DataType.BFloat16), x, wanted_of(x), TOLERANCE[DataType.BFloat16])


@pytest.mark.parametrize(
    "rows, columns, dtype",
    [(1, 1, DataType.BFloat16), (1, 40, DataType.Float), (40, 2, DataType.BFloat16), (33, 64, DataType.Double), (70, 257, DataType.BFloat16), (5, 4099, DataType.Float),
     (0, 40, DataType.Float)],
)
def test_any_size_as_chosen_among_these(rows: int, columns: int, dtype: DataType) -> None:
    x = numbers(rows, columns, dtype=dtype) * 3
    if not rows:
        y, sums, total = softmax(dtype).execute([x])
        assert y.shape == (0, columns) and total.shape == (0, 1) and torch.equal(sums, torch.zeros(columns))
        return
    with forced("", only_online=True):
        run(softmax(dtype), x, wanted_of(x), TOLERANCE[dtype])


@pytest.mark.parametrize("is_log", [False, True])
def test_scaled_rows_and_logarithms(is_log: bool) -> None:
    x = numbers(41, 768, dtype=DataType.Half)
    with forced("", only_online=True):
        run(softmax(DataType.Half, is_log=is_log, scale=0.125), x, wanted_of(x, is_log=is_log, scale=0.125), TOLERANCE[DataType.Half])


def test_rows_of_infinities_and_no_numbers_as_in_torch() -> None:
    x = numbers(24, 512, dtype=DataType.Float)
    x[3], x[5, 7], x[6, 8], x[9, ::2] = -math.inf, math.inf, math.nan, -math.inf
    fd = softmax(DataType.Float)
    with forced("second passes behind", is_online=True, project_to_inputs=True, vector_elems=4, batches=2):
        y, sums, _ = fd.execute([x])
    torch.testing.assert_close(y, x.softmax(1), equal_nan=True, rtol=1e-5, atol=1e-8)
    assert sums.isnan().all()


def test_a_softmax_whose_maximum_is_of_something_else_has_one_form_only() -> None:
    with FusionDefinition() as fd:
        x = matrix(fd, DataType.Float)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(fd.ops.abs(x), [1], True)))
        y = fd.ops.div(e, fd.ops.sum(e, [1], True))
        fd.add_output(y)
        fd.add_output(fd.ops.sum(y, [0]))
    assert prepare(fd.fusion).analysis(InnerOuterPersistent()).online is None


def test_the_choice_compares_both_forms() -> None:
    fd = softmax(DataType.BFloat16)
    prepared = prepare(fd.fusion)
    analysis = prepared.analysis(InnerOuterPersistent())
    (x,) = prepared.fusion.inputs()
    env = {axis.sym: n for axis, n in zip(x.get_logical_domain(), (16384, 4096))}
    facts = analysis.facts(env, {})
    assert facts.rows.passes == 3 and facts.online is not None and facts.online.rows.passes == 2 and facts.online.online is None
    assert facts.online.row_folds == 2 and facts.row_folds == 1
    seen = set()
    rejected: set = set()
    for _ in range(300):
        params, _ = choose_inner_outer(facts, CHIPS["H200"], True, dict.fromkeys(rejected, 0))
        rejected.add(params)
        seen.add(params.is_online)
        if len(seen) == 2:
            break
    assert seen == {False, True}
