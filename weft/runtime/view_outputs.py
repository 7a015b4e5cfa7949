"""Outputs that have the bytes of an input, or of a result: the same memory under other sizes and strides, for which nothing is computed.

Owns which ops only rename memory, and their arithmetic of sizes and strides. An output is such a view when a chain of these ops leads to it from an input
that the call does not write, and when the input's strides allow each step. A chain can also begin at a result (its base), which is an output itself or
is written for the views alone. Where no view is possible, or gains nothing, a kernel computes the output.
Read first: `chains`, `view_of`, `views_of_results`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..analysis.plain_copies import is_copy
from ..expr import Number, Sym, evaluate_int
from ..ir.block_ops import sample_of
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp, ReshapeOp
from ..ir.values import BroadcastOp, ExpandOp, Expr, SqueezeOp, TensorView, no_reductions
from .outputs import Layout, layout_of


@dataclass(frozen=True)
class Chain:
    """The expressions that lead to an output, first to last: from input `source`, or with `of_result` from the computed output `source`.

    is_ordered: the definition asks for an order of the output in memory. One that is inferred later is for outputs that a kernel writes.
    """

    source: int
    exprs: tuple[Expr, ...]
    of_result: bool = False
    is_ordered: bool = False


@dataclass(frozen=True)
class View:
    """The layout of an output within input `source`, or with `of_result` within the computed output `source`.

    Units: elements; offset: from the first element of the source.
    """

    source: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    of_result: bool = False


def chains(fusion: Fusion, computed: Sequence[TensorView], alias: Sequence[int | None]) -> dict[int, Chain]:
    """Return the chains of the outputs in `computed` that may be views of inputs. alias: which input each is written into, or None."""
    inputs = {v: n for n, v in enumerate(fusion.inputs()) if isinstance(v, TensorView) and not v.is_cpu_scalar}
    written = set(fusion.aliases.values())
    out: dict[int, Chain] = {}
    for number, tensor in enumerate(computed) if fusion.shows_inputs else ():
        current, exprs = _behind_renames(tensor)
        if current in inputs and current not in written and alias[number] is None and exprs and not _is_packed(tensor):
            out[number] = Chain(inputs[current], exprs, is_ordered=_is_ordered(tensor))
    return out


def chains_of_results(fusion: Fusion, computed: list[TensorView], alias: list[int | None]) -> dict[int, Chain]:
    """Return the chains of the outputs in `computed` that may be views of results. Bases that are not outputs are appended to both lists."""
    places = {t: n for n, t in enumerate(computed)}
    out: dict[int, Chain] = {}
    for number, tensor in enumerate(list(computed)) if fusion.shares_results else ():
        base, exprs = _behind_renames(tensor)
        is_result = base.definition() is not None and base.definition().tensor_inputs and sample_of(base) is None  # type: ignore[union-attr]
        if not exprs or not is_result or alias[number] is not None or _is_packed(tensor):
            continue
        if base not in places:
            places[base] = len(computed)
            computed.append(base)
            alias.append(None)
        if alias[places[base]] is None:
            out[number] = Chain(places[base], exprs, True, _is_ordered(tensor))
    return out


def _behind_renames(tensor: TensorView) -> tuple[TensorView, tuple[Expr, ...]]:
    """Return the tensor from which a chain of view ops leads to `tensor`, and the chain."""
    exprs: list[Expr] = []
    while (definition := tensor.definition()) is not None and _renames(definition):
        exprs.append(definition)
        tensor = definition.tensor_inputs[0]
    return tensor, tuple(reversed(exprs))


def _is_ordered(tensor: TensorView) -> bool:
    return tensor.domain().allocation is not None


def _is_packed(tensor: TensorView) -> bool:
    """True if torch counts bytes, and the chain elements."""
    return tensor.dtype().bits < 8


def views_of_results(
    found: Mapping[int, Chain], computed: Sequence[TensorView], own: int, env: Mapping[Sym, Number], layouts: Mapping[int, Layout]
) -> tuple[dict[int, View], set[int]]:
    """Return which computed outputs are views of others at these sizes, and which bases are not needed. own: number of `computed` that are the user's. layouts:
    of the bases. A base that is not an output is written if the views then cost nothing: if they have as many elements as the base, and there are several of
    them, or the only one would need a rearranging kernel. Otherwise only the outputs themselves are written.
    """
    of_base: dict[int, dict[int, View]] = {n: {} for n in range(own, len(computed))}
    for number, chain in found.items():
        layout = layouts[chain.source]
        view = view_of(chain, layout.sizes, layout.strides, env)
        if view is not None:
            of_base.setdefault(chain.source, {})[number] = view
    out: dict[int, View] = {}
    for base, shown in of_base.items():
        if base < own or _is_worth_a_base(shown, computed, base, env):
            out.update(shown)
    return out, set(range(own, len(computed))) - {view.source for view in out.values()}


def _is_worth_a_base(shown: Mapping[int, View], computed: Sequence[TensorView], base: int, env: Mapping[Sym, Number]) -> bool:
    real = sum(math.prod(n for n, stride in zip(view.sizes, view.strides) if stride) for view in shown.values())
    if real < math.prod(layout_of(computed[base], env).sizes):
        return False
    return len(shown) > 1 or any(not layout_of(computed[n], env).is_like(view.sizes, view.strides) for n, view in shown.items())


def _renames(expr: Expr) -> bool:
    if isinstance(expr, LookupOp):
        return expr.op_name == "slice" and not expr.is_masked and all(isinstance(p, Along) for p in expr.positions)
    return is_copy(expr) or isinstance(expr, (BroadcastOp, SqueezeOp, ExpandOp, ReshapeOp))


def view_of(chain: Chain, sizes: Sequence[int], strides: Sequence[int], env: Mapping[Sym, Number]) -> View | None:
    """Return where the output at the end of a chain lies in an input of these sizes and strides; None if it must be copied."""
    axes, offset = list(zip(sizes, strides)), 0
    for expr in chain.exprs:
        moved = _step(expr, axes, env)
        if moved is None:
            return None
        axes, offset = moved[0], offset + moved[1]
    output: TensorView = chain.exprs[-1].outputs[0]  # type: ignore[assignment]
    view = View(chain.source, tuple(n for n, _ in axes), tuple(s for _, s in axes), offset, chain.of_result)
    if chain.is_ordered and not layout_of(output, env).is_like(view.sizes, view.strides):
        return None  # the user requested another order
    return view


Axes = list[tuple[int, int]]


def _step(expr: Expr, axes: Axes, env: Mapping[Sym, Number]) -> tuple[Axes, int] | None:
    """Return sizes and strides after one op, and the offset of the first element."""
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    logical = no_reductions(output.get_logical_domain())
    if isinstance(expr, BroadcastOp):
        rest = iter(axes)
        return [(1, 1) if new else next(rest) for new in expr.attributes["flags"]], 0
    if isinstance(expr, SqueezeOp):
        source, flags = no_reductions(expr.tensor_inputs[0].get_logical_domain()), expr.attributes["flags"]
        if any(dropped and size != 1 and (not size or axis.expanded_extent is None) for (size, _), dropped, axis in zip(axes, flags, source)):
            return None  # an element of an empty tensor, left to a kernel, or an error: an axis of several elements
        return [axis for axis, dropped in zip(axes, flags) if not dropped], 0
    wanted = [evaluate_int(a.logical_extent, env) for a in logical]
    if isinstance(expr, ExpandOp):
        if any(n < 0 or size not in (1, n) for n, (size, _) in zip(wanted, axes)):
            return None  # an error is raised elsewhere
        return [(n, stride if size == n else 0) for n, (size, stride) in zip(wanted, axes)], 0
    if isinstance(expr, ReshapeOp):
        if any(n < 0 for n in wanted):
            return None  # -1 in a scalar input: an error is raised elsewhere
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
            first = evaluate_int(position.offset, env)  # type: ignore[union-attr]
            if n < 0 or n and not 0 <= first <= size - n:
                return None  # an error is raised elsewhere
            offset += first * stride if n else 0
        return [(n, stride) for n, (_, stride) in zip(wanted, axes)], offset
    root = no_reductions(output.get_maybe_root_domain())
    place = {axis: n for n, axis in enumerate(root)}
    return [axes[place[axis]] for axis in logical], 0


__all__ = ["Chain", "View", "chains", "chains_of_results", "view_of", "views_of_results"]
