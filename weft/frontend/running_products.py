"""Gradients of running products in aten graphs: torch's formula of about 35 ops becomes one op of weft's own (`weft.frontend.aten.running_products`).

What to look for is traced from torch's own `cumprod_backward`, in the same way as AOTAutograd traces it: another version of torch may have another formula.
Read first: `find_running_products`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .rewrites import drop_unread, emit

aten = torch.ops.aten
Table = Callable[[], dict[Any, Callable[..., Any]]]
"""A function that returns decompositions, the same ones in every call."""
PASSED_ON = (aten.detach.default, aten.alias.default)
FIRST_SIZE = 10007
"""Of the first axis of what is traced, one more for each other: numbers that are nothing but sizes."""


@dataclass(frozen=True)
class Formula:
    """Torch's gradient of a running product. result: its last op. grad, x, product: its arguments."""

    result: Node
    grad: Node
    x: Node
    product: Node


def find_running_products(graph: Graph, decompositions: Table) -> None:
    """Replace, in place, gradients of running products by `weft::running_product_backward`. Anything that differs from torch's formula stays.

    Before: about 35 ops of the gradient, x, and cumprod(x, dim).   After: one op of these.
    decompositions: those that the graph was traced with.
    """
    products = [node for node in graph.nodes if node.target is aten.cumprod.default and _is_taken(node)]
    found = False
    for product in products:
        x = product.args[0]
        value = x.meta["val"]
        dim = product.args[1] % value.dim()
        formula = _formula(value.dim(), dim, value.dtype, product.meta["val"].dtype, value.device, decompositions)
        for node in _readers(product, formula.result.target):
            match = _Match(value.shape)
            if match.nodes(formula.result, node) and _origin(match.bound[formula.x]) is _origin(x) and _origin(match.bound[formula.product]) is product:
                new = emit(graph, node, torch.ops.weft.running_product_backward.default, match.bound[formula.grad], x, product, dim)
                node.replace_all_uses_with(new)
                found = True
    if found:
        drop_unread(graph)


def _is_taken(product: Node) -> bool:
    """True for a running product of real floats."""
    x = product.args[0]
    return isinstance(x, Node) and x.meta["val"].is_floating_point() and x.meta["val"].dim() > 0 and product.meta["val"].is_floating_point()


def _readers(product: Node, target: Any) -> list[Node]:
    """Return the calls of an op that are computed from a node."""
    found: dict[Node, None] = {}
    stack = [product]
    while stack:
        for user in stack.pop().users:
            if user not in found:
                found[user] = None
                stack.append(user)
    return [node for node in found if node.target is target]


def _origin(node: Node) -> Node:
    """Return what a tensor that is only passed on is."""
    while node.target in PASSED_ON:
        node = node.args[0]  # type: ignore[assignment]
    return node


@dataclass
class _Match:
    """A comparison of a graph with a formula. shape: the sizes for those that the formula was traced with. bound: the formula's nodes -> those of the graph."""

    shape: Sequence[Any]
    bound: dict[Node, Node] = field(default_factory=dict)

    def nodes(self, wanted: Node, node: Node) -> bool:
        """Compare a call, and all that it is computed from; arguments of the formula stand for any node, but always for the same one."""
        if wanted in self.bound:
            return _origin(self.bound[wanted]) is _origin(node)
        if wanted.op != "placeholder":
            node = _origin(node)
            is_same = node.op == wanted.op and node.target == wanted.target
            if not is_same or not self.values(wanted.args, node.args) or not self.values(wanted.kwargs, node.kwargs):
                return False
        self.bound[wanted] = node
        return True

    def values(self, wanted: Any, value: Any) -> bool:
        """Compare arguments of two calls."""
        if isinstance(wanted, Node):
            return isinstance(value, Node) and self.nodes(wanted, value)
        if isinstance(wanted, (list, tuple)):
            return isinstance(value, (list, tuple)) and len(wanted) == len(value) and all(map(self.values, wanted, value))
        if isinstance(wanted, dict):
            return wanted.keys() == value.keys() and all(self.values(each, value[name]) for name, each in wanted.items())
        if type(wanted) is int and 0 <= wanted - FIRST_SIZE < len(self.shape):
            size = value.meta["val"] if isinstance(value, Node) else value
            return isinstance(size, (int, torch.SymInt)) and statically_known_true(size == self.shape[wanted - FIRST_SIZE])
        return type(wanted) is type(value) and bool(wanted == value)


@functools.lru_cache(maxsize=64)
def _formula(rank: int, dim: int, dtype: torch.dtype, result: torch.dtype, device: torch.device, decompositions: Table) -> Formula:
    """Trace torch's gradient of a running product of type `result` along `dim`, of tensors of `dtype`. Gradients of gradients have another formula, which torch
    computes where gradients are recorded: here they are not."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradient(grad: torch.Tensor, x: torch.Tensor, product: torch.Tensor) -> Any:
        with torch.no_grad():
            return aten.cumprod_backward.default(grad, x, dim, product)

    with FakeTensorMode():
        shape = [FIRST_SIZE + axis for axis in range(rank)]
        grad, x, product = (torch.empty(shape, dtype=each, device=device) for each in (dtype, dtype, result))
        graph = make_fx(dispatch_functionalize(gradient), decomposition_table=decompositions())(grad, x, product).graph
    last, places = graph.output_node().args[0], [node for node in graph.nodes if node.op == "placeholder"]
    assert isinstance(last, Node)
    return Formula(_origin(last), *places)


__all__ = ["find_running_products"]
