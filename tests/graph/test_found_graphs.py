"""Definitions that random search found wrong, refused or misaligned once, made small. A case's name says what must hold."""

from __future__ import annotations

import pytest
import torch
from found_cases import Found, positions, tensor

from weft import DataType as D
from weft import FusionDefinition
from weft.options import options

FOUND = Found()
case = FOUND.case


@case(tensor(5, 4))
def a_row_sum_and_a_sum_of_all_used_by_both(fd):
    """Three groups that wait for each other, when the order of joined groups is not kept."""
    x, o = fd.define_tensor([-1, -1], contiguity=True), fd.ops
    fd.add_output(o.sub(x, o.mul(o.sum(x, [1], True), 0.25)))
    fd.add_output(o.sub(x, o.mul(o.sum(x, [0, 1], True), 0.05)))


@case(tensor(6, 8), lambda: torch.randint(0, 6, (5, 3)).t())
def an_embedding_whose_indices_lie_column_by_column(fd):
    """Its rows are what lies in memory, not its indices."""
    table, indices = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True, dtype=D.Int, stride_order=[0, 1])
    fd.add_output(fd.ops.embedding_fwd(indices, table))


@case(tensor(6, 8), lambda: torch.randint(0, 6, (4, 5, 3)).permute(2, 0, 1))
def an_embedding_whose_indices_have_more_axes_than_the_table(fd):
    table, indices = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1, -1], contiguity=True, dtype=D.Int, stride_order=[0, 2, 1])
    fd.add_output(fd.ops.embedding_fwd(indices, table))


@case(tensor(6, 30), tensor(1, 30), tensor(6, 2000), tensor(2, 12))
def pads_whose_rows_begin_with_a_vector_in_the_source_and_not_in_the_result(fd):
    """Rows of 30 elements become rows of 33: what is looked up is written where it stands, at its own stride."""
    o, pads = fd.ops, ([2, 1], [4, -1, 1, 4], [4, -1], [2, 3])
    for shape, widths in zip(([-1, -1], [1, -1], [-1, -1], [-1, -1]), pads):
        fd.add_output(o.pad(fd.define_tensor(shape, contiguity=[None if n == 1 else True for n in shape]), widths))


@case(lambda: torch.randint(-50, -1, (3, 5)))
def a_maximum_of_a_pad_whose_value_a_cast_changes(fd):
    """The least integer of 32 bits, the identity of the maximum, is 0 as an integer of 8 bits."""
    x, o = fd.define_tensor([-1, -1], contiguity=True, dtype=D.Int), fd.ops
    fd.add_output(o.max(o.cast(o.cast(o.pad(x, [1, 1], -(2**31)), D.Char), D.Int32), [1]))


@case(tensor(32, 16))
def a_shift_by_one_along_an_axis_that_a_reshape_cuts(fd):
    x, o = fd.define_tensor([32, 16], contiguity=True), fd.ops
    y = o.reshape(x, [32, 4, 4])
    fd.add_output(o.sub(y, o.sum(y, [1], True)))
    fd.add_output(o.sub(o.pad(x, [1, -1]), o.sin(x)))


@case(tensor(2, 6))
def a_pad_in_front_of_an_axis_that_is_cut_where_sizes_are_symbolic(fd):
    x, o = fd.define_tensor([-1, -1], contiguity=True), fd.ops
    fd.add_output(o.sigmoid(o.reshape(o.pad(o.reshape(x, [1, 4, 3]), [1, 1, 2, 0]), [1, -1, 5])))


@case(tensor(1, 1), tensor(1, 30))
def a_pad_of_an_axis_of_one_element(fd):
    x, y, o = fd.define_tensor([1, 1], contiguity=[None, None]), fd.define_tensor([1, 30], contiguity=[None, True]), fd.ops
    fd.add_output(o.permute(o.pad(o.tanh(x), [0, 4]), [0, 1]))
    fd.add_output(o.sin(o.pad(o.abs(y), [2, -1, 1, -1])))


@case(lambda: torch.randn(17, dtype=torch.float64)[1:])
def a_view_of_memory_that_begins_anywhere(fd):
    x, o = fd.define_tensor([-1], contiguity=[True], dtype=D.Double), fd.ops
    y = o.cast(o.reshape(x, [2, 8]), D.Float)
    fd.add_output(o.sigmoid(o.reshape(o.tanh(x), [-1, 2])))
    fd.add_output(o.sin(o.pad(x, [1, 2])))
    fd.add_output(o.sub(y, o.sum(y, [1], True)))


@case(tensor(30, 30))
def a_reduction_of_a_slice_of_rows_that_no_vector_divides(fd):
    x, o = fd.define_tensor([30, 30], contiguity=True), fd.ops
    fd.add_output(o.max(o.relu(o.slice(x, [12, 0], [24, 30]))))


