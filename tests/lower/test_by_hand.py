"""Schedules by hand that once were lowered wrongly, or not at all."""

from __future__ import annotations

import pytest
import torch
from by_hand import defined, named, run

from weft import FusionDefinition
from weft.dtypes import DataType
from weft.errors import UserError
from weft.ir.enums import LoadStoreOpType, MemoryType, ParallelType
from weft.ir.values import RandomOp, ReductionOp
from weft.schedule.caching import cache_after, cache_and_fork_outputs, cache_inputs
from weft.schedule.inline import inline_at, inline_most
from weft.schedule.primitives import merge, reorder, rfactor, set_memory_type, split
from weft.schedule.propagate import parallelize_like, transform_like

P = ParallelType
X = torch.arange(60, dtype=torch.float32).view(5, 12) / 7 - 3


def add_bias(fd):
    x, bias = fd.define_tensor([-1, 12], contiguity=True), fd.define_tensor([12], contiguity=True)
    fd.add_output(fd.ops.add(x, bias))


def row_doubled(fd):
    fd.add_output(fd.ops.mul(fd.define_tensor([5, 12], contiguity=True), 2.0))


def row_sum(fd):
    fd.add_output(fd.ops.sum(fd.define_tensor([5, 12], contiguity=True), [1]))


def message(error: pytest.ExceptionInfo) -> str:
    return "\n".join(line for line in str(error.value).split("\n") if not line.startswith("  at "))


def test_a_kept_tensor_is_indexed_by_its_own_axis_inside_merged_loops():
    """The bias is kept in registers, and read inside the merged loops over rows and columns."""
    fusion = defined(add_bias)
    (_, _), (_, bias) = cache_inputs(fusion)
    ((_, output),) = cache_and_fork_outputs(fusion)
    merge(output, 0, 1)
    split(output, 0, 4)
    transform_like(output)
    inline_most([t for t in fusion.tensors() if t is not bias])
    assert bias.compute_at == 0
    run(fusion, [X, torch.randn(12)], defined(add_bias))


def test_threads_of_a_tensor_that_lacks_an_axis_are_those_of_its_reader():
    """Not inlined: the thread that reads column t % 12 is not thread t % 12, so each thread loads what it reads."""
    fusion = defined(add_bias)
    (_, _), (_, bias) = cache_inputs(fusion)
    ((_, output),) = cache_and_fork_outputs(fusion)
    merge(output, 0, 1)
    split(output, 0, 32)
    output.axis(0).parallelize(P.grid_x)
    output.axis(1).parallelize(P.block_x)
    transform_like(output)
    parallelize_like(output)
    run(fusion, [X, torch.randn(12)], defined(add_bias))


def test_two_outputs_share_a_load_that_lacks_an_axis_of_one():
    """The load runs in the loops of the wider output, and so does the narrower output, whose first reader writes."""

    def define(fd):
        x, y = fd.define_tensor([-1, -1, -1], contiguity=True), fd.define_tensor([-1, 1, -1], contiguity=[True, None, True])
        fd.add_output(fd.ops.add(x, y))
        fd.add_output(fd.ops.neg(y))

    fusion = defined(define)
    cache_inputs(fusion)
    (_, output), _ = cache_and_fork_outputs(fusion)
    merge(merge(output, 0, 1), 0, 1)
    split(split(output, 0, 32), 0, 1)
    output.axis(0).parallelize(P.grid_x)
    output.axis(2).parallelize(P.block_x)
    transform_like(output)
    parallelize_like(output)
    inline_at(output, 1, best_effort=True)
    inline_most(fusion=fusion)
    run(fusion, [torch.randn(3, 4, 5), torch.randn(3, 1, 5)], defined(define))


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("multiple", [1, 3, 8, 32])
def test_parts_of_a_multiple(parts, multiple):
    """Also of one part, whose extent is larger than that of what is split, and parts of which the last have nothing."""
    fusion = defined(add_bias)
    cache_inputs(fusion)
    ((_, output),) = cache_and_fork_outputs(fusion)
    split(output, 1, parts, False, multiple=multiple)
    output.axis(0).parallelize(P.grid_x)
    output.axis(2).parallelize(P.block_x)
    transform_like(output)
    parallelize_like(output)
    inline_most(fusion=fusion)
    run(fusion, [X, torch.randn(12)], defined(add_bias))


