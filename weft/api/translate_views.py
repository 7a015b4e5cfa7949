"""Views as the calls that make them: reshape, slice, pad, cat.

Owns their texts; sizes and positions are written as expressions over inputs' sizes and scalars. Read first: `CALLS`, `LOOKUPS`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..expr import Sym, add, const, mul, sub
from ..ir.graph_ops import Along, LookupOp
from ..ir.values import Expr, TensorView, no_reductions
from ..ops.reshape import inferred
from .translate_values import Names, list_text


def reshape(expr: Expr, names: Names) -> str:
    """Return reshape(...) with the sizes of the output.

    A quotient that no op of scalars makes is written as the -1 that it came from; later ops read it from the result of the reshape.
    """
    wanted = [axis.logical_extent for axis in _axes(expr.outputs[0])]
    sizes = [names.sym(sym) for sym in wanted]
    left_over = _left_over([axis.logical_extent for axis in _axes(expr.inputs[0])], wanted)
    if left_over is not None:
        sizes[left_over] = "-1"
        names.sizes_of_results.setdefault(wanted[left_over], f"{names.of(expr.outputs[0])}.size({left_over})")
    return f"reshape({names.of(expr.inputs[0])}, new_shape={list_text(sizes)})"


def _left_over(old: list[Sym], wanted: list[Sym]) -> int | None:
    """Return the axis whose size is a quotient, as -1 makes it of the other sizes."""
    for axis, sym in enumerate(wanted):
        if sym.op == "floordiv" and inferred(old, [*wanted[:axis], const(-1), *wanted[axis + 1 :]])[axis] is sym:
            return axis
    return None


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
