"""Outputs that have the bytes of an input: the same memory under other sizes and strides, for which nothing is computed.

Owns which ops only rename memory, and their arithmetic of sizes and strides. An output is such a view when a chain of these ops leads to it from an input
that the call does not write, and when the input's strides allow each step; else a kernel computes it.
Read first: `chains`, `view_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..expr import Number, Sym, evaluate_int
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp, ReshapeOp
from ..ir.values import BroadcastOp, ExpandOp, Expr, LoadStoreOp, SqueezeOp, TensorView, no_reductions
from .outputs import layout_of


@dataclass(frozen=True)
class Chain:
    """The expressions that lead from input `source` to an output, first to last."""

    source: int
    exprs: tuple[Expr, ...]


@dataclass(frozen=True)
class View:
    """Where the elements of an output lie in input `source`. Units: elements; offset: from the input's first element."""

    source: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def chains(fusion: Fusion, computed: Sequence[TensorView], alias: Sequence[int | None]) -> dict[int, Chain]:
    """Return the chains of those of the outputs `computed` that may be views of inputs. alias: which input each is written into, or None."""
    inputs = {v: n for n, v in enumerate(fusion.inputs()) if isinstance(v, TensorView) and not v.is_cpu_scalar}
    written = set(fusion.aliases.values())
    out: dict[int, Chain] = {}
    for number, tensor in enumerate(computed):
        exprs: list[Expr] = []
        current = tensor
        while current not in inputs and (definition := current.definition()) is not None and _renames(definition):
            exprs.append(definition)
            current = definition.tensor_inputs[0]
        is_packed = tensor.dtype().bits < 8  # torch counts bytes, where the chain counts elements
        if current in inputs and current not in written and alias[number] is None and exprs and not is_packed:
            out[number] = Chain(inputs[current], tuple(reversed(exprs)))
    return out


def _renames(expr: Expr) -> bool:
    if type(expr) is LoadStoreOp:  # not what takes one element per block
        return expr.op_name != "segment_set"
    if isinstance(expr, LookupOp):
        return expr.op_name == "slice" and not expr.is_masked and all(isinstance(p, Along) for p in expr.positions)
    return isinstance(expr, (BroadcastOp, SqueezeOp, ExpandOp, ReshapeOp))


def view_of(chain: Chain, sizes: Sequence[int], strides: Sequence[int], env: Mapping[Sym, Number]) -> View | None:
    """Return where the output at the end of a chain lies in an input of these sizes and strides; None when it has to be copied."""
    axes, offset = list(zip(sizes, strides)), 0
    for expr in chain.exprs:
        moved = _step(expr, axes, env)
        if moved is None:
            return None
        axes, offset = moved[0], offset + moved[1]
    output: TensorView = chain.exprs[-1].outputs[0]  # type: ignore[assignment]
    view = View(chain.source, tuple(n for n, _ in axes), tuple(s for _, s in axes), offset)
    if output.domain().allocation is not None and not layout_of(output, env).is_like(view.sizes, view.strides):
        return None  # the user asked for another order
    return view


Axes = list[tuple[int, int]]


def _step(expr: Expr, axes: Axes, env: Mapping[Sym, Number]) -> tuple[Axes, int] | None:
    """Return sizes and strides behind one op, and by how many elements it moves the first one."""
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    logical = no_reductions(output.get_logical_domain())
    if isinstance(expr, BroadcastOp):
        rest = iter(axes)
        return [(1, 1) if new else next(rest) for new in expr.attributes["flags"]], 0
    if isinstance(expr, SqueezeOp):
        if any(dropped and not size for (size, _), dropped in zip(axes, expr.attributes["flags"])):
            return None  # an element of nothing: a kernel, or an error, says what it is
        return [axis for axis, dropped in zip(axes, expr.attributes["flags"]) if not dropped], 0
    wanted = [evaluate_int(a.logical_extent, env) for a in logical]
    if isinstance(expr, ExpandOp):
        return [(n, stride if size == n else 0) for n, (size, stride) in zip(wanted, axes)], 0
    if isinstance(expr, ReshapeOp):
        if any(n < 0 for n in wanted):
            return None  # -1 in a scalar input: an error says so
        try:
            view = torch.empty_strided([n for n, _ in axes], [s for _, s in axes], device="meta").view(wanted)
        except RuntimeError:
            return None
        return list(zip(view.shape, view.stride())), 0
    if isinstance(expr, LookupOp):
        offset = 0
        for n, (size, stride), position in zip(wanted, axes, expr.positions):
            if n != size and stride == 0 and size > 1:
                return None  # a part of an expanded axis is stored in full, as nvFuser does
            offset += evaluate_int(position.offset, env) * stride if n else 0  # type: ignore[union-attr]
        return [(n, stride) for n, (_, stride) in zip(wanted, axes)], offset
    root = no_reductions(output.get_maybe_root_domain())
    place = {axis: n for n, axis in enumerate(root)}
    return [axes[place[axis]] for axis in logical], 0


__all__ = ["Chain", "View", "chains", "view_of"]
