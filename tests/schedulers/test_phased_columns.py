"""Column sums and norm backward of rows that begin anywhere: every block has rows of one phase, whose threads keep their columns (`weft.schedule.peel`)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from channel_cases import checked
from row_fusions import numbers, wide
from two_sided_fusions import PHASED, PHASED_WAYS, PLAIN, norm_backward, norm_backward_in_float64, norm_backward_inputs, relative_error

import weft.schedulers.inner_outer as two_sides
import weft.schedulers.reduction as reduction
from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.options import options
from weft.schedule.peel import skipped_elems_of
from weft.schedulers.inner_outer_params import InnerOuterParams
from weft.schedulers.phased_columns import has_phases, phased_candidates

BF16, H200 = DataType.BFloat16, arch_by_name("H200")
COLUMNS = InnerOuterParams(False, 8, 1, 8, 4, 2, 2, 16, "now", 1, False, "registers", 1, 1, 128, 1, "partial", is_phased=True)
"""32 threads of a row, which has 16 vectors to 32 vectors in the sizes below, two rows side by side and two of a thread at once."""


def sums(dtype: DataType = BF16, count: int = 1, contiguity: Any = True) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=contiguity, dtype=dtype)
        for n in range(count):
            fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.mul(wide(fd, x), n + 1.0), [0]), dtype if n else DataType.Float))
    return fd


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets column sums by phase have these params wherever they are possible."""

    def force(**fields: Any) -> None:
        params = dataclasses.replace(COLUMNS, **fields)
        monkeypatch.setattr(reduction, "phased_candidates", lambda facts, arch: [(0.0, params)] if has_phases(facts) else [])

    return force


WAYS: dict[str, dict[str, Any]] = {
    "rows side by side": {}, "one row": dict(groups=1, threads_y=8, row_unroll=1), "in pieces": dict(cluster_blocks=3, threads_y=2),
    "all threads along the columns": dict(lanes=32, threads_y=1, row_unroll=4), "many rows": dict(groups=8, blocks=8),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("rows", "columns", "count"), [(70, 257, 1), (35, 255, 2), (40, 131, 1), (3, 131, 1), (1, 131, 1), (300, 254, 1), (90, 260, 2)])
def test_column_sums(way: str, rows: int, columns: int, count: int, forced: Any) -> None:
    """Odd columns, and even numbers of two and of four phases."""
    forced(**WAYS[way])
    with options(check="races"):
        runtime = checked(sums(count=count), [numbers(BF16, rows, columns)])
    assert runtime.proposal.params == dataclasses.replace(COLUMNS, **WAYS[way])
    assert "load_global_vector<8" in runtime.program.text and "store_global_vector<4" in runtime.program.text  # of bf16, and of partial sums


@pytest.mark.parametrize(("dtype", "vector", "columns"), [(DataType.Float, 4, 131), (DataType.Float, 4, 134)], ids=str)
def test_column_sums_of_other_types(dtype: DataType, vector: int, columns: int, forced: Any) -> None:
    forced(vector_elems=vector, lanes=8, threads_y=8, groups=1)
    with options(check="races"):
        assert checked(sums(dtype), [numbers(dtype, 41, columns)]).proposal.params.is_phased


def test_sums_agree_with_float64(forced: Any) -> None:
    """512 terms of at most 4 in float: 512 roundings of sums below 512 * 4 at most, far more than happen."""
    forced()
    x = numbers(DataType.BFloat16, 512, 193)
    (got,) = sums().execute([x])
    assert (got.double() - x.double().sum(0)).abs().max() <= 512 * 512 * 4 * 2.0**-24


def test_where_rows_of_one_phase_are_no_way(forced: Any) -> None:
    """Rows whose length a vector divides, that lie apart, or begin in the middle of a vector; columns that are no neighbours."""
    forced()
    x = numbers(BF16, 64 * 131 + 1)
    for fd, given in (
        (sums(), numbers(BF16, 64, 256)), (sums(contiguity=[False, True]), numbers(BF16, 40, 140)[:, :131]), (sums(), x[1:].view(64, 131)),
        (sums(contiguity=[False, False]), numbers(BF16, 40, 262)[:, ::2]),
    ):  # fmt: skip
        assert not isinstance(checked(fd, [given]).proposal.params, InnerOuterParams)


