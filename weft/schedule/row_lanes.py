"""Vector loads of unaligned rows: lanes of a warp load aligned vectors and exchange the elements that lie in two of them (device/row_vectors.cuh).

Read first: `load_rows_by_lanes`.
"""

from __future__ import annotations

from ..ir.values import TensorView

LEAST_BYTES = 4
"""The least bytes of a vector that is loaded in this way: a word."""


def load_rows_by_lanes(tensor: TensorView, lanes: int) -> None:
    """Make the vectorized load of `tensor` into shared memory one of rows that begin anywhere. For schedulers: `lanes` neighbours along TIDx, a power of two up
    to a warp, have neighbouring vectors of one row, which is contiguous in memory; all threads of the block must execute it. The row may end anywhere; values
    beyond its end are undefined.
    """
    tensor.definition().attributes["row_lanes"] = lanes  # type: ignore[union-attr]


__all__ = ["LEAST_BYTES", "load_rows_by_lanes"]
