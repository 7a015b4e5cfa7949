"""Addresses of loops over registers: what is the same in all iterations is added in front of the loop.

Why: the text of an access names its whole index. Where each iteration stores under a condition, or branches, the compiler adds the index up again in each of
them, in 64 bits: a third of the instructions of a tile of 16 rows that is quantized to 4 bits along both axes.
Read first: `Places.around`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..expr import ZERO, Sym, add, floordiv, from_terms, mul, product, terms, variables
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType
from ..lower.kernel_ir import Access, Buffer, Loop, Op, is_host_variable, walk

_INDICES = frozenset(p.value for p in (*BLOCK_TYPES, *GRID_TYPES))


class Places:
    """The pointers of the current loop, by buffer and offset."""

    def __init__(self) -> None:
        self._names: dict[tuple[Buffer, Sym], str] = {}
        self._count = 0

    @contextmanager
    def around(self, writer: Any, loop: Loop, depth: int) -> Iterator[None]:
        """Write the pointers before a loop, and drop them after it; loops inside of a loop with pointers have no separate ones."""
        if self._names or not writer.kernel.keeps_places:
            yield
            return
        self._write_pointers(writer, loop, depth)
        yield
        self._names.clear()

    def _write_pointers(self, writer: Any, loop: Loop, depth: int) -> None:
        for s in walk(loop.body):
            places = [o for o in (*s.outputs, *s.operands) if isinstance(o, Access)] if isinstance(s, Op) else []
            for place in places:
                fixed, moving = _parts(place)
                if place.buffer.memory is MemoryType.global_ and moving is not ZERO and fixed is not ZERO and (place.buffer, fixed) not in self._names:
                    self._count += 1
                    name = self._names[place.buffer, fixed] = f"{place.buffer.name}_at{self._count}"
                    writer.emit(depth, f"auto* const {name} = {place.buffer.name} + ({writer.scalars.index(_in_units(fixed, place.buffer))});")

    def address(self, writer: Any, place: Access) -> str | None:
        """Return the pointer to an element, if the loop has one for it."""
        fixed, moving = _parts(place) if self._names else (ZERO, ZERO)
        name = self._names.get((place.buffer, fixed))
        return None if name is None or moving is ZERO else f"{name} + {writer.scalars.index(_in_units(moving, place.buffer))}"


def _parts(place: Access) -> tuple[Sym, Sym]:
    """Split an index into the part from threads and sizes, and the part from loop indices."""
    fixed: dict[tuple[Sym, ...], int] = {}
    moving: dict[tuple[Sym, ...], int] = {}
    for factors, coefficient in terms(place.index).items():
        is_fixed = all(str(v.payload) in _INDICES or is_host_variable(v) for factor in factors for v in variables(factor))
        (fixed if is_fixed else moving)[factors] = coefficient
    return from_terms(fixed), from_terms(moving)


def _in_units(index: Sym, buffer: Buffer) -> Sym:
    """Return the offset of an element in memory units. For packed types only whole units are accessed, so every step is a multiple of a unit."""
    units = buffer.dtype.elems_per_unit
    if not buffer.dtype.is_packed:
        return index
    out: Sym = ZERO
    for factors, coefficient in terms(index).items():
        sizes = mul(product(f for f in factors if is_host_variable(f)), coefficient)  # the size of one step
        out = add(out, mul(product(f for f in factors if not is_host_variable(f)), floordiv(sizes, units)))
    return out
