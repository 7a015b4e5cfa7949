"""The fusion: inputs, outputs, aliases, and all values and expressions between them.

Owns creation and registration of values, topological order, and cloning. Read first: `Fusion.exprs` and `Fusion.clone`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from ..dtypes import DataType
from ..errors import user_place
from ..expr import Number, Sym, const, var
from .enums import IterType, MemoryType
from .values import Expr, IterDomain, LoadStoreOp, Merge, Owner, Scalar, Split, Swizzle, TensorDomain, TensorView, Val, no_reductions

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class AsWritten:
    """The user's op for a result that the graph computes in another way: a reduction of `source` over `dims` with the monoid `kind`.

    kind: also "welford"; `field` is the number of the result. The reference computes this, not the graph.
    """

    kind: str
    source: TensorView
    dims: tuple[int, ...]
    field: int = 0


class Fusion(Owner):
    """A graph of tensor operations. Values are numbered per kind in creation order.

    Fusions of one structure are equal. A fusion is mutable, so it has no hash: tables of fusions use identity, or `structural_key`. structure_of, text_of:
    functions that other modules register here, because this file cannot import them (`weft.ir.structure`, `weft.ir.printing`).
    """

    structure_of: ClassVar[Callable[[Fusion], Hashable]]
    text_of: ClassVar[Callable[[Fusion], str]]

    def __init__(self) -> None:
        self._inputs: list[Val] = []
        self._outputs: list[Val] = []
        self._vals: list[Val] = []
        self._tensor_count = self._scalar_count = self._axis_count = 0
        self._size_scalars: dict[tuple[int, int], Scalar] = {}
        self.names: dict[str, str] = {}  # names of the user's sizes and scalars in texts: "T0.size[0]" -> "i0"
        self.aliases: dict[Val, Val] = {}  # output -> the input that it is written into
        self.hidden_outputs: set[Val] = set()  # aliased outputs that are not returned
        self.read_again: set[int] = set()  # of one kernel's fusion: names of inputs that a later kernel of the definition reads, too; clones share the set
        self.held: dict[int, DataType] = {}  # names of tensors that the user holds in a narrower type: see `hold`; clones share it
        self.reuses: set[Val] = set()  # aliased outputs that take the input's memory only where that costs nothing; nobody reads the input after the call
        self.shares_results = True  # as in nvFuser: an output may share the memory of a result that it renames, and sums of sums stay; else neither
        self.shows_inputs = True  # outputs that only rename an input may be views of it; otherwise each has its own memory
        self.detached: set[Val] = set()  # tensors through which no gradient flows
        self.own_gradients: dict[Val, tuple[tuple[Val, ...], Callable[..., Any]]] = {}  # result of a composite -> (sources, rule), see weft.ops.gradients
        self.as_written: dict[Val, AsWritten] = {}  # results that the graph computes in another way than the user wrote
        self.scheduled: Any = None  # result of a scheduler that scheduled this fusion in place: see `schedulers.base.ScheduleResult`
        self.is_closed = False  # an executor owns the fusion: users' operators must not add to it
        self.random_op_count = 0
        self.findings: dict[str, tuple[Hashable, object]] = {}  # results of analyses, each with the `state` for which it is valid
        self._changes = 0
        self._order: _Order | None = None
        self._known_outputs: tuple[list[Val], int, frozenset[Val]] = (self._outputs, 0, frozenset())

    # -- creation
    def new_axis(self, extent: Sym | int, iter_type: IterType = IterType.iteration, **kwargs: Any) -> IterDomain:
        """Return a new axis of this fusion; `extent` is a number or an expression."""
        self._axis_count += 1
        axis = IterDomain(self._axis_count - 1, const(extent) if isinstance(extent, int) else extent, iter_type, **kwargs)
        axis.fusion = self
        return axis

    def copy_axis(self, axis: IterDomain, iter_type: IterType | None = None) -> IterDomain:
        """Return a new axis with the extent and type of `axis` (without its transforms and binding)."""
        return self.new_axis(axis.sym, iter_type or axis.iter_type, expanded_extent=axis.expanded_extent)

    def new_tensor(self, logical: Sequence[IterDomain], dtype: DataType, *, root: list[IterDomain] | None = None) -> TensorView:
        """Return a contiguous tensor over `logical`, in local memory, without a definition."""
        contiguity = [None if a.is_broadcast() or a.is_reduction() else True for a in logical]
        self._tensor_count += 1
        tensor = TensorView(self, self._tensor_count - 1, TensorDomain(root, list(logical), contiguity), dtype)
        self._vals.append(tensor)
        return tensor

    def new_scalar(self, sym: Sym | Number, dtype: DataType) -> Scalar:
        """Return a new scalar of this fusion."""
        self._scalar_count += 1
        scalar = Scalar(self, self._scalar_count - 1, sym if isinstance(sym, Sym) else const(sym, dtype), dtype)
        self._vals.append(scalar)
        return scalar

    def new_input_scalar(self, dtype: DataType) -> Scalar:
        """Return a symbolic scalar (not yet an input: call `add_input`)."""
        scalar = self.new_scalar(const(0), dtype)
        scalar.sym = var(f"S{scalar.name}", dtype, lower=-(1 << 62))
        self.names[f"S{scalar.name}"] = str(scalar)
        return scalar

    def size_scalar(self, tensor: TensorView, dim: int) -> Scalar:
        """Return the scalar for the extent of logical axis `dim`, the same object each time."""
        key = (tensor.name, dim)
        if key not in self._size_scalars:
            self._size_scalars[key] = self.new_scalar(no_reductions(tensor.get_logical_domain())[dim].logical_extent, DataType.Int)
            self._size_scalars[key].size_of = (tensor, dim)  # type: ignore[attr-defined]
        return self._size_scalars[key]

    def register(self, expr: Expr) -> Expr:
        """Make `expr` the definition of its outputs and a use of its inputs."""
        self._changes += 1
        if _CURRENT.get() is self:
            expr.line = user_place()
        for value in expr.outputs:
            value._definition = expr
        for value in dict.fromkeys(expr.inputs):
            value._uses.append(expr)
        return expr

    def remove(self, expr: Expr) -> None:
        """Remove an expression from the fusion."""
        self._changes += 1
        for value in expr.outputs:
            value._definition = None
        for value in expr.inputs:
            value._uses = [use for use in value._uses if use is not expr]

    def replace_input(self, expr: Expr, old: Val, new: Val) -> None:
        """Replace input `old` of `expr` by `new`."""
        self.replace_inputs([expr], old, new)

    def replace_inputs(self, exprs: Iterable[Expr], old: Val, new: Val) -> None:
        """Replace input `old` of all of `exprs` by `new`."""
        self._changes += 1
        moved = {id(expr): expr for expr in exprs}
        for expr in moved.values():
            expr.inputs = [new if v is old else v for v in expr.inputs]
        old._uses = [use for use in old._uses if id(use) not in moved]
        known = set(map(id, new._uses))
        new._uses += [expr for key, expr in moved.items() if key not in known]

    def redefine(self, expr: Expr, old: Val, new: Val) -> None:
        """Replace output `old` of `expr` by `new`; `old` then has no definition."""
        self._changes += 1
        expr.outputs = [new if v is old else v for v in expr.outputs]
        old._definition, new._definition = None, expr

    # -- inputs and outputs
    def add_input(self, value: Val) -> None:
        if isinstance(value, TensorView):
            value.memory_type = MemoryType.global_
        self._inputs.append(value)

    def add_output(self, value: Val, alias_input: Val | None = None) -> None:
        """Add an output; with `alias_input` it is written into that input's buffer and not returned unless added plainly too."""
        if isinstance(value, TensorView):
            value.memory_type = MemoryType.global_
        if alias_input is not None:
            self.aliases[value] = alias_input
            if value in self._outputs:
                return
            self.hidden_outputs.add(value)
        elif value in self.hidden_outputs:
            self.hidden_outputs.discard(value)
            self._outputs.remove(value)  # it is returned where it is added without `alias_input`
        self._outputs.append(value)

    def reuse_input(self, output: Val, source: Val) -> None:
        """Let an output have the memory of an input that nobody reads after the call, where the kernel may write there while it runs; else its own memory."""
        self.aliases[output] = source
        self.reuses.add(output)

    def forget_reuse(self, source: Val) -> None:
        """Let outputs that might have had the memory of an input have their own."""
        forgotten = {output for output in self.reuses if self.aliases[output] is source}
        self.reuses -= forgotten
        self.aliases = {output: alias for output, alias in self.aliases.items() if output not in forgotten}

    def forget_alias(self, output: Val) -> None:
        """Let `output` have its own memory, or be no output if it was only written into an input."""
        self._changes += 1
        del self.aliases[output]
        if output in self.hidden_outputs:
            self.hidden_outputs.remove(output)
            self._outputs = [value for value in self._outputs if value is not output]

    def hold(self, tensor: TensorView, dtype: DataType) -> None:
        """Note that the user holds a tensor in a narrower type than it is computed in: between kernels it is stored in that."""
        self._changes += 1
        self.held[tensor.name] = dtype

    def mark_read_again(self, inputs: Iterable[Val]) -> None:
        """Note that a later kernel reads these inputs, too, so that they had better stay in L2. Analyses of this fusion and its clones stay valid."""
        self._changes += 1
        self.read_again.update(value.name for value in inputs)

    def replace_output(self, old: Val, new: Val) -> None:
        """Replace the output `old` by `new`, with its alias."""
        outputs = list(self._outputs)
        while old in outputs:
            outputs[outputs.index(old)] = new
        self._outputs = outputs
        if old in self.aliases:
            self.aliases[new] = self.aliases.pop(old)
        self.hidden_outputs = {new if v is old else v for v in self.hidden_outputs}
        self.reuses = {new if v is old else v for v in self.reuses}

    def set_outputs(self, values: Iterable[Val]) -> None:
        """Let these be the outputs, in this order; their aliases stay."""
        self._outputs = list(values)

    def inputs(self) -> list[Val]:
        return list(self._inputs)

    def outputs(self) -> list[Val]:
        return list(self._outputs)

    def is_output(self, value: Val) -> bool:
        """Tell whether a value is an output; a set of all outputs is kept while the list has the same length."""
        outputs, count, known = self._known_outputs
        if outputs is not self._outputs or count != len(outputs):
            known = frozenset(self._outputs)
            self._known_outputs = self._outputs, len(self._outputs), known
        return value in known

    def tensor_inputs(self) -> list[TensorView]:
        return [v for v in self._inputs if isinstance(v, TensorView)]

    def tensor_outputs(self) -> list[TensorView]:
        return [v for v in self._outputs if isinstance(v, TensorView)]

    def vals(self) -> list[Val]:
        return list(self._vals)

    # -- order
    def exprs(self, targets: Iterable[Val] | None = None, *, among: Container[int] | None = None) -> list[Expr]:
        """Return the expressions that the outputs (or `targets`) need, definitions before uses; tensors' and scalars' alike. among: only
        these, by identity, and nothing that is needed through others."""
        order: list[Expr] = []
        done: set[int] = set()
        stack: list[tuple[Expr, bool]] = []
        for value in self._outputs if targets is None else targets:
            definition = value.definition()
            if definition is None:
                continue
            stack.append((definition, False))
            while stack:
                expr, ready = stack.pop()
                if id(expr) in done or among is not None and id(expr) not in among:
                    continue
                if ready:
                    done.add(id(expr))
                    order.append(expr)
                    continue
                stack.append((expr, True))
                for source in reversed(expr.inputs):
                    inner = source.definition()
                    if inner is not None and id(inner) not in done:
                        stack.append((inner, False))
        return order

    def tensor_exprs(self) -> list[Expr]:
        """Return `exprs()` without those between scalars."""
        return list(self._in_order().tensor_exprs)

    def tensors(self) -> list[TensorView]:
        """Return the needed tensors (inputs, then outputs of `tensor_exprs`), each once, in order."""
        return list(self._in_order().tensors)

    @property
    def state(self) -> Hashable:
        """A value that stays equal as long as no expression, axis, input or output is added or removed."""
        return self._changes, self._axis_count, len(self._inputs), len(self._outputs)

    def known(self, name: str, find: "Callable[[Fusion], _Found]") -> "_Found":
        """Return what an analysis finds of this fusion, by a name of its own; the same object until the fusion changes (`state`)."""
        state, found = self.findings.get(name, (None, None))
        if state != self.state:
            found = find(self)
            self.findings[name] = (self.state, found)
        return found  # type: ignore[return-value]

    def _in_order(self) -> "_Order":
        """Return the order of the needed expressions, cached until the graph changes."""
        found = self._order
        if found is None or not found.holds(self):
            found = self._order = _Order(self)
        return found

    # -- copy
    def clone(self) -> "tuple[Fusion, dict[Val, Val]]":
        """Return a deep copy and the map from old values (tensors, scalars, axes) to new ones; names stay."""
        return _Cloner(self).run()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fusion):
            return NotImplemented
        return self is other or Fusion.structure_of(self) == Fusion.structure_of(other)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return Fusion.text_of(self)


