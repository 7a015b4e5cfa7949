"""Matrix products: matmul, linear, grouped_mm, scaled_mm. Torch runs them; here are their shapes and types.

Owns their checks and the nodes that they make. How torch computes them is in `torch_ops.py`. Read first: `matmul`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import DataType
from ..errors import Unsupported, UserError
from ..ir.fusion import Fusion
from ..ir.graph_ops import TorchOp
from ..ir.values import IterDomain, TensorView
from .build import ExtentMismatch, joined_axis, logical_axes, own_axis


class WrongOperand(UserError):
    code = "W394"
    what = "{op}: {reason}"
    fix = "{remedy}"


def torch_op(
    fusion: Fusion, op: str, operands: Sequence[TensorView], results: Sequence[tuple[Sequence[IterDomain], DataType]], **attributes: object
) -> list[TensorView]:  # fmt: skip
    """Add the node of an op that torch runs; results: axes and type of each."""
    outs = [fusion.new_tensor(list(axes), dtype) for axes, dtype in results]
    fusion.register(TorchOp(list(operands), outs, op=op, **attributes))
    return outs


def _same_type(op: str, a: TensorView, b: TensorView, names: str = "A and B") -> None:
    if a.dtype() is not b.dtype():
        text = f"Expected {names} dtypes to have the same dtype, got: {a.dtype()} and {b.dtype()}"
        raise WrongOperand(op=op, reason=text, remedy="cast one of them to the type of the other")


def _has_product(op: str, a: TensorView) -> None:
    if a.dtype().is_narrow_float:
        remedy = "pass elements and scales to fd.ops.scaled_mm, or cast both operands to BFloat16"
        raise WrongOperand(op=op, reason=f"torch has no {op} of {a.dtype().name} without scales", remedy=remedy)


def _same_extent(op: str, a: TensorView, b: TensorView, of_a: int, of_b: int) -> None:
    """Check the summed axis of two operands."""
    x, y = logical_axes(a)[of_a], logical_axes(b)[of_b]
    if x.is_broadcast() != y.is_broadcast() and x.expanded_extent is None and y.expanded_extent is None:
        other = y if x.is_broadcast() else x
        if not other.is_open():
            raise WrongOperand(op=op, reason="K should be broadcast in both A and B, or neither.", remedy="make the extents of the summed axes equal")
    p, q = x.logical_extent, y.logical_extent
    if p.is_const and q.is_const and p.value != q.value:
        raise ExtentMismatch(op=op, axis=of_a, left_tensor=str(a), left=p.value, right_tensor=str(b), right=q.value)


def _batch_axes(fusion: Fusion, op: str, a: TensorView, b: TensorView) -> list[IterDomain]:
    """Return new axes for the leading axes of both operands, broadcast to each other."""
    left, right = logical_axes(a)[:-2], logical_axes(b)[:-2]
    rank = max(len(left), len(right))
    out = []
    for position in range(rank):
        pair = [axes[k] for axes in (left, right) if (k := position - rank + len(axes)) >= 0]
        if any(axis.is_open() for axis in pair):
            out.append(joined_axis(fusion, (a, b), pair, position, op))
            continue
        real = [x for x in pair if not x.is_broadcast() or x.expanded_extent is not None]
        extents = [x.logical_extent for x in real]
        if len(extents) == 2 and extents[0].is_const and extents[1].is_const and extents[0].value != extents[1].value:
            raise ExtentMismatch(op=op, axis=position, left_tensor=str(a), left=extents[0].value, right_tensor=str(b), right=extents[1].value)
        best = next((x for x in real if x.logical_extent.is_const), real[0] if real else pair[0])
        out.append(own_axis(fusion, best))
    return out


def matmul(fusion: Fusion, a: TensorView, b: TensorView) -> TensorView:
    """Return the matrix product of the last two axes, batched over the leading ones, as torch.matmul. The result has the operands' type."""
    if a.ndim == 0 or b.ndim == 0:
        raise WrongOperand(op="matmul", reason=f"Expected inputs to be atleast 1D, got: {a.ndim} and {b.ndim}", remedy="use operands with at least one axis")
    _same_type("matmul", a, b)
    _has_product("matmul", a)
    _same_extent("matmul", a, b, -1, -1 if b.ndim == 1 else -2)
    rows = [] if a.ndim == 1 else [own_axis(fusion, logical_axes(a)[-2])]
    columns = [] if b.ndim == 1 else [own_axis(fusion, logical_axes(b)[-1])]
    (out,) = torch_op(fusion, "matmul", [a, b], [([*_batch_axes(fusion, "matmul", a, b), *rows, *columns], a.dtype())])
    return out


