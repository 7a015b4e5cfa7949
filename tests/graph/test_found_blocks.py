"""Folds over blocks of neighbours inside of graphs: what random search found wrong or refused once, made small. A case's name says what must hold."""

from __future__ import annotations

import pytest
from found_cases import Found, opened, positions, tensor

from weft import DataType as D

FOUND = Found()
case = FOUND.case
SIGNS = [1, -1, -1, 1, 1, 1, -1, 1, -1, -1, -1, 1, 1, -1, 1, -1]


@case(tensor(5, 32))
def a_slice_of_a_fold_reads_the_whole_block(fd):
    fd.add_output(fd.ops.slice(fd.ops.block_amax(opened(fd, 2), 16), [1, 3], [5, 20]))


@case(tensor(3, 32))
def a_cat_of_a_fold_keeps_its_blocks(fd):
    x = fd.define_tensor([3, 32], contiguity=True)
    fd.add_output(fd.ops.cat([fd.ops.block_hadamard(x, SIGNS), fd.ops.neg(x)], 1))


@case(tensor(4, 32), positions(7, below=32))
def a_gather_of_a_fold_reads_the_whole_block(fd):
    x, index = opened(fd, 2), opened(fd, 1, D.Int)
    fd.add_output(fd.ops.index_select(fd.ops.block_amax(x, 8), index, 1))


@case(tensor(32, 32))
def a_mask_behind_a_fold_hides_nothing_of_the_blocks(fd):
    x = fd.define_tensor([32, 32], contiguity=True)
    fd.add_output(fd.ops.where(fd.ops.causal_mask(32, 32), fd.ops.block_amax(x, 16), 0.0))


@case(tensor(16, 64))
def a_reshape_that_cuts_blocks_stays_behind_the_fold(fd):
    x = fd.ops.hardswish(opened(fd, 2))
    parts = fd.ops.reshape(fd.ops.block_hadamard(x, SIGNS), [8, 2, 32, 2])
    fd.add_output(fd.ops.reshape(fd.ops.permute(parts, [0, 2, 1, 3]), [256, 4]))


@case(tensor(6, 32))
def rows_put_together_behind_a_fold_are_rotated_there(fd):
    """A rotation by five elements, not by whole blocks."""
    y = fd.ops.block_amax(fd.define_tensor([6, 32], contiguity=True), 16)
    fd.add_output(fd.ops.cat([fd.ops.slice(y, [0, 27], [6, 32]), fd.ops.slice(y, [0, 0], [6, 27])], 1))


@case(tensor(16))
def a_fold_in_front_of_a_sum_of_few_elements(fd):
    fd.add_output(fd.ops.std(fd.ops.block_hadamard(fd.ops.relu(opened(fd, 1)), SIGNS), [0], 1, False))


@case(tensor(16, 2))
def a_fold_behind_sums_of_rows_shorter_than_a_block(fd):
    fd.add_output(fd.ops.block_hadamard(fd.ops.sum(opened(fd, 2), [1]), SIGNS))


@case(tensor(3, 5, 32))
def a_fold_in_front_of_sums_over_rows_and_what_lies_outside(fd):
    fd.add_output(fd.ops.sum(fd.ops.block_amax(opened(fd, 3), 16), [0, 2]))


@case(tensor(3, 5, 32))
def a_fold_of_channels_that_are_normalized(fd):
    x = opened(fd, 3)
    y = fd.ops.sub(x, fd.ops.mul(fd.ops.sum(x, [0, 2], True), 0.01))
    fd.add_output(fd.ops.block_amax(y, 16))


@case(tensor(1, 64), lambda: 8)
def a_fold_of_a_row_that_is_repeated_and_reshaped(fd):
    """Threads run over the repeated row, so that a thread's place in it is a remainder."""
    x, rows = fd.define_tensor([1, 64], contiguity=[None, True]), fd.define_scalar(D.Int)
    y = fd.ops.broadcast_in_dim(fd.ops.block_amax(x, 16), [8, 2, 64], [0, 2])
    fd.add_output(fd.ops.reshape(y, [rows, 8, 2, 8]))


@case(tensor(2, 4, 8, 16))
def a_fold_of_parts_of_open_sizes(fd):
    x = opened(fd, 4)
    parts = [fd.ops.slice(x, [0, 0, a, 0], [2, 4, b, 16]) for a, b in ((4, 8), (3, 4), (0, 3))]
    fd.add_output(fd.ops.block_hadamard(fd.ops.cat(parts, 2), SIGNS))


@case(tensor(16, 8))
def a_fold_of_turned_rows(fd):
    fd.add_output(fd.ops.block_hadamard(fd.ops.permute(opened(fd, 2), [1, 0]), SIGNS))


@case(tensor(64, 33))
def a_fold_of_turned_rows_in_front_of_arithmetic(fd):
    x = opened(fd, 2)
    y = fd.ops.block_amax(fd.ops.permute(x, [1, 0]), 8)
    fd.add_output(fd.ops.add(y, 1.0))
    fd.add_output(fd.ops.permute(y, [1, 0]))


@case(tensor(4, 32))
def a_scan_behind_a_fold(fd):
    fd.add_output(fd.ops.cumsum(fd.ops.block_amax(opened(fd, 2), 16), 1))


@case(tensor(4, 32))
def a_fold_behind_a_scan_of_columns(fd):
    fd.add_output(fd.ops.block_amax(fd.ops.cumsum(opened(fd, 2), 0), 16))


@pytest.mark.parametrize("name", sorted(FOUND))
def test_graph(name: str) -> None:
    FOUND.check(name)
