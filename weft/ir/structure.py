"""The structure of a fusion as a hashable key: equal keys mean the same computation, whatever its values are called.

Owns what counts as the same definition (Fusion.__eq__, the fusion cache). Two fusions are the same when their inputs agree pairwise (type,
axes, memory layout), their outputs agree pairwise through all definitions (ops, attributes, constants and their types), and their aliases do.
Expressions that no output needs do not count, nor do names; inputs count even if unused.
Read first: `structural_key`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import sha256
from typing import Any

from .. import forking
from ..expr import DEEP, Sym, inner_first
from .fusion import Fusion
from .values import Expr, IterDomain, Merge, Scalar, Split, TensorView, UserAxes, Val

_COMMUTATIVE = frozenset({"add", "mul", "and", "min", "max"})


def structural_key(fusion: Fusion) -> tuple[Hashable, ...]:
    """Return the key. A fusion's schedule is part of it, so it is computed before or after scheduling, not in between."""
    key = _KeyBuilder(fusion).build()
    fusion.findings["structural key"] = (fusion.state, key)
    return key


def known_key(fusion: Fusion) -> tuple[Hashable, ...]:
    """Return the cached key if nothing was added since, otherwise compute it. For a definition that is not scheduled in place."""
    state, key = fusion.findings.get("structural key", (None, ()))
    return key if state == fusion.state else structural_key(fusion)  # type: ignore[return-value]


class _Node:
    """An operation in a key: one object for equal ones, so that a key is as deep as one operation, however deep the expression."""

    __slots__ = ("content", "__weakref__")

    def __init__(self, content: Hashable) -> None:
        self.content = content


_NODES: "weakref.WeakValueDictionary[Hashable, _Node]" = weakref.WeakValueDictionary()
_NODES_LOCK = forking.lock()


def _node(content: Hashable) -> _Node:
    with _NODES_LOCK:
        found = _NODES.get(content)
        if found is None:
            found = _NODES[content] = _Node(content)
        return found


def digest(key: Hashable) -> str:
    """Return a structural key as 64 hexadecimal digits, the same in every process: for tables on disk."""
    known: dict[int, str] = {}  # of operations, by identity: the key keeps them alive

    def text(part: Hashable) -> str:
        if isinstance(part, _Node):
            return known[id(part)]
        if isinstance(part, tuple):
            return f"({','.join(map(text, part))})"
        if isinstance(part, frozenset):
            return f"{{{','.join(sorted(map(text, part)))}}}"
        return f"{type(part).__name__}:{part.name if isinstance(part, Enum) else repr(part)}"

    waiting = list(_operations(key))
    while waiting:  # nested ones first, without recursion: expressions can be thousands deep
        node = waiting[-1]
        inside = [inner for inner in _operations(node.content) if id(inner) not in known]
        waiting += inside
        if not inside:
            known[id(waiting.pop())] = sha256(text(node.content).encode()).hexdigest()
    return sha256(text(key).encode()).hexdigest()


def _operations(part: Hashable) -> Iterator[_Node]:
    """Yield the operations in a part of a key, without nested ones."""
    if isinstance(part, _Node):
        yield part
    elif isinstance(part, (tuple, frozenset)):
        for inner in part:
            yield from _operations(inner)


