"""Vector loads of unaligned rows: lanes of a warp load aligned vectors and exchange the elements that lie in two of them (device/row_vectors.cuh).

Read first: `load_rows_by_lanes`.
"""

from __future__ import annotations

from ..ir.values import TensorView

LEAST_BYTES = 4
"""Of a vector that is loaded so: a word."""


def load_rows_by_lanes(tensor: TensorView, lanes: int) -> None:
    """Let the load that brings `tensor` to shared memory, in vectors, be one of rows that begin anywhere.

    For schedulers: `lanes` neighbours along TIDx, a power of two up to a warp, have neighbouring vectors of one row, which lies contiguously in memory; all
    threads of the block come there. The row may end anywhere; what is beyond its end has any value.
    """
    tensor.definition().attributes["row_lanes"] = lanes  # type: ignore[union-attr]


__all__ = ["LEAST_BYTES", "load_rows_by_lanes"]