class _Order:
    """The tensors of a fusion and their expressions, in order, valid as long as the graph does not change."""

    def __init__(self, fusion: Fusion) -> None:
        self._changes, self._inputs, self._outputs = fusion._changes, fusion._inputs, fusion._outputs
        self._counts = len(fusion._inputs), len(fusion._outputs)
        self.tensor_exprs = [e for e in fusion.exprs() if isinstance(e.outputs[0], TensorView)]
        seen: dict[TensorView, None] = {v: None for v in fusion._inputs if isinstance(v, TensorView)}
        for expr in self.tensor_exprs:
            seen.update(dict.fromkeys(expr.tensor_inputs))
            seen.update(dict.fromkeys(expr.tensor_outputs))
        seen.update((v, None) for v in fusion._outputs if isinstance(v, TensorView))
        self.tensors = list(seen)

    def holds(self, fusion: Fusion) -> bool:
        """True as long as nothing was added to or removed from the graph, including inputs and outputs."""
        is_same = self._inputs is fusion._inputs and self._outputs is fusion._outputs
        return is_same and self._changes == fusion._changes and self._counts == (len(fusion._inputs), len(fusion._outputs))


class _Cloner:
    """Copies a fusion, keeping names; used by `Fusion.clone`."""

    def __init__(self, source: Fusion) -> None:
        self.source, self.target = source, Fusion()
        self.map: dict[Val, Val] = {}

    def run(self) -> tuple[Fusion, dict[Val, Val]]:
        source, target = self.source, self.target
        for value in source._vals:
            self._value(value)
        for expr in self._all_exprs():
            copy = object.__new__(type(expr))
            copy.__dict__.update(expr.__dict__)
            copy.inputs = [self._value(v) for v in expr.inputs]
            copy.outputs = [self._value(v) for v in expr.outputs]
            copy.attributes = dict(expr.attributes)
            target.register(copy)
        target._inputs = [self._value(v) for v in source._inputs]
        target.set_outputs(self._value(v) for v in source._outputs)
        target.aliases = {self._value(a): self._value(b) for a, b in source.aliases.items()}
        target.hidden_outputs = {self._value(v) for v in source.hidden_outputs}
        target.reuses, target.read_again, target.held = {self._value(v) for v in source.reuses}, source.read_again, source.held
        target.shares_results, target.shows_inputs = source.shares_results, source.shows_inputs
        for value, (sources, rule) in source.own_gradients.items():
            if value in self.map and all(v in self.map for v in sources):
                target.own_gradients[self.map[value]] = (tuple(self.map[v] for v in sources), rule)
        for value, written in source.as_written.items():
            if value in self.map and written.source in self.map:
                target.as_written[self.map[value]] = replace(written, source=self.map[written.source])  # type: ignore[arg-type]
        target.detached = {self.map[v] for v in source.detached if v in self.map}
        target._size_scalars = {k: self._value(v) for k, v in source._size_scalars.items()}  # type: ignore[misc]
        target.scheduled = None if source.scheduled is None else source.scheduled.in_copy(self.map)
        target.random_op_count, target.names = source.random_op_count, dict(source.names)
        target._tensor_count, target._scalar_count, target._axis_count = source._tensor_count, source._scalar_count, source._axis_count
        return target, self.map

    def _all_exprs(self) -> list[Expr]:
        seen: dict[int, Expr] = {}
        for value in self.source._vals:
            definition = value.definition()
            if definition is not None:
                seen.setdefault(id(definition), definition)
        return list(seen.values())

    def _value(self, value: Val) -> Val:
        if value in self.map:
            return self.map[value]
        if isinstance(value, TensorView):
            copy: Val = self._tensor(value)
        elif isinstance(value, IterDomain):
            return self._axis(value)
        else:
            copy = object.__new__(type(value))
            copy.__dict__.update(value.__dict__)
            copy.fusion, copy._definition, copy._uses = self.target, None, []
            self.target._vals.append(copy)
        self.map[value] = copy
        if isinstance(copy, Scalar) and "size_of" in copy.__dict__:
            source, dim = copy.__dict__["size_of"]
            copy.__dict__["size_of"] = (self._value(source), dim)
        return copy

    def _tensor(self, tensor: TensorView) -> TensorView:
        copy = self.map[tensor] = tensor.copied(self.target)
        self.target._vals.append(copy)
        copy._domain = tensor.domain().copied(self._axis)
        return copy

    def _axis(self, axis: IterDomain) -> IterDomain:
        if axis in self.map:
            return self.map[axis]  # type: ignore[return-value]
        copy = self.map[axis] = axis.copied(self.target)
        transform = axis._definition
        if transform is not None:
            new = object.__new__(type(transform))
            new.__dict__.update(transform.__dict__)
            new.inputs = [self._axis(a) for a in transform.axis_inputs]
            new.outputs = [self._axis(a) if a is not axis else copy for a in transform.axis_outputs]
            for out in new.outputs:
                out._definition = new
            for source in new.inputs:
                if not any(type(u) is type(new) and u.outputs == new.outputs for u in source._uses):
                    source._uses.append(new)
        return copy


_CURRENT: contextvars.ContextVar[Fusion | None] = contextvars.ContextVar("weft_fusion", default=None)


class FusionGuard:
    """The context in which front-end functions find the fusion being defined. Layers below the API must not use it."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._tokens: list[contextvars.Token[Fusion | None]] = []

    def __enter__(self) -> Fusion:
        self._tokens.append(_CURRENT.set(self.fusion))
        return self.fusion

    def __exit__(self, *exc: object) -> None:
        _CURRENT.reset(self._tokens.pop())

    @staticmethod
    def current() -> Fusion | None:
        return _CURRENT.get()


__all__ = ["Fusion", "FusionGuard", "LoadStoreOp", "Merge", "Split", "Swizzle"]
