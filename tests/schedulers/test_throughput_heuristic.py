"""The throughput model: shape of its curves, and how near it comes to measured kernels."""

from __future__ import annotations

import pytest
from weft.arch import A100, B200, H100, H200
from weft.schedulers.arithmetic import Trace, best_first, next_power_of_two, previous_power_of_two, tree_workspace_bytes, vector_elems
from weft.schedulers.throughput_heuristic import ROOF, balance, bytes_in_flight_per_sm, rereads_from_memory, roof_fraction, share_bytes_per_ns

CHIPS = (A100, H100, H200, B200)


@pytest.mark.parametrize("arch, low_kib, high_kib", [(A100, 22, 26), (H100, 31, 34), (H200, 44, 48), (B200, 62, 68)])
def test_bytes_in_flight_follow_the_memory(arch, low_kib, high_kib):
    assert low_kib * 1024 < bytes_in_flight_per_sm(arch) < high_kib * 1024


@pytest.mark.parametrize("arch", CHIPS, ids=lambda a: a.name)
def test_more_blocks_never_predict_less(arch):
    for transfer in (50.0, 500.0, 5000.0):
        fractions = [roof_fraction(k, transfer, 1000.0, 10.0) for k in range(1, 33)]
        assert fractions == sorted(fractions)
        assert 0 < fractions[0] and fractions[-1] < ROOF
    assert share_bytes_per_ns(arch) * arch.sm_count == pytest.approx(arch.roof_bytes_per_s * 1e-9)


def test_every_limit_alone_bounds_the_fraction():
    assert roof_fraction(32, 1000.0, 1.0, 1e-3) == pytest.approx(ROOF, rel=0.01)
    assert roof_fraction(1, 10.0, 10000.0, 1e-3) < 0.002  # memory: one block, little to move
    assert roof_fraction(32, 100.0, 1.0, 10000.0) < 0.011  # issue
    assert roof_fraction(32, 1.0, 1e-3, 1e-3) < 0.04  # launch


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
