"""Pointwise kernels whose rows begin anywhere: a bias along rows of odd length, in vectors that are aligned in memory."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs
from part_of_chip import part_of_the_chip, rows_of_part

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.graph.normalize import normalize
from weft.schedulers import pointwise_heuristic
from weft.schedulers.pointwise_analysis import PointwiseAnalysis, analyze_pointwise

BF16, HALF, FLOAT, DOUBLE = DataType.BFloat16, DataType.Half, DataType.Float, DataType.Double
TORCH = {BF16: torch.bfloat16, HALF: torch.float16, FLOAT: torch.float32, DOUBLE: torch.float64}
ROUNDOFF = {BF16: 2.0**-8, HALF: 2.0**-11, FLOAT: 2.0**-22, DOUBLE: 2.0**-51}


def biased(dtype: DataType, *, with_rows: bool = False) -> FusionDefinition:
    """tanh(x + bias along rows), and times a factor of each row where wanted."""
    with FusionDefinition() as fd:
        x, b = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), fd.define_tensor([-1], contiguity=True, dtype=dtype)
        r = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=FLOAT) if with_rows else None
        wide = [t if dtype is DOUBLE else fd.ops.cast(t, dtype=FLOAT) for t in (x, b)]
        y = fd.ops.tanh(wide[0] + fd.ops.broadcast(wide[1], [True, False]))
        y = y * r if with_rows else y
        fd.add_output(y if dtype is DOUBLE else fd.ops.cast(y, dtype=dtype))
        fd.add_output(wide[0] - 1)
    return fd


DEFINED = {dtype: biased(dtype) for dtype in TORCH}


def run(fd: FusionDefinition, inputs: list[torch.Tensor], is_phased: bool) -> list[torch.Tensor]:
    with poisoned_outputs(), part_of_the_chip():
        out = fd.execute(inputs, check="races")
    assert fd.fec.kernel_runtimes[-1].proposal.params.is_phased is is_phased
    return out


def assert_right(dtype: DataType, x: torch.Tensor, b: torch.Tensor, out: list[torch.Tensor], r: torch.Tensor | float = 1.0) -> None:
    wanted = torch.tanh(x.double() + b.double()) * r
    assert ((out[0].double() - wanted).abs() <= 2 * ROUNDOFF[dtype] * (wanted.abs() + 1e-3)).all()
    assert ((out[1].double() - (x.double() - 1)).abs() <= 2.0**-23 * (x.double().abs() + 1)).all()


@pytest.mark.parametrize("dtype", list(TORCH), ids=lambda d: d.name)
@pytest.mark.parametrize(("rows", "columns"), [(9000, 129), (3001, 501), (1500, 1001), (1030, 2047), (301, 4099), (17, 70001)])
def test_rows_of_odd_length_move_in_vectors(dtype: DataType, rows: int, columns: int) -> None:
    rows = rows_of_part(rows)
    generator = torch.Generator().manual_seed(columns)
    x, b = torch.randn(rows, columns, generator=generator).to(TORCH[dtype]), torch.randn(columns, generator=generator).to(TORCH[dtype])
    assert_right(dtype, x, b, run(DEFINED[dtype], [x, b], is_phased=dtype is not DOUBLE))


def test_a_factor_of_each_row() -> None:
    fd = biased(BF16, with_rows=True)
    x, b, r = torch.randn(14_001, 67).bfloat16(), torch.randn(67).bfloat16(), torch.rand(14_001, 1)
    assert_right(BF16, x, b, run(fd, [x, b, r], is_phased=True), r.double())


def test_more_rows_than_a_grid_has_along_y(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread has one row, as each has a phase of its own: blocks along x count the rows then."""
    monkeypatch.setattr(pointwise_heuristic, "MAX_GRID", (2**31 - 1, 1000, 1000))
    x, b = torch.randn(1301, 449), torch.randn(449)
    fd = biased(FLOAT)
    assert_right(FLOAT, x, b, run(fd, [x, b], is_phased=True))
    params = fd.fec.kernel_runtimes[-1].proposal.params
    assert params.is_left_fastest and not params.split_grid_y


def test_a_first_element_between_vectors_and_a_bias_between_words() -> None:
    """x two bytes off a vector leaves no aligned vectors; a bias two bytes off a word cannot be read in words."""
    x, b = torch.randn(3000 * 501 + 1).bfloat16(), torch.randn(502).bfloat16()
    shifted = x[1:].view(3000, 501)
    assert_right(BF16, shifted, b[:501], run(DEFINED[BF16], [shifted, b[:501]], is_phased=False))
    rows = x[:-1].view(3000, 501)
    assert_right(BF16, rows, b[1:], run(DEFINED[BF16], [rows, b[1:]], is_phased=False))


@pytest.mark.parametrize("shape", [(0, 501), (1, 501), (501, 1), (2, 130)])
def test_few_elements(shape: tuple[int, int]) -> None:
    x, b = torch.randn(shape).bfloat16(), torch.randn(shape[1]).bfloat16()
    assert_right(BF16, x, b, DEFINED[BF16].execute([x, b], check="races"))


@pytest.mark.parametrize("dtype", [BF16, HALF], ids=lambda d: d.name)
@pytest.mark.parametrize("rows", [429, 3001])
def test_what_is_repeated_along_a_row_stands_among_values_of_one_element(dtype: DataType, rows: int) -> None:
    """The gradient of cross entropy: a class and a number of each row are repeated along it, and its positions are compared with them."""
    rows, columns = rows_of_part(rows), 5003
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        target, total = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int), fd.define_tensor([-1], contiguity=True, dtype=FLOAT)
        shape = x.shape()
        wide = fd.ops.cast(x, dtype=FLOAT)
        repeated = [fd.ops.broadcast_in_dim(v, shape, [0]) for v in (target, total)]
        position = fd.ops.broadcast_in_dim(fd.ops.iota(shape[1], dtype=DataType.Int), shape, [1])
        share = fd.ops.exp(wide - repeated[1]) - fd.ops.where(fd.ops.eq(position, repeated[0]), 1.0, 0.0)
        fd.add_output(fd.ops.cast(share, dtype=dtype))
    x, target = torch.randn(rows, columns).to(TORCH[dtype]), torch.randint(0, columns, (rows,))
    total = torch.logsumexp(x.float(), 1)
    wanted = (x.double() - total.double()[:, None]).exp() - torch.nn.functional.one_hot(target, columns)
    (out,) = run(fd, [x, target, total], is_phased=True)
    assert ((out.double() - wanted).abs() <= 8 * ROUNDOFF[dtype] * (wanted.abs() + 2.0**-10)).all()


def test_rows_of_a_padded_image_are_tested_once() -> None:
    """Columns are tested for each element; rows, too, unless a row is what a thread has on the right side, as in the kernel that is chosen."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[16, 64, 128, 128], contiguity=True, dtype=DataType.BFloat16)
        fd.add_output(fd.ops.cast(fd.ops.relu(fd.ops.cast(fd.ops.pad(x, [1, 1, 1, 1]), DataType.Float)), DataType.BFloat16))
    analysis = analyze_pointwise(normalize(fd.fusion))
    assert isinstance(analysis, PointwiseAnalysis)
    assert [work.element_tests for work in analysis.phased_index_work] == [4, 4, 4, 2]
    assert [(work.element_tests, work.scalar_tests) for work in analysis.index_work] == [(0, 4), (0, 4), (0, 4), (0, 2)]
    params = pointwise_heuristic.choose(analysis.facts({}, {}), arch_by_name("H200"))
    assert params.is_phased and params.break_point == 3
