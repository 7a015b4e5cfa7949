"""Rewrites of aten graphs before regions are found, with equal results: torch runs fewer ops, and a kernel can contain more.

- Gradients of slices that together cover a tensor are one concatenation, not a sum of tensors that are mostly zero.
- A stack is a concatenation along an axis of its own, not one along the next axis, which a view then splits.
- A convolution's bias is added, and its gradient summed, by the regions around it.
- `as_strided` of a dense tensor to a dense one is a view, and a copy of a copy is one copy.
- The gradient of a table whose rows are taken in order, as those of positions are, is the gradient itself with zeros behind it; torch would sort the index.
- Sums into rows that an index names skip torch's check of the index, which waits for the GPU, where the index is known to fit, and so does `one_hot`.

Read first: `simplify`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from .places_in_range import drop_checks, is_below

aten = torch.ops.aten

CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
KEPT = (aten.select_backward.default, aten.slice_backward.default)
"""Ops that are not decomposed before `simplify`, which replaces all of them."""


def simplify(graph: Graph, *, splits_bias: bool) -> None:
    """Rewrite a graph, in place. splits_bias: separate convolutions from their biases."""
    wanted = {target: rewrite for target, rewrite in _REWRITES.items() if splits_bias or target not in CONVOLUTIONS}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in wanted and not node._erased:
            wanted[node.target](graph, node)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in KEPT:
            _expand(graph, node)
    drop_checks(graph)
    drop_unread(graph)
    checked = {_index_key(node.args[1]): node for node in graph.nodes if node.target in (aten.index.Tensor, aten._unsafe_index.Tensor)}
    for node in graph.nodes:
        if node.target is aten.index_put.default and len(node.args) == 4 and node.args[3] is True and _is_inside(node, checked):
            node.target, node.args = aten._index_put_impl.default, (*node.args, True)


def emit(graph: Graph, at: Node, target: Any, *args: Any, **keywords: Any) -> Node:
    """Insert a call before `at`, with the origin of `at`, and the fake result. args: nodes and numbers, also open sizes (SymInt), which become nodes."""
    if any(isinstance(size, torch.SymInt) for size in pytree.arg_tree_leaves(*args)):
        args = pytree.tree_map_only(torch.SymInt, functools.partial(_node_of_size, graph, at), args)
    with graph.inserting_before(at):
        node = graph.call_function(target, args, keywords)
    node.meta = {key: value for key, value in at.meta.items() if key != "tensor_meta"}
    node.meta["val"] = fake_result(node, *at.all_input_nodes)
    return node


def _node_of_size(graph: Graph, at: Node, size: torch.SymInt) -> Node | torch.SymInt:
    """Return a node before `at` whose value is this open size. A size in the arguments of a node would be text without a meaning where torch runs the graph."""
    for node in graph.nodes:
        if node is at:
            break
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == size.node.expr:
            found: Node = node
            return found
        for axis, extent in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(extent, torch.SymInt) and extent.node.expr == size.node.expr:
                with graph.inserting_before(at):
                    made = graph.call_function(aten.sym_size.int, (node, axis))
                made.meta["val"] = size
                return made
    return size  # of no tensor before: only definitions know such sizes


def fake_result(node: Node, *others: Node) -> Any:
    """Return the result of a call on the fake values of its arguments; the fake mode is theirs, or that of `others`."""
    given, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = next(v.fake_mode for n in (*node.all_input_nodes, *others) if isinstance(v := n.meta["val"], FakeTensor))
    key = _fake_key(node.target, given, named)
    known = None if key is None else _fakes.setdefault(mode, {}).get(key)
    if known is not None:
        return _fake(mode, *known)
    with mode, torch.no_grad():
        value = node.target(*given, **named)  # type: ignore[operator]
        if isinstance(value, torch.Tensor) and value._is_view():  # a view refers to its base, and could not be written to a file
            value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    if key is not None and isinstance(value, torch.Tensor) and _are_numbers(value) and value.layout is torch.strided:
        _fakes[mode][key] = tuple(value.shape), value.stride(), value.dtype, value.device
    return value


def _fake(mode: Any, sizes: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a dense fake tensor, made without a call through the mode."""
    with torch._C._DisableTorchDispatch():
        return FakeTensor(mode, torch.empty_strided(sizes, strides, dtype=dtype, device="meta"), device)