@pytest.mark.parametrize("serial_first", [True, False])
def test_a_reduction_over_serial_and_bound_axes_becomes_two(serial_first):
    fusion = defined(row_sum)
    total = fusion.outputs()[0]
    split(total, 1, 4)
    if not serial_first:
        reorder(total, {1: 2, 2: 1})
    total.axis(0).parallelize(P.grid_x)
    total.axis(2 if serial_first else 1).parallelize(P.block_x)
    assert "reduce_" in run(fusion, [X], defined(row_sum))


@pytest.mark.parametrize("sizes", [(3, 7), (5, 12), (2, 40)])
def test_the_first_part_of_an_rfactor_may_reduce_over_serial_and_bound_axes(sizes):
    """It is cut again when it is lowered. No size is a multiple of what it is split by."""

    def total_sum(fd):
        fd.add_output(fd.ops.sum(fd.define_tensor(list(sizes), contiguity=True), [0, 1]))

    fusion = defined(total_sum)
    total = fusion.outputs()[0]
    merge(total, 0, 1)
    split(total, 0, 16)
    split(total, 1, 4)  # [rest, 4, 4]
    part = rfactor(total, [1, 2])
    part.axis(1).parallelize(P.block_x)
    run(fusion, [torch.randn(sizes)], defined(total_sum))


@pytest.mark.parametrize("is_inlined", [False, True])
def test_moments_of_kept_values_begin_again_with_each_row(is_inlined):
    """The values of all rows are one array in registers, of which a row folds its part."""

    def moments(fd):
        x = fd.ops.neg(fd.define_tensor([5, 12], contiguity=True))
        for value in fd.ops.welford(x, [1])[:2]:
            fd.add_output(value)

    fusion = defined(moments)
    if is_inlined:
        inline_at(fusion.outputs()[0], 1, best_effort=True)
    run(fusion, [X], defined(moments))


def test_a_reduction_straight_into_global_memory():
    for bind in (False, True):
        fusion = defined(row_sum)
        total = fusion.outputs()[0]
        if bind:
            total.axis(1).parallelize(P.block_x)
        run(fusion, [X], defined(row_sum))


@pytest.mark.parametrize("kept, reduced", [(P.block_x, P.block_y), (P.block_y, P.block_x), (P.grid_x, P.grid_y), (P.block_x, P.grid_x), (P.grid_y, P.block_z)])
def test_reductions_over_any_bound_axis(kept, reduced):
    fusion = defined(row_sum)
    total = fusion.outputs()[0]
    total.axis(0).parallelize(kept)
    total.axis(1).parallelize(reduced)
    run(fusion, [X], defined(row_sum))


@pytest.mark.parametrize("bindings", [(P.grid_x, P.block_x), (P.grid_y, P.block_y), (P.block_x, P.grid_z)])
def test_a_reduction_over_blocks_and_threads(bindings):
    fusion = defined(row_sum)
    total = fusion.outputs()[0]
    split(total, 1, 4)
    for position, kind in zip((1, 2), bindings):
        total.axis(position).parallelize(kind)
    text = run(fusion, [X], defined(row_sum))
    assert "arrive_grid" in text and "for (" in text  # the rows are a loop: partial results of each iteration have a place of their own


def test_the_result_of_a_grid_reduction_cannot_leave_its_loop():
    fusion = defined(row_sum)
    ((local, _),) = cache_and_fork_outputs(fusion)
    local.axis(1).parallelize(P.grid_x)
    with pytest.raises(UserError) as error:
        run(fusion, [X], defined(row_sum))
    assert error.value.code == "W531" and "T2 is reduced across blocks inside the loop" in message(error)


