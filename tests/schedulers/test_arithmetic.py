"""Arithmetic that choices share: powers of two, vectors, the record of a choice; parts of the cost model: whole blocks, what L2 keeps."""

from __future__ import annotations

import pytest
from weft.arch import H200
from weft.schedulers.arithmetic import Trace, best_first, next_power_of_two, previous_power_of_two, tree_workspace_bytes, vector_elems
from weft.schedulers.cost.parts import balance, rereads_from_memory


def test_whole_blocks_leave_multiprocessors_idle():
    assert balance(132, H200) == 1.0
    assert balance(133, H200) == pytest.approx(133 / 264)
    assert balance(66, H200) == 0.5
    assert balance(132 * 20 + 1, H200) == 1.0


def test_rows_in_work_beyond_l2_are_read_from_memory():
    assert rereads_from_memory(1e6, H200) == 0.0
    assert rereads_from_memory(1e9, H200) == 1.0
    assert 0 < rereads_from_memory(30e6, H200) < 1


def test_workspace_of_columns():
    assert tree_workspace_bytes(1024, 8, 32) == 40 * 1024  # what the lowering of one float32 sum over 1024 threads of 8 columns asks for


@pytest.mark.parametrize("limit, bits, least, wide", [(8, 16, 1, 8), (64, 16, 1, 8), (2, 32, 1, 2), (64, 4, 2, 32), (1, 4, 2, 2), (64, 64, 1, 2), (4, 128, 1, 1)])
def test_vector_width(limit, bits, least, wide):
    assert vector_elems(limit, bits, least, 128) == wide


def test_powers_of_two():
    assert [previous_power_of_two(n) for n in (0, 1, 2, 3, 4, 1000)] == [1, 1, 2, 2, 4, 512]
    assert [next_power_of_two(n) for n in (0, 1, 2, 3, 4, 1000)] == [1, 1, 2, 4, 4, 1024]


def test_a_trace_marks_the_best_and_names_the_choice():
    text = str(Trace("test", "facts", ("first", "second"), best_first(("a", "c", "b"), key=str), "c", ("a note",)))
    assert text.splitlines() == ["test: facts", "  a note", "  in the order of: first; second", "  -> c", "     b", "     a", "  chosen: c"]
