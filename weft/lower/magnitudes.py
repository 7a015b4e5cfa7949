"""Reductions to the largest magnitude: one instruction per element instead of two, and one for up to four 16-bit elements.

Why: what is quantized along columns, too, is bound by instructions, and a maximum of magnitudes took a tenth of them.
Read first: `fold_magnitudes`.
"""

from __future__ import annotations

from ..expr import TRUE, ZERO, Sym, is_divisible, sub, variables
from ..ir.enums import MemoryType
from ..ir.values import Expr, PointwiseOp, ReductionOp
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Buffer, Kernel, Loop, MagnitudeFold, Nest, Op, Statement, walk
from .repack import PACKED
from .state import BuildState


@lowering_pass(before=["block syncs", "grouped predicates"])
def fold_magnitudes(kernel: Kernel, state: BuildState) -> Kernel:
    """Fuse the absolute value into a maximum of magnitudes; for a vector of 16-bit floats, keep the maxima in an array of that type.

    Before: one op computes the magnitude of an element, another one folds it into this thread's maximum.   After: a `MagnitudeFold` does both, and starts with
    0.
    Here because: predicates still hang on ops, and there are no ops at the ends of rows yet.
    """
    magnitudes = _magnitudes(kernel.body) if state.peel is None or state.peel.phase is None else {}
    if magnitudes:
        folds = _Folds(kernel.body, magnitudes)
        kernel.body = folds.in_body(kernel.body)
    return kernel


def _magnitudes(body: list[Statement]) -> dict[Op, Op]:
    """Return fold -> the op that computes its magnitude, for maxima in registers that nothing else is folded into."""
    ops = [s for s in walk(body) if isinstance(s, Op)]
    made = {o.buffer: s for s in ops for o in s.outputs}
    read = [o.buffer for s in ops for o in s.operands if isinstance(o, Access)]
    found: dict[Op, Op] = {}
    for s in ops:
        source = s.operands[-1] if s.operands else ZERO
        by = made.get(source.buffer) if isinstance(source, Access) else None
        is_fold = type(s) is Op and isinstance(s.expr, ReductionOp) and s.expr.attributes["kind"] == "max" and s.outputs[0].buffer.fill == "max"
        if is_fold and s.vector_elems == 1 and by is not None and _is(by.expr, "magnitude") and by.vector_elems == 1 and read.count(by.outputs[0].buffer) == 1:
            found[s] = by
    other = {o.buffer for s in ops for o in s.outputs if s not in found}
    return {s: by for s, by in found.items() if s.outputs[0].buffer.memory is MemoryType.local and s.outputs[0].buffer not in other}


def _is(expr: Expr, name: str) -> bool:
    return isinstance(expr, PointwiseOp) and expr.op_name == name


class _Folds:
    """magnitudes: see `_magnitudes`. pairs: maxima -> the array of 16-bit floats that replaces them within loops."""

    def __init__(self, body: list[Statement], magnitudes: dict[Op, Op]) -> None:
        self.magnitudes = magnitudes
        self.casts = {o.buffer: s for s in walk(body) if isinstance(s, Op) and _is(s.expr, "cast") and s.vector_elems == 1 for o in s.outputs}
        self.maxima = {s.outputs[0].buffer for s in magnitudes}
        self.gone = {by.outputs[0].buffer for by in magnitudes.values()}
        self.pairs: dict[Buffer, Buffer] = {}

    def in_body(self, body: list[Statement]) -> list[Statement]:
        """Return a body with its folds replaced."""
        out: list[Statement] = []
        for s in body:
            if isinstance(s, Nest):
                if isinstance(s, Loop):
                    out += self.of_vector(s)
                s.body = self.in_body(s.body)
            if isinstance(s, Op) and s in self.magnitudes:
                s = MagnitudeFold(s.expr, s.outputs, [self.magnitudes[s].operands[0]], s.predicate)
            is_gone = isinstance(s, Allocate) and s.buffer in self.gone or isinstance(s, Op) and s.outputs[0].buffer in self.gone
            out += [] if is_gone else [s]
        for total in [s.buffer for s in body if isinstance(s, Allocate) and s.buffer in self.maxima]:
            total.fill = "sum"  # zeros
            if total in self.pairs:
                out = _with_pairs(out, total, self.pairs[total])
        return out

    def of_vector(self, loop: Loop) -> list[Statement]:
        """Move folds of neighbouring 16-bit floats out of a loop; return the statements that do them at once."""
        out: list[Statement] = []
        for s in [s for s in loop.body if isinstance(s, Op) and s in self.magnitudes]:
            source = self.neighbours(self.magnitudes[s], loop.index)
            total, place = s.outputs[0].buffer, s.outputs[0].index
            is_whole = loop.start is ZERO and loop.extent.is_const and is_divisible(loop.extent, 2) and place is loop.index and total.elems is loop.extent
            if source is None or not is_whole or loop.index in variables(s.predicate):
                continue
            pairs = self.pairs.setdefault(total, Buffer(f"{total.name}_pairs", source.buffer.dtype, MemoryType.local, total.elems, total.tensor, fill="sum"))
            out.append(MagnitudeFold(s.expr, [Access(pairs, ZERO)], [source], s.predicate, vector_elems=loop.extent.value))  # type: ignore[arg-type]
            loop.body.remove(s)
        return out

    def neighbours(self, magnitude: Op, index: Sym) -> Access | None:
        """Return the first of the 16-bit floats whose magnitudes a loop folds, if they are neighbours in an array in registers."""
        operand = magnitude.operands[0]
        cast = self.casts.get(operand.buffer) if isinstance(operand, Access) else None
        read = cast.operands[0] if cast is not None else None
        if not isinstance(read, Access) or read.buffer.memory is not MemoryType.local or read.buffer.dtype not in PACKED:
            return None
        first = sub(read.index, index)
        return Access(read.buffer, first) if index not in variables(first) else None


def _with_pairs(body: list[Statement], total: Buffer, pairs: Buffer) -> list[Statement]:
    """Declare an array of pairs beside the maxima that it replaces; it is folded into them after the last statement that writes it."""
    folds = [(at, t) for at, s in enumerate(body) for t in walk([s]) if isinstance(t, MagnitudeFold) and t.outputs[0].buffer is pairs]
    begin = next(at for at, s in enumerate(body) if isinstance(s, Allocate) and s.buffer is total)
    last, fold = folds[-1]
    taken = MagnitudeFold(fold.expr, [Access(total, ZERO)], [Access(pairs, ZERO)], TRUE, vector_elems=fold.vector_elems)
    return [*body[: begin + 1], Allocate(pairs), *body[begin + 1 : last + 1], taken, *body[last + 1 :]]