def test_all_blocks_cannot_have_the_result_of_a_grid_reduction():
    def define(fd):
        x = fd.define_tensor([5, 12], contiguity=True)
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], True)))

    fusion = defined(define)
    cache_inputs(fusion)
    cache_and_fork_outputs(fusion)
    total = next(e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp))
    total.axis(1).parallelize(P.grid_x)
    parallelize_like(total)
    inline_most(fusion=fusion)
    with pytest.raises(UserError) as error:
        run(fusion, [X], defined(define))
    assert error.value.code == "W532" and "is reduced over blockIdx.x, and the blocks of blockIdx.x all need it" in message(error)


def test_extrema_without_threads():
    def define(fd):
        x = fd.define_tensor([5, 12], contiguity=True)
        fd.add_output(fd.ops.max(x, [1]))
        fd.add_output(fd.ops.min(x, [0]))

    run(defined(define), [X], defined(define))


def test_one_block_stores_an_output_that_lacks_the_axis_of_the_blocks():
    """An axis of extent 1 is bound to blockIdx.x beside an axis of 12: only the first block stores."""

    def define(fd):
        x, row = fd.define_tensor([5, 12], contiguity=True), fd.define_tensor([5, 1], contiguity=[True, None])
        fd.add_output(fd.ops.mul(x, row))
        fd.add_output(fd.ops.neg(row))

    fusion = defined(define)
    (_, _), (_, _) = cache_inputs(fusion)
    (_, output), _ = cache_and_fork_outputs(fusion)
    output.axis(1).parallelize(P.grid_x)
    output.axis(0).parallelize(P.block_x)
    parallelize_like(output)
    inline_most(fusion=fusion)
    text = run(fusion, [X, torch.randn(5, 1)], defined(define))
    assert "if ((int)blockIdx.x == 0)" in text


def test_what_a_split_by_one_leaves_is_guarded():
    """The rest of a split by 1 is split by 3: of three iterations (or threads) only the first is there."""
    for kind in (None, P.block_x):

        def define(fd):
            x = fd.define_tensor([4, 7], contiguity=True)
            fd.add_output(fd.ops.sum(x, [0]))

        fusion = defined(define)
        cache_inputs(fusion)
        ((local, _),) = cache_and_fork_outputs(fusion)
        split(split(local, 0, 1), 1, 3)
        transform_like(local)
        if kind:
            local.axis(2).parallelize(kind)
            parallelize_like(local)
        inline_most(fusion=fusion)
        run(fusion, [torch.randn(4, 7)], defined(define))


def test_inlined_shared_memory_has_a_place_for_every_thread():
    def define(fd):
        fd.add_output(fd.ops.neg(fd.ops.sin(fd.define_tensor([5, 12], contiguity=True))))

    fusion = defined(define)
    cache_inputs(fusion)
    cache_and_fork_outputs(fusion)
    sine = named(fusion, 1)
    set_memory_type(sine, MemoryType.shared)
    sine.axis(1).parallelize(P.block_x)
    parallelize_like(sine)
    inline_most(fusion=fusion)
    assert sine.compute_at == 2 and "store_shared(T1 + (int)threadIdx.x" in run(fusion, [X], defined(define))


def test_registers_are_not_read_by_other_threads():
    def define(fd):
        fd.add_output(fd.ops.neg(fd.ops.sin(fd.define_tensor([5, 12], contiguity=True))))

    for memory, kind, remedy in ((MemoryType.local, P.block_x, "set_memory_type(MemoryType.shared)"), (MemoryType.shared, P.grid_x, "another kernel")):
        fusion = defined(define)
        sine, output = named(fusion, 1), fusion.outputs()[0]
        set_memory_type(sine, memory)
        sine.axis(1).parallelize(kind)
        with pytest.raises(UserError) as error:
            run(fusion, [X], defined(define))
        text = message(error)
        assert text.startswith(f"W522: inconsistent parallelization: axis {sine.axis(1)} of {sine} is bound to {kind.value}, and its reader {output} is not")
        assert remedy in text
        output.axis(0).parallelize(kind)
        with pytest.raises(UserError) as error:
            run(fusion, [X], defined(define))
        assert f"its reader {output} binds {output.axis(0)}, another axis, to it" in message(error)
    sine.axis(1).parallelize(P.block_x)
    output.axis(0).parallelize(P.block_x)
    run(fusion, [X], defined(define))  # other threads, in shared memory


