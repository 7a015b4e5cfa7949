"""Products of 16-bit matrices whose rows do not begin at multiples of 16 bytes, as those of a vocabulary of 50,257 words: cuBLAS has only slow kernels for them
(a sixth of the speed: GPT-2's three took 22 of 55 ms). Such a result gets rows with a few unused elements at their ends, and so does an operand, by the
kernel that computes it. cuBLAS asks for even sizes, too: of those three one became faster (6.1 to 1.65 ms).

Owns the operator `weft::aligned_mm`, and the rewriting. Read first: `align_products`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from .aten import lookup
from .regions import is_cheap, reason_against
from .rewrites import emit

aten = torch.ops.aten

LEAST_EXTENT = 256
"""Of each side of a product. A padded operand is read and written once more, which costs as long as some 100 multiplications per element at full speed; an
estimate that leaves small products alone."""


def _rows(columns: int, dtype: torch.dtype) -> int:
    """The elements from one row to the next, for rows that begin at multiples of 16 bytes."""
    step = 16 // dtype.itemsize
    return -(-columns // step) * step


def _empty(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rows, columns = a.shape[0], b.shape[1]
    return torch.empty_strided((rows, columns), (_rows(columns, a.dtype), 1), dtype=a.dtype, device=a.device)


def aligned_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, its rows at multiples of 16 bytes. Shapes: [m, k], [k, n] -> [m, n]; strides (n rounded up, 1)."""
    return torch.mm(a, b, out=_empty(a, b))


def _operator() -> Any:
    library = torch.library.Library("weft", "FRAGMENT")
    library.define("aligned_mm(Tensor a, Tensor b) -> Tensor")
    library.impl("aligned_mm", aligned_mm, "CompositeExplicitAutograd")
    torch.library.register_fake("weft::aligned_mm", _empty, lib=library)
    _LIBRARIES.append(library)
    return torch.ops.weft.aligned_mm.default


_LIBRARIES: list[torch.library.Library] = []
"""Keeps the operator there."""
ALIGNED_MM = _operator()


def align_products(graph: Graph) -> None:
    """Write a graph anew, in place, with equal results: rows of products and of what they read begin at multiples of 16 bytes where that is faster."""
    padded: dict[Node, Node] = {}
    before = len(graph.nodes)
    for node in list(graph.nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs or not _is_wanted(node):
            continue
        bias, a, b = (None, *node.args) if node.target is aten.mm.default else node.args
        a, b = (_aligned(graph, node, operand, padded) for operand in (a, b))
        node.args = (a, b) if bias is None else (bias, a, b)
        value = node.meta["val"]
        if _rows(value.shape[1], value.dtype) != value.shape[1]:
            product = emit(graph, node, ALIGNED_MM, a, b)
            _hand_on(graph, node, product if bias is None else emit(graph, node, aten.add.Tensor, product, bias))
    if len(graph.nodes) > before:
        graph.eliminate_dead_code()


def _is_wanted(node: Node) -> bool:
    value = node.meta["val"]
    inner = node.args[-1].meta["val"].shape[0]  # type: ignore[union-attr]
    sizes = (*value.shape, inner)
    return value.dtype in (torch.bfloat16, torch.float16) and all(isinstance(n, int) and n >= LEAST_EXTENT for n in sizes)


def _aligned(graph: Graph, node: Node, operand: Node, padded: dict[Node, Node]) -> Node:
    """Return an operand of `node`, or the same values in rows at multiples of 16 bytes."""
    base, is_turned = operand, False
    while base.target in (aten.t.default, aten.permute.default, aten.transpose.int):
        base, is_turned = base.args[0], not is_turned  # type: ignore[assignment]
    value = base.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() != 2 or not all(isinstance(n, int) for n in (*value.shape, *value.stride())) or value.stride(1) != 1:
        return operand
    columns, rows = value.shape[1], _rows(value.shape[1], value.dtype)
    if _rows(value.stride(0), value.dtype) == value.stride(0):
        return operand
    if base not in padded:
        wide = emit(graph, node, aten.constant_pad_nd.default, base, [0, rows - columns])
        padded[base] = emit(graph, node, aten.slice.Tensor, wide, 1, 0, columns)
    return emit(graph, node, aten.permute.default, padded[base], [1, 0]) if is_turned else padded[base]


def _hand_on(graph: Graph, old: Node, new: Node) -> None:
    """Let what reads `old` read `new`, of equal values in longer rows: views again as views, regions as they are; others get a dense copy."""
    dense: Node | None = None
    for user in list(old.users):
        view = _viewed(graph, user, old, new)
        if view is not None:
            _hand_on(graph, user, view)
        elif user.op == "call_function" and not is_cheap(user) and lookup(user.target) is not None and not reason_against(user):
            user.replace_input_with(old, new)
        elif user.target is ALIGNED_MM or user.target in (aten.mm.default, aten.addmm.default, aten.bmm.default):
            user.replace_input_with(old, new)
        else:
            if dense is None:
                dense = emit(graph, old, aten.clone.default, new, memory_format=torch.contiguous_format)
            user.replace_input_with(old, dense)


def _viewed(graph: Graph, user: Node, old: Node, new: Node) -> Node | None:
    """The view `user` of `old` as one of `new`; None where it is no view, or cannot be one of longer rows."""
    if user.op != "call_function" or not is_cheap(user) or user.args[0] is not old or isinstance(user.meta["val"], (tuple, list)):
        return None
    try:
        return emit(graph, user, user.target, new, *user.args[1:], **user.kwargs)
    except (RuntimeError, ValueError):  # torch raises either
        return None


__all__ = ["ALIGNED_MM", "align_products", "aligned_mm"]
