"""What folds over blocks of neighbours ask of vectors and lanes."""

from __future__ import annotations

import pytest

from weft.analysis.blocks import BlockNeeds


@pytest.mark.parametrize(
    ("largest", "least", "lanes"),
    [(0, 1, {1: 1, 8: 1}), (16, 1, {1: 16, 4: 4, 16: 1, 32: 1}), (32, 1, {1: 32, 8: 4}), (64, 2, {2: 32, 4: 16}), (128, 4, {4: 32, 16: 8})],
)
def test_a_block_is_in_a_thread_or_in_lanes_of_one_warp(largest: int, least: int, lanes: dict[int, int]) -> None:
    needs = BlockNeeds(largest, largest)
    assert needs.least_vector_elems == least
    assert {elems: needs.lanes(elems) for elems in lanes} == lanes
    assert needs.why_not(least) == "" and all(needs.why_not(elems) == "" for elems in lanes)
    if least > 1:
        assert "more than a warp has" in needs.why_not(least // 2)
    assert BlockNeeds(largest, largest, "as the test says").why_not(16) == "as the test says"
