"""Rows and columns reduced in one kernel: right for every size and way, the same bits from run to run, and declined with reasons."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fusion_check import poisoned_outputs
from two_sided_fusions import CASES, PLAIN, WAYS, forced, norm_backward, norm_backward_in_float64, norm_backward_inputs, numbers, relative_error

import weft.schedulers.inner_outer as template
from weft import DataType, FusionDefinition, compiler
from weft.arch import H100
from weft.ir.enums import SchedulerType
from weft.options import options
from weft.reference.interpreter import evaluate
from weft.runtime.limits import WrongAssumption
from weft.schedulers.inner_outer_heuristic import forms

# Of the largest value. Rows and columns are summed in float, or in double, and results are rounded to their type once: bf16 2^-9, half 2^-12. A sum of n
# terms in float is off by sqrt(n) roundings of 2^-24 of its terms; n is at most 4100 here, and terms are at most some times the largest sum.
TOLERANCE = {DataType.Float: 64 * 2.0**-23, DataType.BFloat16: 2.0**-8, DataType.Half: 2.0**-11, DataType.Double: 64 * 2.0**-52}


def run(fd: FusionDefinition, inputs: list, wanted: list, tolerance: float, is_here: bool = True) -> list[torch.Tensor]:
    """Execute as one kernel of this scheduler, and compare every output. is_here: False for one column, which leaves nothing to reduce along rows."""
    outputs = fd.execute(inputs)
    (kernel,) = fd.fec.kernel_runtimes[-1:]
    assert not is_here or kernel.proposal.scheduler is SchedulerType.inner_outer_persistent
    for got, expected in zip(outputs, wanted, strict=True):
        assert got.shape == expected.shape
        assert relative_error(got, expected) <= tolerance
    return outputs


@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 40), (40, 1), (3, 5), (33, 64), (70, 257), (9, 1000), (5, 4099), (300, 24)])
@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float], ids=str)
def test_layer_norm_backward_of_any_size(rows, columns, dtype):
    inputs = norm_backward_inputs(rows, columns, dtype)
    run(norm_backward(dtype), inputs, norm_backward_in_float64(inputs), TOLERANCE[dtype], is_here=columns > 1 or rows == 1)


def batch_of_one(place: str, dtype: DataType = DataType.BFloat16) -> FusionDefinition:
    """Norm backward of [1, rows, columns] whose gradient has two axes, or the sums of its columns alone: (x, gradient, weight)."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([1, -1, -1], contiguity=[None, True, True], dtype=dtype), DataType.Float)
        g = fd.ops.broadcast(fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), DataType.Float), [True, False, False])
        w = fd.ops.broadcast(fd.ops.cast(fd.define_tensor([-1], contiguity=True, dtype=dtype), DataType.Float), [True, True, False])
        product = fd.ops.mul(fd.ops.mul(g, w), x)
        if place == "rows and columns":
            fd.add_output(fd.ops.cast(fd.ops.sub(fd.ops.mul(g, w), fd.ops.mul(x, fd.ops.sum(product, [2], keepdim=True))), dtype))
        total = fd.ops.sum(fd.ops.squeeze(product, [0]), [0])
        fd.add_output(fd.ops.cast(fd.ops.broadcast(total, [True, True, False]), dtype))
    return fd


@pytest.mark.parametrize("rows, columns", [(37, 512), (300, 1000), (1, 64), (5, 257)])
@pytest.mark.parametrize("place", ["rows and columns", "columns"])
def test_a_batch_of_one_keeps_its_vectors(place, rows, columns):
    fd = batch_of_one(place)
    x, g, w = numbers(1, rows, columns).bfloat16(), numbers(rows, columns).bfloat16(), numbers(columns).bfloat16()
    outputs = fd.execute([x / columns**0.5, g, w])
    wide_x, wide_g = (x / columns**0.5).double(), g.double() * w.double()
    wanted = [wide_g - wide_x * (wide_g * wide_x).sum(2, keepdim=True)] if len(outputs) == 2 else []
    wanted.append((wide_g * wide_x).sum(1, keepdim=True))
    for got, expected in zip(outputs, wanted, strict=True):
        assert got.shape == expected.shape
        assert relative_error(got, expected) <= TOLERANCE[DataType.BFloat16]
    if columns % 8 == 0:
        (kernel,) = fd.fec.kernel_runtimes[-1:]
        loads = kernel.program.text.count("weft::load_global<")
        assert kernel.proposal.params.vector_elems > 1 and loads == 0, kernel.program.text


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.Double], ids=str)
def test_rms_norm_backward_of_other_types(dtype):
    inputs = norm_backward_inputs(37, 136, dtype, is_layer_norm=False)
    run(norm_backward(dtype, is_layer_norm=False), inputs, norm_backward_in_float64(inputs), TOLERANCE[dtype])