@pytest.mark.parametrize("dtype", [DataType.Int, DataType.Double, DataType.Float, DataType.Int32])
def test_partial_results_of_blocks_have_the_type_of_the_reduction(dtype):
    def define(fd):
        x = fd.define_tensor([5, 12], contiguity=True)
        fd.add_output(fd.ops.max(fd.ops.cast(x, dtype), [0, 1]))

    fusion = defined(define)
    cache_inputs(fusion)
    ((local, _),) = cache_and_fork_outputs(fusion)
    local.axis(0).parallelize(P.grid_x)
    local.axis(1).parallelize(P.block_x)
    parallelize_like(local)
    names = {DataType.Int: "long long", DataType.Double: "double", DataType.Float: "float", DataType.Int32: "int"}
    assert f"{names[dtype]}* partials_" in run(fusion, [X], defined(define))


def test_only_copies_and_conversions_take_vectors():
    fusion = defined(add_bias)
    cache_inputs(fusion)
    ((local, _),) = cache_and_fork_outputs(fusion)
    split(local, 1, 4)
    local.axis(2).parallelize(P.vectorize)
    inline_most(fusion=fusion)
    with pytest.raises(UserError) as error:
        run(fusion, [X, torch.randn(12)], defined(add_bias))
    assert message(error).startswith(f"W521: axis {local.axis(2)} of {local} is vectorized, but add computes one element at a time")


def test_a_vector_takes_neighbours_in_memory_only():
    """Rows are split into lanes: the elements of one vector would lie a row apart."""
    fusion = defined(row_doubled)
    ((source, copy),) = cache_inputs(fusion)
    reorder(copy, {0: 1})
    split(copy, 1, 5)
    copy.axis(2).parallelize(P.vectorize)
    lanes = str(copy.axis(2))
    with pytest.raises(UserError) as error:
        run(fusion, [X], defined(row_doubled))
    assert message(error).startswith(f"W521: axis {lanes} of {copy} is vectorized, but neighbouring elements along it lie 12 elements apart in {source}")


@pytest.mark.parametrize("memory", [MemoryType.local, MemoryType.shared])
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_vector_takes_neighbours_on_chip_only(is_turned, memory):
    """A row of four vectors in registers, or in shared memory, from which vectors are stored. Turned, the elements of a vector would lie four apart."""

    def define(fd):
        fd.add_output(fd.ops.mul(fd.define_tensor([5, 16], contiguity=True), 2.0))

    fusion = defined(define)
    cache_inputs(fusion)
    ((local, output),) = cache_and_fork_outputs(fusion)
    split(output, 1, 4)
    transform_like(output)
    set_memory_type(local, memory)
    if is_turned:
        reorder(local, {1: 2})
    output.axis(2).parallelize(P.vectorize)
    inline_at(output, 1)
    lanes, x = str(output.axis(2)), torch.arange(80, dtype=torch.float32).view(5, 16)
    if not is_turned:
        assert "store_global_vector<4" in run(fusion, [x], defined(define))
        return
    with pytest.raises(UserError) as error:
        run(fusion, [x], defined(define))
    assert message(error).startswith(f"W521: axis {lanes} of {output} is vectorized, but neighbouring elements along it lie 4 elements apart in {local}")


