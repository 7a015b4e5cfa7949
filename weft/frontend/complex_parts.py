"""Complex tensors as two real ones, so that kernels compute with them: rotary positions as complex numbers, spectra, state spaces.

Each complex node of a graph whose op has a rule here is replaced by nodes for its real and its imaginary part. Where torch needs a complex tensor (a Fourier
transform, a result), the parts are stored side by side, and a view of them is that tensor; where torch made one, its parts are views. Read first:
`split_complex`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .rewrites import emit, equal_sizes

aten = torch.ops.aten
Part = Any
"""A node of a real tensor, or a number."""
Parts = tuple[Part, Part]

_NEW = "weft_new_part"
"""A mark on nodes (`meta`) that the splitting has made."""

REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Complex types that are split, and the type of their parts."""

VIEWS = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.expand.default, aten.permute.default, aten.transpose.int, aten.t.default, aten.slice.Tensor, aten.select.int, aten.alias.default,
    aten.detach.default, aten._conj.default, aten.clone.default,
})  # fmt: skip
"""Ops that torch does without a kernel, or, if it needs the complex tensor, as well as weft. They stay if torch needs their result."""


VIEWS_OF_PARTS = frozenset({aten.view_as_complex.default, aten.view_as_real.default, aten._conj.default})
"""Views that torch makes where kernels and its own ops meet; they cost nothing."""


def split_complex(graph: Graph) -> None:
    """Replace complex nodes by their parts, in place, wherever kernels compute with these."""
    if any(_is_split(node) for node in graph.nodes):
        _Splitting(graph).run()


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, Node) else node


def _is_complex(value: Any) -> bool:
    found = _value(value)
    return isinstance(found, torch.Tensor) and found.is_complex()


