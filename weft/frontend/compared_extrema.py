"""What a backward does about maxima and minima: their gradients go to the elements that equal them, so it needs the elements to the bit.

Owns which elements are saved for that, and which are computed again: those of a few products, sums and differences of much smaller arguments, such as squares
of distances between all pairs of points. Their products are then rounded by themselves, in the forward, too, and sums of a few terms are added in order.
Others are saved, or a comparison with them: recomputed elements, rounded differently, may all differ from their maximum, which gives 0 / 0.
Read first: `prepare`.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..graph.few_terms import MOST_TERMS
from .regions import is_cheap, is_factory, shown_by
from .rewrites import drop_unread, emit

aten = torch.ops.aten
EXTREMA: dict[Any, tuple[int, ...]] = {
    **dict.fromkeys((
        aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.max.dim, aten.min.dim, aten.aminmax.default, aten.cummax.default,
        aten.cummin.default, aten.topk.default, aten.sort.default, aten.sort.stable, aten.kthvalue.default, aten.median.default, aten.median.dim,
        aten.nanmedian.default, aten.nanmedian.dim, aten.mode.default,
    ), (0,)),
    aten.scatter_reduce.two: (0, 3), aten.index_reduce.default: (0, 3), torch.ops.weft.combined_rows.default: (0, 1),
}  # fmt: skip
"""Ops whose results are elements of their arguments; at which positions these are."""
EXACT = (
    aten.add.Tensor, aten.sub.Tensor, aten.neg.default, aten.abs.default, aten.maximum.default, aten.minimum.default, aten.relu.default, aten.where.self,
)  # fmt: skip
"""Ops of which kernels have the bits of torch whatever is around them, if the products that they read are rounded."""
TRUTHS = (
    *(getattr(getattr(aten, name), kind) for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")),
    aten.logical_and.default, aten.logical_or.default, aten.logical_not.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_not.default,
)  # fmt: skip
"""The same, where they choose."""
TAKING = (aten.gather.default, aten.index.Tensor, aten.index_select.default)
EQUALITIES = (aten.eq.Tensor, aten.ne.Tensor)
ORDERS = (aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor)
SIGNS = (aten.abs.default, aten.neg.default)
MOST_NODES = 32
"""Of what is computed again."""
LEAST_TIMES = 8
"""How many times as many elements as its arguments what is computed again has, at least."""
ROUNDED = "weft_rounded"
"""In a node's metadata: a product that is to be rounded by itself."""


def prepare(graph: Graph) -> None:
    """Decide about the operands of all maxima and minima of a joint graph, in place."""
    from torch.utils.checkpoint import CheckpointPolicy

    compared = _compared(graph)
    for node in list(graph.nodes):
        for source in _sources(node) if node.target in EXTREMA else ():
            if source in compared and source.all_input_nodes and not is_factory(source) and not _is_exactly_an_argument(source):
                chain = _chain(source)
                if chain is None:
                    source.meta["recompute"] = CheckpointPolicy.MUST_SAVE
                else:
                    _make_exact(graph, chain)
    drop_unread(graph)


def _sources(extremum: Node) -> list[Node]:
    """Return what the elements of an extremum are elements of, but for their signs."""
    given: list[Any] = [extremum.args[position] for position in EXTREMA[extremum.target]]
    return [shown_by(node, _keeps_size) for node in given]