@pytest.mark.parametrize("shape", [(1, 300_001), (130, 6)])
def test_operands_without_rows_are_loaded_by_each_pass_that_loops(shape):
    """The weight is used before and after the reduction, in two loops: each loads it."""
    inner = shape[0] == 1

    def define(fd):
        x, w = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
        w = fd.ops.broadcast(w, [inner, not inner])
        fd.add_output(fd.ops.mul(x, w))
        fd.add_output(fd.ops.mul(fd.ops.sub(x, fd.ops.max(x, [1 if inner else 0], True)), w))

    with FusionDefinition() as fd:
        define(fd)
    fd.validate([torch.randn(shape), torch.randn(max(shape) if inner else shape[0])])
    assert fd.fec.kernel_runtimes[0].scheduler == ("inner_persistent" if inner else "outer_persistent")


def test_random_numbers_that_lack_the_lanes_are_no_vectors():
    """One number per row beside vectors of columns."""

    def define(fd):
        total = fd.ops.sum(fd.define_tensor([3, 5, 8], contiguity=True), [1])
        number = fd.ops.uniform(0.0, 1.0, [3], rng_seed=7, rng_offset=0, dtype=DataType.Float)
        fd.add_output(fd.ops.minimum(total, fd.ops.broadcast(number, [False, True])))

    with FusionDefinition() as fd:
        define(fd)
    fd.validate([torch.randn(3, 5, 8)])


def random_table(fd, sizes=(132, 128), order=(1, 0)):
    number = fd.ops.uniform(0.0, 1.0, list(sizes), rng_seed=7, rng_offset=8, dtype=DataType.Float)
    fd.add_output(fd.ops.stride_order(number, list(order)))


@pytest.mark.parametrize(
    ("sizes", "order"), [((132, 128), (0, 1)), ((132, 128), (1, 0)), ((6, 60, 66), (1, 2, 0)), ((6, 66, 60), (2, 0, 1)), ((6, 66, 60), (2, 1, 0)), ((134, 1, 130), (0, 2, 1))], ids=str
)
def test_random_numbers_are_those_of_their_places_however_they_lie(sizes, order):
    """A vector of random numbers counts on in row-major order; the vectors that are stored may run along another axis, or cross rows in another order."""
    with FusionDefinition() as fd:
        random_table(fd, sizes, order)
    fd.validate([])


def test_a_vector_of_random_numbers_counts_along_rows():
    fusion = defined(random_table)
    (number,) = [t for t in fusion.tensors() if isinstance(t.definition(), RandomOp)]
    reorder(number, {0: 1})
    split(number, 1, 4)
    number.axis(2).parallelize(P.vectorize)
    lanes = str(number.axis(2))
    with pytest.raises(UserError) as error:
        run(fusion, [], defined(random_table))
    assert message(error).startswith(
        f"W521: axis {lanes} of {number} is vectorized, but random numbers are counted in row-major order, which it does not follow"
    )


@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("rows_inside", [False, True])
@pytest.mark.parametrize("binding", [P.block_x, P.block_y])
def test_shared_memory_made_by_more_threads_than_read_it(rows, rows_inside, binding):
    """The bias is spread over the threads of two rows and kept by all of them; what the others of a column make of it is read once."""

    def define(fd):
        x, b = fd.define_tensor([rows, 7], contiguity=[None if rows == 1 else True, True]), fd.define_tensor([7], contiguity=True)
        fd.add_output(fd.ops.neg(fd.ops.sin(b)))
        fd.add_output(fd.ops.add(x, fd.ops.broadcast(fd.ops.neg(b), [True, False])))

    fusion = defined(define)
    cache_inputs(fusion)
    column, spread_out = fusion.outputs()
    split(spread_out, 0, 2)
    if rows_inside:  # what a thread reads was made by another
        reorder(spread_out, {1: 2})
    merge(spread_out, 1, 2)
    transform_like(spread_out)
    for tensor in fusion.tensors():
        if tensor.definition() is not None:
            tensor.axis(-1).parallelize(binding)
    shared = column.definition().tensor_inputs[0]
    set_memory_type(shared, MemoryType.shared)
    inline_most([t for t in fusion.tensors() if t is not shared])
    run(fusion, [torch.randn(rows, 7), torch.randn(7)], defined(define))