_fakes: "weakref.WeakKeyDictionary[Any, dict[Any, Any]]" = weakref.WeakKeyDictionary()
"""Per fake mode: results of ops for arguments of these sizes, because equal layers need the same ones."""


def _fake_key(target: Any, given: Any, named: Any) -> Any:
    """The key of a fake result; None if it depends on more than numbers and dense tensors of known sizes."""
    out: list[Any] = [target]
    stack = [given, *named.items()]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is FakeTensor:
            if not _are_numbers(value) or value.layout is not torch.strided or value.is_conj() or value.is_neg():
                return None
            out.append((tuple(value.shape), value.stride(), value.dtype, value.device))
        elif isinstance(value, (list, tuple)):
            out.append((kind, len(value)))
            stack += value
        elif value is None or kind in (int, float, bool, str) or isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            out.append((kind, value))
        else:
            return None
    return tuple(out)


def _are_numbers(value: torch.Tensor) -> bool:
    return all([type(n) is int for n in (*value.shape, *value.stride())])


_KNOWS_RANDOMS = "impure_random" in inspect.signature(Node.is_impure).parameters
"""An older torch does not distinguish random ops."""


def drop_unread(graph: Graph) -> None:
    """Erase unread calls without side effects, like torch's own function, but without its check of the order of all nodes."""
    keeps_randoms = torch._guards.TracingContext.try_get() is None or torch._inductor.config.fallback_random
    for node in reversed(graph.nodes):
        if not node.users and not (node.is_impure(keeps_randoms) if _KNOWS_RANDOMS else node.is_impure()):  # type: ignore[call-arg, unused-ignore]
            graph.erase_node(node)


def replace(graph: Graph, node: Node, by: Node) -> None:
    """Let all readers of a node read another one, and erase it."""
    node.replace_all_uses_with(by)
    graph.erase_node(node)


# ---------------------------------------------------------------- gradients of slices
def _join_slices(graph: Graph, node: Node) -> None:
    """Replace a sum of gradients of slices that cover a tensor without overlap by a concatenation."""
    if is_sum(node) and is_term(node):
        return
    leaves = leaves_of(node) if is_sum(node) else []
    groups: dict[Any, list[tuple[int, int, Node]]] = {}
    for leaf in leaves:
        place = _place(leaf)
        if place is not None:
            key, start, end = place
            groups.setdefault(key, []).append((start, end, leaf))
    for (sizes, dim), parts in groups.items():
        parts.sort(key=lambda part: part[:2])
        ends = [0, *(end for _, end, _ in parts)]
        if len(parts) < 2 or [start for start, _, _ in parts] != ends[:-1] or ends[-1] != sizes[dim]:
            continue
        joined = {leaf for _, _, leaf in parts}
        is_unpacked = len(joined) == len(leaves) and all(leaf.target is aten.select_backward.default for _, _, leaf in parts)
        if is_unpacked and _join_side_by_side(graph, node, [leaf.args[0] for _, _, leaf in parts], dim):  # type: ignore[misc]
            return
        pieces: list[Node] = []
        for _, _, leaf in parts:
            gradient: Node = leaf.args[0]  # type: ignore[assignment]
            pieces.append(emit(graph, node, aten.unsqueeze.default, gradient, dim) if leaf.target is aten.select_backward.default else gradient)
        total = emit(graph, node, aten.cat.default, pieces, dim)
        for leaf in (leaf for leaf in leaves if leaf not in joined):
            total = emit(graph, node, aten.add.Tensor, total, leaf)
        replace(graph, node, total)
        return


def _join_stacked(graph: Graph, node: Node) -> None:
    """Replace a concatenation whose axis is split into its parts, as `stack` and the gradient of `unbind` are, by one along an axis of its own."""
    pieces: Any = node.args[0]
    users = list(node.users)
    first, *others = [tuple(piece.meta["val"].shape) for piece in pieces]
    is_stack = bool(others) and all(equal_sizes(shape, first) for shape in others)
    if len(users) != 1 or users[0].target not in (aten.view.default, aten._unsafe_view.default) or not is_stack:
        return
    (split,) = users
    given: Any = node.args[1] if len(node.args) > 1 else 0
    dim, value = given % len(first), split.meta["val"]
    stacked = (*first[:dim], len(pieces), *first[dim:])
    if not equal_sizes(value.shape, stacked) or _join_side_by_side(graph, split, list(pieces), dim):
        return
    rows = [emit(graph, split, aten.unsqueeze.default, piece, dim) for piece in pieces]
    joined = emit(graph, split, aten.cat.default, rows, dim)
    if joined.meta["val"].stride() == value.stride():
        replace(graph, split, joined)