@case(lambda: torch.randn(16, 1).bfloat16().expand(16, 16))
def a_softmax_over_rows_of_a_slice_without_columns(fd):
    x, o = fd.define_tensor([-1, -1], contiguity=[True, None], dtype=D.BFloat16), fd.ops
    fd.add_output(o.neg(o.reshape(o.slice(x, [0, 8], [16, 16]), [16, 4, 2])))
    y = o.cast(o.slice(x, [10, 0], [12, 8]), D.Float)
    e = o.exp(o.sub(y, o.max(y, [0], True)))
    fd.add_output(o.truediv(e, o.sum(e, [0], True)))


@case(tensor(8, 8, 12))
def a_reshape_of_a_reshape_beside_a_reduction(fd):
    x, o = fd.define_tensor([-1, -1, -1], contiguity=True), fd.ops
    y = o.relu(o.reshape(o.reshape(x, [1, 8, 8, 12]), [-1, 64, 12]))
    fd.add_output(o.relu(o.reshape(o.sum(x, [1, 2]), [4, 2])))
    fd.add_output(o.reshape(y, [1, 32, 1, 2, 12]))
    fd.add_output(o.abs(o.reshape(y, [1, 64, 1, 12])))


@case(tensor(8, 3, 2))
def a_slice_of_positions_of_maxima(fd):
    x, o = fd.define_tensor([-1, -1, -1], contiguity=True), fd.ops
    fd.add_output(o.slice(o.argmax(x, 1, True), [2, 0, 0], [4, 1, 2]))


@case()
def a_padded_iota_of_32_bits(fd):
    fd.add_output(fd.ops.pad(fd.ops.iota(5, -3, 1, D.Int32), [-1, 2]))


@case(lambda: torch.randn(1, 1, 1).expand(2, 3, 4))
def an_order_of_expanded_elements(fd):
    x = fd.define_tensor([-1, -1, -1], contiguity=[None] * 3)
    fd.add_output(fd.ops.argsort(x, 2, False, True))
    for result in fd.ops.topk(x, 2, 1):
        fd.add_output(result)


@case(tensor(7, 5), lambda: torch.randint(0, 7, (50,)))
def a_running_sum_down_looked_up_rows(fd):
    x, i = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True, dtype=D.Int)
    fd.add_output(fd.ops.cumsum(fd.ops.embedding_fwd(i, x), 0))


@case(tensor(2, 33))
def a_padded_reshape_of_a_triangle(fd):
    """The iota of the columns has two axes then: its position is their linear one."""
    x = fd.define_tensor([-1, -1], contiguity=True)
    t = fd.ops.reshape(fd.ops.triu(x, 0), [22, 3])
    fd.add_output(fd.ops.pad(t, [0, 3]))
    fd.add_output(fd.ops.index_select(t, fd.ops.iota(4, 20, -3, D.Int), 0))
    fd.add_output(fd.ops.select(t, 1, 1))


@case(lambda: torch.randn(64, 64).t())
def a_matrix_in_columns_minus_its_transpose(fd):
    x = fd.define_tensor([-1, -1], contiguity=True, stride_order=[0, 1])
    fd.add_output(fd.ops.sub(x, fd.ops.permute(x, [1, 0])))


@case(tensor(3, 4, 6))
def columns_of_a_cat_of_three_less_their_largest(fd):
    """Each part of a cat fills what the next one leaves: a pass that reads the columns again needs all of them."""
    x, o = fd.define_tensor([-1, -1, -1], contiguity=True), fd.ops
    y = o.cat([x, x, x], 2)
    fd.add_output(o.sub(y, o.max(y, [0], True)))


@case(tensor(9, 61), positions(3, 17, below=60))
def columns_at_positions_of_a_cat_of_itself_less_their_largest(fd):
    x, i, o = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True, dtype=D.Int), fd.ops
    t = o.permute(x, [1, 0])
    y = o.take_along_axis(o.pad(o.cat([t, t], 1), [-1, 0, -1, 0]), i, 0)
    y = o.cat([y, y, y], 1)
    fd.add_output(o.sub(y, o.max(y, [0], True)))


@case(tensor(4, 6), positions(4, 5, below=6, dtype=torch.int32), positions(3, 5, below=4))
def variance_of_columns_at_positions_of_positions(fd):
    x, o = fd.define_tensor([-1, -1], contiguity=True), fd.ops
    i, j = (fd.define_tensor([-1, -1], contiguity=True, dtype=k) for k in (D.Int32, D.Int))
    var, mean = o.var_mean(o.take_along_axis(o.gather(x, i, 1), j, 0), [0], 0, True)
    fd.add_output(var)
    fd.add_output(mean)


