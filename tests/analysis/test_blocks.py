"""What folds over blocks of neighbours ask of vectors and lanes."""

from __future__ import annotations

import pytest

from weft.analysis.blocks import BlockNeeds, lanes_of_blocks, meets_in_shared


@pytest.mark.parametrize(
    ("largest", "least", "lanes"),
    [(0, 1, {1: 1, 8: 1}), (16, 1, {1: 16, 4: 4, 16: 1, 32: 1}), (32, 1, {1: 32, 8: 4}), (64, 2, {2: 32, 4: 16}), (128, 4, {4: 32, 16: 8})],
)
def test_a_block_is_in_a_thread_or_in_lanes_of_one_warp(largest: int, least: int, lanes: dict[int, int]) -> None:
    needs = BlockNeeds(largest, largest, largest_in_warp=largest)
    assert needs.least_vector_elems == least
    assert {elems: lanes_of_blocks([largest], elems) for elems in lanes} == lanes
    assert needs.why_not(least) == "" and all(needs.why_not(elems) == "" for elems in lanes)
    if least > 1:
        assert "more than a warp has" in needs.why_not(least // 2)
    assert BlockNeeds(largest, largest, obstacle="as the test says").why_not(16) == "as the test says"


@pytest.mark.parametrize(("size", "elems", "meets"), [(128, 4, False), (128, 2, True), (96, 8, True), (8, 8, False), (4, 8, False), (24, 8, True)])
def test_groups_whose_threads_are_no_power_of_two_of_lanes_meet_in_shared_memory(size: int, elems: int, meets: bool) -> None:
    needs = BlockNeeds(size, size, groups=(size,))
    assert meets_in_shared(size, elems) == meets
    assert bool(needs.why_not(elems)) == meets and not needs.why_not(elems, is_held_by_warps=True)


def test_lanes_that_hold_whole_groups_of_two_sizes() -> None:
    assert lanes_of_blocks([96, 64], 8) == 24 and lanes_of_blocks([], 8) == 1