def linear(fusion: Fusion, x: TensorView, weight: TensorView, bias: TensorView | None) -> TensorView:
    """Return x @ weight.T + bias. Shapes: x [..., K], weight [N, K], bias [N] -> [..., N]."""
    if x.ndim == 0:
        raise WrongOperand(op="linear", reason="Expected inputs to be atleast 1D, got a tensor without axes", remedy="use an input with at least one axis")
    if weight.ndim != 2:
        raise WrongOperand(op="linear", reason=f"Input B must be at least 2D, and {weight} has {weight.ndim} axes", remedy="use a weight of shape [N, K]")
    _same_type("linear", x, weight, "input and weight")
    _has_product("linear", x)
    _same_extent("linear", x, weight, -1, -1)
    operands = [x, weight]
    if bias is not None:
        if bias.ndim > 1:
            raise WrongOperand(op="linear", reason=f"Input bias must be 1D, and {bias} has {bias.ndim} axes", remedy="use a bias of shape [N]")
        if bias.dtype() is not x.dtype():
            text = f"Expected bias to have the same dtype as A and B, got: {bias.dtype()} and {x.dtype()}"
            raise WrongOperand(op="linear", reason=text, remedy="cast the bias")
        operands.append(bias)
    axes = [*(own_axis(fusion, a) for a in logical_axes(x)[:-1]), own_axis(fusion, logical_axes(weight)[0])]
    (out,) = torch_op(fusion, "linear", operands, [(axes, x.dtype())])
    return out


_GROUPED = {(2, 2), (2, 3), (3, 2)}


def _grouped_axes(fusion: Fusion, a: TensorView, b: TensorView, offsets: TensorView) -> list[IterDomain]:
    if (a.ndim, b.ndim) not in _GROUPED:
        text = f"Unexpected operand ranks: {a.ndim} and {b.ndim}"
        raise WrongOperand(op="grouped_mm", reason=text, remedy="pass operands of ranks 2 and 2, 2 and 3, or 3 and 2")
    if offsets.ndim != 1 or offsets.dtype() is not DataType.Int32:
        raise WrongOperand(op="grouped_mm", reason=f"offsets are {offsets}", remedy="pass the ends of the groups as a tensor with one axis and dtype Int32")
    groups = [own_axis(fusion, logical_axes(offsets)[0])] if a.ndim == b.ndim else []
    return [*groups, own_axis(fusion, logical_axes(a)[-2]), own_axis(fusion, logical_axes(b)[-1])]


def grouped_mm(fusion: Fusion, a: TensorView, b: TensorView, offsets: TensorView) -> TensorView:
    """Return products of groups. Shapes: [m, k], [k, n] -> [g, m, n]; [m, k], [g, k, n] -> [m, n]; [g, m, k], [k, n] -> [m, n].

    offsets: where each group ends, along k, m or n.
    """
    axes = _grouped_axes(fusion, a, b, offsets)
    _same_type("grouped_mm", a, b)
    (out,) = torch_op(fusion, "grouped_mm", [a, b, offsets], [(axes, a.dtype())])
    return out


def scaled_grouped_mm(
    fusion: Fusion, a: TensorView, b: TensorView, offsets: TensorView, scale_a: TensorView, scale_b: TensorView, dtype: DataType
) -> TensorView:
    """`grouped_mm` of narrow operands with a scale per row of a and per column of b; computed in BFloat16, then cast."""
    axes = _grouped_axes(fusion, a, b, offsets)
    operands, names = [a, b, offsets, scale_a, scale_b], ("mat1", "mat2", "offsets", "scale1", "scale2")
    (out,) = torch_op(fusion, "scaled_grouped_mm", operands, [(axes, dtype)], given=names, dtype=dtype)
    return out


def scaled_mm(
    fusion: Fusion, a: TensorView, b: TensorView, scale_a: TensorView, scale_b: TensorView, alpha: TensorView | None, bias: TensorView | None, dtype: DataType
) -> TensorView:
    """Return the product of two matrices of narrow elements, each with its scales, as torch._scaled_mm."""
    if a.ndim != 2 or b.ndim != 2:
        raise WrongOperand(op="scaled_mm", reason=f"Unexpected operand ranks: {a.ndim} and {b.ndim}", remedy="pass two matrices")
    given = {"mat1": a, "mat2": b, "scale1": scale_a, "scale2": scale_b, "alpha": alpha, "bias": bias}
    operands = {name: value for name, value in given.items() if value is not None}
    axes = [own_axis(fusion, logical_axes(a)[0]), own_axis(fusion, logical_axes(b)[1])]
    (out,) = torch_op(fusion, "scaled_mm", list(operands.values()), [(axes, dtype)], given=tuple(operands), dtype=dtype)
    return out


def refuse(op: str, **options: object) -> None:
    """Raise Unsupported for the first option that is given."""
    for name, value in options.items():
        if value is not None and value is not False and value != 0:
            raise Unsupported(f"{op} with {name}", remedy=f"omit {name}")
