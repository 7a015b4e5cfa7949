"""What looking elements up takes in a thread with neighbouring results: elements that they share, lines of memory and banks of L1 that a warp touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from weft import DataType, FusionDefinition
from weft.analysis.lookup_work import LINE_BYTES, LookupWork, RowSharing, _Places, _bank_clocks, computed_lookups, lookup_work, row_sharing
from weft.analysis.lookups import loads
from weft.arch import H200, WARP_THREADS
from weft.expr import variables
from weft.graph.normalize import normalize
from weft.schedulers import pointwise_heuristic
from weft.schedulers.pointwise_analysis import PointwiseAnalysis, analyze_pointwise

INT32 = DataType.Int32
Place = Callable[[Any, Any], Any]


def analysis_of(build: Callable[[FusionDefinition], None]) -> PointwiseAnalysis:
    with FusionDefinition() as fd:
        build(fd)
    found = analyze_pointwise(normalize(fd.fusion))
    assert isinstance(found, PointwiseAnalysis)
    return found


def sum_of_windows(rows: int, pixels: int, count: int, size: int, step: int, pad: int = 0) -> PointwiseAnalysis:
    """Return the analysis of sums over windows along the rows of an image, one pixel after the other."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[rows, pixels], contiguity=True, dtype=DataType.BFloat16)
        total = None
        for k in range(size):
            place = fd.ops.add(fd.ops.mul(fd.ops.cast(fd.ops.iota(count, dtype=DataType.Int), INT32), step), k - pad)
            value = fd.ops.cast(fd.ops.index_select(x, fd.ops.clamp(place, 0, pixels - 1), 1), DataType.Float)
            total = value if total is None else fd.ops.add(total, value)
        fd.add_output(fd.ops.cast(total, DataType.BFloat16))

    return analysis_of(build)


def work_of(analysis: PointwiseAnalysis, elems: int) -> LookupWork:
    return lookup_work(analysis.axes, analysis.order, computed_lookups(loads(analysis.axes.fusion)), {}, elems)[0]


def test_neighbours_share_the_pixels_of_their_windows() -> None:
    """Eight windows of three pixels, two apart, have 17 pixels; three pixels apart, they have 24. Only the first pixel of all may be clamped."""
    for step, shared in ((1, 10), (2, 17), (3, 24)):
        analysis = sum_of_windows(64, 128 * step, 128, 3, step, pad=1)
        assert work_of(analysis, 8).loads == shared
        assert work_of(analysis, 1).loads == 3
        assert work_of(analysis, 8).addresses <= 3  # all others are at a constant distance


def test_operations_on_shared_values_count_once() -> None:
    one, eight = (work_of(sum_of_windows(64, 128, 128, 3, 1), elems) for elems in (1, 8))
    casts, sums = 10 + 8, 2 * 8  # of pixels, and of results
    assert casts + sums <= eight.operations <= casts + sums + 3 * 2 + 8  # positions, and what is clamped behind the last pixel
    assert one.operations * 8 > 1.5 * eight.operations


def test_vectors_that_cross_rows_share_nothing() -> None:
    """The compiler does not know which elements of a thread are in one row if 8 does not divide its length."""
    analysis = sum_of_windows(64, 100, 100, 3, 1)
    assert (work_of(analysis, 8).crosses, work_of(analysis, 8).loads) == (True, 24)
    assert (work_of(analysis, 4).crosses, work_of(analysis, 4).loads) == (False, 6)


def test_what_depends_on_rows_alone_counts_for_rows() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[64, 128], contiguity=True, dtype=DataType.Float)
        place = fd.ops.sub(63, fd.ops.abs(fd.ops.sub(fd.ops.cast(fd.ops.iota(64, dtype=DataType.Int), INT32), 3)))
        fd.add_output(fd.ops.relu(fd.ops.index_select(x, fd.ops.clamp(place, 0, 63), 0)))

    analysis = analysis_of(build)
    whole, row = lookup_work(analysis.axes, analysis.order, computed_lookups(loads(analysis.axes.fusion)), {}, 4)
    assert whole.row_operations == 0 and row.row_operations == whole.operations - row.operations >= 2


