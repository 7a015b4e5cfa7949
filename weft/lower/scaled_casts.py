"""Fuses a product with a factor per quantization block and the cast to 4-bit floats into one statement.

Why: such casts are bound by instructions, and their routine needs each number times a power of two, which is free where it is part of the factor.
Read first: `join_factors`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import ZERO, Sym, add, sub, substitute, variables
from ..ir.enums import MemoryType
from ..ir.values import PointwiseOp
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Buffer, Kernel, Loop, Nest, Op, ScaledCast, Statement, walk
from .state import BuildState

LEAST_ELEMS = 8
"""The device function encodes words of eight codes."""


@lowering_pass(needs=["grouped predicates"])
def join_factors(kernel: Kernel, state: BuildState) -> Kernel:
    """Fuse the cast of a vector to 4-bit floats with the product before it, if one factor is the same for the whole vector.

    Before: a loop multiplies the elements of a vector, possibly after a cast to Float, and only a cast to 4 bits reads the products.
    After: a `ScaledCast` does both.   Here because: statements with one predicate are in one body, and every op that reads a product is known.
    """
    ops = [s for s in walk(kernel.body) if isinstance(s, Op)]
    casts = {s: source.buffer for s in ops if (source := _packed_cast(s)) is not None}
    if casts:
        touched = [place.buffer for s in ops for place in (*s.outputs, *s.operands) if isinstance(place, Access)]
        of_casts = list(casts.values())  # a nest that is generated twice contains each cast, and what it reads, twice
        _join(kernel.body, {s: buffer for s, buffer in casts.items() if touched.count(buffer) == 2 * of_casts.count(buffer)})
    return kernel


def _packed_cast(s: Op) -> Access | None:
    """Return the operand of a cast to 4 bits, a vector of Floats in registers; None for another op."""
    if type(s) is not Op or not isinstance(s.expr, PointwiseOp) or s.expr.op_name != "cast" or s.vector_elems % LEAST_ELEMS:
        return None
    source = s.operands[0]
    if s.outputs[0].buffer.dtype is not DataType.Float4_e2m1fn or not isinstance(source, Access):
        return None
    return source if source.buffer.memory is MemoryType.local and source.buffer.dtype is DataType.Float else None


def _join(body: list[Statement], casts: dict[Op, Buffer]) -> None:
    """Replace the casts of a body (`casts`: each with the buffer that only it reads), and the loops that fill these buffers."""
    loops: dict[Buffer, Loop] = {}
    for s in body:
        if isinstance(s, Loop) and s.body and isinstance(last := s.body[-1], Op):
            loops[last.outputs[0].buffer] = s
    gone: set[Loop | Buffer] = set()
    for number, s in enumerate(body):
        if isinstance(s, Nest):
            _join(s.body, casts)
        elif isinstance(s, Op) and s in casts and casts[s] in loops:
            loop = loops[casts[s]]
            product = _product(loop, s)
            if product is not None:
                *operands, step = product
                body[number] = ScaledCast(s.expr, s.outputs, operands, vector_elems=s.vector_elems, step=step)
                gone |= {loop, casts[s]}
    body[:] = [s for s in body if not (isinstance(s, Loop) and s in gone or isinstance(s, Allocate) and s.buffer in gone)]


def _product(loop: Loop, cast: Op) -> tuple[Access, Access | Sym, int] | None:
    """Return the elements, the factor and the distance of the elements of a loop that only computes the products for a cast; None for other loops."""
    *before, last = [s for s in loop.body if not isinstance(s, Allocate)]
    read = _packed_cast(cast)
    extent = loop.extent.value if loop.extent.is_const else 0
    if type(last) is not Op or not isinstance(last.expr, PointwiseOp) or last.expr.op_name != "mul" or last.vector_elems != 1 or read is None:
        return None
    if loop.start is not ZERO or extent != cast.vector_elems or last.outputs[0].index is not add(read.index, loop.index):
        return None
    made = {s.outputs[0].buffer: s.operands[0] for s in before if type(s) is Op and isinstance(s.expr, PointwiseOp) and s.expr.op_name == "cast"}
    if len(made) < len(before) or len(made) > 1:
        return None
    for element, factor in (last.operands, last.operands[::-1]):
        taken = made.get(element.buffer, element) if isinstance(element, Access) else element
        if _is_fixed(factor, loop, made) and isinstance(taken, Access) and (not made or taken is not element):
            step = sub(substitute(taken.index, {loop.index: add(loop.index, 1)}), taken.index)
            first = substitute(taken.index, {loop.index: ZERO})
            is_wide = taken.buffer.dtype.is_float and not taken.buffer.dtype.is_narrow_float
            if taken.buffer.memory is MemoryType.local and is_wide and step.is_const and step.value >= 1:  # type: ignore[operator]
                return Access(taken.buffer, first), factor, step.value  # type: ignore[return-value]
    return None


def _is_fixed(factor: Access | Sym, loop: Loop, made: dict[Buffer, Access | Sym]) -> bool:
    """True for a Float that is the same in all iterations."""
    if not isinstance(factor, Access):
        return loop.index not in variables(factor)
    is_local = factor.buffer.memory is MemoryType.local and factor.buffer.dtype is DataType.Float
    return is_local and factor.buffer not in made and loop.index not in variables(factor.index)
