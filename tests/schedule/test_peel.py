"""What is known of rows that are cut into shares, parts and threads: by trying every vector of every thread."""

from __future__ import annotations

import itertools

from weft.schedule.peel import fill_of_parts


def tried(vectors: int, batches: int, part: int, threads: int, share: int) -> str:
    """Vector `t` of part `b` of share `s` is s * share + b * part + t; threads beyond a part or a share have none."""
    shares = -(-vectors // share)

    def exist(parts: int) -> bool:
        return all(b * part + t < share and s * share + b * part + t < vectors for s in range(shares) for b in range(parts) for t in range(threads))

    if exist(batches) and threads == part:
        return "whole"
    return "leading" if batches > 1 and exist(batches - 1) else "partial"


def test_every_small_row() -> None:
    seen = set()
    for batches, part, extra, share_less, vectors in itertools.product(range(1, 5), range(1, 5), (0, 1, 2), (0, 1, 2), range(1, 25)):
        share = batches * part - share_less
        if share <= (batches - 1) * part:
            continue
        found = fill_of_parts(vectors, batches, part, part + extra, share)
        assert found == tried(vectors, batches, part, part + extra, share), (vectors, batches, part, part + extra, share)
        seen.add(found)
    assert seen == {"whole", "leading", "partial"}