@pytest.mark.parametrize("rows, columns", [(0, 24), (7, 0)])
def test_sums_of_nothing_are_zero(rows, columns):
    outputs = norm_backward(DataType.Float).execute(norm_backward_inputs(rows, columns, DataType.Float))
    assert [tuple(t.shape) for t in outputs] == [(rows, columns), (columns,), (columns,)]
    assert all((t == 0).all() for t in outputs)


@pytest.mark.parametrize("name", CASES)
def test_other_definitions(name):
    fd, inputs, wanted = CASES[name]()
    narrowest = DataType.BFloat16 if any(isinstance(t, torch.Tensor) and t.dtype is torch.bfloat16 for t in inputs) else DataType.Float
    run(fd, inputs, wanted, TOLERANCE[narrowest])


def rows_in_parts(order=None) -> FusionDefinition:
    """The least element of each [outer, inner] and the sum over the rows of [outer, rows, inner]: other rows lie between the parts of a row in memory."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True] * 3, dtype=DataType.Float, **({} if order is None else {"stride_order": order}))
        outer, rows = (0, 1) if order is None else (1, 0)
        fd.add_output(fd.ops.sum(x, [rows]))
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.amin(x, [outer, 2]))
    return fd


@pytest.mark.parametrize("order", [None, [1, 2, 0]], ids=["as they lie", "permuted"])
@pytest.mark.parametrize("outer, rows, inner", [(17, 3, 16), (17, 3, 17), (17, 4, 17), (2, 9, 1025), (5, 1, 3), (1, 7, 33)])
def test_rows_in_parts_have_no_phase(outer, rows, inner, order):
    x = numbers(outer, rows, inner).float()
    x = x if order is None else x.transpose(0, 1)
    fd = rows_in_parts(order)
    with options(strict_schedules=True):
        outputs = fd.execute([x])
    for got, wanted in zip(outputs, evaluate(fd.fusion, [x]), strict=True):
        assert relative_error(got, wanted) <= TOLERANCE[DataType.Float]


@pytest.mark.parametrize("outer, rows, inner", [(4, 4096, 2048), (3, 8192, 33), (2, 300, 8192)])
def test_rows_in_parts_are_brought_by_no_bulk_copy(outer, rows, inner):
    fd = rows_in_parts()
    sizes = {axis.sym: extent for axis, extent in zip(fd.fusion.inputs()[0].get_logical_domain(), (outer, rows, inner))}
    proposal = compiler.propose(fd.fusion, sizes, {}, H100)
    assert proposal.scheduler is SchedulerType.inner_outer_persistent and proposal.params.loads != "tma" and not proposal.params.is_phased
    compiler.compile_program(fd.fusion, proposal, DataType.Int32, name="k")


@pytest.mark.parametrize("rows, columns", [(13, 2), (2, 5), (70, 33), (40, 1024), (5, 1)])
@pytest.mark.parametrize("is_of_rows", [False, True])
@pytest.mark.parametrize("kind", ["looked up", "random"])
def test_columns_have_their_own_copy_of_what_is_looked_up_or_drawn_per_column(kind, is_of_rows, rows, columns):
    """An element of each column, picked by an index, or a random number: added to the column's maximum and, with is_of_rows, a factor of the rows, too."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        index = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Int)
        shifted = fd.ops.add(x, 1.0)
        if kind == "random":
            picked = fd.ops.uniform(0.0, 1.0, shape=[fd.ops.size(index, 0)], dtype=DataType.Float, rng_seed=7, rng_offset=3)
            picked = fd.ops.add(picked, fd.ops.cast(index, DataType.Float))
        else:
            picked = fd.ops.squeeze(fd.ops.take_along_axis(shifted, fd.ops.broadcast(index, [True, False]), 0), [0])
        values = fd.ops.mul(shifted, fd.ops.broadcast(picked, [True, False])) if is_of_rows else shifted
        fd.add_output(fd.ops.sum(fd.ops.abs(values), [1]))
        fd.add_output(fd.ops.add(fd.ops.max(values, [0]), picked))
    inputs = [numbers(rows, columns).float(), torch.arange(columns) * 7 % rows]
    with options(strict_schedules=True):
        run(fd, inputs, evaluate(fd.fusion, inputs), TOLERANCE[DataType.Float], is_here=columns > 1)


