"""Inputs of a definition: define_tensor, define_scalar, define_vector, compute_tensor_descriptor.

Owns the meaning of sizes, contiguity and stride orders that a user gives. The values made here are not yet inputs of the fusion;
`FusionDefinition` adds them.
Read first: `define_tensor`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..dtypes import DataType
from ..errors import UserError
from ..expr import Sym, const, var
from ..ir.enums import IterType
from ..ir.fusion import Fusion, FusionGuard
from ..ir.values import IterDomain, Scalar, TensorDomain, TensorView
from ..ops.arguments import NoElementType, number
from ..integers import whole_number
from . import overloads as ov
from .overloads import Overload, Parameter


class NoActiveDefinition(UserError):
    code = "W102"
    what = "{function} needs a fusion that is being defined, and none is"
    fix = "call it inside `with FusionDefinition() as fd:` or `with FusionGuard(fusion):`"


class WrongSize(UserError):
    code = "W103"
    what = "The value {size} at index {index} was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1)."
    fix = "use -1 for a size that is known only when the fusion is executed"


class ContiguityLength(UserError):
    code = "W104"
    what = "Length of contiguity argument ({contiguity}) must match that of sizes argument ({rank})"
    fix = "pass one entry per dimension: True, False, or None for a broadcast dimension"


class BroadcastContiguity(UserError):
    code = "W105"
    what = "contiguity {value} at position {position} is for dimension {dim}, a dimension of size 1; its contiguity must be None"
    fix = "write None there, or pass one bool for all dimensions: dimensions of size 1 then get None"


class TensorOnTheCpu(UserError):
    code = "W176"
    what = "CPU non-scalar tensor is not supported! is_cpu was given for a tensor of {rank} dimensions"
    fix = "omit is_cpu; the emulator takes CPU tensors without it"


class WrongStrideOrder(UserError):
    code = "W106"
    what = "stride_order {stride_order} is not a permutation of 0 to {last} (it has one entry per dimension; 0 is the innermost)"
    fix = "omit it for the order of a contiguous tensor: {default}"


class NegativeStride(UserError):
    code = "W107"
    what = "stride {stride} of dimension {dim} is negative; sizes {sizes}, strides {strides}"
    fix = "make the tensor contiguous first"


class WrongDescriptor(UserError):
    code = "W108"
    what = "{sizes} sizes and {strides} strides were given; sizes {sizes_list}, strides {strides_list}"
    fix = "pass non-negative sizes and one stride per size"


class NoDescriptor(UserError, TypeError):
    code = "W112"
    what = "sizes and strides must be lists of ints; sizes {sizes} and strides {strides} were given"
    fix = "pass tensor.shape and tensor.stride(), or lists of ints"


class WrongScalarValue(UserError):
    code = "W109"
    what = "Scalar value {value} is not compatible with the expected data type: {dtype}."
    fix = "pass a value of that type, or define the scalar with dtype {suggested}"


# ---------------------------------------------------------------- overloads
_DTYPE = Parameter("dtype", ov.is_dtype, "DataType", DataType.Float)
_IS_CPU = Parameter("is_cpu", ov.is_truth, "bool", False)
_ORDER = Parameter("stride_order", ov.is_int_sequence, "Sequence[int]", ())
_SHAPE = Parameter("shape", ov.is_int_sequence, "Sequence[int]")
_TENSOR_OVERLOADS = (
    Overload("list", (_SHAPE, Parameter("contiguity", ov.is_optional_bool_sequence, "Sequence[bool | None]"), _DTYPE, _IS_CPU, _ORDER)),
    Overload("bool", (_SHAPE, Parameter("contiguity", ov.is_bool, "bool", False), _DTYPE, _IS_CPU, _ORDER)),
    Overload("strides", (
        Parameter("sizes", ov.is_int_sequence, "Sequence[int]"), Parameter("strides", ov.is_int_sequence, "Sequence[int]"), _DTYPE,
        Parameter("static_sizes", ov.is_truth, "bool", False), _IS_CPU,
    )),
)  # fmt: skip
_SCALAR_OVERLOADS = (
    Overload("symbolic", (Parameter("dtype", ov.is_dtype, "DataType", DataType.Double),)),
    Overload("value", (
        Parameter("value", ov.is_number_or_none, "float | int | bool | complex | None"), Parameter("dtype", ov.is_optional_dtype, "DataType | None", None),
    )),
)  # fmt: skip


def current_fusion(function: str) -> Fusion:
    """Return the fusion being defined.

    Errors: NoActiveDefinition.
    """
    fusion = FusionGuard.current()
    if fusion is None:
        raise NoActiveDefinition(function=function)
    return fusion


# ---------------------------------------------------------------- tensors
def define_tensor(*args: Any, **kwargs: Any) -> TensorView:
    """Return a new tensor of the current fusion (not yet an input). Three forms:

    (shape, contiguity: list of bool or None, dtype=Float, is_cpu=False, stride_order=[])
    (shape, contiguity: bool = False, dtype=Float, is_cpu=False, stride_order=[])
    (sizes, strides, dtype=Float, static_sizes=False, is_cpu=False)

    A size is -1 (known at execution), 0, 1 (a broadcast dimension) or static. contiguity lists dimensions from the outermost in memory;
    None with a size other than 1 is an expanded dimension (stride 0). stride_order[i] is the rank of dimension i in memory, 0 the innermost.
    Errors: IncompatibleArguments (a TypeError), and UserErrors for values.
    """
    return make_tensor(current_fusion("define_tensor"), *args, **kwargs)


def make_tensor(fusion: Fusion, *args: Any, **kwargs: Any) -> TensorView:
    """`define_tensor` in a given fusion."""
    form, values = ov.choose("define_tensor", _TENSOR_OVERLOADS, args, kwargs)
    if form == "strides":
        return _from_strides(fusion, **values)
    shape = [int(n) for n in values["shape"]]
    _check_sizes(shape)
    stride_order = _normal_order(values["stride_order"], len(shape))
    contiguity = values["contiguity"]
    if form == "bool":
        order = _memory_order(stride_order)
        contiguity = [None if shape[dim] == 1 else bool(contiguity) for dim in order]
    return build_tensor(fusion, shape, list(contiguity), values["dtype"], values["is_cpu"], stride_order)


def _from_strides(fusion: Fusion, sizes: Sequence[int], strides: Sequence[int], dtype: DataType, static_sizes: bool, is_cpu: bool) -> TensorView:
    contiguity, stride_order = compute_tensor_descriptor(sizes, strides)
    shape = [int(n) if static_sizes or n == 1 else -1 for n in sizes]
    return build_tensor(fusion, shape, contiguity, dtype, is_cpu, stride_order)


def build_tensor(
    fusion: Fusion, shape: list[int], contiguity: list[bool | None], dtype: DataType, is_cpu: bool = False, stride_order: Sequence[int] = ()
) -> TensorView:
    """Make the tensor from checked sizes; `contiguity` in memory order, `stride_order` complete or empty."""
    if dtype in (DataType.Null, DataType.Index):
        raise NoElementType(op="define_tensor", dtype=dtype)
    if len(contiguity) != len(shape):
        raise ContiguityLength(contiguity=len(contiguity), rank=len(shape))
    if is_cpu and shape:
        raise TensorOnTheCpu(rank=len(shape))
    order = _memory_order(stride_order or range(len(shape) - 1, -1, -1))
    if dtype is DataType.Float4_e2m1fn_x2:
        if order and shape[order[-1]] == 1:  # two elements in a byte, and no broadcast dimension
            contiguity = [*contiguity[:-1], True]
        shape, dtype = _unpacked_fp4(shape, order), DataType.Float4_e2m1fn
    expanded = [False] * len(shape)
    for position, dim in enumerate(order):
        if contiguity[position] is None:
            expanded[dim] = shape[dim] != 1
        elif shape[dim] == 1:
            raise BroadcastContiguity(value=contiguity[position], position=position, dim=dim)
    name = fusion._tensor_count
    logical = [_input_axis(fusion, name, dim, size, expanded[dim]) for dim, size in enumerate(shape)]
    _count_extents(fusion, name, shape)
    tensor = fusion.new_tensor(logical, dtype)
    allocation = None if list(order) == list(range(len(shape))) else [logical[dim] for dim in order]
    tensor._domain = TensorDomain(None, logical, contiguity, allocation)
    tensor.is_cpu_scalar = bool(is_cpu)
    return tensor


def _check_sizes(shape: list[int]) -> None:
    for index, size in enumerate(shape):
        if size < -1:
            raise WrongSize(size=size, index=index)


def _normal_order(stride_order: Sequence[int], rank: int) -> list[int]:
    """Return stride_order without negative entries, or [] when it says nothing."""
    wrapped = [int(n) + rank if n < 0 else int(n) for n in stride_order]
    if wrapped and sorted(wrapped) != list(range(rank)):
        raise WrongStrideOrder(stride_order=list(stride_order), last=rank - 1, default=list(range(rank - 1, -1, -1)))
    return wrapped or list(range(rank - 1, -1, -1))


def _memory_order(stride_order: Sequence[int]) -> list[int]:
    """Return the dimensions from the outermost in memory to the innermost."""
    rank = len(stride_order)
    order = [0] * rank
    for dim, place in enumerate(stride_order):
        order[rank - 1 - place] = dim
    return order


def _unpacked_fp4(shape: list[int], order: Sequence[int]) -> list[int]:
    """Return the sizes in 4-bit elements of a tensor whose elements are pairs of them."""
    inner = order[-1] if order else None
    return [size * 2 if dim == inner and size > 0 else size for dim, size in enumerate(shape)]


def _input_axis(fusion: Fusion, tensor_name: int, dim: int, size: int, is_expanded: bool) -> IterDomain:
    if size == 1 and not is_expanded:
        return fusion.new_axis(1, IterType.broadcast)
    extent: Sym = var(f"T{tensor_name}.size[{dim}]", lower=1) if size == -1 else const(size)
    if is_expanded:
        return fusion.new_axis(1, IterType.broadcast, expanded_extent=extent)
    return fusion.new_axis(extent)


def _count_extents(fusion: Fusion, tensor_name: int, shape: list[int]) -> None:
    """Count scalars as nvFuser does, so that sizes and scalars have its names (i0 and d2 after a [-1] tensor): one per size, and once per definition
    the 1 and the 0 that all tensors share."""
    shared: set[int] = fusion.__dict__.setdefault("_counted", set())
    for dim, size in enumerate(shape):
        if size == -1:
            fusion.names[f"T{tensor_name}.size[{dim}]"] = f"i{fusion._scalar_count}"
        fusion._scalar_count += size not in shared
        shared |= {size} & {0, 1}
    if shape and 0 not in shared:
        fusion._scalar_count += 1
        shared.add(0)


# ---------------------------------------------------------------- descriptors
def compute_tensor_descriptor(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[bool | None], list[int]]:
    """Return (contiguity from the outermost dimension in memory, stride order per dimension) of a tensor with these sizes and strides.

    Dimensions are sorted by stride, equal strides in the order given; those with stride 0 keep their place. None marks dimensions of size
    1 and of stride 0.
    Errors: NegativeStride, WrongDescriptor, NoDescriptor (a TypeError).
    Example: compute_tensor_descriptor([4, 1, 8], [1, 32, 4]) == ([None, True, True], [0, 2, 1])
    """
    try:
        rank, numbers = len(sizes), (*sizes, *strides)
    except TypeError:
        raise NoDescriptor(sizes=sizes, strides=strides) from None
    if not all(isinstance(n, int) or type(n).__name__ == "SymInt" for n in numbers):  # torch's open sizes, without importing torch
        raise NoDescriptor(sizes=list(sizes), strides=list(strides))
    if len(strides) != rank or rank and min(sizes) < 0:
        raise WrongDescriptor(sizes=rank, strides=len(strides), sizes_list=list(sizes), strides_list=list(strides))
    order = [dim for dim in range(rank) if strides[dim]]
    if order and min(strides) < 0:
        dim = next(d for d in range(rank) if strides[d] < 0)
        raise NegativeStride(stride=strides[dim], dim=dim, sizes=list(sizes), strides=list(strides))
    order.sort(key=lambda dim: -strides[dim])
    if len(order) != rank:
        for dim in range(rank):
            if not strides[dim]:
                order.insert(dim, dim)
    contiguity: list[bool | None] = [None] * rank
    stride_order = [0] * rank
    expected = 1
    for position in range(rank - 1, -1, -1):
        dim = order[position]
        stride_order[dim] = rank - 1 - position
        size, stride = sizes[dim], strides[dim]
        if size != 1 and stride:
            contiguity[position] = bool(stride == expected)  # of open sizes, a SymBool
            expected = stride * (size or 1)
    return contiguity, stride_order


# ---------------------------------------------------------------- scalars
def define_scalar(*args: Any, **kwargs: Any) -> Scalar:
    """Return a new scalar of the current fusion. Two forms:

    (dtype=Double): symbolic, a value given at execution.
    (value, dtype=None): a constant, or symbolic when value is None.
    Errors: IncompatibleArguments (a TypeError), WrongScalarValue.
    """
    return make_scalar(current_fusion("define_scalar"), *args, **kwargs)


def make_scalar(fusion: Fusion, *args: Any, **kwargs: Any) -> Scalar:
    """`define_scalar` in a given fusion."""
    form, values = ov.choose("define_scalar", _SCALAR_OVERLOADS, args, kwargs)
    value, dtype = values.get("value"), values["dtype"]
    if dtype is DataType.Null:
        raise NoElementType(op="define_scalar", dtype=dtype)
    if value is None:
        return fusion.new_input_scalar(dtype or DataType.Double)
    value = _python_number(value)
    dtype = dtype or python_dtype(value)
    return fusion.new_scalar(const(converted(value, dtype), dtype), dtype)


def _python_number(value: Any) -> bool | int | float | complex:
    value = number(value)
    if isinstance(value, (bool, int, float, complex)):
        return value
    return int(value) if hasattr(value, "__index__") else float(value)


def python_dtype(value: object) -> DataType:
    """Return the data type of a Python number: bool Bool, int Int, float Double, complex ComplexDouble."""
    if isinstance(value, bool):
        return DataType.Bool
    if isinstance(value, int):
        return DataType.Int
    return DataType.ComplexDouble if isinstance(value, complex) else DataType.Double


def converted(value: bool | int | float | complex, dtype: DataType) -> bool | int | float | complex:
    """Return `value` as a number of `dtype`; a real number for a complex one is an error.

    Errors: WrongScalarValue.
    """
    if isinstance(value, complex) and not dtype.is_complex:
        raise WrongScalarValue(value=scalar_text(value), dtype=dtype.value, suggested=DataType.ComplexDouble)
    if dtype.is_integer and not _is_in_range(value, dtype):  # type: ignore[arg-type]
        suggested = DataType.Int if isinstance(value, int) and _is_in_range(value, DataType.Int) else DataType.Double
        raise WrongScalarValue(value=scalar_text(value), dtype=dtype.value, suggested=suggested)
    if dtype.is_bool:
        return bool(value)
    if dtype.is_integer:
        return int(value)  # type: ignore[arg-type]
    return complex(value) if dtype.is_complex else float(value)  # type: ignore[arg-type]


def _is_in_range(value: float, dtype: DataType) -> bool:
    """Tell whether a kernel's integer of `dtype` can be `value`, whose fraction it drops; both 64-bit types hold what 64 bits can."""
    if not math.isfinite(value):
        return False
    whole = int(value)
    return not abs(whole) >> 64 if dtype.bits == 64 else whole_number(whole, dtype) == whole


def scalar_text(value: object) -> str:
    """Return a number as messages print it: complex numbers as (re,im)."""
    if isinstance(value, complex):
        return f"({value.real:g},{value.imag:g})"
    return f"{value:g}" if isinstance(value, float) else str(value)
