"""Fusions that the tests of analyses and facts share, built with `weft.ops` alone."""

from __future__ import annotations

from weft.dtypes import DataType
from weft.expr import Sym, var
from weft.ir.enums import IterType
from weft.ir.fusion import Fusion
from weft.ir.values import TensorDomain, TensorView
from weft.ops.build import broadcast, cast, pointwise
from weft.ops.factories import random_like
from weft.ops.reductions import reduce, var_mean, welford

BF16, F32, F4, F8 = DataType.BFloat16, DataType.Float, DataType.Float4_e2m1fn, DataType.Float8_e4m3fn


def tensor(fusion: Fusion, shape: list[int | str], dtype: DataType = BF16, contiguity: list[bool | None] | None = None, order: list[int] | None = None) -> TensorView:
    """Add an input. A size is a number, or the name of a variable shared between inputs; 1 is a broadcast axis. order: dims, outermost in memory first."""
    logical = [fusion.new_axis(n if isinstance(n, int) else size(n), IterType.broadcast if n == 1 else IterType.iteration) for n in shape]
    allocation = None if order is None else [logical[d] for d in order]
    default = [None if a.is_broadcast() else True for a in (allocation or logical)]
    out = TensorView(fusion, fusion._tensor_count, TensorDomain(None, logical, contiguity or default, allocation), dtype)
    fusion._tensor_count += 1
    fusion._vals.append(out)
    fusion.add_input(out)
    return out


def size(name: str) -> Sym:
    return var(f"S.size.{name}", lower=1)  # S: known to the host at launch, as a scalar input is


def sizes(**values: int) -> dict[Sym, int]:
    return {size(name): value for name, value in values.items()}


def up(value: TensorView) -> TensorView:
    return cast(value.fusion, value, F32)


def column(value: TensorView) -> TensorView:
    """[n] -> [n, 1]"""
    return broadcast(value.fusion, value, [False, True])


def op(name: str, *operands) -> TensorView:
    fusion = next(o.fusion for o in operands if isinstance(o, TensorView))
    return pointwise(fusion, name, *operands)


def output(value: TensorView, dtype: DataType | None = None) -> None:
    value.fusion.add_output(value if dtype is None else cast(value.fusion, value, dtype))


def row_sum(value: TensorView, kind: str = "sum") -> TensorView:
    return reduce(value.fusion, kind, value, [value.ndim - 1], keepdim=True)


def rms_norm(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    x, w = up(tensor(fusion, ["m", "n"], dtype)), up(tensor(fusion, ["n"], dtype))
    r = op("rsqrt", op("add", row_sum(op("mul", x, x)), 1e-6))
    output(op("mul", op("mul", x, r), w), dtype)
    return fusion


def add_rms_norm(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    x, y, w = up(tensor(fusion, ["m", "n"], dtype)), up(tensor(fusion, ["m", "n"], dtype)), up(tensor(fusion, ["n"], dtype))
    h = op("add", x, y)
    r = op("rsqrt", op("add", row_sum(op("mul", h, h)), 1e-6))
    output(op("mul", op("mul", h, r), w), dtype)
    output(h, dtype)
    return fusion


def softmax(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    x = up(tensor(fusion, ["m", "n"], dtype))
    e = op("exp", op("sub", x, row_sum(x, "max")))
    output(op("mul", e, op("reciprocal", row_sum(e))), dtype)
    return fusion


def layer_norm(dtype: DataType = BF16, *, two_passes: bool = False) -> Fusion:
    fusion = Fusion()
    x, w, b = up(tensor(fusion, ["m", "n"], dtype)), up(tensor(fusion, ["n"], dtype)), up(tensor(fusion, ["n"], dtype))
    if two_passes:
        centered = op("sub", x, op("mul", row_sum(x), 0.001))
        var = op("mul", row_sum(op("mul", centered, centered)), 0.001)
    else:
        var, mean = var_mean(fusion, x, [1], 0, keepdim=True)
        centered = op("sub", x, mean)
    output(op("add", op("mul", op("mul", centered, op("rsqrt", op("add", var, 1e-5))), w), b), dtype)
    return fusion


def dropout_rms_norm() -> Fusion:
    fusion = Fusion()
    x = up(tensor(fusion, ["m", "n"]))
    h = op("mul", x, cast(fusion, op("lt", random_like(fusion, "uniform", x), 0.9), F32))
    output(op("mul", h, op("rsqrt", row_sum(op("mul", h, h)))), BF16)
    return fusion


def late_residual_norm() -> Fusion:
    """The residual is read after the reduction only, so it is not kept."""
    fusion = Fusion()
    x, late = up(tensor(fusion, ["m", "n"])), up(tensor(fusion, ["m", "n"]))
    output(op("add", op("mul", x, op("rsqrt", row_sum(op("mul", x, x)))), late), BF16)
    return fusion


def column_sum(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    output(reduce(fusion, "sum", up(tensor(fusion, ["m", "n"], dtype)), [0]), dtype)
    return fusion


def row_sum_only(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    output(reduce(fusion, "sum", up(tensor(fusion, ["m", "n"], dtype)), [1]), dtype)
    return fusion


def batch_statistics(order: list[int] | None = None) -> Fusion:
    fusion = Fusion()
    average, squares, _ = welford(fusion, up(tensor(fusion, ["n", "c", "h", "w"], BF16, order=order)), [0, 2, 3])
    output(average)
    output(squares)
    return fusion


def norm_backward() -> Fusion:
    """Reductions over rows and over columns."""
    fusion = Fusion()
    x, g = up(tensor(fusion, ["m", "n"])), up(tensor(fusion, ["m", "n"]))
    p = op("mul", x, g)
    output(op("sub", g, op("mul", x, row_sum(p))), BF16)
    output(reduce(fusion, "sum", p, [0]), BF16)
    return fusion


def bias_gelu(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    x, b = up(tensor(fusion, ["m", "n"], dtype)), up(tensor(fusion, ["n"], dtype))
    output(op("tanh", op("add", x, b)), dtype)
    return fusion


def scale_rows(dtype: DataType = BF16) -> Fusion:
    fusion = Fusion()
    x, s = up(tensor(fusion, ["m", "n"], dtype)), tensor(fusion, ["m", 1], F32)
    output(op("mul", x, s), dtype)
    return fusion


__all__ = [name for name in dir() if not name.startswith("_") and name not in ("annotations", "const", "keep_dims")]