def less_row_maximum(fd):
    x = fd.define_tensor([9, 3], contiguity=True)
    fd.add_output(fd.ops.sub(x, fd.ops.max(x, [1], True)))


def scheduled_row_maximum(kind, *, keeps_x, memory=MemoryType.local, splits=False, columns_first=False, inlines=True):
    """Rows and columns are one axis, bound to `kind`; the maximum, which has the rows alone, is drawn into it by its reader. Return x as it is kept."""
    fusion = defined(less_row_maximum)
    kept = cache_inputs(fusion)[0][1] if keeps_x else None
    ((output, _),) = cache_and_fork_outputs(fusion)
    if splits:
        reorder(split(output, 0, 1), {1: 0})
    if columns_first:
        reorder(output, {-1: -2})
    merge(output, -2, -1)
    transform_like(output)
    output.axis(-1).parallelize(kind)
    parallelize_like(output)
    if kept is not None:
        set_memory_type(kept, memory)
    if inlines:
        inline_most(fusion=fusion)
    return fusion, kept


@pytest.mark.parametrize("kind", [P.block_x, P.block_y, P.grid_x, P.grid_y])
@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("columns_first", [False, True])
@pytest.mark.parametrize("inlines", [False, True])
def test_a_reduction_cannot_read_the_registers_of_the_threads_that_share_its_loop(kind, splits, columns_first, inlines):
    """Thread t has x[t // 3, t % 3], and the maximum of row t // 3 reads three columns: that both run in one loop of 27 does not make them the same."""
    for memory in (MemoryType.local, MemoryType.shared):
        fusion, kept = scheduled_row_maximum(kind, keeps_x=True, memory=memory, splits=splits, columns_first=columns_first, inlines=inlines)
        if memory is MemoryType.shared and kind in (P.block_x, P.block_y):
            run(fusion, [torch.randn(9, 3)], defined(less_row_maximum))
            continue
        maximum = next(e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp))
        row = next(axis for axis in maximum.get_loop_domain() if axis.parallel is kind)
        with pytest.raises(UserError) as error:
            run(fusion, [torch.randn(9, 3)], defined(less_row_maximum))
        wanted = f"W522: inconsistent parallelization: axis {kept.axis(-1)} of {kept} is bound to {kind.value}, and its reader {maximum} binds {row}, another axis"
        assert message(error).startswith(wanted)


@pytest.mark.parametrize("kind", [P.block_x, P.grid_y])
@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("columns_first", [False, True])
def test_a_reduction_in_the_threads_of_its_reader_reads_memory_that_they_share(kind, splits, columns_first):
    fusion, _ = scheduled_row_maximum(kind, keeps_x=False, splits=splits, columns_first=columns_first)
    run(fusion, [torch.randn(9, 3)], defined(less_row_maximum))


def test_an_output_that_is_reduced_in_wider_threads_is_stored_once():
    """The maximum has a thread for each row and column, and each stores what it has after all columns: only the first of a row may."""

    def define(fd):
        x = fd.define_tensor([9, 3], contiguity=True)
        maximum = fd.ops.max(x, [1], True)
        fd.add_output(fd.ops.sub(x, maximum))
        fd.add_output(fd.ops.neg(maximum))

    for kind in (P.block_x, P.grid_x):
        fusion = defined(define)
        (output, _), _ = cache_and_fork_outputs(fusion)
        merge(output, 0, 1)
        transform_like(output)
        output.axis(0).parallelize(kind)
        parallelize_like(output)
        inline_most(fusion=fusion)
        run(fusion, [torch.randn(9, 3)], defined(define))


