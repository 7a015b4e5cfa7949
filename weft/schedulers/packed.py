"""Types with several elements per byte: a schedule must let one thread write each whole byte.

Owns the fewest elements of a vector, how wide it is beside narrow floats, and the reason to decline. Reads of single elements are always possible.
Read first: `why_not_vectors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..analysis.blocks import BlockNeeds
from ..analysis.vectorization import MAX_VECTOR_BITS, VectorLimits
from ..dtypes import DataType
from ..ir.block_ops import sample_of
from ..ir.values import TensorView
from .base import Decline

NARROW_ACCESS_BITS = 64
"""Bits of the narrowest tensor that a thread should move at once, if wider inputs then take at most two accesses. Not so for wider outputs, whose two
stores of 16 bytes each would leave half of every sector to the other. Measured: docs/constants.md."""
MOST_THREAD_BITS = 2 * MAX_VECTOR_BITS


def min_vector_elems(outputs: Iterable[TensorView]) -> int:
    """Fewest elements with which every output fills whole bytes: 2 if one has 4 bits."""
    return max([1, *(t.dtype().elems_per_unit for t in outputs)])


def thread_vector_bits(
    tensors: Sequence[TensorView], outputs: Sequence[TensorView], block_elems: int = 0, access_bits: int = MAX_VECTOR_BITS
) -> int:  # fmt: skip
    """Bits of the widest of `tensors` that a thread accesses at once: one access, or two of inputs if 8- or 4-bit tensors would otherwise move in small pieces.
    block_elems: elements per scale; every thread of a block computes the scale, so with more elements per thread it is computed less often. access_bits: of the
    widest access, also for outputs.
    """
    narrow = [t.dtype().bits for t in tensors if t.dtype().is_narrow_float]
    if not narrow:
        return MAX_VECTOR_BITS
    widest = max(t.dtype().bits for t in tensors)
    is_stored = any(t.dtype().bits == widest and any(t is o for o in outputs) for t in tensors)
    bits, most = MAX_VECTOR_BITS, access_bits if is_stored else MOST_THREAD_BITS
    while (bits // widest * min(narrow) < NARROW_ACCESS_BITS or bits // widest < block_elems) and bits < most:
        bits *= 2
    return bits


def why_not_vectors(
    outputs: Iterable[TensorView], limits: VectorLimits, limit_elems: int, blocks: BlockNeeds, chosen_elems: int, *, is_held_by_warps: bool = False
) -> Decline | None:  # fmt: skip
    """Return why a packed output cannot be written in whole bytes, or a block cannot be in one thread, with vectors of `chosen_elems` along the loops of
    `limits`.

    limit_elems: the widest vector that sizes, strides and alignments allow. is_held_by_warps: see `BlockNeeds.why_not`.
    """
    obstacle = blocks.why_not(chosen_elems, is_held_by_warps=is_held_by_warps)
    if obstacle:
        return Decline(obstacle)
    if limit_elems < blocks.least_vector_elems:
        least = blocks.least_vector_elems
        return Decline(f"a block of {blocks.largest} elements needs vectors of {least}, but sizes, strides or alignments allow only {limit_elems}")
    for tensor in outputs:
        unit = tensor.dtype().elems_per_unit
        if unit == 1:
            continue
        if sample_of(tensor) is not None or not any(tensor is t for t in limits.vectorizable):
            return Decline(f"{tensor} is written one element at a time, but {unit} elements of {_name(tensor.dtype())} share a byte")
        if limit_elems < unit:
            return Decline(f"{tensor} of {_name(tensor.dtype())} needs vectors of {unit}, but sizes, strides or alignments allow only {limit_elems}")
    return None


def _name(dtype: DataType) -> str:
    return dtype.name