def _is_split(node: Node) -> bool:
    """True for a complex tensor of a type that is split."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in REAL and value.layout is torch.strided and not value.is_neg()


def _memory_order(value: torch.Tensor) -> list[int] | None:
    """Return the axes from the outermost to the innermost in memory; None where they leave gaps or overlap."""
    order, strides = list(range(value.dim())), value.stride()
    if all(isinstance(n, int) for n in strides):
        order.sort(key=lambda d: (-strides[d], d))
    return order if value.permute(order).is_contiguous() else None


class NoRule(Exception):
    """Raised for a node whose parts no rule gives."""


class _Splitting:
    """parts: complex node -> its parts, as nodes or numbers. made: nodes that rules have replaced, in order. at: the node whose parts are computed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parts: dict[Node, Parts] = {}
        self.made: list[Node] = []
        self.at: Node = None  # type: ignore[assignment]

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op != "call_function":
                continue
            self.at = node
            try:
                if _is_split(node) and node.target in _OF_PARTS:
                    self.parts[node] = self.shaped(_OF_PARTS[node.target](self, *node.args, **node.kwargs))
                    self.made.append(node)
                elif node.target in _REAL_RESULTS and _is_complex(node.args[0]) and not _is_complex(node):
                    result = _REAL_RESULTS[node.target](self, *node.args, **node.kwargs)
                    node.replace_all_uses_with(self.laid_out(result))
                    self.graph.erase_node(node)
            except NoRule:
                continue
        for node in reversed(self.made):
            self.settle(node)
        for part in reversed([n for n in self.graph.nodes if n.meta.pop(_NEW, False)]):
            if not part.users:
                self.graph.erase_node(part)

    def settle(self, node: Node) -> None:
        """Remove a node that nothing needs any more; let its parts be it where something does."""
        if not node.users:
            self.graph.erase_node(node)
        elif node.target not in VIEWS and node.all_input_nodes and (order := _memory_order(_value(node))) is not None:
            self.at = node
            parts = [self.permuted(self.tensor(part), order) for part in self.parts[node]]
            whole = self(aten.view_as_complex.default, self.side_by_side(parts))
            node.replace_all_uses_with(self.permuted(whole, [order.index(d) for d in range(len(order))]))
            self.graph.erase_node(node)

    def permuted(self, node: Node, order: list[int]) -> Node:
        return node if order == sorted(order) else self(aten.permute.default, node, order)

    def side_by_side(self, parts: Sequence[Node]) -> Node:
        return self(aten.cat.default, [self(aten.unsqueeze.default, part, -1) for part in parts], -1)

    def laid_out(self, result: Node) -> Node:
        """Return a real result with the strides that the present node's has. Errors: NoRule."""
        wanted, made = _value(self.at), _value(result)
        if all(statically_known_true(n == 1) or statically_known_true(a == b) for n, a, b in zip(wanted.shape, wanted.stride(), made.stride())):
            return result
        if not wanted.is_contiguous():
            raise NoRule
        return self(aten.clone.default, result, memory_format=torch.contiguous_format)

    # -- nodes
    def __call__(self, target: Any, *args: Any, **keywords: Any) -> Node:
        """Emit an op."""
        node = emit(self.graph, self.at, target, *args, **keywords)
        node.meta[_NEW] = True
        return node

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parts of the present node, or of its complex operands."""
        return REAL[next(value.dtype for value in map(_value, (self.at, *self.at.all_input_nodes)) if value.dtype in REAL)]

    def tensor(self, part: Part, like: Node | None = None) -> Node:
        """Return a part of a complex node (like: the present one) as a tensor of its shape. Errors: NoRule for numbers, and shapes, of open sizes."""
        value = _value(like or self.at)
        if isinstance(part, Node) and equal_sizes(_value(part).shape, value.shape):
            return part
        if not all(isinstance(n, int) for n in value.shape):
            raise NoRule
        if isinstance(part, Node):
            return self(aten.expand.default, part, list(value.shape))
        return self(aten.full.default, list(value.shape), float(part), dtype=self.dtype, device=value.device)

    def tensors(self, value: Node) -> list[Node]:
        """Return the parts of an operand as tensors of its shape. Errors: NoRule."""
        return [self.tensor(part, value) for part in self.of(value)]

    def scalar(self, part: Part) -> Node:
        """Return a part as a tensor: a number as one without axes."""
        return part if isinstance(part, Node) else self(aten.full.default, [], float(part), dtype=self.dtype, device=_value(self.at).device)

    def shaped(self, parts: Parts) -> Parts:
        """Return the parts of the present node in its shape; numbers stay, so that products with them are simpler. Errors: NoRule."""
        if not all(isinstance(part, Node) or isinstance(n, int) for part in parts for n in _value(self.at).shape):
            raise NoRule
        real, imaginary = (self.tensor(part) if isinstance(part, Node) else part for part in parts)
        return real, imaginary

    def of(self, value: Any) -> Parts:
        """Return the parts of an operand, in the type of the present node's. Errors: NoRule."""
        if isinstance(value, Node) and _is_complex(value):
            if value not in self.parts:
                self.parts[value] = self.views_of(value)
            real, imaginary = map(self.cast, self.parts[value])
            return real, imaginary
        if isinstance(value, complex):
            return value.real, value.imag
        if not isinstance(value, (Node, int, float)) or isinstance(_value(value), (torch.SymInt, torch.SymFloat)):
            raise NoRule
        return self.cast(value), 0

    def cast(self, part: Part) -> Part:
        is_other = isinstance(part, Node) and _value(part).dtype is not self.dtype
        return self(aten._to_copy.default, part, dtype=self.dtype) if is_other else part

    def views_of(self, value: Node) -> Parts:
        """Return views of the parts of a complex tensor in memory. Errors: NoRule."""
        if not _is_split(value):
            raise NoRule
        is_conj = _value(value).is_conj()
        pair = self(aten.view_as_real.default, self(aten._conj.default, value) if is_conj else value)
        real, imaginary = (self(aten.select.int, pair, -1, n) for n in range(2))
        return real, self(aten.neg.default, imaginary) if is_conj else imaginary

    # -- arithmetic on parts, of which 0 and 1 are often numbers
    def mul(self, a: Part, b: Part) -> Part:
        if not isinstance(a, Node):
            a, b = b, a
        if not isinstance(a, Node):
            return a * b
        if isinstance(b, Node):
            return self(aten.mul.Tensor, a, b)
        is_missing = b == 0 and isinstance(b, int)  # a zero of a program is a float, and what it multiplies may be infinite
        return 0 if is_missing else a if b == 1 else self(aten.mul.Tensor, a, b)

    def add(self, a: Part, b: Part) -> Part:
        if not isinstance(a, Node):
            a, b = b, a
        if not isinstance(a, Node):
            return a + b
        return a if not isinstance(b, Node) and b == 0 else self(aten.add.Tensor, a, b)

    def neg(self, a: Part) -> Part:
        return self(aten.neg.default, a) if isinstance(a, Node) else -a

    def sub(self, a: Part, b: Part) -> Part:
        if isinstance(a, Node) and isinstance(b, Node):
            return self(aten.sub.Tensor, a, b)
        return self.add(a, self.neg(b))