@case(tensor(7, 2))
def an_element_less_its_row_s_largest_beside_the_columns_largest(fd):
    """The element is looked up in a result, so rows and columns at once are no kernel for it."""
    x, o = fd.define_tensor([-1, -1], contiguity=True), fd.ops
    rows = o.permute(o.abs(x), [1, 0])
    fd.add_output(o.slice(o.slice(o.sub(rows, o.max(rows, [0], True)), [0, 6], [2, 7]), [1, 0], [2, 1]))
    fd.add_output(o.max(x, [0], True))


@case(lambda: torch.randn(4, 1).expand(4, 24))
def a_row_that_is_expanded_and_merged_less_its_sum(fd):
    x, o = fd.define_tensor([-1, -1], contiguity=[True, None]), fd.ops
    row = o.reshape(o.permute(x, [1, 0]), [96])
    fd.add_output(o.sub(row, o.sum(row, [0], True)))


@case(tensor(5, 1))
def a_column_expanded_beside_constants_less_the_sum_of_all(fd):
    x, o = fd.define_tensor([-1, 1], contiguity=True), fd.ops
    y = o.mul(o.full([1, 4], 2.0, D.Float), o.expand(x, [-1, 4]))
    fd.add_output(o.sub(y, o.sum(y, [0, 1], True)))


@case(tensor(5, 1), tensor(5, 1))
def a_running_sum_without_an_axis_of_one_element_beside_a_tensor_with_it(fd):
    x, y, o = fd.define_tensor([-1, 1], contiguity=True), fd.define_tensor([-1, 1], contiguity=True), fd.ops
    fd.add_output(o.add(x, y))
    fd.add_output(o.cumsum(o.reshape(o.cast(y, D.BFloat16), [5]), 0))


@case(tensor(3, 1, 5), lambda: torch.randn(4, 1).expand(4, 6))
def running_folds_along_expanded_axes(fd):
    x, y, o = fd.define_tensor([-1, 1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=[True, None]), fd.ops
    z = o.expand(x, [-1, 7, -1])
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        fd.add_output(getattr(o, name)(z, 1))
    fd.add_output(o.cumsum(y, -1, init=2.0))
    fd.add_output(o.cumsum(y, 0))


@case(tensor(2, 8), lambda: torch.tensor(6).expand(2, 8))
def columns_times_a_number_that_is_expanded_beside_the_rows_variance(fd):
    x, n, o = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=[None, None], dtype=D.Int), fd.ops
    y = o.abs(x)
    fd.add_output(o.var_mean(y, [1], 0, False)[0])
    fd.add_output(o.mul(o.max(x, [0], True), o.gcd(n, 3)))


@case(tensor(3, 5))
def positions_in_rows_and_columns_beside_the_least_of_all(fd):
    x, o = fd.define_tensor([-1, -1], contiguity=True), fd.ops
    fd.add_output(o.argmax(x, 1, True))
    fd.add_output(o.minimum(o.min(x, [0, 1], True), o.argmin(x, 0, True)))


