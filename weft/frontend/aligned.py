"""Products of 16-bit matrices with odd sizes, as those of a vocabulary of 50,257 words: cuBLAS has only slow kernels for them
(docs/torch_compile.md, GPT-2). Rows at multiples of 16 bytes are not enough, it asks for even sizes, too. Such products get a few rows or columns of zeros, an
operand by the kernel that computes it where there is one, and what reads the result reads a part of it.

Owns the rewriting. Read first: `align_products`.
"""

from __future__ import annotations


import torch
from torch.fx import Graph, Node

from .aten import lookup
from .regions import is_cheap, reason_against
from .rewrites import drop_unread, emit

aten = torch.ops.aten

LEAST_EXTENT = 256
"""The least size of each side of a product to pad. A padded operand is read and written once more, which takes as long as some 100 multiplications per element
at full speed; an estimate that excludes small products."""


def _missing(size: int, dtype: torch.dtype) -> int:
    """The number of elements missing to the next multiple of 16 bytes."""
    return -size % (16 // dtype.itemsize)


def align_products(graph: Graph) -> None:
    """Rewrite a graph, in place, with equal results: pad the sizes of its 16-bit matrix products to multiples of 16 bytes if that is faster."""
    padded: dict[tuple[Node, int, int], Node] = {}
    before = len(graph.nodes)
    for node in list(graph.nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs or not _is_wanted(node):
            continue
        bias, a, b = (None, *node.args) if node.target is aten.mm.default else node.args
        value = node.meta["val"]
        rows, inner, columns = _wanted_zeros(a.meta["val"], b.meta["val"])
        a, b = _padded(graph, node, a, rows, inner, padded), _padded(graph, node, b, inner, columns, padded)
        if not rows and not columns:
            node.args = (a, b) if bias is None else (bias, a, b)
            continue
        product = emit(graph, node, aten.mm.default, a, b)
        for axis, extra in ((0, rows), (1, columns)):
            product = emit(graph, node, aten.slice.Tensor, product, axis, 0, value.shape[axis]) if extra else product
        _hand_on(graph, node, product if bias is None else emit(graph, node, aten.add.Tensor, product, bias))
    for (base, rows, columns), made in padded.items():
        if (rows or columns) and base.op == "call_function":
            _sum_padded(graph, base, made)
    if len(graph.nodes) > before:
        drop_unread(graph)


def _sum_padded(graph: Graph, base: Node, padded: Node) -> None:
    """Let sums of a matrix read it padded: the zeros add nothing, and one kernel then writes the matrix and adds it up (the gradient of a head's bias)."""
    sums = [user for user in base.users if user.target is aten.sum.dim_IntList and user.args[1]]
    if sums:
        base.append(padded)
    for old in sums:
        total, value = emit(graph, old, aten.sum.dim_IntList, padded, *old.args[1:], **old.kwargs), old.meta["val"]
        for axis, size in enumerate(value.shape):
            total = emit(graph, old, aten.slice.Tensor, total, axis, 0, size) if total.meta["val"].shape[axis] != size else total
        old.replace_all_uses_with(total)


def _wanted_zeros(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int, int]:
    """Return by how much m, k and n of [m, k] @ [k, n] grow: sizes that are innermost in one of the three matrices."""
    m = _missing(a.shape[0], a.dtype) if a.stride(0) == 1 else 0
    k = _missing(a.shape[1], a.dtype) if a.stride(1) == 1 or b.stride(0) == 1 else 0
    return m, k, _missing(b.shape[1], b.dtype)


def _is_wanted(node: Node) -> bool:
    value = node.meta["val"]
    inner = node.args[-1].meta["val"].shape[0]  # type: ignore[union-attr]
    sizes = (*value.shape, inner)
    return value.dtype in (torch.bfloat16, torch.float16) and all(isinstance(n, int) and n >= LEAST_EXTENT for n in sizes)


def _padded(graph: Graph, node: Node, operand: Node, rows: int, columns: int, padded: dict[tuple[Node, int, int], Node]) -> Node:
    """Return an operand of `node` padded by so many rows and columns of zeros; one that needs none, with rows at multiples of 16 bytes."""
    base, is_turned = operand, False
    while base.target in (aten.t.default, aten.permute.default, aten.transpose.int) and base.args[0].meta["val"].dim() == 2:  # type: ignore[union-attr]
        base, is_turned = base.args[0], is_turned ^ _turns(base)  # type: ignore[assignment]
    if is_turned:
        rows, columns = columns, rows
    value = base.meta["val"]
    is_misaligned = value.stride(1) == 1 and _missing(value.stride(0), value.dtype) > 0
    if not rows and not columns and not is_misaligned:
        return operand
    key = (base, rows, columns)
    if key not in padded and (rows or columns):
        padded[key] = emit(graph, node, aten.constant_pad_nd.default, base, [0, columns, 0, rows])
    elif key not in padded:
        padded[key] = emit(graph, node, aten.clone.default, base, memory_format=torch.contiguous_format)
    return emit(graph, node, aten.permute.default, padded[key], [1, 0]) if is_turned else padded[key]


def _turns(view: Node) -> bool:
    """True if this view transposes a matrix."""
    if view.target is aten.t.default:
        return True
    if view.target is aten.permute.default:
        return bool(view.args[1][0] % 2 == 1)  # type: ignore[index, operator]
    return bool(view.args[1] % 2 != view.args[2] % 2)  # type: ignore[operator]


def _hand_on(graph: Graph, old: Node, new: Node) -> None:
    """Make the readers of `old` read `new`, with equal values in longer rows: views become views of it, regions read it directly, others read a dense copy."""
    dense: Node | None = new if new.meta["val"].is_contiguous() else None
    for user in list(old.users):
        view = _viewed(graph, user, old, new)
        if view is not None:
            _hand_on(graph, user, view)
        elif user.op == "call_function" and not is_cheap(user) and lookup(user.target) is not None and not reason_against(user):
            user.replace_input_with(old, new)
        elif user.target in (aten.mm.default, aten.addmm.default, aten.bmm.default):
            user.replace_input_with(old, new)
        else:
            if dense is None:
                dense = emit(graph, old, aten.clone.default, new, memory_format=torch.contiguous_format)
            user.replace_input_with(old, dense)


def _viewed(graph: Graph, user: Node, old: Node, new: Node) -> Node | None:
    """The view `user` of `old` as a view of `new`; None if it is no view, or not possible with longer rows."""
    if user.op != "call_function" or not is_cheap(user) or user.args[0] is not old or isinstance(user.meta["val"], (tuple, list)):
        return None
    try:
        return emit(graph, user, user.target, new, *user.args[1:], **user.kwargs)
    except (RuntimeError, ValueError):  # torch raises either
        return None


__all__ = ["align_products"]
