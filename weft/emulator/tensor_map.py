"""Tensor maps as the emulator reads them (WeftTensorMap in abi.h); the driver's cuTensorMapEncodeTiled makes the GPU's.

Read first: `encode_tensor_map`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft.errors import UserError

MAGIC = 0x77656674
MAX_RANK, MAX_BOX_ELEMS, BOX_ROW_ALIGN_BYTES = 5, 256, 16


class BadTensorMap(UserError):
    code = "W425"
    what = "bad tensor map: {problem}"
    fix = "see the rules of cuTensorMapEncodeTiled in the CUDA driver API"


def encode_tensor_map(
    address: int,
    extents_elems: Sequence[int],
    strides_bytes: Sequence[int],
    box_elems: Sequence[int],
    element_bytes: int,
    *,
    swizzle_bytes: int = 0,
    fill_nan: bool = False,
) -> bytes:
    """Return 128 bytes for a `Scalar("tensor_map", ...)`.

    Dimension 0 is contiguous; `strides_bytes` has one entry per further dimension, as for cuTensorMapEncodeTiled.
    Errors: BadTensorMap for arguments that the driver would refuse.
    """
    rank = len(extents_elems)
    row_bytes = box_elems[0] * element_bytes if box_elems else 0
    problems = [
        (not 1 <= rank <= MAX_RANK, f"rank {rank} is not 1 to {MAX_RANK}"),
        (len(box_elems) != rank or len(strides_bytes) != rank - 1, f"{len(box_elems)} box extents and {len(strides_bytes)} strides for rank {rank}"),
        (address % 16 != 0, f"address 0x{address:x} is not a multiple of 16"),
        (any(s % 16 for s in strides_bytes), f"strides {tuple(strides_bytes)} are not multiples of 16 bytes"),
        (any(not 1 <= b <= MAX_BOX_ELEMS for b in box_elems), f"box {tuple(box_elems)} is not within 1 to {MAX_BOX_ELEMS}"),
        (row_bytes % BOX_ROW_ALIGN_BYTES != 0, f"a row of the box has {row_bytes} bytes, not a multiple of {BOX_ROW_ALIGN_BYTES}"),
        (swizzle_bytes not in (0, 32, 64, 128), f"swizzle of {swizzle_bytes} bytes"),
        (bool(swizzle_bytes) and row_bytes > swizzle_bytes, f"a row of the box has {row_bytes} bytes, more than the swizzle's {swizzle_bytes}"),
    ]
    for wrong, problem in problems:
        if wrong:
            raise BadTensorMap(problem=problem)

    def padded(values: Sequence[int]) -> list[int]:
        return [*values, *[1] * (MAX_RANK - len(values))]

    strides = padded([element_bytes, *strides_bytes])
    tail = (rank, element_bytes, swizzle_bytes, MAGIC, int(fill_nan), 0)
    return struct.pack("<Q5Q5I5I6I", address, *strides, *padded(extents_elems), *padded(box_elems), *tail).ljust(128, b"\0")


def at_address(encoded: bytes, address: int) -> bytes:
    """Return the map of a tensor that begins at `address`. Errors: BadTensorMap."""
    if address % 16:
        raise BadTensorMap(problem=f"address 0x{address:x} is not a multiple of 16")
    return struct.pack("<Q", address) + encoded[8:]
