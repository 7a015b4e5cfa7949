"""Places of small tensors in the memory that the kernels of one call share."""

from __future__ import annotations

import random

from weft.runtime.edge_memory import ALIGNMENT_BYTES, LARGEST_BYTES, MOST_BYTES, EdgeMemory


def test_a_chain_takes_two_places() -> None:
    edges = EdgeMemory()
    for number in range(50):
        assert edges.take(number, 1000) is not None
        assert edges.give_back([number - 1]) == (number > 0)
    assert edges.most_bytes == 2 * 1024


def test_places_in_use_never_overlap_and_are_aligned() -> None:
    for seed in range(30):
        rng, edges = random.Random(seed), EdgeMemory()
        held: dict[int, tuple[int, int]] = {}
        for number in range(200):
            size = rng.choice([0, 1, 511, 512, 513, 40_000])
            offset = edges.take(number, size)
            assert offset is not None and offset % ALIGNMENT_BYTES == 0 and offset + size <= edges.most_bytes
            assert all(offset + max(size, 1) <= start or end <= offset for start, end in held.values())
            held[number] = (offset, offset + max(size, 1))
            for dead in [n for n in held if rng.random() < 0.3]:
                assert edges.give_back([dead])
                del held[dead]
        assert edges.most_bytes < 200 * 41_000 // 4


def test_large_tensors_get_no_place() -> None:
    edges = EdgeMemory()
    assert edges.take("large", LARGEST_BYTES + 1) is None and edges.most_bytes == 0
    places = [edges.take(n, LARGEST_BYTES) for n in range(MOST_BYTES // LARGEST_BYTES + 1)]
    assert places[-1] is None and None not in places[:-1]
    assert not edges.give_back(["large"])