@pytest.mark.parametrize("rows, columns", [(7, 24), (12, 1024), (3, 16384)])
def test_sizes_that_the_definition_fixes(rows, columns):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[rows, columns], contiguity=True, dtype=DataType.Float)
        y = fd.ops.add(fd.ops.mul(x, fd.ops.sum(x, [1], True)), fd.ops.sum(fd.ops.mul(x, x), [1], True))  # in a cluster, both are one exchange
        fd.add_output(y)
        fd.add_output(fd.ops.sum(y, [0]))
    x = numbers(rows, columns)
    y = x.double() * x.double().sum(1, keepdim=True) + x.double().square().sum(1, keepdim=True)
    run(fd, [x], [y, y.sum(0)], TOLERANCE[DataType.Float])


def test_rows_ahead_where_a_block_has_one_step(monkeypatch):
    """The loop over rows is gone, and the loop over parts of a row is not taken for it."""
    choose = template.choose_inner_outer
    values = {**PLAIN, "loads": "ahead", "batches": 2, "threads_y": 4, "blocks": 8, "fill": "leading"}
    monkeypatch.setattr(template, "choose_inner_outer", lambda *given: (dataclasses.replace(choose(*given)[0], **values), ""))
    with FusionDefinition() as fd:
        x = fd.define_tensor([7, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], True)))
        fd.add_output(fd.ops.sum(x, [0]))
    x = numbers(7, 200)
    run(fd, [x], [x.double() - x.double().sum(1, keepdim=True), x.double().sum(0)], TOLERANCE[DataType.Float])


def test_rows_of_a_narrow_type_in_the_middle_of_a_unit():
    """The wide type's vectors fill units of 16 bytes, and the narrow one's tensor does not begin with one: no bulk copy brings it."""
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Half), fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Double)
        v = fd.ops.maximum(x, y)
        fd.add_output(fd.ops.sub(v, fd.ops.sum(v, [1], True)))
        fd.add_output(fd.ops.min(v, [0]))
    x, y = numbers(100, dtype=DataType.Half)[4:].view(3, 32), numbers(3, 32, dtype=DataType.Double)
    v = torch.maximum(x.double(), y)
    run(fd, [x, y], [v - v.sum(1, keepdim=True), v.amin(0)], TOLERANCE[DataType.Double])


@pytest.mark.parametrize("make", [lambda: numbers(20, 200)[:, :128], lambda: numbers(20, 201)[:, 1:130], lambda: numbers(40, 66)[::2, ::2]])
def test_inputs_with_gaps(make):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[False, False], dtype=DataType.Float)
        y = fd.ops.mul(x, fd.ops.sum(x, [1], True))
        fd.add_output(y)
        fd.add_output(fd.ops.sum(y, [0]))
    x = make()
    y = x.double() * x.double().sum(1, keepdim=True)
    run(fd, [x], [y, y.sum(0)], TOLERANCE[DataType.Float])


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_right_and_gives_the_same_bits_in_every_run(way):
    """35 rows over 4 blocks: the last steps have rows of some blocks only."""
    inputs = norm_backward_inputs(35, 512, DataType.BFloat16)
    fd = norm_backward(DataType.BFloat16)
    with forced(way):
        first = run(fd, inputs, norm_backward_in_float64(inputs), TOLERANCE[DataType.BFloat16])
        assert all(torch.equal(a, b) for a, b in zip(first, fd.execute(inputs)))