PLACES: dict[str, tuple[Place, Callable[[torch.Tensor], torch.Tensor]]] = {
    "2 i - 1, clamped": (lambda o, i: o.clamp(o.sub(o.mul(i, 2), 1), 0, 90), lambda i: (2 * i - 1).clamp(0, 90)),
    "mirrored": (lambda o, i: o.sub(90, o.abs(o.sub(90, o.abs(o.sub(i, 5))))), lambda i: 90 - (90 - (i - 5).abs()).abs()),
    "a quotient": (lambda o, i: o.div(o.add(o.mul(i, 7), 3), 10), lambda i: (7 * i + 3) // 10),
    "a remainder": (lambda o, i: o.fmod(o.mul(i, 3), 91), lambda i: 3 * i % 91),
    "chosen": (lambda o, i: o.where(o.lt(i, 20), o.sub(90, i), i), lambda i: torch.where(i < 20, 90 - i, i)),
    "the smaller one": (lambda o, i: o.minimum(i, o.maximum(o.sub(60, i), 0)), lambda i: torch.minimum(i, (60 - i).clamp_min(0))),
}  # fmt: skip


@pytest.mark.parametrize("elems", [1, 2, 8])
@pytest.mark.parametrize("name", PLACES)
def test_places_are_those_of_the_positions(name: str, elems: int) -> None:
    ours, theirs = PLACES[name]

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[91, 24], contiguity=True, dtype=DataType.Float)
        place = ours(fd.ops, fd.ops.cast(fd.ops.iota(80, dtype=DataType.Int), INT32))
        fd.add_output(fd.ops.relu(fd.ops.index_select(x, place, 0)))

    analysis = analysis_of(build)
    (result,) = computed_lookups(loads(analysis.axes.fusion))
    places = _Places(analysis.axes, analysis.order, {}, elems)
    wanted = (theirs(torch.arange(80))[:, None] * 24 + torch.arange(24)).flatten().numpy()
    first = places.warps[:, None, None] * WARP_THREADS * elems + np.arange(WARP_THREADS)[:, None] * elems + np.arange(elems)
    assert (places.of(result.definition()) == wanted[np.minimum(first, wanted.size - 1)]).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("word_bytes", [4, 8])
