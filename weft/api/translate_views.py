"""Views as the calls that make them: reshape, slice, pad, cat.

Owns their texts; sizes and positions are written as expressions over inputs' sizes and scalars. Read first: `CALLS`, `LOOKUPS`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..expr import add, mul, sub
from ..ir.graph_ops import Along, LookupOp
from ..ir.values import Expr, TensorView, no_reductions
from .translate_values import Names, list_text


def reshape(expr: Expr, names: Names) -> str:
    """Return reshape(...) with the sizes of the output."""
    sizes = [names.sym(axis.logical_extent) for axis in _axes(expr.outputs[0])]
    return f"reshape({names.of(expr.inputs[0])}, new_shape={list_text(sizes)})"


def cat(expr: Expr, names: Names) -> str:
    """Return cat(...)."""
    return f"cat({list_text(map(names.of, expr.inputs))}, dim={expr.attributes['dim']})"


def slice_(expr: LookupOp, names: Names) -> str:
    """Return slice(...) from positions within the axes, which need no clamping any more."""
    starts, stops = [], []
    for axis, place in zip(_axes(expr.outputs[0]), expr.positions):
        assert isinstance(place, Along)
        starts.append(names.sym(place.offset))
        stops.append(names.sym(add(place.offset, axis.logical_extent)))
    return f"slice({names.of(expr.source)}, start_indices={list_text(starts)}, end_indices={list_text(stops)}, manual_normalization=True)"


def pad(expr: LookupOp, names: Names) -> str:
    """Return pad(...), the innermost axis first."""
    widths = []
    for old, new, place in reversed(list(zip(_axes(expr.source), _axes(expr.outputs[0]), expr.positions))):
        assert isinstance(place, Along)
        left = mul(place.offset, -1)
        widths += [names.sym(left), names.sym(sub(sub(new.logical_extent, old.logical_extent), left))]
    return f"pad({names.of(expr.source)}, pad_widths={list_text(widths)}, value={names.of(expr.inputs[-1])})"


def _axes(value: object) -> list:
    assert isinstance(value, TensorView)
    return no_reductions(value.get_logical_domain())


LOOKUPS: dict[str, Callable[[LookupOp, Names], str]] = {"slice": slice_, "pad": pad}
"""By what the user wrote."""