@pytest.mark.parametrize("cluster, rows", [(1, 35), (1, 4), (2, 9)])
def test_second_passes_behind_where_rows_are_whole_ask_for_no_bounds(cluster, rows, monkeypatch):
    """Of 4 (or 2) blocks each has a row at least; with 4 rows nothing is left for the loop between the first row and the last."""
    columns = 512 * cluster
    monkeypatch.setitem(WAYS, "whole", {**WAYS["second passes behind"], "fill": "whole", "cluster_blocks": cluster, "blocks": 4 // cluster})
    fd, inputs = norm_backward(DataType.BFloat16), norm_backward_inputs(rows, columns, DataType.BFloat16)
    with forced("whole"):
        run(fd, inputs, norm_backward_in_float64(inputs), TOLERANCE[DataType.BFloat16])
        text = fd.fec.kernel_runtimes[-1].program.text
    loop = text[text.index("for (int i", text.index("const int rows_")) :]
    between = loop[loop.index("hand_over") : loop.index("weft::take_")]
    assert "store_global_vector" in between and "T0.size" not in between and " < p" in between.split("store_global_vector")[0]


@pytest.mark.parametrize("unroll, rows", [(1, 35), (2, 17)])
def test_second_passes_behind_whose_last_batch_is_not_full_ask_for_columns_there(unroll, rows, monkeypatch):
    """64 threads have 125 vectors of a row."""
    fields = dict(fill="leading", batches=2, row_unroll=unroll)
    monkeypatch.setitem(WAYS, "leading", {**WAYS["second passes behind"], **fields})
    fd, inputs = norm_backward(DataType.BFloat16), norm_backward_inputs(rows, 1000, DataType.BFloat16)
    with forced("leading"), options(check="races"):
        run(fd, inputs, norm_backward_in_float64(inputs), TOLERANCE[DataType.BFloat16])
    assert fd.fec.kernel_runtimes[-1].program.text.count("hand_over") >= 1


@pytest.mark.parametrize("cluster, rows", [(1, 34), (1, 8), (2, 18)])
def test_second_passes_behind_whose_steps_have_all_rows_or_none_ask_for_the_first(cluster, rows, monkeypatch):
    """Two rows of a thread at once, and an even number of them: the loop is written once, without a test."""
    monkeypatch.setitem(WAYS, "pairs", {**WAYS["second passes behind, whole steps"], "fill": "whole", "cluster_blocks": cluster, "blocks": 4 // cluster})
    fd, inputs = norm_backward(DataType.BFloat16), norm_backward_inputs(rows, 512 * cluster, DataType.BFloat16)
    with forced("pairs"):
        run(fd, inputs, norm_backward_in_float64(inputs), TOLERANCE[DataType.BFloat16])
    text = fd.fec.kernel_runtimes[-1].program.text
    assert text.count("hand_over") == 1 and text.count("weft::take_") == 1 and "else {" not in text


def test_an_odd_number_of_rows_has_no_whole_steps_of_two():
    inputs = norm_backward_inputs(35, 512, DataType.BFloat16)
    with forced("second passes behind, whole steps"), pytest.raises(WrongAssumption, match="% 2"):
        in_way = template.choose_inner_outer
        template.choose_inner_outer = lambda *a: (dataclasses.replace(in_way(*a)[0], has_whole_steps=True), "")  # `forced` puts the choice back
        norm_backward(DataType.BFloat16).execute(inputs)


def test_fewer_rows_than_blocks_are_never_put_behind():
    """Every block has a row at least; what is forced in spite of that is refused by the host."""
    inputs = norm_backward_inputs(3, 512, DataType.BFloat16)
    with forced("second passes behind"), pytest.raises(WrongAssumption, match="4 <= T0.size"):
        norm_backward(DataType.BFloat16).execute(inputs)


def sums_of_both_passes(rows: int, columns: int, *, of_rows: bool = True) -> tuple[FusionDefinition, list, list]:
    """The second pass over a row sums over rows, and (of_rows) it sums the row again."""
    with FusionDefinition() as fd:
        x, y = (fd.ops.cast(fd.define_tensor([rows, columns], contiguity=True, dtype=DataType.BFloat16), DataType.Float) for _ in range(2))
        d = fd.ops.mul(fd.ops.add(x, fd.ops.sum(fd.ops.mul(x, y), [1], True)), y)
        for out in (fd.ops.cast(d, DataType.BFloat16), fd.ops.sum(d, [0]), *([fd.ops.sum(d, [1])] if of_rows else [])):
            fd.add_output(out)
    x, y = numbers(rows, columns).bfloat16(), numbers(rows, columns).bfloat16()
    d = (x.double() + (x.double() * y.double()).sum(1, keepdim=True)) * y.double()
    return fd, [x, y], [d, d.sum(0), *([d.sum(1)] if of_rows else [])]


@pytest.mark.parametrize("rows, columns", [(35, 512), (7, 1000), (1, 40)])
def test_a_second_pass_that_reduces_rows_again_is_right(rows, columns):
    fd, inputs, wanted = sums_of_both_passes(rows, columns)
    with poisoned_outputs():
        run(fd, inputs, wanted, TOLERANCE[DataType.BFloat16], is_here=rows > 1)


def test_a_second_pass_that_reduces_rows_again_is_never_put_behind():
    """It would have a barrier of its own."""
    for of_rows in (False, True):
        facts = template.InnerOuterPersistent().analyze(sums_of_both_passes(4096, 4096, of_rows=of_rows)[0].fusion).facts({}, {})
        assert any(made.table().is_behind.any() for made in forms(facts, H100, True)) is not of_rows


@pytest.mark.parametrize("cluster", [1, 2])
def test_stages_that_later_passes_read_again_without_a_weight_beside_them(cluster, monkeypatch):
    """No tensor but the stage itself connects what the second pass reads with the first pass."""
    monkeypatch.setitem(WAYS, "again", {**WAYS["rows read from their stage in each pass"], "cluster_blocks": cluster, "threads_y": 4 * cluster, "fill": "partial"})
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        y = fd.ops.mul(x, fd.ops.sum(x, [1], True))
        fd.add_output(fd.ops.cast(y, DataType.BFloat16))
        fd.add_output(fd.ops.sum(y, [0]))
    x = numbers(9, 512 * cluster, dtype=DataType.BFloat16)
    y = x.double() * x.double().sum(1, keepdim=True)
    with forced("again"):
        run(fd, [x], [y, y.sum(0)], TOLERANCE[DataType.BFloat16])


ANYWHERE = {
    "one element a thread": (497, dict(vector_elems=1, threads_y=32, batches=2, stages=3)),
    "pairs, read again in each pass": (498, dict(vector_elems=2, threads_y=32, is_reread=True, stages=2)),
    "rows at once": (101, dict(vector_elems=1, threads_y=8, batches=2, groups=2, row_unroll=2, stages=2)),
    "over a cluster": (1001, dict(vector_elems=1, threads_y=32, batches=2, cluster_blocks=2, blocks=2, stages=2)),
    "all batches but the last are full": (331, dict(vector_elems=1, threads_y=8, batches=6, stages=2, fill="leading")),
}


@pytest.mark.parametrize("name", ANYWHERE)
def test_bulk_copies_bring_rows_that_begin_anywhere(name, monkeypatch):
    """A row of 2 * 497 bytes begins at any even place within the 16 bytes of a unit."""
    columns, params = ANYWHERE[name]
    monkeypatch.setitem(WAYS, name, dict(loads="tma", is_shifted=True, fill="partial", **{"vector_elems": 1}) | params)
    inputs = norm_backward_inputs(21, columns, DataType.BFloat16)
    with forced(name):
        run(norm_backward(DataType.BFloat16), inputs, norm_backward_in_float64(inputs), TOLERANCE[DataType.BFloat16])


def test_rows_that_begin_in_the_middle_of_a_unit_are_not_brought_by_bulk_copies():
    """A tensor that begins 2 bytes behind a unit has no rows at the places that the kernel expects."""
    fd = norm_backward(DataType.BFloat16)
    inputs = norm_backward_inputs(40, 1001, DataType.BFloat16)
    x = torch.zeros(40 * 1001 + 1, dtype=torch.bfloat16)[1:].view(40, 1001).copy_(inputs[0])
    run(fd, [x, *inputs[1:]], norm_backward_in_float64(inputs), TOLERANCE[DataType.BFloat16])
    assert not fd.fec.kernel_runtimes[-1].proposal.params.is_shifted


@pytest.mark.parametrize(
    "rows, columns, loads", [("register", 104, {"now", "ahead"}), ("tma", 104, {"tma"}), ("tma", 1001, {"tma"}), ("specialized", 104, {"now", "ahead", "cp_async", "tma"})]
)
def test_a_way_that_is_asked_for_is_taken_or_declined_with_a_reason(rows, columns, loads):
    inputs = norm_backward_inputs(30, columns, DataType.BFloat16)
    fd = norm_backward(DataType.BFloat16)
    with options(rows=rows):
        run(fd, inputs, norm_backward_in_float64(inputs), TOLERANCE[DataType.BFloat16])
    proposal = fd.fec.kernel_runtimes[-1].proposal
    assert proposal.params.loads in loads
    assert proposal.trace.startswith("not specialized: rows and columns are reduced by blocks" if rows == "specialized" else f"forced {rows}")


def test_a_column_result_that_rows_use_is_declined_with_the_reason():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [0], True)))
        fd.add_output(fd.ops.sum(x, [1]))
    declined = template.InnerOuterPersistent().analyze(fd.fusion)
    assert "computed from a column reduction and has an axis of the rows" in declined.reason


def test_an_output_of_some_of_the_columns_is_declined_with_the_reason():
    """It is computed from no reduction, so that no loop over rows or over columns is its own."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True, dtype=DataType.Float)
        v = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
        y = fd.ops.add(x, fd.ops.broadcast_in_dim(v, x.shape(), [1]))
        for out in (fd.ops.sub(y, fd.ops.sum(y, [1, 2], True)), fd.ops.sum(y, [0]), fd.ops.cos(v)):
            fd.add_output(out)
    declined = template.InnerOuterPersistent().analyze(fd.fusion)
    assert "does not depend on a column reduction and has no rows" in declined.reason
    x, v = numbers(6, 5, 12), numbers(5)
    y = x.double() + v.double()[:, None]
    for got, expected in zip(fd.execute([x, v]), [y - y.sum((1, 2), keepdim=True), y.sum(0), v.double().cos()], strict=True):
        assert relative_error(got, expected) <= TOLERANCE[DataType.Float]


@pytest.mark.parametrize("is_layer_norm", [True, False])
def test_values_of_rows_that_come_ahead_are_marked_where_there_are_two(is_layer_norm):
    """The compiler waits at once for what it takes for the same in all threads: mean and rstd; one value alone is not worth the register."""
    fd = norm_backward(DataType.BFloat16, is_layer_norm=is_layer_norm)
    inputs = norm_backward_inputs(1500, 1024, DataType.BFloat16, is_layer_norm=is_layer_norm)
    run(fd, inputs, norm_backward_in_float64(inputs), TOLERANCE[DataType.BFloat16])
    text = fd.fec.kernel_runtimes[-1].program.text
    assert "_ahead" in text and ("weft::of_thread(" in text) is is_layer_norm


def test_blocks_share_a_row_that_none_has_registers_for() -> None:
    """Of a gate behind a layer norm, rows of 11111 had a kernel that spilled 320 bytes per thread and read element by element: no row of this width was shared."""
    rows, columns = 150, 11111
    with FusionDefinition() as fd:
        x, g = (fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float) for _ in range(2))
        inverse, mean = (fd.define_tensor([-1, 1], contiguity=[True, None], dtype=DataType.Float) for _ in range(2))
        held = [fd.ops.cast(fd.define_tensor([-1], contiguity=True, dtype=DataType.BFloat16), DataType.Float) for _ in range(2)]
        w, b = (fd.ops.broadcast_in_dim(v, x.shape(), [1]) for v in held)
        normed = fd.ops.mul(fd.ops.sub(x, mean), inverse)
        y = fd.ops.add(fd.ops.mul(normed, w), b)
        s = fd.ops.sigmoid(y)
        g = fd.ops.mul(g, fd.ops.mul(s, fd.ops.add(1.0, fd.ops.mul(y, fd.ops.sub(1.0, s)))))
        wg, share = fd.ops.mul(g, w), fd.ops.reciprocal(x.size(1))
        d = fd.ops.sub(wg, fd.ops.mul(normed, fd.ops.mul(fd.ops.sum(fd.ops.mul(wg, normed), [1], True), share)))
        d = fd.ops.sub(d, fd.ops.mul(fd.ops.sum(wg, [1], True), share))
        for value in (fd.ops.mul(d, inverse), fd.ops.sum(fd.ops.mul(g, normed), [0]), fd.ops.sum(g, [0])):
            fd.add_output(fd.ops.cast(value, DataType.BFloat16))
    x, g, w, b = (numbers(*shape).bfloat16() for shape in ((rows, columns), (rows, columns), (columns,), (columns,)))
    mean, inverse = x.float().mean(1, keepdim=True), 1 / x.float().std(1, keepdim=True)
    outputs = fd.execute([x, g, inverse, mean, w, b])
    normed = (x.double() - mean.double()) * inverse.double()
    y = normed * w.double() + b.double()
    s = y.sigmoid()
    g = g.double() * s * (1 + y * (1 - s))
    wg = g * w.double()
    d = (wg - normed * (wg * normed).mean(1, keepdim=True) - wg.mean(1, keepdim=True)) * inverse.double()
    for got, wanted in zip(outputs, (d, (g * normed).sum(0), g.sum(0)), strict=True):
        assert relative_error(got, wanted) <= TOLERANCE[DataType.BFloat16]
    params = fd.fec.kernel_runtimes[-1].proposal.params
    assert params.cluster_blocks > 1 and params.vector_elems == 8


def test_sums_that_would_spill_more_than_a_kernel_may_are_declined() -> None:
    """30 sums of rows and 30 of columns: ptxas spills 608 bytes of such a kernel, which is refused. Kernels with fewer sums compute them."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for number in range(60):
            fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.exp(x), float(number + 2)), [number % 2]))
    inputs = [torch.empty(300, 1024)]
    taken, reason = fd.sched.can_schedule(fd.fusion, SchedulerType.inner_outer_persistent, inputs)
    assert not taken and "registers for its part of a row and its column sums, but has only 255" in reason


