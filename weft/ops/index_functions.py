"""The front end's ops that read or write at positions, or scan along an axis: gather, scatter, cumsum, topk and the like.

Owns their signatures, which are nvFuser's. Read first: `FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView, Val
from . import lookups, scans
from .arguments import boolean, extents, integer, operand, scalar, tensor
from .build import pointwise
from .shapes import extent_sym


def gather(fusion: Fusion, arg: Any, index: Any, dim: Any) -> TensorView:
    """Return arg at positions index along dim, in the shape of index."""
    return lookups.gather(fusion, tensor("gather", "arg", arg), tensor("gather", "index", index), integer("gather", "dim", dim))


def take_along_axis(fusion: Fusion, arg: Any, index: Any, dim: Any) -> TensorView:
    """Return arg at positions index along dim; the other axes are broadcast to each other."""
    op = "take_along_axis"
    return lookups.take_along_axis(fusion, tensor(op, "arg", arg), tensor(op, "index", index), integer(op, "dim", dim))


def index_select(fusion: Fusion, arg: Any, index: Any, dim: Any) -> TensorView:
    """Return the entries of arg along dim that index, of one axis, names."""
    return lookups.index_select(fusion, tensor("index_select", "arg", arg), tensor("index_select", "index", index), integer("index_select", "dim", dim))


def select(fusion: Fusion, arg: Any, index: Any, dim: Any) -> TensorView:
    """Return arg at one index along dim, without that axis."""
    x = tensor("select", "arg", arg)
    place = extent_sym(extents(fusion, "select", "index", [index])[0])
    return lookups.select(fusion, x, place, integer("select", "dim", dim))


def embedding_fwd(
    fusion: Fusion, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = None, scale_grad_by_freq: Any = None,
    sparse: Any = None,
) -> TensorView:  # fmt: skip
    """Return the rows of weight that input names. padding_idx, scale_grad_by_freq and sparse change gradients only."""
    index, table = tensor("embedding_fwd", "input", input), tensor("embedding_fwd", "weight", weight)
    if max_norm is None:
        return lookups.embedding(fusion, index, table)
    options = dict(padding_idx=padding_idx, max_norm=max_norm, norm_type=norm_type, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    syms = {name: None if value is None else scalar("embedding_fwd", name, value) for name, value in options.items()}
    return lookups.renormed_embedding(
        fusion, index, table, **{name: given.sym if isinstance(given, Scalar) else given for name, given in syms.items()}
    )


def bag_sum(fusion: Fusion, arg: Any, begins: Any, ends: Any, order: Any = None, weights: Any = None) -> TensorView:
    """Return for each v the sum of arg[order[k]] * weights[k] for k from begins[v] up to, not including, ends[v], added in this order; floats of 16 bits give
    Float. As torch.nn.functional.embedding_bag with mode "sum" (weights: its `per_sample_weights`), or a sparse matrix of compressed rows times arg."""
    op = "bag_sum"
    listed, factors = (None if given is None else tensor(op, name, given) for name, given in (("order", order), ("weights", weights)))
    return lookups.bag_sum(fusion, tensor(op, "arg", arg), tensor(op, "begins", begins), tensor(op, "ends", ends), listed, factors)


def scatter(fusion: Fusion, arg: Any, index: Any, src: Any, dim: Any) -> TensorView:
    """Return a copy of arg with the elements of src, or the scalar src, at positions index along dim."""
    source = src if isinstance(src, TensorView) else scalar("scatter", "src", src)
    return lookups.scatter(fusion, tensor("scatter", "arg", arg), tensor("scatter", "index", index), source, integer("scatter", "dim", dim))


def scatter_add(fusion: Fusion, arg: Any, index: Any, src: Any, dim: Any) -> TensorView:
    """Return a copy of arg to which the elements of src are added at positions index along dim, as torch.scatter_add."""
    op = "scatter_add"
    return lookups.scatter(fusion, tensor(op, "arg", arg), tensor(op, "index", index), tensor(op, "src", src), integer(op, "dim", dim), "sum")


def scatter_rows(fusion: Fusion, arg: Any, index: Any, src: Any, dim: Any, kind: Any = "sum", skip: Any = False, axes: Any = 1) -> TensorView:
    """Return a copy of arg, of shape [A..., n, R...] with n at dim, into which the rows of src [A..., P..., R...] are combined by kind ("sum", "max", "min"; or
    "set": they replace what is there) at positions index along dim. index: of the shape of src, or of one element along axes that it does not vary along, as
    torch.index_add has one for each row. skip: leave out rows whose position is outside of arg, which otherwise must not occur.
    axes: how many axes of arg, from dim on, positions are counted over, as if they were one."""
    op = "scatter_rows"
    tensors = tensor(op, "arg", arg), tensor(op, "index", index), tensor(op, "src", src)
    return lookups.scatter_rows(fusion, *tensors, integer(op, "dim", dim), kind, boolean(op, "skip", skip), integer(op, "axes", axes))


def checked_position(fusion: Fusion, position: Any, extent: Any) -> Val:
    """Return position, of integers that are to be at least 0 and below extent. One that is not is 0 in a kernel, and an error in the emulator and under the
    setting `bounds`."""
    op = "checked_position"
    return pointwise(fusion, op, tensor(op, "position", position), operand(op, "extent", extent))


def embedding_bwd(fusion: Fusion, grad: Any, index: Any, entries: Any) -> TensorView:
    """Return the gradient of a table of `entries` rows: the sums of the rows of grad that belong to each entry of index."""
    op = "embedding_bwd"
    count = extent_sym(extents(fusion, op, "entries", [entries])[0])
    return lookups.embedding_backward(fusion, tensor(op, "grad", grad), tensor(op, "index", index), count)


def _scan(name: str, kind: str) -> Callable[..., Any]:
    def function(fusion: Fusion, arg: Any, dim: Any, init: Any = None) -> TensorView:
        start = None if init is None else scalar(name, "init", init)
        return scans.scan(fusion, name, kind, tensor(name, "arg", arg), integer(name, "dim", dim), start)

    function.__name__, function.__doc__ = name, f"Return the running {kind} of arg along dim, from init on."
    return function


def _scan_with_positions(name: str, kind: str, extremum: str) -> Callable[..., Any]:
    def function(fusion: Fusion, arg: Any, dim: Any) -> tuple[TensorView, TensorView]:
        return scans.scan_with_positions(fusion, name, kind, tensor(name, "arg", arg), integer(name, "dim", dim))

    told = f"Return the running {extremum} of arg along dim, and its positions (Int), of equal values the last one: torch.{name.removesuffix('_with_indices')}."
    function.__name__, function.__doc__ = name, told
    return function


def linear_recurrence(fusion: Fusion, gate: Any, x: Any, dim: Any, reverse: Any = False) -> TensorView:
    """Return y with y[k] = gate[k] * y[k-1] + x[k] along dim, from 0 on; with reverse y[k] = gate[k] * y[k+1] + x[k], from the last element on. gate and x
    are broadcast to each other, one may be a number, and they are real floats; 16 bits are computed in float32. The first gate does not matter, and 0 stays 0
    whatever its gate is."""
    op = "linear_recurrence"
    gate = gate if isinstance(gate, TensorView) else scans.filled_like(fusion, op, operand(op, "gate", gate), tensor(op, "x", x))
    x = x if isinstance(x, TensorView) else scans.filled_like(fusion, op, operand(op, "x", x), tensor(op, "gate", gate))
    return scans.linear_recurrence(fusion, gate, x, integer(op, "dim", dim), boolean(op, "reverse", reverse))


def argsort(fusion: Fusion, arg: Any, dim: Any, descending: Any = False, stable: Any = False) -> TensorView:
    """Return the positions along dim in the order of the values of arg."""
    flags = boolean("argsort", "descending", descending), boolean("argsort", "stable", stable)
    return scans.argsort(fusion, tensor("argsort", "arg", arg), integer("argsort", "dim", dim), *flags)


def topk(fusion: Fusion, arg: Any, k: Any, dim: Any = -1, largest: Any = True, sorted: Any = False) -> tuple[TensorView, TensorView]:
    """Return the k largest (or smallest) values of arg along dim, and their positions."""
    flags = boolean("topk", "largest", largest), boolean("topk", "sorted", sorted)
    count = extent_sym(extents(fusion, "topk", "k", [k])[0])
    return scans.topk(fusion, tensor("topk", "arg", arg), count, integer("topk", "dim", dim), *flags)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        gather, take_along_axis, index_select, select, embedding_fwd, scatter, argsort, topk,
        _scan("cumsum", "sum"), _scan("cumprod", "prod"), _scan("cummin", "min"), _scan("cummax", "max"),
    )
}  # fmt: skip
"""Each by its name."""

MORE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "logcumsumexp": _scan("logcumsumexp", "logsumexp"),
    "cummax_with_indices": _scan_with_positions("cummax_with_indices", "max", "maximum"),
    "cummin_with_indices": _scan_with_positions("cummin_with_indices", "min", "minimum"),
    "linear_recurrence": linear_recurrence,
    "bag_sum": bag_sum, "checked_position": checked_position, "embedding_bwd": embedding_bwd, "scatter_add": scatter_add, "scatter_rows": scatter_rows,
}  # fmt: skip
"""Beside nvFuser's names."""