def _join_side_by_side(graph: Graph, node: Node, parts: list[Node], dim: int) -> bool:
    """Concatenate tensors, one for each position of an axis of `node`, along a merged axis, if `node` is only read permuted, copied and with that axis and all
    after it merged (as gradients of packed heads); each is then a contiguous part of a row. Return whether this was done."""
    chain = [node]
    for wanted in ((aten.permute.default,), (aten.clone.default,), (aten._unsafe_view.default, aten.view.default)):
        users = list(chain[-1].users)
        if len(users) != 1 or users[0].target not in wanted:
            return False
        chain.append(users[0])
    _, permuted, copied, merged = chain
    order: Any = permuted.args[1]
    order = [d % len(order) for d in order]
    place, sizes = order.index(dim), permuted.meta["val"].shape
    size = 1
    for extent in sizes[place:]:
        size = size * extent
    value = merged.meta["val"]
    if not copied.meta["val"].is_contiguous() or len(value.shape) != place + 1 or not all(map(_equal, value.shape, (*sizes[:place], size))):
        return False
    own = [d - (d > dim) for d in order if d != dim]
    shape = [*value.shape[:-1], -1] if all(isinstance(n, int) for n in value.shape) else None
    if shape is None:
        return False
    rows = [emit(graph, merged, aten.reshape.default, emit(graph, merged, aten.permute.default, part, own), shape) for part in parts]
    replace(graph, merged, emit(graph, merged, aten.cat.default, rows, place))
    for dead in (copied, permuted):
        graph.erase_node(dead)
    return True


def _equal(a: Any, b: Any) -> bool:
    return bool(statically_known_true(a == b))


def equal_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """True if two shapes are known to be the same."""
    return len(one) == len(other) and all(map(_equal, one, other))