def _compared(graph: Graph) -> set[Node]:
    """Return the tensors whose elements are compared with any others for equality, or for order with an extremum of the same tensor."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.target in EQUALITIES:
            found |= {shown_by(given, _keeps_size) for given in node.all_input_nodes}
        elif node.target in ORDERS and len(node.all_input_nodes) == 2:
            for one, other in itertools.permutations(node.all_input_nodes):
                found |= {shown_by(one, _keeps_size)}.intersection(_sources_of_extremum(other))
    return found


def _sources_of_extremum(node: Node) -> list[Node]:
    """Return the sources of the extremum that all elements of a tensor are taken from; none if there is no such."""
    extremum = shown_by(node, lambda n: _keeps_size(n) or n.target in TAKING or n.target is operator.getitem)
    return _sources(extremum) if extremum.target in EXTREMA else []


def _keeps_size(node: Node) -> bool:
    """True for views and changes of signs."""
    return is_cheap(node) and not is_factory(node) or node.target in SIGNS


def round_products(module: GraphModule) -> None:
    """Make the marked products of a forward or a backward ops of their own."""
    found = [node for node in module.graph.nodes if node.meta.pop(ROUNDED, False)]
    for node in found:
        node.target = torch.ops.weft.rounded_mul.default
    if found:
        module.recompile()


def _chain(source: Node) -> list[Node] | None:
    """Return what computes a tensor from arguments, if all of it is exact, and the tensor has far more elements than these; else None."""
    found: dict[Node, None] = {}
    leaves: dict[Node, None] = {}
    stack = [source]
    while stack:
        node = stack.pop()
        if _is_exactly_an_argument(node):
            leaves[shown_by(node, _keeps_numbers)] = None
        elif node not in found:
            if len(found) == MOST_NODES or not _is_exact(node):
                return None
            found[node] = None
            stack += node.all_input_nodes
    sizes = [_elements(node) for node in (source, *leaves)]
    return list(found) if None not in sizes and sizes[0] >= LEAST_TIMES * sum(sizes[1:]) else None  # type: ignore[operator, arg-type]


def _elements(node: Node) -> int | None:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) and isinstance(value.numel(), int) else None


def _is_exact(node: Node) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or node.kwargs or not isinstance(value, torch.Tensor):
        return False
    if is_cheap(node):
        return len(node.all_input_nodes) <= 1
    if node.target in TRUTHS and value.dtype is torch.bool:
        return True
    given = [getattr(n.meta["val"], "dtype", None) for n in node.all_input_nodes]  # None of several results, such as those of a running maximum
    if value.dtype not in (torch.float32, torch.float64) or any(dtype not in (value.dtype, torch.bool) for dtype in given):
        return False
    if node.target is aten.pow.Tensor_Scalar:
        return bool(node.args[1] == 2)
    if node.target is aten.mul.Tensor:
        return all(isinstance(factor, Node) for factor in node.args)
    return node.target in EXACT or _few_terms(node) is not None


def _few_terms(node: Node) -> tuple[int, int] | None:
    """Return the axis and the number of terms of a sum of a few; else None."""
    if node.target is not aten.sum.dim_IntList or node.kwargs:
        return None
    source: Any = node.args[0]
    value, axes = source.meta["val"], node.args[1]
    if not isinstance(axes, (list, tuple)) or len(axes) != 1 or value.dim() == 0:
        return None
    axis = int(axes[0]) % value.dim()  # type: ignore[arg-type]
    terms = value.shape[axis]
    return (axis, terms) if isinstance(terms, int) and 1 <= terms <= MOST_TERMS else None


def _make_exact(graph: Graph, chain: list[Node]) -> None:
    """Mark the products, and write sums as additions in the order of the terms."""
    for node in chain:
        if node.target is aten.pow.Tensor_Scalar:
            node.target, node.args = aten.mul.Tensor, (node.args[0], node.args[0])
        if node.target is aten.mul.Tensor:
            node.meta[ROUNDED] = True
        elif (found := _few_terms(node)) is not None:
            axis, count = found
            terms = [emit(graph, node, aten.select.int, node.args[0], axis, n) for n in range(count)]
            total = terms[0]
            for term in terms[1:]:
                total = emit(graph, node, aten.add.Tensor, total, term)
            if len(node.args) > 2 and node.args[2]:
                total = emit(graph, node, aten.unsqueeze.default, total, axis)
            node.replace_all_uses_with(total)


def _is_exactly_an_argument(node: Node) -> bool:
    """True for an argument, and for one that views and casts to a wider type show: whoever recomputes it gets the same numbers."""
    return shown_by(node, _keeps_numbers).op == "placeholder"


def _keeps_numbers(node: Node) -> bool:
    """True for views, and for casts to a type that has all numbers of the one before."""
    if len(node.all_input_nodes) > 1:
        return False
    if is_cheap(node):
        return True
    given, value = node.all_input_nodes[0].meta.get("val"), node.meta["val"]
    is_cast = node.target in (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
    return is_cast and isinstance(given, torch.Tensor) and given.is_floating_point() and torch.promote_types(given.dtype, value.dtype) is value.dtype


__all__ = ["prepare", "round_products"]
