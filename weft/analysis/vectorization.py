"""The widest vector access that every tensor of a fusion allows along the innermost loops.

Owns the limit from extents, alignment and strides. How wide a scheduler then goes is its own choice.
Read first: `VectorLimits.limit_elems`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..dtypes import DataType
from ..expr import Sym, evaluate_int
from ..ir.graph_ops import BagOp, ScatterStoreOp
from ..ir.values import TensorView
from .contiguity import inner_run, own_run, scattered_run, strided_positions
from .lookups import Piece, in_memory, lookup_of
from .loop_axes import LoopAxes

MAX_VECTOR_BITS = 128
"""Widest access of one thread that every chip has (CUDA C++ Programming Guide, device memory accesses); `Arch.max_access_bits` is that of a chip."""

SHIFTED_WORD_BITS = 32
"""Words in which vectors that begin anywhere are read (device/shifted.cuh)."""


def largest_power_of_two_divisor(value: int) -> int:
    """Return the largest power of two that divides `value`; for 0, which is divisible by all, a large one."""
    return value & -value if value else 1 << 62


def access_bits(tensor: TensorView) -> int:
    """Return the bits of an element of the widest accesses to a tensor in memory: of what is looked up, or of what is written. The rows of a bag are read in as
    many accesses as a vector takes, whose elements may be wider than the terms."""
    if not isinstance(tensor.definition(), BagOp) or tensor.is_fusion_output:
        return tensor.dtype().bits
    return min(tensor.dtype().bits, NARROWEST_TERM_BITS)


def is_scattered(tensor: TensorView) -> bool:
    return isinstance(tensor.definition(), ScatterStoreOp)


def _scattered_bits(tensor: TensorView, atomic_bits: int) -> int:
    """Return the widest vector that is scattered: any that replaces what is there; of what is combined only floats that are added, as atomic instructions on
    vectors have no other type of 32 bits (PTX ISA, red)."""
    kind = tensor.definition().attributes["kind"]  # type: ignore[union-attr]
    if kind == "set":
        return MAX_VECTOR_BITS
    return atomic_bits if kind == "sum" and tensor.dtype() is DataType.Float else 0


NARROWEST_TERM_BITS = 16
"""Of the types whose bags are summed."""


class VectorLimits:
    """Vector accesses of `tensors` (inputs and outputs) along the loop order `order`, for every break position.

    vectorizable: tensors whose neighbouring elements the innermost loop visits. The others are read element by element, or once for a whole vector if they lack
    the axis, and are no limit. phased: tensors that the loops traverse completely without a gap, so that all have the same alignment at the same position.
    """

    def __init__(self, axes: LoopAxes, order: Sequence[int], tensors: Iterable[TensorView]) -> None:
        self.axes, self.order = axes, tuple(order)
        self._runs: dict[TensorView, tuple[tuple[int, Piece], ...]] = {}
        for tensor in tensors:
            run = scattered_run(tensor, order, axes) if is_scattered(tensor) else inner_run(tensor, order, axes)
            if run and not tensor.is_cpu_scalar:
                self._runs[tensor] = run
        self._strided = {t: strided_positions(t) for t in self._runs}
        self._stored = {t: own_run(t, order, axes) for t in self._runs if t.is_fusion_output and lookup_of(t) is not None}
        self._scattered = [t for t in self._runs if is_scattered(t)]
        self.phased = [t for t, run in self._runs.items() if len(run) == len(self.order) and self._is_at_own_place(t)]

    @staticmethod
    def _is_at_own_place(tensor: TensorView) -> bool:
        return lookup_of(tensor) is None and not is_scattered(tensor)

    @property
    def vectorizable(self) -> list[TensorView]:
        return list(self._runs)

    def in_vectors(self, position: int, is_phased: bool) -> list[TensorView]:
        """Return the tensors that are accessed in vectors. With a phase, these are whole rows, and outputs with aligned vectors. position: number of loops
        outside of a row.
        """
        if not is_phased:
            return self.vectorizable
        return [t for t in (*self.phased, *self.shifted(position)) if t.is_fusion_input or t in self.phased]

    def without(self, tensors: Iterable[TensorView]) -> VectorLimits:
        """Return the limits of the other tensors."""
        left = set(self._runs).difference(tensors)
        return VectorLimits(self.axes, self.order, [t for t in self._runs if t in left])

    def only(self, tensor: TensorView) -> VectorLimits:
        """Return the limits of one tensor."""
        return VectorLimits(self.axes, self.order, [tensor])

    def limit_elems(
        self, position: int, env: Mapping[Sym, int], alignment_bits: Mapping[int, int], max_vector_bits: int = MAX_VECTOR_BITS, atomic_bits: int = 0
    ) -> int:  # fmt: skip
        """Return the widest legal vector, a power of two of elements, if the loops from `position` on are merged; 1 if there are none.

        The vector fits `max_vector_bits` for the widest vectorizable type, divides each tensor's contiguous run (stopping at `position`), and keeps
        every access aligned. `alignment_bits`: per input name, the alignment of its first element; tensors that are not named are fully aligned.
        `atomic_bits`: of the widest vector that one instruction adds atomically. Other rows that are scattered are written element by element, by neighbouring
        threads: lanes of a warp then write to the same part of memory.
        """
        if position >= len(self.order) or not self._runs:
            return 1
        limit = largest_power_of_two_divisor(max_vector_bits)
        for tensor, run in self._runs.items():
            bits, memory = access_bits(tensor), in_memory(tensor)
            aligned = _aligned_bits(alignment_bits, memory, max_vector_bits)
            limit = min(
                limit,
                max(1, max_vector_bits // bits),
                max(1, aligned // (bits if aligned >= MAX_VECTOR_BITS else memory.dtype().bits)),
                largest_power_of_two_divisor(_run_elems(run, position, env)),
            )
            if tensor in self._scattered:
                limit = min(limit, max(1, _scattered_bits(tensor, atomic_bits) // bits))
            if tensor in self._stored:  # it has two places in memory: where it is looked up, and where it is written
                limit = min(limit, largest_power_of_two_divisor(_run_elems(self._stored[tensor], position, env)))
            for index in self._strided[tensor]:
                if _value(memory.domain().maybe_allocation[index].sym, env) > 1:
                    limit = min(limit, largest_power_of_two_divisor(_stride(memory, index, env)))
        return 1 << (limit.bit_length() - 1)

    def access_bits(self, alignment_bits: Mapping[int, int], max_access_bits: int) -> int:
        """Return the widest access for which the first elements of all tensors of the widest type are aligned: the chip's widest, or 128 bits."""
        widest = max(map(access_bits, self._runs), default=0)
        starts = [alignment_bits.get(in_memory(t).name, max_access_bits) for t in self._runs if access_bits(t) == widest]
        return max_access_bits if all(bits % max_access_bits == 0 for bits in starts) else MAX_VECTOR_BITS

    def shifted(self, position: int) -> list[TensorView]:
        """Return the tensors other than the phased ones that are contiguous along all loops from `position` on, so that every vector is inside."""
        return [t for t, run in self._runs.items() if t not in self.phased and self._is_at_own_place(t) and len(run) >= len(self.order) - position]

    def anywhere(self, position: int) -> list[TensorView]:
        """Return the tensors that are contiguous in memory along all loops from `position` on: vectors along these may begin at any of their elements."""
        return [t for t, run in self._runs.items() if self._is_at_own_place(t) and len(run) >= len(self.order) - position]

    def can_begin_anywhere(self, position: int, alignment_bits: Mapping[int, int]) -> bool:
        """True if all vectors from `position` on may begin anywhere, and this is faster: floats of 16 bits, two in a word."""
        found = self.anywhere(position)
        is_fast = all(t.dtype().is_reduced_float and t.dtype().bits == 16 for t in found)
        return bool(found) and len(found) == len(self._runs) and is_fast and all(alignment_bits.get(t.name, 128) % SHIFTED_WORD_BITS == 0 for t in found)

    def tailed_limit_elems(self, position: int, env: Mapping[Sym, int], alignment_bits: Mapping[int, int], max_vector_bits: int = MAX_VECTOR_BITS) -> int:
        """Return the widest vector at which all rows (the loops from `position` on) begin, whatever remains after the last whole one of a row. 1 if a tensor
        has a gap inside its rows, or packs several elements into a byte. A lookup that is written unchanged has two places in memory: rows of the source and of
        the result must begin at a vector.
        """
        if self._scattered or any(t.dtype().is_packed for t in self._runs):
            return 1
        limit = max_vector_bits
        for tensor, run in self._runs.items():
            row = [piece for at, piece in run if at >= position]
            if len(row) < len(self.order) - position:
                return 1
            memory, lookup = in_memory(tensor), lookup_of(tensor)
            elems = min(max_vector_bits, largest_power_of_two_divisor(alignment_bits.get(memory.name, max_vector_bits))) // tensor.dtype().bits
            starts = [*_steps(memory, len(row), env)]
            if lookup is not None and tensor.is_fusion_output:
                starts += _steps(tensor, len(row), env)
            if lookup is not None and not row[-1].is_whole:
                inner = math.prod(_value(piece.extents[0], env) for piece in row[:-1])
                starts += [inner * _value(sym, env) for sym in row[-1].extents[1 if lookup.is_masked else 2 :]]
            limit = min(limit, max(1, elems), *map(largest_power_of_two_divisor, starts))
        return limit

    def phased_limit_elems(self, position: int, alignment_bits: Mapping[int, int], max_vector_bits: int = MAX_VECTOR_BITS) -> int:
        """Return the widest vector for rows (the loops from `position` on) if vectors need not begin at a row's start; 1 if there is none. Tensors that every
        row reads from their start (weights) are then read in words of 32 bits, and must begin at one. A tensor with a different row stride has other phases
        than the rest, and so has a rolled one, so there is no such vector.
        """
        if not self.phased or self._scattered or any(self._strided.values()) or any(t.dtype().is_packed or t.domain().rolled for t in self._runs):
            return 1
        if any(alignment_bits.get(t.name, max_vector_bits) % SHIFTED_WORD_BITS for t in self.shifted(position)):
            return 1
        widest = max(t.dtype().bits for t in self.phased)
        aligned = min(largest_power_of_two_divisor(alignment_bits.get(t.name, max_vector_bits)) for t in self.phased)
        return max(1, min(max_vector_bits, aligned) // widest)


def _run_elems(run: Sequence[tuple[int, Piece]], position: int, env: Mapping[Sym, int]) -> int:
    """Return a number of elements whose divisors are the vectors that stay within the loops of a run from `position` on."""
    elems = 1
    for at, piece in run:
        if at < position:
            break
        elems *= math.gcd(*(_value(extent, env) for extent in piece.extents))
    return elems


def _steps(memory: TensorView, inside: int, env: Mapping[Sym, int]) -> Iterator[int]:
    """Yield the strides in elements of the axes of a tensor in memory, without the `inside` innermost."""
    domain, step = memory.domain(), 1
    axes = [n for n, a in enumerate(domain.maybe_allocation) if not a.is_broadcast() and not a.is_reduction()]
    for done, index in enumerate(reversed(axes)):
        if not domain.contiguity[index]:
            step = _stride(memory, index, env)
        if done >= inside:
            yield step
        step *= _value(domain.maybe_allocation[index].sym, env)


def _aligned_bits(alignment_bits: Mapping[int, int], tensor: TensorView, max_vector_bits: int) -> int:
    """Bits of a vector that the alignment of the first element allows; vectors wider than one access consist of several."""
    aligned = largest_power_of_two_divisor(alignment_bits.get(tensor.name, max_vector_bits))
    return max_vector_bits if aligned >= MAX_VECTOR_BITS else aligned


def _value(sym: Sym, env: Mapping[Sym, int]) -> int:
    return sym.payload if sym.is_const else evaluate_int(sym, env)  # type: ignore[return-value]


def _stride(tensor: TensorView, index: int, env: Mapping[Sym, int]) -> int:
    """The run-time stride in elements; 1 (no vector is safe) when `env` does not have it."""
    return int(env.get(tensor.stride_var(index), 1))