@case(tensor(9, 16, 3), positions(4, below=16))
def variance_over_an_axis_of_positions_and_one_of_memory(fd):
    """Both passes look up, each by an index of its own: their axes are the same all the same."""
    x, i, o = fd.define_tensor([-1, -1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True, dtype=D.Int), fd.ops
    y = o.broadcast_in_dim(o.permute(o.segment_set(x), [1, 0, 2]), [2, 16, 9, 3], [1, 2, 3])
    fd.add_output(o.var_mean(o.index_select(y, i, 1), [1, 2])[0])


@case(tensor(1, 6))
def a_pad_of_a_row_turned_into_a_column_beside_its_least(fd):
    """The result of a lookup that is an output: along the source's neighbours the output's lie two apart."""
    x, o = fd.define_tensor([1, -1], contiguity=[None, True]), fd.ops
    y = o.pad(o.permute(x, [1, 0]), [2, -1, 2, 2])
    fd.add_output(o.min(y, [0, 1], True))
    fd.add_output(y)


@case(tensor(8, 64))
def one_element_as_an_output_beside_sums_of_rows(fd):
    x, o = fd.define_tensor([-1, -1], contiguity=True), fd.ops
    fd.add_output(o.select(o.select(x, 3, 0), 5, 0))
    fd.add_output(o.sum(x, [1]))


@case(tensor(40, 5, 7), tensor(40, 1, 1))
def a_result_along_the_folded_axis_only_beside_sums_of_columns(fd):
    """The column that repeats over the rows' loops of the sum is an output without them."""
    x, y, o = fd.define_tensor([-1, -1, -1], contiguity=True), fd.define_tensor([-1, 1, 1], contiguity=[True, None, None]), fd.ops
    fd.add_output(o.neg(o.sum(y, [1, 2])))
    fd.add_output(o.sum(o.add(y, x), [0], True))


@case(tensor(3, 2, 5), tensor(1, 2, 1))
def a_result_along_a_part_of_what_is_folded(fd):
    x, y, o = fd.define_tensor([-1, -1, -1], contiguity=True), fd.define_tensor([1, -1, 1], contiguity=[None, True, None]), fd.ops
    fd.add_output(o.sum(o.mul(o.cumsum(x, 2), y), [0, 1], True))
    fd.add_output(o.neg(o.reshape(y, [1, -1])))


@case(lambda: torch.randint(-5, 6, (3, 1, 3, 4)), tensor(3, 1, 1, 1))
def a_result_with_a_part_of_the_columns_that_are_loaded_in_vectors(fd):
    x, y, o = fd.define_tensor([-1, 1, -1, -1], contiguity=[True, None, True, True], dtype=D.Int), fd.define_tensor([-1, 1, 1, 1], contiguity=[True, None, None, None]), fd.ops
    largest = o.max(y, [3])
    fd.add_output(o.reshape(o.minimum(o.sum(o.bitwise_and(x, 2), [2]), largest), [3, 1, 2, 1, 2]))
    fd.add_output(o.prod(o.broadcast_in_dim(largest, [3, 1, 3, 1], [0, 1, 3]), [1, 2, 3], True))


@case(tensor(3, 8, 2, 2), tensor(3, 8, 2, 2))
def an_index_read_by_lookups_of_which_one_has_fewer_loops(fd):
    """The loops of the one that looks up pairs of rows and columns do not tell the index to the one that has columns alone."""
    x, y, o = *(fd.define_tensor([3, 8, 2, 2], contiguity=[True] * 4) for _ in range(2)), fd.ops
    shifted = o.cat([o.slice(x, [0, 0, 0, 1], [3, 8, 2, 2]), o.full([3, 8, 2, 1], 0.0, D.Float)], 3)
    product = o.mul(o.add(x, shifted), y)
    rest = o.sub(product, o.mul(y, o.sum(product, [2], True)))
    place = o.minimum(o.div(o.add(o.cast(o.iota(4, 0, 1, D.Int), D.Int32), 1), 2), 1)
    rows = o.index_select(o.broadcast(o.reshape(rest, [24, 2, 2]), [True, False, False, False]), o.broadcast(place, [True, True, False, True]), 2)
    fd.add_output(o.index_select(rows, o.broadcast(place, [True, True, True, False]), 3))


@case(tensor(14, 3), lambda: torch.randperm(14)[:4], tensor(2, 3), tensor(1, 3))
def rows_added_by_an_index_that_a_cat_and_a_reshape_make(fd):
    """What the index joins is not cut into parts that the cat's first row, which is one row, does not have."""
    into, index, x, y, o = *(fd.define_tensor([14, 3]), fd.define_tensor([4], dtype=D.Int), fd.define_tensor([2, 3]), fd.define_tensor([1, 3])), fd.ops
    pairs = o.where(o.broadcast(o.eq(o.iota(2, 0, 1, D.Int), 0), [True, False, True]), o.broadcast(x, [False, True, False]), 0.0)
    first = o.cat([y, o.full([3, 3], 0.0, D.Float)], 0)
    fd.add_output(o.scatter_rows(into, o.broadcast(index, [False, True]), o.add(o.reshape(pairs, [4, 3]), first), 0))


@case(tensor(64, 48, 16), tensor(64, 48, 48), tensor(64, 48, 16))
def rows_that_lack_a_part_of_what_blocks_are_counted_over(fd):
    """Each block has its own copy of them in shared memory: the gradient of weights of rows, beside a mixture of the rows."""
    x, w, y, o = *(fd.define_tensor([64, 48, n], contiguity=True) for n in (16, 48, 16)), fd.ops
    rows = o.expand(o.broadcast(x, [False, False, True, False]), [64, 48, 48, 16])
    slope = o.sum(o.mul(rows, o.broadcast(y, [False, True, False, False])), [3])
    fd.add_output(o.mul(o.mul(o.mul(slope, w), o.sub(1.0, w)), 0.3))
    fd.add_output(o.sum(o.mul(rows, o.broadcast(w, [False, False, False, True])), [1]))


def test_a_vector_folded_by_one_thread_alone_has_its_monoid() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([1, 2], contiguity=[None, True])
        y = fd.ops.sum(fd.ops.maximum(x, fd.ops.neg(x)), [0], True)
        fd.add_output(fd.ops.stride_order(fd.ops.mul(y, 1.0), [1, 0]))
    for partition in ("best", "6062", "single"):
        with options(check="races", strict_schedules=True, partition=partition):
            fd.validate([torch.randn(1, 2)])


@pytest.mark.parametrize("name", FOUND)
def test_graph(name: str) -> None:
    FOUND.check(name)