@pytest.mark.parametrize("way", ["ring of bulk copies", "ring of cp.async"])
def test_rows_of_which_an_input_has_the_parts_apart(way):
    """As patches that are merged before a norm. No bulk copy brings such a row: a tensor map has at most five axes."""
    shape = (3, 5, 2, 4, 2, 64)
    with FusionDefinition() as fd:
        ops = fd.ops
        x, g = (ops.cast(fd.define_tensor(list(s), contiguity=True, dtype=DataType.BFloat16), DataType.Float) for s in (shape, (3, 5, 4, 2, 2, 64)))
        x = ops.permute(x, [0, 1, 3, 4, 2, 5])
        y = ops.mul(g, ops.sum(ops.mul(x, g), [3, 4, 5], True))
        fd.add_output(ops.cast(y, DataType.BFloat16))
        fd.add_output(ops.sum(ops.mul(y, x), [0, 1, 2]))
    x, g = numbers(*shape, dtype=DataType.BFloat16), numbers(3, 5, 4, 2, 2, 64, dtype=DataType.BFloat16)
    wide = x.double().permute(0, 1, 3, 4, 2, 5)
    y = g.double() * (wide * g.double()).sum((3, 4, 5), keepdim=True)
    with forced(way, lanes=8, threads_y=4), options(check="races", strict_schedules=True):
        outputs = fd.execute([x, g])
    (kernel,) = fd.fec.kernel_runtimes[-1:]
    assert kernel.proposal.scheduler is SchedulerType.inner_outer_persistent
    for got, want in zip(outputs, (y, (y * wide).sum((0, 1, 2))), strict=True):
        assert relative_error(got, want) <= 2.0**-8


@pytest.mark.parametrize("shape", [(70, 300), (1, 5), (5, 1), (33, 129)], ids=str)
def test_rows_of_two_inputs_that_only_sums_bring_together_are_two_kernels(shape: tuple[int, int]) -> None:
    """No tensor of whole rows is computed from both, so that the loops of one are not those of the other."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
        for dim in (1, 0):
            a, b = (fd.ops.sum(t, dims=[dim]) for t in (x, y))
            fd.add_output(fd.ops.sub(b, fd.ops.mul(a, a)))
    given = [torch.randn(shape), torch.randn(shape)]
    with options(strict_schedules=True), poisoned_outputs():
        outs = fd.execute(given)
    for dim, out in zip((1, 0), outs):
        first, second = (t.double().sum(dim) for t in given)
        size = given[1].double().abs().sum(dim) + given[0].double().abs().sum(dim) ** 2
        assert ((out.double() - (second - first**2)).abs() <= (4 + max(shape)) * 2.0**-23 * size).all()
