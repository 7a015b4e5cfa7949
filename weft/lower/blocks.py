"""Blocks of neighbours along the last axis: which lanes hold one, when one element of it is stored, and where scales in tiles lie.

Owns the checks that a schedule keeps blocks together. Read first: `check_fold`, `sample_index`, `tiled_index`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..analysis.axes import is_row_major
from ..analysis.blocks import WARP_LANES
from ..errors import UserError
from ..expr import TRUE, ZERO, Sym, add, ceildiv, equal, floordiv, from_terms, is_divisible, mod, mul, op, recombine, sub, substitute, terms, var, variables
from ..ir.block_ops import COLUMNS, GROUPED, PADDED, PADDED_COLUMNS, SWIZZLED, BlockFoldOp, BlockSampleOp, GroupFoldOp, sample_shape
from ..ir.enums import ParallelType
from ..ir.values import TensorView
from .indexing import Indexer, linear_element
from .state import BuildState


class SplitBlock(UserError):
    code = "W865"
    what = "{tensor} is folded over blocks of {block} elements, but {reason}"
    fix = "let the innermost loops be [threadIdx.x, vector] over the last axis, with vectors that divide a block or hold whole ones"


def check_fold(state: BuildState, indexer: Indexer, expr: BlockFoldOp, vector_elems: int) -> int:
    """Return the number of neighbouring lanes that hold one block. Errors: SplitBlock if a block is not in one thread or in lanes of one warp."""
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]

    def refuse(reason: str) -> SplitBlock:
        return SplitBlock(tensor=output, block=expr.block, reason=reason)

    loop = output.get_loop_domain()
    if vector_elems > 1 and not is_row_major(output, loop[-1]):
        raise refuse(f"axis {loop[-1]} does not run through neighbours of the last axis")
    if expr.block % vector_elems and vector_elems % expr.block:
        raise refuse(f"vectors of {vector_elems} elements end within a block")
    lanes = expr.block // vector_elems
    element = linear_element(indexer, output)
    threads = [v for v in variables(element) if v.payload == ParallelType.block_x.value]
    if lanes > 1:
        if lanes > WARP_LANES and not isinstance(expr, GroupFoldOp):
            raise refuse(f"it needs {lanes} lanes of {vector_elems} elements, more than a warp has")
        step = sub(substitute(element, {thread: add(thread, 1) for thread in threads}), element)
        if step.is_const and step.value == vector_elems:
            element = substitute(element, dict.fromkeys(threads, ZERO))
        else:
            group, lane = (var("first lane", lower=0), var("lane", extent=lanes))
            apart = _apart(_with_divisors(state, element), {t: _Apart(mul(group, lanes), lane, lanes) for t in threads}, lane)
            if apart is None or apart.small is not mul(lane, vector_elems):
                raise refuse(f"neighbouring lanes do not hold neighbouring elements ({element})")
            element = apart.large
    first = _with_divisors(state, element)
    if not _is_multiple(first, expr.block) and mod(first, expr.block) is not ZERO:
        raise refuse(f"a block may begin in the middle of the lanes ({element})")
    return max(1, lanes)


@dataclass(frozen=True)
class _Apart:
    """An index as large + small, where `unit` divides the first, and the second is less than `unit` in all lanes of a block."""

    large: Sym
    small: Sym
    unit: int


def _is_multiple(index: Sym, n: int) -> bool:
    """True when n provably divides an index, which may have remainders of multiples by multiples."""
    return all(_has_factor(factors, n // math.gcd(coefficient, n)) for factors, coefficient in terms(index).items())


def _has_factor(factors: Iterable[Sym], n: int) -> bool:
    return n == 1 or any(is_divisible(f, n) or f.op == "mod" and all(_is_multiple(arg, n) for arg in f.args) for f in factors)


def _apart(index: Sym, known: Mapping[Sym, _Apart], lane: Sym) -> _Apart | None:
    """Return an index that depends on threads with the lane of a block on its own; None where quotients or remainders part lanes of one block."""
    if index in known:
        return known[index]
    if not variables(index) & set(known):
        return _Apart(index, ZERO, 0)
    parts = [_apart(arg, known, lane) for arg in index.args]
    moved = [part for part in parts if part is not None and part.small is not ZERO]
    if None in parts or len(moved) > 1:
        return None
    whole = op(index.op, [part.large for part in parts if part is not None], index.dtype)
    if not moved:
        return _Apart(recombine(whole), ZERO, 0)
    (part,) = moved
    others = [other.large for other in parts if other is not None and other is not part]
    if index.op == "add" and all(_is_multiple(other, part.unit) for other in others):
        return replace(part, large=functools.reduce(add, others, part.large))
    if index.op == "mul" and all(other.is_const for other in others):
        factor = functools.reduce(lambda a, other: a * int(other.value), others, 1)  # type: ignore[arg-type]
        return _Apart(mul(part.large, factor), mul(part.small, factor), part.unit * factor)
    if index.op in ("mod", "floordiv") and parts[0] is part and _is_multiple(others[0], part.unit):
        return replace(part, large=mod(part.large, others[0])) if index.op == "mod" else _Apart(floordiv(part.large, others[0]), ZERO, 0)
    return None


def _with_divisors(state: BuildState, element: Sym) -> Sym:
    """Return an index with the extents written as multiples of their known divisors."""
    known = {extent: mul(var(f"{extent}/{n}", lower=1), n) for extent, n in state.divisors.items() if not extent.is_const}
    return substitute(element, known) if known else element


def sample_guard(state: BuildState, indexer: Indexer, expr: BlockSampleOp, vector_elems: int) -> Sym:
    """Return the condition that an element, or an element of a vector, is the first of its block. Rows are whole blocks, so their length does not matter."""
    if vector_elems % expr.block == 0:
        return TRUE
    element = _row_major(indexer, expr.outputs[0])  # type: ignore[arg-type]
    place = mod(_with_divisors(state, element), expr.block)
    return equal(place if variables(place) <= variables(element) else mod(element, expr.block), 0)


def sample_index(indexer: Indexer, output: TensorView, sample: BlockSampleOp) -> Sym:
    """Return the address of a block's element in memory. In row-major order this needs no division by the row length, because rows are whole blocks."""
    if sample.layout == SWIZZLED:
        return tiled_index(indexer, output)
    if sample.layout == GROUPED:
        return tiled_index(indexer, output, row_variable(output))
    if sample.layout in PADDED:
        r, c = _places(indexer, output)
        unit = PADDED[sample.layout][1]
        return add(mul(r, mul(ceildiv(sample_shape(output)[1], unit), unit)), c)
    if sample.layout in (COLUMNS, PADDED_COLUMNS):
        r, c = _places(indexer, output)
        return add(mul(c, mul(ceildiv(sample_shape(output)[0], 4), 4)), r)
    return floordiv(_row_major(indexer, output), sample.block)