def test_clocks_of_banks(word_bytes: int) -> None:
    """Against counting: in a clock each bank gives one word, to all lanes that want it."""
    generator = np.random.default_rng(0)
    lanes = np.arange(WARP_THREADS)
    accesses = np.stack([lanes * 32, lanes * 16 + 2, lanes * 2, lanes * 0, lanes * 128, *generator.integers(0, 4000, (20, WARP_THREADS))])
    wanted = 0
    for places in accesses:
        words = {int(place) // word_bytes for place in places}
        wanted += max(sum(word % (LINE_BYTES // word_bytes) == bank for word in words) for bank in range(LINE_BYTES // word_bytes))
    assert _bank_clocks(accesses, word_bytes) == wanted
    assert [_bank_clocks(accesses[n : n + 1], 4) for n in range(5)] == [8, 4, 1, 1, 32]


def test_positions_in_memory_are_not_computed() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64, 128], contiguity=True, dtype=DataType.Float)
        index = fd.define_tensor(shape=[32], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.relu(fd.ops.index_select(x, index, 1)))
    assert computed_lookups(loads(normalize(fd.fusion))) == []


def test_sizes_and_scalars_that_are_not_constants() -> None:
    """Sizes are known when a kernel is chosen, scalars are not."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[False, True], dtype=DataType.Float)
        first = fd.define_scalar(dtype=DataType.Int)
        place = fd.ops.clamp(fd.ops.add(fd.ops.mul(fd.ops.iota(x.size(1), dtype=DataType.Int), 2), first), 0, fd.ops.sub(x.size(1), 1))
        fd.add_output(fd.ops.relu(fd.ops.index_select(x, place, 1)))
    analysis = analyze_pointwise(normalize(fd.fusion))
    assert isinstance(analysis, PointwiseAnalysis) and len(analysis.computed) == 1
    sizes = {v: 96 for axis in fd.fusion.inputs()[0].get_logical_domain() for v in variables(axis.sym)}  # type: ignore[attr-defined]
    facts = analysis.facts({**sizes, fd.fusion.inputs()[0].stride_var(0): 128}, {})  # type: ignore[attr-defined]
    assert [work.loads for work in facts.lookups[0][:3]] == [1, 2, 4]
    assert pointwise_heuristic.choose(facts, H200).vector_elems >= 1


def test_windows_two_apart_have_fewer_results_per_thread_than_windows_next_to_each_other() -> None:
    """With eight results of 16 bits per thread, all lanes want words of four banks."""
    apart, near = (sum_of_windows(1 << 16, 128 * step, 128, 3, step, pad=1).facts({}, {}) for step in (2, 1))
    assert pointwise_heuristic.choose(apart, H200).vector_elems < 8
    assert pointwise_heuristic.choose(near, H200).vector_elems >= 4


def test_sources_are_read_from_memory_once() -> None:
    """The elements that windows share come from caches."""
    facts = sum_of_windows(64, 128, 128, 3, 1).facts({}, {})
    assert facts.read_bits * facts.total_elems - facts.repeated_bits == 64 * 128 * 16


def test_what_varies_along_rows_alone_is_looked_up_too() -> None:
    """Places of boxes, four numbers each, beside those of other boxes: with several results per thread, lanes would be further apart."""

    def build(fd: FusionDefinition) -> None:
        a, b = (fd.define_tensor(shape=[4096, 4], contiguity=True) for _ in range(2))
        total = None
        for k in range(4):
            ours, theirs = (fd.ops.squeeze(fd.ops.slice(t, [0, k], [4096, k + 1]), [1]) for t in (a, b))
            value = fd.ops.maximum(fd.ops.broadcast_in_dim(ours, [4096, 4096], [0]), fd.ops.broadcast_in_dim(theirs, [4096, 4096], [1]))
            total = value if total is None else fd.ops.add(total, value)
        fd.add_output(total)

    facts = analysis_of(build).facts({}, {})
    single, four = (facts.lookups[1][n] for n in (0, 2))
    assert (single.loads, single.bank_clocks, four.loads, four.bank_clocks) == (4, 16.0, 16, 256.0)
    assert pointwise_heuristic.choose(facts, H200).vector_elems == 1


def windows_of_rows(rows: int, columns: int, size: int, *, is_padded: bool = False) -> PointwiseAnalysis:
    """Return the analysis of sums over windows down the columns of a matrix, one row after the other; is_padded: rows outside are zero, and not clamped."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor(shape=[rows, columns], contiguity=True, dtype=DataType.BFloat16)
        x = fd.ops.pad(x, pad_widths=[0, 0, size, size]) if is_padded else x
        total = None
        for k in range(size):
            place = fd.ops.add(fd.ops.cast(fd.ops.iota(rows, dtype=DataType.Int), INT32), k)
            found = fd.ops.index_select(x, place if is_padded else fd.ops.clamp(place, 0, rows - 1), 0)
            total = fd.ops.cast(found, DataType.Float) if total is None else fd.ops.add(total, fd.ops.cast(found, DataType.Float))
        fd.add_output(fd.ops.cast(total, DataType.BFloat16))

    return analysis_of(build)


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_neighbouring_rows_share_the_rows_of_their_windows(rows: int) -> None:
    """So many windows of five rows have four rows more than there are windows. A cast of each row is shared, too, a sum is not."""
    analysis = windows_of_rows(64, 256, 5)
    shared = row_sharing(analysis.axes, analysis.order[:1], {}, rows)
    assert shared.loads == 5 - (rows + 4) / rows
    assert 0.4 < shared.operations < 1.0 and shared.operations < row_sharing(analysis.axes, analysis.order[:1], {}, rows // 2).operations + (rows == 2)


@pytest.mark.parametrize(("rows", "is_padded"), [(63, False), (64, True)], ids=["no whole number of threads", "masked"])
def test_rows_that_share_nothing(rows: int, is_padded: bool) -> None:
    analysis = windows_of_rows(rows, 256, 5, is_padded=is_padded)
    assert row_sharing(analysis.axes, analysis.order[:1], {}, 4).loads == 0


def test_a_thread_has_several_rows_where_they_share_windows() -> None:
    for size, is_shared in ((9, True), (2, False)):
        analysis = windows_of_rows(4096, 2048, size)
        facts = analysis.facts({}, {})
        assert any(facts.shared_rows) is is_shared
        assert (pointwise_heuristic.choose(facts, H200).unroll_outer > 1) is is_shared
    assert RowSharing(0.0, 1.0) == analysis_of_one_row()


def analysis_of_one_row() -> RowSharing:
    analysis = windows_of_rows(64, 256, 5)
    return row_sharing(analysis.axes, analysis.order[:1], {}, 1)
