"""Computes values that depend only on an element's quantization block once per block instead of once per element.

Why: a scale, its division and its conversion are the same for all elements of a block in a thread, and the compiler does not see that where the text of one
element branches, or has assembly in it. Counted: docs/constants.md.
Read first: `compute_once_per_block`.
"""

from __future__ import annotations

from dataclasses import replace

from ..expr import ZERO, Sym, add, const, floordiv, is_divisible, mul, substitute, var, variables
from ..ir.block_ops import BlockHadamardOp, BlockSampleOp
from ..ir.enums import MemoryType
from ..ir.values import PointwiseOp
from .state import BuildState
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, BlockFold, Buffer, Kernel, Loop, Nest, Op, Statement, copied, walk


@lowering_pass(before=["block syncs", "grouped predicates"])
def compute_once_per_block(kernel: Kernel, state: BuildState) -> Kernel:
    """Split loops over a thread's vector in two: values that are equal within a quantization block, once per block, then the rest, per element.

    Before: a reduction over blocks gives each element of its vector the block's result.   After: a value that depends only on these results is computed once
    per block.   Here because: predicates still hang on ops, so that statements move with theirs.
    """
    made = [s for s in walk(kernel.body) if isinstance(s, BlockFold) and not isinstance(s.expr, BlockHadamardOp)]
    folds = {s.outputs[0].buffer: min(s.vector_elems, s.expr.attributes["block"]) for s in made}
    if folds:
        kernel.body = _split(kernel.body, folds)
    return kernel


def _split(body: list[Statement], folds: dict[Buffer, int]) -> list[Statement]:
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Nest):
            s.body = _split(s.body, folds)
        out += _Splitter(s, folds).split() if isinstance(s, Loop) else [s]
    return out


class _Splitter:
    """One loop over a vector. uniform: scalar of its body -> number of neighbours in which it is equal, with the statement that computes it."""

    def __init__(self, loop: Loop, folds: dict[Buffer, int]) -> None:
        self.loop, self.folds = loop, folds
        self.local = {s.buffer for s in loop.body if isinstance(s, Allocate)}
        self.written = {o.buffer for s in loop.body if isinstance(s, Op) for o in s.outputs}
        self.uniform: dict[Buffer, int] = {}
        self.moved: list[Op] = []

    def split(self) -> list[Statement]:
        """Return what replaces the loop."""
        loop, extent = self.loop, self.loop.extent
        if loop.start is not ZERO or not extent.is_const or not all(type(s) in (Op, Allocate) for s in loop.body):
            return [loop]
        widths = [width for s in loop.body if isinstance(s, Op) and (width := self.move(s))]
        width = min((w for w in widths if w), default=1)
        if width < 2 or not is_divisible(extent, width):
            return [loop]
        return self.two_loops(width)

    def move(self, s: Op) -> int:
        """Return in how many neighbours a statement computes the same value, and record it; 0 if it stays per element."""
        widths = [self.width_of(operand) for operand in s.operands if not (isinstance(s.expr, BlockSampleOp) and operand is not s.operands[0])]
        is_scalar = isinstance(s.expr, PointwiseOp) and s.element is ZERO and s.outputs[0].buffer in self.local
        is_sample = isinstance(s.expr, BlockSampleOp) and s.outputs[0].buffer.memory is MemoryType.global_
        known = [w for w in widths if w is not None]
        if s.vector_elems > 1 or len(s.outputs) > 1 or not (is_scalar or is_sample) or len(known) < len(widths) or not any(known):
            return 0
        width = min(w for w in known if w)
        if is_scalar:
            self.uniform[s.outputs[0].buffer] = width
        self.moved.append(s)
        return width

    def width_of(self, operand: Access | Sym) -> int | None:
        """Return in how many neighbours an operand is equal; 0: in all; None: in none."""
        index = self.loop.index
        if not isinstance(operand, Access):
            return 0 if index not in variables(operand) else None
        if operand.buffer in self.uniform:
            return self.uniform[operand.buffer]
        if operand.buffer in self.folds:
            first = substitute(operand.index, {index: ZERO})
            return self.folds[operand.buffer] if operand.index is add(first, index) and is_divisible(first, self.folds[operand.buffer]) else None
        is_fixed = operand.buffer not in self.written and operand.buffer not in self.local and index not in variables(operand.index)
        return 0 if is_fixed and operand.buffer.memory is MemoryType.local else None

    def two_loops(self, width: int) -> list[Statement]:
        """Return the loop over blocks, and the loop over elements with the other statements."""
        loop = self.loop
        count: int = loop.extent.value // width  # type: ignore[assignment, operator]
        block = ZERO if count == 1 else var(f"{loop.index.payload}_block", extent=count)
        moved = set(map(id, self.moved))
        stays = [s for s in loop.body if id(s) not in moved and not (isinstance(s, Allocate) and s.buffer in self.uniform)]
        read = {o.buffer for s in stays if isinstance(s, Op) for o in s.operands if isinstance(o, Access)}
        shared = [s for s in loop.body if isinstance(s, Allocate) and s.buffer in self.uniform and s.buffer in read]
        own = [s for s in loop.body if isinstance(s, Allocate) and s.buffer in self.uniform and s.buffer not in read]
        for s in shared:
            s.buffer.elems = const(count)
        places = {s.buffer for s in shared}
        body = [*own, *(_placed(copied(s, {loop.index: mul(block, width)}), places, block) for s in self.moved)]
        head: list[Statement] = body if count == 1 else [Loop(block, const(count), body, unroll=loop.unroll, label=f"blocks of {width} in {loop.label}")]
        element = ZERO if count == 1 else floordiv(loop.index, width)
        return [*shared, *head, replace(loop, body=[_placed(s, places, element) for s in stays])]


def _placed(s: Statement, places: set[Buffer], index: Sym) -> Statement:
    """Return a statement whose accesses to `places` use their element `index`."""
    if not isinstance(s, Op):
        return s

    def at(place: Access) -> Access:
        return Access(place.buffer, index) if place.buffer in places else place

    return replace(s, outputs=[at(o) for o in s.outputs], operands=[at(o) if isinstance(o, Access) else o for o in s.operands])