Rule = Callable[..., Parts]
_OF_PARTS: dict[Any, Rule] = {}
"""Op with a complex result -> its parts, from the node's arguments."""
_REAL_RESULTS: dict[Any, Callable[..., Node]] = {}
"""Op with a real result of a complex operand -> that result."""


R = TypeVar("R", bound=Callable[..., Any])


def _rule(*targets: Any, table: dict[Any, Any] = _OF_PARTS) -> Callable[[R], R]:
    def register(rule: R) -> R:
        table.update(dict.fromkeys(targets, rule))
        return rule

    return register


_result = functools.partial(_rule, table=_REAL_RESULTS)


# ---------------------------------------------------------------- each part by itself
def _apart(target: Any) -> None:
    @_rule(target)
    def apart(s: _Splitting, x: Node, *args: Any, **keywords: Any) -> Parts:
        if "dtype" in keywords or any(isinstance(arg, Node) and _is_complex(arg) for arg in args):
            raise NoRule
        of_parts = aten.reshape.default if target in (aten.view.default, aten._unsafe_view.default) else target  # parts may lie apart
        real, imaginary = (s(of_parts, part, *args, **keywords) for part in s.tensors(x))
        return real, imaginary


for _target in (
    *(VIEWS - {aten._conj.default}), aten.flip.default, aten.roll.default, aten.repeat.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.dim,
    aten.mean.default, aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.embedding.default, aten.slice_backward.default,
    aten.select_backward.default,
):  # fmt: skip
    _apart(_target)


@_rule(aten.copy.default)
def _copied(s: _Splitting, to: Node, x: Any, *_: Any) -> Parts:
    return s.of(x)


@_rule(aten.cat.default)
def _cat(s: _Splitting, tensors: list[Node], dim: int = 0) -> Parts:
    pieces = map(s.tensors, tensors)
    real, imaginary = (s(aten.cat.default, list(parts), dim) for parts in zip(*pieces))
    return real, imaginary


@_rule(aten.slice_scatter.default)
def _slice_scatter(s: _Splitting, x: Node, source: Node, *place: Any) -> Parts:
    real, imaginary = (s(aten.slice_scatter.default, a, b, *place) for a, b in zip(s.tensors(x), s.tensors(source)))
    return real, imaginary


@_rule(aten.constant_pad_nd.default)
def _pad(s: _Splitting, x: Node, widths: Any, fill: Any = 0) -> Parts:
    real, imaginary = (s(aten.constant_pad_nd.default, part, widths, of) for part, of in zip(s.tensors(x), s.of(fill)))
    return real, imaginary


@_rule(aten.where.self)
def _where(s: _Splitting, mask: Node, x: Any, y: Any) -> Parts:
    real, imaginary = (s(aten.where.self, mask, s.scalar(a), s.scalar(b)) for a, b in zip(s.of(x), s.of(y)))
    return real, imaginary


# ---------------------------------------------------------------- made of real tensors
@_rule(aten.view_as_complex.default)
def _view_as_complex(s: _Splitting, x: Node) -> Parts:
    return s(aten.select.int, x, -1, 0), s(aten.select.int, x, -1, 1)


@_rule(aten.complex.default)
def _complex(s: _Splitting, real: Node, imaginary: Node) -> Parts:
    return real, imaginary


@_rule(aten.polar.default)
def _polar(s: _Splitting, size: Node, angle: Node) -> Parts:
    return s.mul(size, s(aten.cos.default, angle)), s.mul(size, s(aten.sin.default, angle))