class _KeyBuilder:
    """Numbers values in the order of inputs and topological order, and writes every fact with these numbers."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.numbers: dict[Val, int] = {}
        self.variables: dict[str, Hashable] = {}
        self.syms: dict[Sym, Hashable] = {}

    def build(self) -> tuple[Hashable, ...]:
        fusion = self.fusion
        inputs = tuple(self._input(value) for value in fusion.inputs())
        exprs = tuple(self._expr(expr) for expr in fusion.tensor_exprs())
        outputs = tuple(self._operand(value) for value in fusion.outputs())
        aliases = tuple(sorted((self._position(out), self.numbers.get(source, -1)) for out, source in fusion.aliases.items()))
        hidden, reuses = (tuple(sorted(self._position(value) for value in some)) for some in (fusion.hidden_outputs, fusion.reuses))
        again = tuple(place for place, value in enumerate(fusion.inputs()) if isinstance(value, TensorView) and value.name in fusion.read_again)
        held = tuple((self.numbers[t], fusion.held[t.name]) for t in fusion.tensors() if t.name in fusion.held) if fusion.held else ()
        return inputs, exprs, outputs, aliases, hidden, reuses, again, fusion.shares_results, fusion.shows_inputs, *held

    def _position(self, output: Val) -> int:
        return next(i for i, value in enumerate(self.fusion._outputs) if value is output)

    def _input(self, value: Val) -> Hashable:
        number = self.numbers[value] = len(self.numbers)
        if isinstance(value, TensorView):
            name = value.name
            for dim in range(len(value.get_logical_domain())):
                self.variables[f"T{name}.size[{dim}]"] = ("size", number, dim)
                self.variables[f"T{name}.stride[{dim}]"] = ("stride", number, dim)
            return "tensor", value._dtype, value.is_cpu_scalar, self._domain(value)
        self.variables[value.sym.payload] = ("scalar", number)  # type: ignore[attr-defined]
        return "scalar", value._dtype  # type: ignore[attr-defined]

    def _expr(self, expr: Expr) -> Hashable:
        operands = tuple(map(self._operand, expr.inputs))
        attributes = tuple((key, self._attribute(value)) for key, value in expr.attributes.items())
        extra = tuple((key, self._attribute(value)) for key, value in expr.__dict__.items() if key not in _EXPR_FIELDS)
        results = []
        for value in expr.outputs:
            self.numbers[value] = len(self.numbers)
            results.append((value._dtype, self._domain(value)) if isinstance(value, TensorView) else value._dtype)  # type: ignore[attr-defined]
        return type(expr).__name__, operands, attributes, extra, tuple(results)

    def _attribute(self, value: Any) -> Hashable:
        if isinstance(value, Val):
            return self._operand(value)
        if isinstance(value, Sym):
            return self._sym(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._attribute, value))
        if isinstance(value, (bool, int, float, complex)):
            return type(value).__name__, repr(value)
        if is_dataclass(value):
            return type(value).__name__, *(self._attribute(getattr(value, field.name)) for field in fields(value))
        found: Hashable = value
        return found

    def _operand(self, value: Val) -> Hashable:
        number = self.numbers.get(value)
        if number is not None:
            return number
        if isinstance(value, Scalar):
            return "scalar", value._dtype, self._sym(value.sym)
        # a tensor without a definition that is not an input.
        self.numbers[value] = len(self.numbers)
        return "free", value._dtype, self._domain(value)  # type: ignore[attr-defined,arg-type]

    # -- axes
    def _domain(self, tensor: TensorView) -> Hashable:
        domain = tensor._domain
        logical, root = domain.logical, domain.root
        axes = tuple(map(self._axis, logical))
        place = {id(axis): i for i, axis in enumerate(logical)}
        roots = None if root is None else tuple(place.get(id(axis), -1) for axis in root)
        allocation = None if domain.allocation is None else tuple(place.get(id(axis), -1) for axis in domain.allocation)
        is_plain = len(domain.loop) == len(logical) and all(a is b for a, b in zip(domain.loop, logical))
        loop = None if is_plain else tuple(self._transformed(axis, place) for axis in domain.loop)
        place_in_kernel = (tensor.memory_type, tensor.compute_at, tensor.circular, tensor.shared_swizzle)
        rolled = (self._attribute(domain.rolled),) if domain.rolled else ()
        return axes, roots, allocation, tuple(domain.contiguity), self._user(domain.user), loop, *place_in_kernel, *rolled

    def _user(self, user: UserAxes | None) -> Hashable:
        return None if user is None else (tuple(map(self._sym, user.extents)), user.counts, user.stride_positions)

    def _axis(self, axis: IterDomain) -> Hashable:
        expanded = axis.expanded_extent
        return axis.iter_type, self._sym(axis._extent), None if expanded is None else self._sym(expanded), axis.parallel

    def _transformed(self, axis: IterDomain, place: dict[int, int]) -> Hashable:
        """Return how a loop axis is derived from the logical ones."""
        number, transform = place.get(id(axis)), axis._definition
        if number is not None or transform is None:
            return number, axis.parallel
        which = next(i for i, out in enumerate(transform.outputs) if out is axis)
        sources = tuple(self._transformed(source, place) for source in transform.inputs)  # type: ignore[arg-type]
        factor = (self._sym(transform.factor), *transform.parameters[1:]) if isinstance(transform, Split) else None
        kind = "merge" if isinstance(transform, Merge) else type(transform).__name__
        return kind, which, factor, sources, axis.parallel

    # -- scalars
    def _sym(self, sym: Sym) -> Hashable:
        found = self.syms.get(sym)
        if found is None:
            if sym.depth > DEEP:
                for inner in inner_first(sym, self.syms.__contains__):
                    self.syms[inner] = self._new_sym(inner)
            found = self.syms[sym] = self._new_sym(sym)
        return found

    def _new_sym(self, sym: Sym) -> Hashable:
        if sym.op == "const":
            return sym.dtype, repr(sym.payload)
        if sym.op == "var":
            name = str(sym.payload)
            return self.variables.get(name, name)
        args = [self._sym(arg) for arg in sym.args]
        if sym.op in _COMMUTATIVE:
            return _node((sym.op, sym.dtype, frozenset(Counter(args).items())))
        return _node((sym.op, sym.dtype, tuple(args)))


_EXPR_FIELDS = frozenset({"inputs", "outputs", "attributes", "line"})
Fusion.structure_of = structural_key