@pytest.mark.parametrize("kind", [P.block_x, P.block_y, P.grid_x])
def test_registers_are_read_by_their_own_thread_through_a_split_by_one(kind):
    """Producer and reader have different transforms, and yet thread t makes element t and reads it."""

    def define(fd):
        fd.add_output(fd.ops.neg(fd.ops.sin(fd.define_tensor([12], contiguity=True))))

    for first in (True, False):
        fusion = defined(define)
        sine, output = named(fusion, 1), fusion.outputs()[0]
        split(sine if first else output, 0, 1)
        sine.axis(0).parallelize(kind)
        output.axis(0).parallelize(kind)
        run(fusion, [torch.randn(12)], defined(define))


def test_registers_are_not_read_by_threads_that_count_otherwise():
    """Both split 12 elements over 4 threads, which take neighbours in the one and every fourth element in the other."""

    def define(fd):
        fd.add_output(fd.ops.neg(fd.ops.sin(fd.define_tensor([12], contiguity=True))))

    fusion = defined(define)
    sine, output = named(fusion, 1), fusion.outputs()[0]
    split(sine, 0, 4)
    sine.axis(1).parallelize(P.block_x)
    split(output, 0, 3)
    output.axis(0).parallelize(P.block_x)
    with pytest.raises(UserError) as error:
        run(fusion, [torch.randn(12)], defined(define))
    assert message(error).startswith(f"W522: inconsistent parallelization: axis {sine.axis(1)} of {sine}")


def test_an_axis_that_is_two_axes_of_a_tensor_has_no_index():
    """In x + transpose(x) rows are columns: element (i, j) needs (j, i), and one loop would be both."""

    def turned(fd):
        x = fd.define_tensor([4, 4], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))

    def outer_product(fd):
        x = fd.define_tensor([4], contiguity=True)
        fd.add_output(fd.ops.mul(fd.ops.broadcast(x, [True, False]), fd.ops.broadcast(x, [False, True])))

    for define in (turned, outer_product):
        fusion = defined(define)
        product = fusion.outputs()[0]
        with pytest.raises(UserError) as error:
            run(fusion, [torch.randn(4, 4) if define is turned else torch.randn(4)], defined(define))
        assert message(error).startswith("W512: axes ") and " would share one loop" in message(error)
        assert define is turned or f"axes {product.axis(0)} and {product.axis(1)} of {product} would share one loop" in message(error)

    def copied(fd):
        x = fd.define_tensor([4, 4], contiguity=True)
        fd.add_output(fd.ops.neg(fd.ops.permute(fd.ops.sin(x), [1, 0])))

    run(defined(copied), [torch.randn(4, 4)], defined(copied))


@pytest.mark.parametrize("kind", [P.block_x, P.grid_y])
def test_one_index_is_not_for_two_axes_of_a_tensor(kind):
    """Thread t would have row t and column t."""
    for define in (row_doubled, row_sum):
        fusion = defined(define)
        ((local, _),) = cache_and_fork_outputs(fusion)
        for axis in local.get_loop_domain():
            axis.parallelize(kind)
        with pytest.raises(UserError) as error:
            run(fusion, [X], defined(define))
        assert message(error).startswith(f"W513: axes {local.axis(0)} and {local.axis(1)} of {local} are both bound to {kind.value}")


@pytest.mark.parametrize("memory", [MemoryType.local, MemoryType.shared])
def test_a_reduction_drawn_into_threads_of_its_reader_reads_all_that_it_reduces(memory):
    """The sum over the last axis shares the serial loop of its reader, whose threads run over the first and the last; x is kept by them."""

    def define(fd):
        x = fd.define_tensor([2, 9, 4], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.sum(x, [2], True)))

    fusion = defined(define)
    ((_, kept),) = cache_inputs(fusion)
    ((output, _),) = cache_and_fork_outputs(fusion)
    merge(output, 0, 2)
    transform_like(output)
    output.axis(0).parallelize(P.block_y)
    parallelize_like(output)
    total = next(e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp))
    set_memory_type(total, MemoryType.shared)
    set_memory_type(kept, memory)
    inline_most([t for t in fusion.tensors() if t is not kept])
    assert total.compute_at == 1 and kept.compute_at == 0
    if memory is MemoryType.shared:
        run(fusion, [torch.randn(2, 9, 4)], defined(define))
        return
    with pytest.raises(UserError) as error:
        run(fusion, [torch.randn(2, 9, 4)], defined(define))
    assert message(error).startswith(f"W522: inconsistent parallelization: axis {kept.axis(0)} of {kept} is bound to threadIdx.y, and its reader")


