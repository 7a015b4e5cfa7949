"""The check of the values given to a fusion: how many, what kind, which type, rank, device, sizes and strides.

Owns the messages for wrong inputs. What depends on the fusion only is computed once and kept on it, so a check costs some microseconds per
input; still, call it on cold calls only.
Read first: `check_arguments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..analysis.axes import AxisMaps
from ..dtypes import DataType
from ..errors import UserError
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, Scalar, TensorView, no_reductions
from .inputs import python_dtype, scalar_text
from .pytorch_utils import _TORCH_DTYPES


class WrongArgumentCount(UserError):
    code = "W150"
    what = "Expected {expected} inputs ({names}), but got {given}"
    fix = "pass one value per define_tensor and define_scalar, in the order of the definition"


class ExpectedTensor(UserError):
    code = "W151"
    what = "Expected input {index}, {value}, to be an at::Tensor but got {given}"
    fix = "pass a torch.Tensor of dtype {dtype}"


class ExpectedScalar(UserError):
    code = "W152"
    what = "Expected input {index}, {value}, to be a scalar but got {given}"
    fix = "pass a Python number (tensor.item() of a tensor with one element)"


class WrongDtype(UserError):
    code = "W153"
    what = "Expected input {index}, {value}, to be bound to a tensor of dtype {expected}, but got a tensor of dtype {given}"
    fix = "pass {torch_dtype}, or define the input with the dtype of the tensor"


class WrongRank(UserError):
    code = "W154"
    what = "Expected input {index}, {value}, to be bound to a tensor of rank {expected}, but got a tensor of rank {given}"
    fix = "pass a tensor of that rank, or define the input with one size per dimension"


class WrongScalarType(UserError):
    code = "W155"
    what = "Scalar value {given} is not compatible with the expected data type: {dtype}. (input {index}, {value})"
    fix = "pass a number of that type, or define the scalar with dtype {suggested}"


class ExpectedCpuScalar(UserError):
    code = "W156"
    what = "Expected input {index}, {value}, to be bound to a CPU scalar tensor, but got a tensor of rank {rank} on device {device}"
    fix = "pass a tensor of rank 0 on the CPU, or define the input without is_cpu"


class DevicesDiffer(UserError):
    code = "W157"
    what = "Expected input {index}, {value}, to be on device {expected} as input {first} is, but got a tensor on device {given}"
    fix = "move both to one device; a scalar on the CPU needs define_tensor(..., is_cpu=True)"


class WrongSize(UserError):
    code = "W158"
    what = "Expected input {index}, {value}, to have size {expected} in dimension {dim}, but got {given}; its sizes are {sizes}"
    fix = "{remedy}"


class SizesDiffer(UserError):
    code = "W159"
    what = "input {a}, {value_a}, has size {size_a} in dimension {dim_a}, and {other} has size {size_b}; the definition makes them equal"
    fix = "pass tensors whose sizes agree there"


class WrongStride(UserError):
    code = "W160"
    what = "Expected input {index}, {value}, to have stride {expected} in dimension {dim} ({why}), but got {given}; sizes {sizes}, strides {strides}"
    fix = "{remedy}"


_DTYPES = {**_TORCH_DTYPES, torch.uint64: DataType.UInt64}
if hasattr(torch, "float4_e2m1fn_x2"):
    _DTYPES[torch.float4_e2m1fn_x2] = DataType.Float4_e2m1fn
_ALIASES = {DataType.Index: DataType.Int, DataType.Float4_e2m1fn_x2: DataType.Float4_e2m1fn}
_TORCH_NAMES = {dtype: str(name) for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class _Axis:
    """What a definition says of one dimension: `size` None when symbolic; `contiguity` as in TensorDomain."""

    dim: int
    size: int | None
    is_broadcast: bool
    is_expanded: bool
    contiguity: bool | None


@dataclass(frozen=True)
class _TensorInput:
    """axes from the innermost in memory to the outermost."""

    tensor: TensorView
    dtype: DataType
    axes: tuple[_Axis, ...]


@dataclass(frozen=True)
class _Plan:
    """One entry per input (a Scalar for scalars); groups of (input, dimension) with equal sizes, and the constant size they have, if any."""

    inputs: tuple[_TensorInput | Scalar, ...]
    groups: tuple[tuple[tuple[tuple[int, int], ...], int | None], ...]


def check_arguments(fusion: Fusion, inputs: Sequence[Any]) -> None:
    """Raise unless `inputs` (flat) fit the inputs of `fusion`.

    Errors: the UserErrors of this module; each names the input, both values and what to do.
    """
    plan = fusion.__dict__.get("_argument_plan")
    if plan is None or len(plan.inputs) != len(fusion._inputs):
        plan = fusion._argument_plan = _make_plan(fusion)  # type: ignore[attr-defined]
    if len(inputs) != len(plan.inputs):
        raise WrongArgumentCount(expected=len(plan.inputs), names=", ".join(map(str, fusion.inputs())), given=len(inputs))
    first: int | None = None
    for index, (expected, given) in enumerate(zip(plan.inputs, inputs)):
        if isinstance(expected, Scalar):
            _check_scalar(index, expected, given)
            continue
        _check_tensor(index, expected, given)
        if expected.tensor.is_cpu_scalar or given.is_meta:
            continue
        if first is None:
            first = index
        elif given.device != inputs[first].device:
            raise DevicesDiffer(index=index, value=expected.tensor, expected=inputs[first].device, first=first, given=given.device)
    _check_groups(plan, inputs)


# ---------------------------------------------------------------- one input
def _check_scalar(index: int, expected: Scalar, given: Any) -> None:
    if isinstance(given, torch.Tensor):
        shown = f"{_dtype_of(given)} tensor of rank {given.dim()}"
        raise ExpectedScalar(index=index, value=expected, given=shown)
    if not isinstance(given, (bool, int, float, complex)):
        if not hasattr(given, "__index__") and not hasattr(given, "__float__"):
            raise ExpectedScalar(index=index, value=expected, given=f"{type(given).__name__} {given!r}")
        given = given.__index__() if hasattr(given, "__index__") else float(given)
    if not _accepts(expected.dtype(), given):
        raise WrongScalarType(index=index, value=expected, given=scalar_text(given), dtype=expected.dtype().value, suggested=python_dtype(given))


def _accepts(dtype: DataType, given: bool | int | float | complex) -> bool:
    """True when `given` is of the kind of `dtype` or of a narrower kind (bool, integer, real, complex)."""
    if isinstance(given, complex):
        return dtype.is_complex
    if isinstance(given, float):
        return dtype.is_float or dtype.is_complex
    return isinstance(given, bool) or not dtype.is_bool


def _check_tensor(index: int, expected: _TensorInput, given: Any) -> None:
    tensor = expected.tensor
    if not isinstance(given, torch.Tensor):
        is_number = isinstance(given, (bool, int, float, complex))
        shown = f"scalar {scalar_text(given)}" if is_number else f"{type(given).__name__} {given!r}"
        raise ExpectedTensor(index=index, value=tensor, given=shown, dtype=expected.dtype)
    dtype = _DTYPES.get(given.dtype)
    if dtype is not expected.dtype:
        name = _TORCH_NAMES.get(expected.dtype, str(expected.dtype))
        raise WrongDtype(index=index, value=tensor, expected=expected.dtype.value, given=_dtype_of(given), torch_dtype=f"tensor.to({name})")
    if given.dim() != len(expected.axes):
        raise WrongRank(index=index, value=tensor, expected=len(expected.axes), given=given.dim())
    if tensor.is_cpu_scalar and not (given.is_cpu and given.dim() == 0):
        raise ExpectedCpuScalar(index=index, value=tensor, rank=given.dim(), device=given.device)
    _check_layout(index, expected, _sizes(expected, given), _strides(expected, given), given.numel() == 0)


def _dtype_of(tensor: torch.Tensor) -> str:
    dtype = _DTYPES.get(tensor.dtype)
    return str(tensor.dtype) if dtype is None else dtype.value


def _sizes(expected: _TensorInput, given: torch.Tensor) -> Sequence[int]:
    """Return the sizes in elements; torch stores 4-bit elements in pairs."""
    if expected.dtype is not DataType.Float4_e2m1fn or not expected.axes:
        return given.shape
    inner = expected.axes[0].dim
    return [size * 2 if dim == inner else size for dim, size in enumerate(given.shape)]


def _strides(expected: _TensorInput, given: torch.Tensor) -> Sequence[int]:
    if expected.dtype is not DataType.Float4_e2m1fn or not expected.axes:
        return given.stride()
    inner = expected.axes[0].dim
    return [stride if dim == inner else stride * 2 for dim, stride in enumerate(given.stride())]


def _check_layout(index: int, expected: _TensorInput, sizes: Sequence[int], strides: Sequence[int], is_empty: bool) -> None:
    """Check sizes and strides; a stride does not matter where the size is 1, and none does in an empty tensor."""
    running = 1
    for axis in expected.axes:
        size, stride = sizes[axis.dim], strides[axis.dim]
        if axis.size is not None and size != axis.size:
            raise _wrong_size(index, expected, axis, size, sizes)
        if size == 1 or is_empty:
            continue
        if axis.is_broadcast:
            if stride != 0:
                raise _wrong_stride(index, expected, axis, 0, sizes, strides)
            continue
        if axis.contiguity and stride != running:
            raise _wrong_stride(index, expected, axis, running, sizes, strides)
        running = stride * size


def _wrong_size(index: int, expected: _TensorInput, axis: _Axis, size: int, sizes: Sequence[int]) -> WrongSize:
    if axis.is_broadcast and not axis.is_expanded:
        remedy = "define that dimension with size -1; 1 says that it is broadcast"
    else:
        remedy = f"define that dimension with size -1 for sizes known at execution, or pass size {axis.size}"
    return WrongSize(index=index, value=expected.tensor, expected=axis.size, dim=axis.dim, given=size, sizes=list(sizes), remedy=remedy)


def _wrong_stride(index: int, expected: _TensorInput, axis: _Axis, wanted: int, sizes: Sequence[int], strides: Sequence[int]) -> WrongStride:
    if axis.is_broadcast:
        why, remedy = "the definition says it is expanded", "pass tensor.expand(...), or define that dimension with contiguity True or False"
    else:
        why, remedy = "the definition says it is contiguous", "pass tensor.contiguous(), or define that dimension with contiguity False"
    values = {"expected": wanted, "dim": axis.dim, "why": why, "given": strides[axis.dim], "sizes": list(sizes), "strides": list(strides)}
    return WrongStride(index=index, value=expected.tensor, remedy=remedy, **values)


# ---------------------------------------------------------------- inputs together
def _check_groups(plan: _Plan, inputs: Sequence[Any]) -> None:
    for members, constant in plan.groups:
        a, dim_a = members[0]
        size_a = _size(plan, inputs, a, dim_a)
        other: tuple[str, int] | None = None
        if constant is not None and size_a != constant:
            other = (f"another tensor of the fusion there (a constant size {constant})", constant)
        for b, dim_b in members[1:]:
            size_b = _size(plan, inputs, b, dim_b)
            if other is None and size_b != size_a:
                other = (f"input {b}, {fusion_value(plan, b)}, in dimension {dim_b}", size_b)
        if other is not None:
            raise SizesDiffer(a=a, value_a=fusion_value(plan, a), size_a=size_a, dim_a=dim_a, other=other[0], size_b=other[1])


def fusion_value(plan: _Plan, index: int) -> TensorView:
    """Return the tensor of the fusion that input `index` is bound to."""
    return plan.inputs[index].tensor  # type: ignore[union-attr]


def _size(plan: _Plan, inputs: Sequence[Any], index: int, dim: int) -> int:
    return _sizes(plan.inputs[index], inputs[index])[dim]  # type: ignore[arg-type]


# ---------------------------------------------------------------- what the fusion says
def _make_plan(fusion: Fusion) -> _Plan:
    entries = tuple(_tensor_input(v) if isinstance(v, TensorView) else v for v in fusion.inputs())
    return _Plan(entries, _equal_sizes(fusion))  # type: ignore[arg-type]


def _tensor_input(tensor: TensorView) -> _TensorInput:
    domain = tensor.domain()
    dims = {axis: dim for dim, axis in enumerate(no_reductions(domain.logical))}
    axes = [_axis(dims[axis], axis, c) for axis, c in zip(domain.maybe_allocation, domain.contiguity) if axis in dims]
    return _TensorInput(tensor, _ALIASES.get(tensor.dtype(), tensor.dtype()), tuple(reversed(axes)))


def _axis(dim: int, axis: IterDomain, contiguity: bool | None) -> _Axis:
    extent = axis.logical_extent
    size = int(extent.value) if extent.is_const else None  # type: ignore[arg-type]
    return _Axis(dim, size, axis.is_broadcast(), axis.expanded_extent is not None, contiguity)


def _equal_sizes(fusion: Fusion) -> tuple[tuple[tuple[tuple[int, int], ...], int | None], ...]:
    """Return the groups of input dimensions that the definition makes equal."""
    maps = AxisMaps(fusion)
    constants: dict[IterDomain, int] = {}
    for tensor in fusion.tensors():
        for axis in tensor.get_maybe_root_domain():
            if axis.sym.is_const and not axis.is_broadcast():
                constants.setdefault(maps.exact(axis), int(axis.sym.value))  # type: ignore[arg-type]
    members: dict[IterDomain, list[tuple[int, int]]] = {}
    for index, value in enumerate(fusion.inputs()):
        if isinstance(value, TensorView):
            for dim, axis in enumerate(no_reductions(value.get_logical_domain())):
                if not axis.is_broadcast():
                    members.setdefault(maps.exact(axis), []).append((index, dim))
    groups = [(tuple(places), constants.get(root)) for root, places in members.items()]
    return tuple((places, constant) for places, constant in groups if len(places) > 1 or constant is not None)