def _row_major(indexer: Indexer, output: TensorView) -> Sym:
    """The row-major position of the input's element."""
    index: Sym = ZERO
    for axis in output.get_root_domain():
        index = mul(index, axis.sym) + (ZERO if axis.is_broadcast() else indexer.axis_index(axis, output))
    return recombine(index)


def _places(indexer: Indexer, output: TensorView) -> list[Sym]:
    """Row and column of a scale; all axes but the last are rows together."""
    row: Sym = ZERO
    *outer, last = output.get_logical_domain()
    for axis in outer:
        row = add(mul(row, axis.sym), ZERO if axis.is_broadcast() else indexer.axis_index(axis, output))
    return [recombine(row), ZERO if last.is_broadcast() else indexer.axis_index(last, output)]


def row_variable(output: TensorView) -> Sym:
    """The row of tiles in which a scale of a group lies, as a variable that code generation sets before the op."""
    return var(f"row_T{output.name}", lower=0)


def row_of(indexer: Indexer, output: TensorView) -> Sym:
    """Return the row of scales that the enclosing loops compute."""
    return _places(indexer, output)[0]


def tiled_index(indexer: Indexer, output: TensorView, row: Sym | None = None) -> Sym:
    """Return the address of a scale in tiles of 128 rows by 4 columns; row: if it is not the scale's own row. Source: cuBLAS, layout of block scaling
    factors."""
    r, c = _places(indexer, output)
    r = r if row is None else row
    (above, row_within), (before, column_within) = _divided(r, 128), _divided(c, 4)
    (group, line) = _divided(row_within, 32)
    tile = add(mul(above, ceildiv(sample_shape(output)[1], 4)), before)
    return add(mul(tile, 512), add(add(mul(line, 16), mul(group, 4)), column_within))


def _divided(a: Sym, d: int) -> tuple[Sym, Sym]:
    """Return a / d and a % d of an index, d a power of two. (16 * x + y) / 128 is x / 8 for y below 16, so the quotient does not depend on y."""
    unit = d // 2
    while unit > 1:
        whole = {factors: coefficient for factors, coefficient in terms(a).items() if coefficient % unit == 0}
        rest = from_terms({factors: coefficient for factors, coefficient in terms(a).items() if factors not in whole})
        if whole and rest is not ZERO and floordiv(rest, unit) is ZERO:
            high = from_terms({factors: coefficient // unit for factors, coefficient in whole.items()})
            return floordiv(high, d // unit), add(mul(mod(high, d // unit), unit), rest)
        unit //= 2
    return floordiv(a, d), mod(a, d)