@pytest.mark.parametrize("memory, kind", [(MemoryType.local, P.block_x), (MemoryType.shared, P.grid_x), (MemoryType.local, P.grid_y)])
def test_what_the_first_thread_alone_makes_is_read_by_it_alone(memory, kind):
    """An axis of extent 1 is bound beside one of 3 in its reader: of three threads one has the value."""

    def define(fd):
        x, row = fd.define_tensor([4, 3], contiguity=True), fd.define_tensor([4, 1], contiguity=[True, None])
        fd.add_output(fd.ops.add(x, fd.ops.sin(row)))

    fusion = defined(define)
    sine = next(t for t in fusion.tensors() if t.definition() is not None and not t.is_fusion_output)
    output = fusion.outputs()[0]
    split(sine, 0, 4)
    sine.axis(0).parallelize(kind)
    output.axis(1).parallelize(kind)
    set_memory_type(sine, memory)
    with pytest.raises(UserError) as error:
        run(fusion, [torch.randn(4, 3), torch.randn(4, 1)], defined(define))
    assert message(error).startswith(f"W522: inconsistent parallelization: axis {sine.axis(0)} of {sine} is bound to {kind.value}, and its reader {output}")
    split(output, 0, 4)
    output.axis(2).parallelize(P.serial)
    output.axis(0).parallelize(kind)
    run(fusion, [torch.randn(4, 3), torch.randn(4, 1)], defined(define))


def test_an_output_is_stored_once_where_its_loop_runs_over_a_part_of_what_it_lacks():
    """Columns are split, and the rest merged with the rows: the maximum, in that loop, is stored by the first of the rest."""

    def define(fd):
        x = fd.define_tensor([9, 5], contiguity=True)
        maximum = fd.ops.max(x, [1], True)
        fd.add_output(fd.ops.add(x, maximum))
        fd.add_output(fd.ops.neg(maximum))

    fusion = defined(define)
    (output, _), _ = cache_and_fork_outputs(fusion)
    split(output, 1, 4)
    merge(output, 0, 2)
    transform_like(output)
    output.axis(0).parallelize(P.block_x)
    parallelize_like(output)
    run(fusion, [torch.randn(9, 5)], defined(define))


@pytest.mark.parametrize("is_crossing", [False, True], ids=["each thread its own", "others' too"])
def test_what_cp_async_brings_before_a_loop_is_waited_for_where_it_is_read(is_crossing: bool):
    """A barrier follows the wait only where threads read what others asked for."""

    def define(fd):
        x, bias = fd.define_tensor([-1, 256], contiguity=True), fd.define_tensor([256], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.exp(x), bias))

    fusion = defined(define)
    (_, _), (bias, kept) = cache_inputs(fusion)
    shared = cache_after(bias, LoadStoreOpType.cp_async)
    set_memory_type(shared, MemoryType.shared)
    ((_, output),) = cache_and_fork_outputs(fusion)
    split(output, 1, 4)
    split(output, 1, 2, inner_split=False)
    transform_like(output)
    for tensor in fusion.tensors():
        if tensor not in fusion.inputs() and not (is_crossing and tensor is shared):
            tensor.axis(-2).parallelize(P.block_x)
    if is_crossing:
        shared.axis(-3).parallelize(P.block_x)
    for tensor in (shared, kept):
        tensor.axis(-1).parallelize(P.vectorize)
    inline_most([t for t in fusion.tensors() if t is not shared])
    text = run(fusion, [torch.randn(5, 256), torch.randn(256)], defined(define))
    assert text.index("cp_async<16>") < text.index("cp_async_wait<0>") < text.index("load_shared_vector")
    assert ("block_sync" in text) is is_crossing
