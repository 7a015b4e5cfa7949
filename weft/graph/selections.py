"""cat as a selection by position: out[i] is a[i] where i is below the extent of a, else b[i - extent of a], bit by bit.

Owns that rewriting, also in a fusion that was scheduled by hand. Read first: `select_by_position`.
"""

from __future__ import annotations

from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..expr import ZERO, Sym, mul
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, CatOp, LookupOp
from ..ir.values import PointwiseOp, TensorView
from ..ops.build import broadcast, constant, logical_axes, pointwise
from ..ops.factories import iota
from ..schedule.inline import inline_most
from ..schedule.propagate import parallelize_like, transform_like


def select_by_position(fusion: Fusion, cat: CatOp) -> None:
    """Replace a cat, in place, by one lookup per input, and a `where` for each further input."""
    out, dim = cat.tensor_outputs[0], cat.attributes["dim"]
    axes = logical_axes(out)
    ends: list[Sym] = []
    begins: list[Sym] = []
    end: Sym = ZERO
    for source in cat.tensor_inputs:
        begins.append(end)
        end = end + logical_axes(source)[dim].logical_extent
        ends.append(end)
    sources = cat.tensor_inputs
    fusion.remove(cat)
    parts = [_placed(fusion, source, out, dim, begin) for source, begin in zip(sources, begins)]
    length = fusion.new_scalar(axes[dim].logical_extent, DataType.Int)
    place = broadcast(fusion, iota(fusion, length, None, None, DataType.Int), [d != dim for d in range(len(axes))])
    value = parts[-1]
    for number in reversed(range(len(parts) - 1)):
        is_here = pointwise(fusion, "lt", place, fusion.new_scalar(ends[number], DataType.Int))
        result = out if number == 0 else fusion.new_tensor([fusion.copy_axis(a) for a in axes], out.dtype())
        fusion.register(PointwiseOp([is_here, parts[number], value], [result], op="where", compute=out.dtype(), part=(dim, begins[number], ends[number])))
        value = result


def select_as_scheduled(fusion: Fusion) -> None:
    """Replace the cats of a scheduled fusion, in place: what a cat becomes is computed in the loops of its result, and reads what it has copies of."""
    for expr in fusion.tensor_exprs():
        if isinstance(expr, CatOp):
            before, out = set(fusion.tensors()), expr.tensor_outputs[0]
            for source in dict.fromkeys(expr.tensor_inputs):
                fusion.replace_inputs([expr], source, copied_value(source))
            select_by_position(fusion, expr)
            made = [t for t in fusion.tensors() if t not in before]
            transform_like(out, made)
            parallelize_like(out, selected_tensors=made)
            inline_most(made)


def _placed(fusion: Fusion, source: TensorView, out: TensorView, dim: int, begin: Sym) -> TensorView:
    """Return `source` at its place in the result, 0 elsewhere."""
    dtype = out.dtype()
    zero = constant(fusion, False if dtype.is_bool else 0 if dtype.is_integer else 0j if dtype.is_complex else 0.0, dtype)
    axes = logical_axes(out)
    part = fusion.new_tensor([fusion.copy_axis(a) for a in axes], dtype)
    positions = tuple(Along(d, mul(begin, -1) if d == dim else ZERO) for d in range(len(axes)))
    fusion.register(LookupOp([source, zero], [part], op="pad", positions=positions, is_masked=True, is_discarded=True))
    return part