@_rule(aten._to_copy.default)
def _to_copy(s: _Splitting, x: Node, **keywords: Any) -> Parts:
    if _value(x).device != _value(s.at).device:
        raise NoRule
    return s.of(x)


@_rule(aten.full.default, aten.scalar_tensor.default)
def _full(s: _Splitting, *shape_and_number: Any, **keywords: Any) -> Parts:
    return s.of(shape_and_number[-1])


@_rule(aten.zeros_like.default)
def _zeros(s: _Splitting, x: Node, **keywords: Any) -> Parts:
    return 0.0, 0.0


# ---------------------------------------------------------------- arithmetic
@_rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(s: _Splitting, x: Any, y: Any) -> Parts:
    (a, b), (c, d) = s.of(x), s.of(y)
    return s.sub(s.mul(a, c), s.mul(b, d)), s.add(s.mul(a, d), s.mul(b, c))


@_rule(aten.add.Tensor, aten.add.Scalar)
def _add(s: _Splitting, x: Any, y: Any, alpha: Any = 1) -> Parts:
    (a, b), (c, d) = s.of(x), _mul(s, y, alpha) if alpha != 1 else s.of(y)
    return s.add(a, c), s.add(b, d)


@_rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(s: _Splitting, x: Any, y: Any, alpha: Any = 1) -> Parts:
    (a, b), (c, d) = s.of(x), _mul(s, y, alpha) if alpha != 1 else s.of(y)
    return s.sub(a, c), s.sub(b, d)


@_rule(aten.div.Tensor, aten.div.Scalar)
def _div(s: _Splitting, x: Any, y: Any) -> Parts:
    """By a real number: torch scales a complex divisor, so that its square does not overflow."""
    if _is_complex(y) or isinstance(y, complex):
        raise NoRule
    real, imaginary = (s(aten.div.Tensor, part, s.of(y)[0]) for part in s.tensors(x))
    return real, imaginary


@_rule(aten.neg.default)
def _neg(s: _Splitting, x: Node) -> Parts:
    a, b = s.of(x)
    return s.neg(a), s.neg(b)


@_rule(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)
def _conj(s: _Splitting, x: Node) -> Parts:
    a, b = s.of(x)
    return a, s.neg(b)


@_rule(aten.exp.default)
def _exp(s: _Splitting, x: Node) -> Parts:
    a, b = s.tensors(x)
    return _polar(s, s(aten.exp.default, a), b)


@_rule(aten.sgn.default)
def _sgn(s: _Splitting, x: Node) -> Parts:
    """The number over its size; 0 for 0."""
    size = _abs(s, x)
    is_zero = s(aten.eq.Scalar, size, 0)
    real, imaginary = (s(aten.where.self, is_zero, part, s(aten.div.Tensor, part, size)) for part in s.tensors(x))
    return real, imaginary


# ---------------------------------------------------------------- real results
@_result(aten.view_as_real.default)
def _view_as_real(s: _Splitting, x: Node) -> Node:
    if x not in s.parts:
        raise NoRule  # a view of what torch has made
    return s.side_by_side(s.tensors(x))


@_result(aten.eq.Scalar, aten.eq.Tensor)
def _eq(s: _Splitting, x: Any, y: Any) -> Node:
    a, b = (s.tensors(v) if isinstance(v, Node) else s.of(v) for v in (x, y))
    return s(aten.logical_and.default, *(s(aten.eq.Tensor if isinstance(q, Node) else aten.eq.Scalar, p, q) for p, q in zip(a, b)))


@_result(aten.ne.Scalar, aten.ne.Tensor)
def _ne(s: _Splitting, x: Any, y: Any) -> Node:
    return s(aten.logical_not.default, _eq(s, x, y))


@_result(aten.abs.default)
def _abs(s: _Splitting, x: Node) -> Node:
    a, b = s.tensors(x)
    return s(aten.hypot.default, a, b)


@_result(aten.angle.default)
def _angle(s: _Splitting, x: Node) -> Node:
    a, b = s.tensors(x)
    return s(aten.atan2.default, b, a)


__all__ = ["VIEWS_OF_PARTS", "split_complex"]
