"""Integer arithmetic on positions: quotients become index expressions, and what ranges decide is left out.

Why: a thread that has neighbouring results of an image looks up pixels that they share. The CUDA compiler loads a pixel once if it sees that two positions are
equal, which it does not through `(8 * x + lane + 1) / 2`; with `4 * x + (lane + 1) / 2` it does. Nor does it see that a clamp has no effect. Ranges are those
of `weft.analysis.ranges`; owns which positions are index expressions. Read first: `count_positions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..analysis.ranges import Range, kept_operand, range_of
from ..dtypes import DataType
from ..expr import ZERO, Sym, add, const, floordiv, from_terms, mod, mul, sub, substitute, terms, variables
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType
from ..ir.graph_ops import At, LookupOp
from ..ir.values import BroadcastOp, ExpandOp, IotaOp, LoadStoreOp, PointwiseOp, SqueezeOp, Val
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Buffer, Kernel, Loop, Nest, Op, Statement, is_host_variable, walk
from .state import BuildState

_COPIES = (BroadcastOp, ExpandOp, SqueezeOp, LoadStoreOp)
_THREADS = frozenset(p.value for p in (*BLOCK_TYPES, *GRID_TYPES))
_INTEGERS = (DataType.Bool, DataType.Int32, DataType.Int)
_ARITHMETIC: dict[str, Callable[[Sym, Sym], Sym]] = {"add": add, "sub": sub, "mul": mul}
_DIVISIONS: dict[str, Callable[[Sym, Sym], Sym]] = {"div": floordiv, "fmod": mod, "remainder": mod}
"""By the names of ops: the index expression of the result, of divisions if no operand is negative."""


@dataclass(frozen=True)
class _Stored:
    """The value of the element at `index` of a buffer, a constant or the index of the innermost loop around the store. loops: around it, outermost first."""

    value: Sym
    index: Sym
    loops: tuple[Loop, ...]


@lowering_pass(needs=["grouped predicates"], before=["unrolled"])
def count_positions(kernel: Kernel, state: BuildState) -> Kernel:
    """Simplify integer arithmetic on positions in kernels that look up at positions that they compute.

    Before: ops compute their results from their operands.   After: `Op.position`, `Op.kept` and `Op.is_natural` say where less does, and `Op.bounded` what the
    compiler is told of the indices. All this holds where an op's predicate does.
    Here because: each op is in its final place, in its final loops, which are not marked as unrolled yet.
    """
    exprs = [s.expr for s in walk(kernel.body) if isinstance(s, Op)]
    looks_up = any(isinstance(expr, LookupOp) and any(isinstance(place, At) for place in expr.positions) for expr in exprs)
    if looks_up and any(isinstance(expr, IotaOp) for expr in exprs):
        _Counter(kernel).body(kernel.body, ())
    return kernel


class _Counter:
    """The positions known so far."""

    def __init__(self, kernel: Kernel) -> None:
        self.limit = 1 << (31 if kernel.index_type is DataType.Int32 else 63)
        self.ranges: dict[Val, Range | None] = {}
        self.stored: dict[Buffer, _Stored] = {}
        self.written_once: set[Buffer] = set()

    def body(self, body: list[Statement], loops: tuple[Loop, ...]) -> None:
        own = {s.buffer for s in body if isinstance(s, Allocate)}  # branches, which are copies, have buffers of their own
        writes = Counter(out.buffer for s in walk(body if own else []) if isinstance(s, Op) for out in s.outputs if out.buffer in own)
        self.written_once = self.written_once - own | {buffer for buffer, count in writes.items() if count == 1}
        for buffer in own:
            self.stored.pop(buffer, None)
        for s in body:
            if isinstance(s, Loop):
                self.body(s.body, (*loops, s))
            elif isinstance(s, Nest):
                self.body(s.body, loops)
            elif type(s) is Op and s.vector_elems == 1 and s.at_row_end is None and len(s.outputs) == 1 and s.outputs[0].buffer.dtype in _INTEGERS:
                self._decide(s)
                self._count(s, loops)

    def _decide(self, s: Op) -> None:
        """Note what the ranges of an op's operands say about its result."""
        if not isinstance(s.expr, PointwiseOp) or len(s.operands) != len(s.expr.inputs):
            return
        found = range_of(s.expr.outputs[0], self.ranges)
        s.kept = kept_operand(s.expr, self.ranges)
        if found is not None and found[0] == found[1]:
            s.position = const(bool(found[0]) if s.outputs[0].buffer.dtype is DataType.Bool else found[0])
        if s.expr.op_name in _DIVISIONS:
            value, divisor = (range_of(v, self.ranges) for v in s.expr.inputs)
            s.is_natural = value is not None and divisor is not None and value[0] >= 0 and divisor[0] > 0

    def _count(self, s: Op, loops: tuple[Loop, ...]) -> None:
        """Note the index expression of an op's result, if there is one."""
        buffer, index = s.outputs[0].buffer, s.outputs[0].index
        found = range_of(buffer.tensor, self.ranges)
        if found is None or not -self.limit <= found[0] <= found[1] < self.limit:
            return
        value = self._value(s, found, loops)
        inner = [loop.index for loop in loops if loop.index is not ZERO]
        is_element = index.is_const or bool(inner) and index is inner[-1]
        if value is not None and is_element and buffer.memory is MemoryType.local and buffer in self.written_once and _is_of_indices(value, inner):
            self.stored[buffer] = _Stored(value, index, loops)
            if s.is_natural and s.position is None:
                s.position = value

    def _value(self, s: Op, found: Range, loops: tuple[Loop, ...]) -> Sym | None:
        if isinstance(s.expr, IotaOp):
            start, step = s.operands[1:3]
            assert isinstance(start, Sym) and isinstance(step, Sym)
            if start is ZERO and step.is_const and step.value == 1:
                s.bounded = _without(s.element, [loop.index for loop in loops]), const(found[1] + 1)
            return add(mul(s.element, step), start)
        if isinstance(s.expr, _COPIES):
            return self._read(s.operands[0], loops)
        if not isinstance(s.expr, PointwiseOp):
            return None
        if s.kept is not None:
            return self._read(s.operands[s.kept], loops)
        operands = [self._read(o, loops) for o in s.operands]
        known = [operand for operand in operands if operand is not None]
        rule = _DIVISIONS.get(s.expr.op_name) if s.is_natural else _ARITHMETIC.get(s.expr.op_name)
        if len(known) < len(operands):
            return None
        return known[0] if s.expr.op_name == "cast" else rule(*known) if rule is not None else None

    def _read(self, operand: Access | Sym, loops: tuple[Loop, ...]) -> Sym | None:
        """Return the index expression of an operand, if the loops that it depends on are around the read."""
        if isinstance(operand, Sym):
            return operand if operand.is_const and operand.dtype is DataType.Int else None
        stored = self.stored.get(operand.buffer)
        if stored is None or any(loop.index in variables(stored.value) and loop.index is not stored.index and loop not in loops for loop in stored.loops):
            return None
        if not stored.index.is_const:
            return substitute(stored.value, {stored.index: operand.index})
        return stored.value if operand.index is stored.index else None


def _is_of_indices(value: Sym, loops: Collection[Sym]) -> bool:
    """True if threads, blocks, loops and what the host knows give the value."""
    return all(v in loops or is_host_variable(v) or str(v.payload) in _THREADS for v in variables(value))


def _without(index: Sym, loops: Collection[Sym]) -> Sym:
    """Return the part of an index that no loop changes."""
    return from_terms({factors: c for factors, c in terms(index).items() if not any(v in loops for factor in factors for v in variables(factor))})