def test_what_lies_along_rows_and_columns_is_read_beside(forced: Any) -> None:
    forced()
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        w, b = (fd.define_tensor([-1], contiguity=True, dtype=BF16) for _ in range(2))
        r = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=DataType.Float)
        f = wide(fd, x)
        scaled = fd.ops.mul(fd.ops.mul(f, fd.ops.broadcast_in_dim(wide(fd, w), f.shape(), [1])), r)
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.sum(scaled, [0]), wide(fd, b)), BF16))
        fd.add_output(fd.ops.max(f, [0]))
    given = [numbers(BF16, 50, 197), numbers(BF16, 197), numbers(BF16, 197), numbers(DataType.Float, 50, 1)]
    with options(check="races"):
        runtime = checked(fd, given)
    assert isinstance(runtime.proposal.params, InnerOuterParams)
    assert lines_of_lanes(runtime.program.text) and not [line for line in lines_of_lanes(runtime.program.text) if "if (" in line]


def lines_of_lanes(text: str) -> list[str]:
    """The lines of the loops over the eight elements of a vector: what lies along the columns is read under the test of the vector, around the loop."""
    out: list[str] = []
    depth = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if depth is not None and indent <= depth:
            depth = None
        if depth is not None:
            out.append(line)
        elif "< 8; ++" in line:
            depth = indent
    return out


@pytest.mark.parametrize("shape", [(8191, 8191), (7000, 6004)], ids=str)
def test_large_sums_of_rows_that_begin_anywhere_are_chosen_by_phase(shape: tuple[int, int]) -> None:
    analysis = reduction.Reduction().analyze(sums().fusion)
    sizes = {a.sym: n for a, n in zip(sums().fusion.inputs()[0].get_logical_domain(), shape)}  # type: ignore[union-attr]
    params, trace = reduction.Reduction().choose(analysis, sizes, {}, H200)  # type: ignore[arg-type]
    assert isinstance(params, InnerOuterParams) and params.is_phased and "rows of one phase" in trace
    assert params.blocks % params.vector_elems == 0 and params.blocks * params.cluster_blocks <= 4 * H200.sm_count
    facts = analysis.facts(sizes, {})  # type: ignore[union-attr]
    assert all(p.lanes * p.threads_y >= 2 * p.vector_elems for _, p in phased_candidates(facts, H200))


# ---- rows and columns
@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Any:
    choose = two_sides.choose_inner_outer

    def force(**fields: Any) -> None:
        values = {**PLAIN, **PHASED, **fields}
        monkeypatch.setattr(two_sides, "choose_inner_outer", lambda *given: (dataclasses.replace(choose(*given)[0], **values), ""))

    return force


OF_ALL_WAYS, OF_SOME = (17, 258), ((35, 511), (18, 509), (40, 500))
"""Of two blocks the second one has two of 258 columns, fewer than the first vector of the row skips. The other sizes take turns."""


@pytest.mark.parametrize(("way", "rows", "columns"), [(way, *size) for n, way in enumerate(PHASED_WAYS) for size in (OF_ALL_WAYS, OF_SOME[n % 3])])
def test_norm_backward(way: str, rows: int, columns: int, both: Any) -> None:
    both(**PHASED_WAYS[way])
    inputs = norm_backward_inputs(rows, columns, BF16)
    fd = norm_backward(BF16)
    with options(check="races"):
        outputs = fd.execute(inputs)
        assert all(torch.equal(a, b) for a, b in zip(outputs, fd.execute(inputs)))
    assert fd.fec.kernel_runtimes[-1].proposal.params.is_phased
    for got, wanted in zip(outputs, norm_backward_in_float64(inputs), strict=True):
        assert relative_error(got, wanted) <= 2.0**-8  # results are rounded to bf16 once; sums in float are off by far less


def test_float_rows_of_one_phase(both: Any) -> None:
    both(loads="tma", stages=2, is_shifted=True, vector_elems=4)
    inputs = norm_backward_inputs(21, 203, DataType.Float)
    with options(check="races"):
        outputs = norm_backward(DataType.Float).execute(inputs)
    for got, wanted in zip(outputs, norm_backward_in_float64(inputs), strict=True):
        assert relative_error(got, wanted) <= 64 * 2.0**-23


def test_a_neighbour_row_of_infinities_stays_out(both: Any) -> None:
    """The units that a ring holds have elements of the rows before and behind: none is used."""
    both(loads="tma", stages=3, is_shifted=True)
    inputs = norm_backward_inputs(24, 509, BF16)
    for tensor in (inputs[0], inputs[3]):
        tensor[1::2] = float("inf")
    out = norm_backward(BF16).execute(inputs)[0]
    wanted = norm_backward_in_float64([t[::2] if t.dim() == 2 else t for t in inputs])[0]
    assert relative_error(out[::2], wanted) <= 2.0**-8


def test_skipped_elements_are_those_in_front_of_an_aligned_vector() -> None:
    from weft.expr import const

    for row in range(20):
        for length in (7, 8, 12, 4099):
            skipped = int(skipped_elems_of(const(row), const(length), 8).value)  # type: ignore[arg-type]
            assert 0 <= skipped < 8 and (row * length + skipped) % 8 == 0
