"""Definitions without sizes that random search found refused or misaligned at some sizes, made small. A case's name says what must hold."""

from __future__ import annotations

import pytest
import torch
from found_cases import Found, opened, tensor

from weft import DataType as D

FOUND = Found()
case = FOUND.case


@case(tensor(33, 17, 4, order=(2, 0, 1)))
def a_cat_whose_result_lies_in_another_order_than_its_source(fd):
    """The vectors of what is looked up must fit where it is written, too."""
    x, o = opened(fd, 3, order=(1, 0, 2)), fd.ops
    y = o.permute(o.sub(x, o.max(x, [0], True)), [0, 2, 1])
    fd.add_output(o.cat([y, y], 1))


@case(tensor(1, 16, 32, order=(0, 2, 1), dtype=torch.float16))
def a_turned_input_with_an_axis_of_one_element_behind_the_lanes(fd):
    x, o = opened(fd, 3, D.Half, (2, 0, 1)), fd.ops
    fd.add_output(o.reshape(x, [o.mul(o.mul(o.size(x, 0), o.size(x, 1)), o.size(x, 2))]))


@case(tensor(31, 8, order=(1, 0)))
def a_scan_with_an_expanded_axis_behind_it(fd):
    x, o = opened(fd, 2, order=(0, 1)), fd.ops
    a, b = o.size(x, 0), o.size(x, 1)
    fd.add_output(o.reshape(o.broadcast_in_dim(x, [a, a, b], [1, 2]), [a, o.mul(a, b)]))
    fd.add_output(o.cumsum(o.broadcast_in_dim(x, [a, b, b], [0, 1]), 1))


@case(tensor(31, 2))
def a_scan_in_torch_beside_an_expanded_axis(fd):
    """One element of those that share memory is written."""
    x, o = opened(fd, 2), fd.ops
    sums = o.sum(o.broadcast_in_dim(x, [o.size(x, 0), o.size(x, 1), o.size(x, 1)], [0, 2]), [0])
    half = o.slice(sums, [0, o.div(o.size(sums, 1), 2)], [o.size(sums, 0), o.size(sums, 1)])
    fd.add_output(o.cumsum(half, 1))


@case(lambda: torch.randn(9600).as_strided([6, 5, 16, 5], [1600, 160, 10, 2]))
def a_turned_output_without_an_axis_within_the_tiles(fd):
    x, o = fd.define_tensor([-1] * 4, contiguity=[False, True, True, False]), fd.ops
    rows = o.reshape(x, [30, 16, 5])
    fd.add_output(o.permute(o.reshape(rows, [30, -1]), [1, 0]))
    fd.add_output(o.triu(o.broadcast_in_dim(rows, [30, 16, 5, 5], [0, 1, 3]), -1))


@case(lambda: torch.rand(2, 33) < 0.5, tensor(2, 1))
def rows_that_begin_anywhere_beside_an_output_of_one_element_per_row(fd):
    mask, x, o = opened(fd, 2, D.Bool), fd.define_tensor([-1, 1], contiguity=[True, None]), fd.ops
    y = o.neg(x)
    fd.add_output(y)
    fd.add_output(o.where(mask, y, 0.5))


@case(tensor(7, 1, 7, 4), lambda: torch.randn(7, 1, 7, 4), lambda: 7)
def a_variance_of_what_a_full_makes_beside_an_expanded_axis(fd):
    """Each pass computes the full again, and then nothing tells that its axes are those of the rows."""
    x, o = opened(fd, 4), fd.ops
    y = fd.define_tensor([-1] * 4, contiguity=[True, None, True, True])
    full = o.full([o.size(x, 0), o.size(y, 1), fd.define_scalar(D.Int), 4], True, D.BFloat16)
    variance, _ = o.var_mean(o.minimum(full, o.argsort(y, 1, True, True)), [1, 2], 0, True)
    fd.add_output(o.mul(variance, o.sub(full, y)))


@case(tensor(1), lambda: 7)
def a_variance_along_an_axis_that_is_expanded_in_this_call(fd):
    x, o = fd.define_tensor([1], contiguity=[None]), fd.ops
    row = o.expand(x, [fd.define_scalar(D.Int32)])
    table = o.broadcast_in_dim(row, [5, o.size(row, 0)], [1])
    for values, axes in ((o.reshape(row, [o.size(row, 0)]), [0]), (o.reshape(table, [5, o.size(row, 0)]), [0, 1])):
        for result in o.welford(values, axes):
            fd.add_output(result)


@case(tensor(5, 129, 5))
def a_scan_of_pieces_that_come_ahead_one_where_the_other_ends(fd):
    x, o = opened(fd, 3), fd.ops
    fd.add_output(o.cumsum(o.cat([x, x], 0), 1))


@case(tensor(5, 300, 5))
def a_scan_of_a_piece_that_comes_ahead_beside_one_that_is_computed(fd):
    x, o = opened(fd, 3), fd.ops
    fd.add_output(o.cumsum(o.cat([x, o.exp(x), o.neg(x)], 0), 1))


@pytest.mark.parametrize("name", FOUND)
def test_graph(name: str) -> None:
    FOUND.check(name)
