"""Tensors from nothing: full, iota, uniform, normal, rand_like, randn_like.

Owns their nodes and the numbering of random ops. Philox's arithmetic is in `weft/device/philox.cuh` and `weft/reference/philox.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..dtypes import DataType
from ..errors import UserError
from ..ir.fusion import Fusion
from ..ir.values import FullOp, IotaOp, IterDomain, RandomOp, Scalar, TensorView, Val
from .build import Operand, as_val, cast, constant, is_plain_broadcast, logical_axes, pointwise
from .promotion import WrongDtype
from .shapes import Extent, NegativeExtent, new_shape_axes, open_axis, squeeze


class HalfSeed(UserError):
    code = "W340"
    what = "{op}: rng_seed and rng_offset must be given together"
    fix = "pass both, or neither to use torch's generator"


class WrongSeed(UserError):
    code = "W341"
    what = "{op}: {tensor} is no seed or offset: it has more than one element, or no integer"
    fix = "give a scalar, or a tensor of one integer"


def full(fusion: Fusion, shape: Sequence[Extent], value: Operand, dtype: DataType) -> TensorView:
    """Return a tensor of `shape` filled with the scalar `value`."""
    fill = as_val(fusion, value, "full")
    out = fusion.new_tensor(new_shape_axes(fusion, shape, "full"), dtype)
    fusion.register(FullOp([_fill_of(fusion, fill, dtype)], [out], op="full"))
    return out


def _fill_of(fusion: Fusion, fill: Val, dtype: DataType) -> Val:
    """Return a scalar as kernels write it into elements of `dtype`: they convert no complex number to a real one, and no NaN to an integer. Errors: IllegalCast
    for a complex number as a float of 8 or 4 bits."""
    assert isinstance(fill, Scalar)
    is_narrowed = fill.dtype().is_complex and not dtype.is_complex or fill.dtype().is_float and dtype.is_integer
    if not is_narrowed or dtype.is_narrow_float and not fill.dtype().is_complex:
        return fill
    return cast(fusion, fill, dtype)


class WrongIota(UserError):
    code = "W374"
    what = "iota: {problem}"
    fix = "pass an integer length, and a finite start and step that are integers if the result is, and floats if not; the step must not be 0"


def _check_iota(length: Scalar, start: Operand | None, step: Operand | None, dtype: DataType) -> None:
    """Refuse a start or a step that is no integer where the result is one, or the reverse, and constants that make no sequence. Errors: WrongIota."""
    for name, value in (("start", start), ("step", step)):
        if isinstance(value, Scalar) and (value.dtype().is_integer, value.dtype().is_float) != (dtype.is_integer, dtype.is_float):
            raise WrongIota(problem=f"{name} dtype does not match specified dtype argument: {value.dtype()} and {dtype}")
        if isinstance(value, float) and dtype.is_integer and math.isfinite(value) and not value.is_integer():
            raise WrongIota(problem=f"{name} dtype does not match specified dtype argument: {value} and {dtype}")
    known = [v.sym.value if isinstance(v, Scalar) else v for v in (start, step) if v is not None and not (isinstance(v, Scalar) and not v.sym.is_const)]
    if not all(math.isfinite(v) for v in known if isinstance(v, (int, float))):
        raise WrongIota(problem=f"length, start, step must be finite numbers. They are {length.sym}, {start}, {step}")
    last = step.sym.value if isinstance(step, Scalar) and step.sym.is_const else step
    if isinstance(last, (int, float)) and last == 0:
        raise WrongIota(problem="step value must not equal zero.")


def iota(fusion: Fusion, length: Extent, start: Operand | None, step: Operand | None, dtype: DataType) -> TensorView:
    """Return start + step * i for i in 0 .. length - 1. Floats of 16 bits and fewer are computed in Float, as by torch.arange."""
    if not (dtype.is_integer or dtype.is_float):
        raise WrongDtype(op="iota", allowed="integers or floats", dtype=dtype)
    length_val = as_val(fusion, length, "iota")
    assert isinstance(length_val, Scalar)
    if length_val.sym.is_const and length_val.sym.value < 0:  # type: ignore[operator]
        raise NegativeExtent(op="iota", axis=0, extent=length_val.sym.value)
    _check_iota(length_val, start, step, dtype)
    one, zero = (1.0, 0.0) if dtype.is_float else (1, 0)
    start_val = as_val(fusion, zero if start is None else start, "iota")
    step_val = as_val(fusion, one if step is None else step, "iota")
    out = fusion.new_tensor([open_axis(fusion, length_val.sym)], DataType.Float if dtype.is_reduced_float else dtype)
    fusion.register(IotaOp([length_val, start_val, step_val], [out], op="iota"))
    return cast(fusion, out, dtype)  # type: ignore[return-value]


def random(
    fusion: Fusion, distribution: str, a: Operand, b: Operand, axes: list[IterDomain], dtype: DataType, *,
    seed: Operand | None = None, offset: Operand | None = None, op: str | None = None,
) -> TensorView:  # fmt: skip
    """Return Philox numbers: uniform in [a, b) or normal with mean a and standard deviation b, over `axes`.

    Each random op of a fusion has its `index`, which is added to the generator's offset unless seed and offset are given. Errors: WrongDtype, HalfSeed,
    WrongSeed.
    """
    name = op or distribution
    if not dtype.is_float or (dtype.is_reduced_float and dtype not in (DataType.Half, DataType.BFloat16)):
        raise WrongDtype(op=name, allowed="Double, Float, Half or BFloat16", dtype=dtype)
    if (seed is None) != (offset is None):
        raise HalfSeed(op=name)
    inputs: list[Val] = [as_val(fusion, a, name), as_val(fusion, b, name)]
    if seed is not None and offset is not None:
        inputs += [_counter(fusion, seed, name), _counter(fusion, offset, name)]
    out = fusion.new_tensor(axes, DataType.Float if dtype.is_reduced_float else dtype)
    fusion.register(RandomOp(inputs, [out], op=name, distribution=distribution, index=fusion.random_op_count))
    fusion.random_op_count += 1
    drawn = cast(fusion, out, dtype)
    if distribution != "uniform" or not dtype.is_reduced_float:
        return drawn  # type: ignore[return-value]
    is_inside = _is_inside(fusion, cast(fusion, drawn, DataType.Float), *inputs[:2])
    return pointwise(fusion, "where", is_inside, drawn, cast(fusion, inputs[0], dtype))  # type: ignore[return-value]


def _counter(fusion: Fusion, given: Operand, op: str) -> Val:
    """Return a seed or offset: a scalar, or a tensor without axes, from which the kernel reads it, so that a captured graph draws other numbers each time."""
    value = as_val(fusion, given, op)
    if not isinstance(value, TensorView):
        return value
    axes = logical_axes(value)
    if not value.dtype().is_integer or not all(is_plain_broadcast(axis) for axis in axes):
        raise WrongSeed(op=op, tensor=str(value))
    value = squeeze(fusion, value, range(len(axes))) if axes else value
    return cast(fusion, value, DataType.Int)


def _is_inside(fusion: Fusion, drawn: Val, a: Val, b: Val) -> Val:
    """Tell which numbers drawn between `a` and `b` were not rounded to `b` or beyond."""
    assert isinstance(a, Scalar) and isinstance(b, Scalar)
    if a.sym.is_const and b.sym.is_const:
        return pointwise(fusion, "lt" if a.sym.value < b.sym.value else "gt", drawn, b)  # type: ignore[operator]
    left, all_of_it = pointwise(fusion, "sub", b, drawn), pointwise(fusion, "sub", b, a)
    return pointwise(fusion, "gt", pointwise(fusion, "mul", left, all_of_it), 0.0)


def random_of_shape(
    fusion: Fusion, distribution: str, a: Operand, b: Operand, shape: Sequence[Extent], dtype: DataType, seed: Operand | None, offset: Operand | None
) -> TensorView:
    """Return `random` over new axes of `shape`."""
    return random(fusion, distribution, a, b, new_shape_axes(fusion, shape, distribution), dtype, seed=seed, offset=offset)


def random_like(fusion: Fusion, distribution: str, tensor: TensorView) -> TensorView:
    """Return random numbers of the shape and type of `tensor`: uniform in [0, 1) or standard normal."""
    axes = []
    for axis in logical_axes(tensor):
        axes.append(open_axis(fusion, axis.logical_extent))
    return random(fusion, distribution, constant(fusion, 0.0), constant(fusion, 1.0), axes, tensor.dtype())