def is_sum(node: Node) -> bool:
    """True for a plain sum of two tensors of one type and size."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2 or not all(isinstance(a, Node) for a in node.args):
        return False
    values: list[Any] = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return all(isinstance(v, torch.Tensor) and v.dtype is values[0].dtype and v.shape == values[0].shape for v in values)


def is_term(node: Node) -> bool:
    """True if only a sum reads a node."""
    return len(node.users) == 1 and is_sum(next(iter(node.users)))


def leaves_of(node: Node) -> list[Node]:
    """Return the terms of a sum, those of sums that only it reads among them."""
    out: list[Node] = []
    stack = [node]
    while stack:
        at = stack.pop()
        if at is node or is_sum(at) and len(at.users) == 1:
            stack += reversed(at.args)  # type: ignore[arg-type]
        else:
            out.append(at)
    return out


def _place(leaf: Node) -> tuple[Any, int, int] | None:
    """The slice whose gradient this is: ((sizes, dim), start, end); None for anything else, and for symbolic sizes of that axis."""
    if leaf.target not in KEPT:
        return None
    given: Any = leaf.args
    _, sizes, dim, first, *rest = given
    dim %= len(sizes)
    size = sizes[dim]
    if not isinstance(size, int) or not all(isinstance(v, int) for v in (first, *rest)):
        return None
    if leaf.target is aten.select_backward.default:
        start = first % size
        return (tuple(sizes), dim), start, start + 1
    end, step = rest
    if step != 1:
        return None
    start, end, _ = slice(first, end).indices(size)
    return (tuple(sizes), dim), start, end


def _expand(graph: Graph, node: Node) -> None:
    """Replace the gradient of one slice by zeros with a part replaced."""
    gradient, sizes, dim, *place = node.args
    value = node.meta["val"]
    zeros = emit(graph, node, aten.full.default, sizes, 0, dtype=value.dtype, layout=value.layout, device=value.device, pin_memory=False)
    if node.target is aten.select_backward.default:
        gradient = emit(graph, node, aten.unsqueeze.default, gradient, dim)
        index = place[0]
        place = [index, None if isinstance(index, int) and index == -1 else _after(graph, node, index), 1]
    replace(graph, node, emit(graph, node, aten.slice_scatter.default, zeros, gradient, dim, *place))


def _after(graph: Graph, node: Node, index: Any) -> Any:
    return emit(graph, node, operator.add, index, 1) if isinstance(index, Node) else index + 1


# ---------------------------------------------------------------- convolutions
def _split_bias(graph: Graph, node: Node) -> None:
    """Replace a convolution by one without its bias, which a region adds."""
    x, weight, bias, stride, *rest = node.args
    value = node.meta["val"]
    if bias is None or value.dim() != len(stride) + 2 or _is_turned(node.users):  # type: ignore[arg-type]
        return
    plain = emit(graph, node, aten.convolution.default, x, weight, None, stride, *rest)
    if plain.meta["val"].stride() != value.stride():
        graph.erase_node(plain)
        return
    wide = emit(graph, node, aten.view.default, bias, [-1, *[1] * len(stride)])  # type: ignore[arg-type]
    replace(graph, node, emit(graph, node, aten.add.Tensor, plain, wide))


def _is_turned(readers: Iterable[Node]) -> bool:
    """True if a tensor is read with channels innermost, like patches: a bias added to it would then cost one more read and write."""
    return any(node.target in _TURNS or node.target in _MOVES and _is_turned(node.users) for node in readers)


def _split_gradient_of_bias(graph: Graph, node: Node) -> None:
    """Compute the gradient of a bias as a sum, which joins the region that computes the gradient of the result."""
    mask = list(node.args[-1])  # type: ignore[arg-type]
    readers = [user for user in node.users if user.args[1] == 2]
    if not mask[2] or any(user.args[1] == 2 and user.target.__name__ != "getitem" for user in node.users):  # type: ignore[union-attr]
        return
    gradient: Node = node.args[0]  # type: ignore[assignment]
    rank, source = gradient.meta["val"].dim(), gradient
    while source.target in _MOVES:
        if source.target in _TURNS:
            return
        source = source.args[0]  # type: ignore[assignment]
    for reader in readers:
        replace(graph, reader, emit(graph, reader, aten.sum.dim_IntList, gradient, [0, *range(2, rank)]))
    node.args = (*node.args[:-1], [mask[0], mask[1], False])
    node.meta["val"] = (*node.meta["val"][:2], None)


# ---------------------------------------------------------------- views
def _as_view(graph: Graph, node: Node) -> None:
    x: Node = node.args[0]  # type: ignore[assignment]
    given, value = x.meta["val"], node.meta["val"]
    offset = node.args[3] if len(node.args) > 3 else None
    is_same_place = offset is None or isinstance(offset, int) and statically_known_true(given.storage_offset() == offset)
    if is_same_place and given.is_contiguous() and value.is_contiguous() and statically_known_true(given.numel() == value.numel()):
        replace(graph, node, emit(graph, node, aten.view.default, x, node.args[1]))


# ---------------------------------------------------------------- indices
def _drop_second_copy(graph: Graph, node: Node) -> None:
    """A copy of a copy that nothing else reads, in the same order of memory: one of them, as in the gradient of a pixel shuffle."""
    x: Node = node.args[0]  # type: ignore[assignment]
    given, value = x.meta["val"], node.meta["val"]
    source = x
    while source.target in (aten.view.default, aten._unsafe_view.default) and len(source.users) == 1:
        source = source.args[0]  # type: ignore[assignment]
    is_second = source.target is aten.clone.default and len(source.users) == 1 and len(x.users) == 1
    if is_second and all(statically_known_true(a == b) for a, b in zip(given.stride(), value.stride())):
        replace(graph, node, x)


def _full_of_nothing(graph: Graph, node: Node) -> None:
    """A tensor of one value in the shape of memory that nothing has written: the value alone, so that this memory is not asked for."""
    source: Node = node.args[0]  # type: ignore[assignment]
    value = node.meta["val"]
    is_empty = source.target in (aten.empty_permuted.default, aten.empty.memory_format, aten.empty_like.default)
    if is_empty and value.is_contiguous() and value.layout is torch.strided and all(isinstance(n, int) for n in value.shape):
        number = node.args[1] if node.target is aten.full_like.default else 0 if node.target is aten.zeros_like.default else 1
        replace(graph, node, emit(graph, node, aten.full.default, list(value.shape), number, dtype=value.dtype, device=value.device))


def _index_key(indices: Any) -> Any:
    return tuple(indices)


def _is_inside(node: Node, checked: dict[Any, Node]) -> bool:
    """True if every index of an index_put is known to be in range: the same indices read a tensor of these sizes, or they are positions in a tensor that is not
    larger."""
    sizes, indices = node.meta["val"].shape, node.args[1]
    places = [dim for dim, index in enumerate(indices) if index is not None]  # type: ignore[arg-type]
    reader = checked.get(_index_key(indices))
    if reader is not None:
        given = reader.args[0].meta["val"].shape  # type: ignore[union-attr]
        if len(given) > places[-1] and all(statically_known_true(given[dim] == sizes[dim]) for dim in places):
            return True
    return all(is_below(indices[dim], sizes[dim]) for dim in places)  # type: ignore[index]


def _gradient_in_order(graph: Graph, node: Node) -> None:
    """Simplify the gradient of a table whose rows 0, 1, 2 ... were read."""
    gradient, index, rows, padding, scales = (*node.args, -1, False)[:5]
    sizes = index.meta["val"].shape  # type: ignore[union-attr]
    axes = [dim for dim, size in enumerate(sizes) if not (isinstance(size, int) and size == 1)]
    if scales or not isinstance(padding, int) or padding >= 0 or len(axes) > 1 or not _counts_up(index):
        return
    ones = [dim for dim in range(len(sizes)) if dim != (axes[0] if axes else len(sizes) - 1)]
    flat = emit(graph, node, aten.squeeze.dims, gradient, ones) if ones else gradient
    missing = rows - index.meta["val"].numel()  # type: ignore[union-attr]
    if isinstance(rows, int) and isinstance(missing, int) and len(flat.meta["val"].shape) == 2:  # type: ignore[union-attr]
        replace(graph, node, emit(graph, node, aten.constant_pad_nd.default, flat, [0, 0, 0, missing]))


def _counts_up(index: Any) -> bool:
    """True for the numbers 0, 1, 2 ... in this order."""
    count = index.meta["val"].numel() if isinstance(index, Node) else 0
    while isinstance(index, Node) and index.target in _ORDER_KEPT and _equal(index.args[0].meta["val"].numel(), count):  # type: ignore[union-attr]
        index = index.args[0]
    if not isinstance(index, Node):
        return False
    if index.target is torch.ops.prims.iota.default:
        return bool(index.kwargs.get("start") == 0 and index.kwargs.get("step") == 1)
    if index.target not in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        return False
    first, step = (index.args[0] if len(index.args) > 1 else 0), (index.args[2] if len(index.args) > 2 else 1)
    return bool(first == 0 and step == 1)


_ORDER_KEPT = (aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default,
               aten.clone.default, aten._to_copy.default, torch.ops.prims.convert_element_type.default)  # fmt: skip
_MOVES = (aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim,
          aten.squeeze.dims, aten.select.int, aten.slice.Tensor, aten.expand.default, aten.clone.default)  # fmt: skip


_TURNS = (aten.t.default, aten.transpose.int, aten.permute.default)


_REWRITES: dict[Any, Callable[[Graph, Node], None]] = {
    aten.add.Tensor: _join_slices, aten.convolution.default: _split_bias, aten.convolution_backward.default: _split_gradient_of_bias,
    aten.as_strided.default: _as_view, aten.cat.default: _join_stacked, aten.embedding_dense_backward.default: _gradient_in_order,
    aten.clone.default: _drop_second_copy, aten.full_like.default: _full_of_nothing, aten.zeros_like.default: _full_of_nothing,
    aten.ones_like.default: _full_of_nothing,
}  # fmt: skip

__all__ = ["CONVOLUTIONS", "KEPT", "drop_unread", "emit", "equal_sizes", "fake_result", "is_sum", "is_term", "leaves_of", "replace", "simplify"]
