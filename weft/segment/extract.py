"""Cut some expressions out of a fusion as a fusion of their own.

Owns what becomes of a tensor between two kernels: for the kernel that reads it, it is an input like one of the user's, without the axes that its
definition folded or rearranged. Names of tensors and axes stay, so that kernels and dumps speak of the definition's tensors.
Read first: `extract`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..expr import variables
from ..graph.rolls import where_written
from ..ir.enums import MemoryType
from ..ir.fusion import Fusion, _Cloner
from ..ir.graph_ops import RollOp, position_syms
from ..ir.values import Expr, IterDomain, LoadStoreOp, Scalar, TensorDomain, TensorView, UserAxes, Val


def boundary(exprs: Sequence[Expr], is_needed_outside: Collection[TensorView]) -> tuple[list[TensorView], list[TensorView]]:
    """Return (tensors that `exprs` read and do not compute, tensors that they compute and that are needed outside), each in order of appearance."""
    computed = {out for expr in exprs for out in expr.outputs}
    reads: dict[TensorView, None] = {}
    writes: dict[TensorView, None] = {}
    for expr in exprs:
        for tensor in expr.tensor_inputs:
            if tensor not in computed:
                reads[tensor] = None
        for tensor in expr.tensor_outputs:
            if tensor in is_needed_outside:
                writes[tensor] = None
    return list(reads), list(writes)


def extract(fusion: Fusion, exprs: Sequence[Expr], inputs: Sequence[TensorView], outputs: Sequence[TensorView]) -> tuple[Fusion, list[Val]]:
    """Return a fusion of copies of `exprs` (definitions before uses), and the values of `fusion` that correspond to its inputs, in order.

    inputs: the tensors that `exprs` read and do not compute; one that is read rotated is an input of its own for that. Scalar inputs of `fusion` that the
    expressions depend on come after them. A rotation that the expressions both compute and read stays, and no kernel takes it.
    """
    return _Extractor(fusion).extract(exprs, inputs, outputs)


class _Extractor(_Cloner):
    """Copies only what some expressions refer to, so its cost does not depend on the size of the whole fusion."""

    def extract(self, exprs: Sequence[Expr], inputs: Sequence[TensorView], outputs: Sequence[TensorView]) -> tuple[Fusion, list[Val]]:
        source, target = self.source, self.target
        target._tensor_count, target._scalar_count, target._axis_count = source._tensor_count, source._scalar_count, source._axis_count
        target.names = source.names
        rolls = [e for e in exprs if isinstance(e, RollOp)]
        read = self._inputs(exprs, inputs, rolls, outputs)
        for expr in exprs:
            if expr in rolls and self._is_elsewhere(expr, exprs, outputs):
                continue
            copy = object.__new__(type(expr))
            copy.__dict__.update(expr.__dict__)
            copy.inputs = [self._value(v) for v in expr.inputs]
            copy.outputs = [self._value(v) for v in expr.outputs]
            copy.attributes = dict(expr.attributes)
            target.register(copy)
        scalars = self._scalar_inputs(exprs)
        for own in (*(own for _, own in read), *map(self._value, scalars)):
            target.add_input(own)
        in_memory = {id(own) for _, own in read}
        for copied in target._vals:
            if isinstance(copied, TensorView) and id(copied) not in in_memory:
                copied.memory_type = MemoryType.local
        for tensor in outputs:
            target.add_output(self._value(tensor))
        computed = set(outputs)
        for output, alias in source.aliases.items():
            if output in computed:  # the buffer that it is written into is not necessarily read here
                if alias not in self.map:
                    self.map[alias] = self._input(alias)  # type: ignore[arg-type]
                target.aliases[self.map[output]] = self.map[alias]
        target.random_op_count = source.random_op_count
        return target, [*(tensor for tensor, _ in read), *scalars]

    # -- rotations
    def _inputs(
        self, exprs: Sequence[Expr], inputs: Sequence[TensorView], rolls: Sequence[RollOp], outputs: Sequence[TensorView]
    ) -> list[tuple[TensorView, TensorView]]:  # fmt: skip
        """Return (tensor of the source, input of the target), and map tensors to inputs: rotated ones to an input that is read at rotated places."""
        rolled = [e for e in rolls if e.tensor_inputs[0] in inputs and not _is_read_whole(e, exprs)]
        plain = {t for e in exprs if e not in rolled for t in e.tensor_inputs} if rolled else set(inputs)
        read: list[tuple[TensorView, TensorView]] = []
        for tensor in inputs:
            for expr in (e for e in rolled if e.tensor_inputs[0] is tensor):
                out, own = expr.tensor_outputs[0], self._input(tensor)
                own.domain().rolled, own.strides_of = expr.rolls, tensor.name
                own.name, self.target._tensor_count = self.target._tensor_count, self.target._tensor_count + 1
                read.append((tensor, own))
                if out in outputs:
                    self.target.register(LoadStoreOp([own], [self._value(out)]))
                else:
                    self.map[out] = own
            if tensor in plain:
                self.map[tensor] = self._input(tensor)
                read.append((tensor, self.map[tensor]))  # type: ignore[arg-type]
        return read

    def _is_elsewhere(self, roll: RollOp, exprs: Sequence[Expr], outputs: Sequence[TensorView]) -> bool:
        """Tell whether a rotation is where its operand is read, or its result written, in memory; a written one is put there. Otherwise no kernel has
        it, such as one of which lookups read parts."""
        source, out = roll.tensor_inputs[0], roll.tensor_outputs[0]
        if source not in (t for e in exprs for t in e.tensor_outputs):
            return not _is_read_whole(roll, exprs)
        if out not in outputs or any(out in e.inputs for e in exprs):
            return False
        stored: TensorView = self._value(out)  # type: ignore[assignment]
        stored.domain().rolled = where_written(roll)
        self.target.register(LoadStoreOp([self._value(source)], [stored]))
        return True

    def _scalar_inputs(self, exprs: Sequence[Expr]) -> list[Scalar]:
        symbols = {v.sym: v for v in self.source._inputs if isinstance(v, Scalar)}
        if not symbols:
            return []
        operands = [operand.sym for expr in exprs for operand in expr.inputs if isinstance(operand, Scalar)]
        used = {v for sym in (*operands, *(p for expr in exprs for p in position_syms(expr))) for v in variables(sym)}
        return [scalar for sym, scalar in symbols.items() if sym in used]

    def _value(self, value: Val) -> Val:
        found = self.map.get(value)
        if found is not None or not isinstance(value, Scalar):
            return super()._value(value) if found is None else found
        copy = object.__new__(Scalar)
        copy.__dict__.update(value.__dict__)
        copy.__dict__.pop("size_of", None)
        copy.fusion, copy._definition, copy._uses = self.target, None, []
        self.target._vals.append(copy)
        self.map[value] = copy
        return copy

    def _input(self, tensor: TensorView) -> TensorView:
        """Return a copy of `tensor` that nothing defines."""
        copy = tensor.copied(self.target)
        self.target._vals.append(copy)
        old = tensor.domain()
        kept = [axis for axis in old.logical if not axis.is_reduction()]
        axes: dict[IterDomain, IterDomain] = {axis: self._plain_axis(axis) for axis in kept}
        stored = [(axes[axis], flag) for axis, flag in zip(old.maybe_allocation, old.contiguity) if axis in axes]
        allocation = None if old.allocation is None else [axis for axis, _ in stored]
        copy._domain = TensorDomain(None, list(axes.values()), [flag for _, flag in stored], allocation)
        if old.user is not None:
            positions = tuple(p for axis, p in zip(old.maybe_allocation, old.user.stride_positions) if axis in axes)
            copy._domain.user = UserAxes(old.user.extents, old.user.counts, positions)
        copy.memory_type, copy.compute_at, copy.circular = MemoryType.global_, 0, None
        return copy

    def _plain_axis(self, axis: IterDomain) -> IterDomain:
        copy = self.map[axis] = axis.copied(self.target)
        copy.is_rfactor = False
        return copy


def _is_read_whole(roll: RollOp, exprs: Sequence[Expr]) -> bool:
    return any(roll.tensor_outputs[0] in e.read_whole for e in exprs)


__all__ = ["boundary", "extract"]
