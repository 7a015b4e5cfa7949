"""From the values of a call to the numbers that a kernel depends on: sizes, strides, scalars, alignments.

Owns the checks of a call's inputs and their messages. Everything here happens once per signature (see `weft.runtime.calls`), never on the
warm path. Read first: `InputPlan.bind`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ..analysis.extents import SizeEquality
from ..arch import VECTOR_BYTES
from ..dtypes import DataType
from ..errors import UserError
from ..errors import shown as in_few_words
from ..expr import Number, Sym, evaluate, var
from ..ir.block_ops import BlockFoldOp
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView, Val, no_reductions
from ..ops.arguments import number
from ..reference.torch_types import NoSuchType, torch_dtype, torch_dtype_to_nvfuser_dtype
from .storage_check import check_storage


class WrongArgumentCount(UserError):
    code = "W770"
    what = "Expected {expected} inputs ({names}), but got {given} (Inputs do not match.)"
    fix = "pass one value per define_tensor and define_scalar, in the order of the definition"


class ExpectedTensor(UserError):
    code = "W771"
    what = "Expected input {index}, {value}, to be an at::Tensor but got {given}"
    fix = "pass a torch.Tensor of dtype {dtype}"


class ExpectedScalar(UserError):
    code = "W772"
    what = "Expected input {index}, {value}, to be a scalar but got {given}"
    fix = "pass a Python number (tensor.item() of a tensor with one element)"


class WrongDtype(UserError):
    code = "W773"
    what = "Expected input {index}, {value}, to be bound to a tensor of dtype {expected}, but got a tensor of dtype {given}"
    fix = "pass {remedy}, or define the input with the dtype of the tensor"


class WrongRank(UserError):
    code = "W774"
    what = "Expected input {index}, {value}, to be bound to a tensor of rank {expected}, but got a tensor of rank {given}"
    fix = "pass a tensor of that rank, or define the input with one size per dimension"


class WrongScalarType(UserError):
    code = "W775"
    what = "Scalar value {given} is not compatible with the expected data type: {dtype}. (input {index}, {value})"
    fix = "pass a number of that type, or define the scalar with another dtype"


class ExpectedCpuScalar(UserError):
    code = "W776"
    what = "Expected input {index}, {value}, to be bound to a CPU or meta scalar tensor, but got a tensor of rank {rank} on device {device}"
    fix = "pass a tensor of rank 0 on the CPU, or define the input without is_cpu"


class DevicesDiffer(UserError):
    code = "W777"
    what = (
        "Expected input {index}, {value}, to be on device {expected} as {first} is (to be bound to a CUDA or meta tensor), "
        "but got a tensor on device {given}"
    )
    fix = "move both to one device; a scalar on the CPU needs define_tensor(..., is_cpu=True)"


class UnsupportedTensor(UserError):
    code = "W778"
    what = "Expected input {index}, {value}, to be a dense tensor on a GPU or the CPU, but got {given}"
    fix = "{remedy}"


class WrongSize(UserError):
    code = "W779"
    what = (
        "Expected input {index}, {value}, to have size {expected} in dimension {dim}, but got {given}; its sizes are {sizes} "
        "(Tried to bind to a constant value: {expected} as {given})"
    )
    fix = "{remedy}"


class SizesDiffer(UserError):
    code = "W780"
    what = "{a} is {size_a}, and {b} is {size_b} (Tried to bind to a value: {size_a} as {size_b}); {reason}"
    fix = "pass tensors whose sizes agree there"


class NotWholeBytes(UserError):
    code = "W862"
    what = "{problem} (input {index}, {value}: {elems} elements of {dtype} share a byte; sizes {sizes}, strides {strides})"
    fix = "{remedy}"


class NoWholeBlocks(UserError):
    code = "W866"
    what = "the last axis of {tensor} has {elems} elements, which is not a multiple of the block of {block}"
    fix = "pad it to a multiple of {block}"


class WrongStride(UserError):
    code = "W781"
    what = (
        "Expected input {index}, {value}, to have stride {expected} in dimension {dim} ({why}), but got {given}; sizes {sizes}, strides {strides} "
        "(Tried to bind to a constant value: {expected} as {given})"
    )
    fix = "{remedy}"


@dataclass(frozen=True)
class BoundTensor:
    """The properties of a tensor of the call. Units: sizes and strides in elements; `span_elems`: from its first to its last element in memory."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    alignment_bytes: int
    span_elems: int


@dataclass(frozen=True)
class Bound:
    """The values of one call: `env` for every variable of the fusion's inputs, `tensors` by input position, `device` of the GPU or None."""

    env: dict[Sym, Number]
    tensors: dict[int, BoundTensor]
    device: int | None
    has_cpu_tensors: bool


def type_name(dtype: torch.dtype) -> str:
    """Return the fusion's name of a torch type, or torch's own if there is none."""
    try:
        return torch_dtype_to_nvfuser_dtype(dtype).value
    except NoSuchType:
        return str(dtype)


def is_fake(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is one of torch.compile's fake tensors. Their module is already imported if there are any."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def alignment_bytes(pointer: int) -> int:
    """Return the largest power of two up to 32 that divides an address."""
    low = pointer & (VECTOR_BYTES - 1)
    return low & -low or VECTOR_BYTES


def span_elems(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last one in memory; 0 for an empty tensor."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))


# ---------------------------------------------------------------- one input
@dataclass(frozen=True)
class _Axis:
    """One allocation axis of an input. size: the constant, or None if symbolic; stride: the variable of a strided axis; outer_stride: that of a contiguous axis
    around a strided one, for variants of the definition in which the strided one has size 1 and is removed."""

    dim: int
    size: int | None
    size_var: Sym | None
    is_broadcast: bool
    is_expanded: bool
    is_contiguous: bool
    stride: Sym | None
    outer_stride: Sym | None


class _TensorInput:
    """The checks of one tensor input. `shown`: the tensor of the definition, which messages name."""

    def __init__(self, index: int, tensor: TensorView, shown: Val) -> None:
        self.index, self.tensor, self.shown = index, tensor, shown
        self.dtype = torch_dtype(tensor.dtype())
        self.unit = tensor.dtype().elems_per_unit
        domain = tensor.domain()
        dims = {axis: dim for dim, axis in enumerate(no_reductions(domain.logical))}
        self.rank = len(dims)
        self.axes: list[_Axis] = []  # innermost in memory first
        for position, (axis, contiguous) in reversed(list(enumerate(zip(domain.maybe_allocation, domain.contiguity)))):
            if axis not in dims:
                continue
            extent = axis.logical_extent
            strided = contiguous is False and not axis.is_broadcast()
            around = bool(contiguous) and any(a.stride is not None for a in self.axes)
            self.axes.append(_Axis(
                dims[axis], int(extent.value) if extent.is_const else None, extent if extent.is_var else None, axis.is_broadcast(),  # type: ignore[arg-type]
                axis.expanded_extent is not None, bool(contiguous), tensor.stride_var(position) if strided else None,
                tensor.stride_var(position) if around else None,
            ))  # fmt: skip

    def bind(self, given: Any, env: dict[Sym, Number]) -> BoundTensor:
        if not isinstance(given, torch.Tensor):
            raise ExpectedTensor(index=self.index, value=self.shown, given=_shown_value(given), dtype=self.tensor.dtype())
        if given.dtype is not self.dtype:
            raise WrongDtype(index=self.index, value=self.shown, expected=self.tensor.dtype().value, given=type_name(given.dtype), remedy=self._converted())
        if given.dim() != self.rank:
            raise WrongRank(index=self.index, value=self.shown, expected=self.rank, given=given.dim())
        if self.tensor.is_cpu_scalar:
            return self._bind_cpu_scalar(given, env)
        self._check_kind(given)
        sizes, strides = (tuple(given.shape), given.stride()) if self.unit == 1 else self._unpacked(tuple(given.shape), given.stride())
        self._bind_axes(sizes, strides, env)
        span = span_elems(sizes, strides)
        check_storage(given, -(-span * self.tensor.dtype().bits // 8), self.index, self.shown)
        return BoundTensor(sizes, strides, alignment_bytes(given.data_ptr()), span)

    def _converted(self) -> str:
        """The remedy for a tensor of another type: how to convert it; torch has no casts to packed types."""
        return f"tensor.to({self.dtype})" if self.unit == 1 else f"bytes of codes as tensor.view({self.dtype}), numbers through fd.ops.cast or weft.quantize"

    def _unpacked(self, sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return sizes and strides in elements; torch's own elements contain several along the innermost axis in memory. Errors: NotWholeBytes."""
        inner = self.axes[0].dim if self.axes else None
        if inner is None:
            self._refuse_unit("a tensor of rank 0 has no axis along which it is packed", sizes, strides, "use a tensor with at least one axis")
        if strides[inner] != 1 and sizes[inner] > 1 and 0 not in sizes:
            problem = f"Stride must be a multiple of 8 bits (one byte): neighbours along the packed dimension {inner} lie {strides[inner]} bytes apart"
            self._refuse_unit(problem, sizes, strides, "pass tensor.contiguous(), or define the tensor with the stride order of its memory")
        unit = self.unit
        return tuple(n * unit if d == inner else n for d, n in enumerate(sizes)), tuple(1 if d == inner else s * unit for d, s in enumerate(strides))

    def _refuse_unit(self, problem: str, sizes: tuple[int, ...], strides: tuple[int, ...], remedy: str) -> NoReturn:
        raise NotWholeBytes(
            problem=problem, index=self.index, value=self.shown, elems=self.unit, dtype=self.tensor.dtype().value, sizes=list(sizes), strides=list(strides),
            remedy=remedy,
        )  # fmt: skip

    def _bind_cpu_scalar(self, given: torch.Tensor, env: dict[Sym, Number]) -> BoundTensor:
        if not given.is_cpu or given.dim():
            raise ExpectedCpuScalar(index=self.index, value=self.shown, rank=given.dim(), device=given.device)
        self._check_kind(given)
        check_storage(given, given.element_size(), self.index, self.shown)
        env[cpu_scalar_var(self.tensor)] = given.item()
        return BoundTensor((), (), VECTOR_BYTES, 1)

    def _check_kind(self, given: torch.Tensor) -> None:
        kind, remedy = "", "move it to a GPU"
        if given.is_nested:
            kind, remedy = "a nested tensor", "pass its parts one by one, or torch.nested.to_padded_tensor(tensor, 0.0)"
        elif is_fake(given):
            kind, remedy = "a fake tensor, which has no values", "pass the tensor that it stands for"
        elif given._is_zerotensor():
            kind, remedy = "a zero tensor, which has no memory", "pass tensor.clone()"
        elif given.layout is not torch.strided:
            kind, remedy = f"a tensor of layout {given.layout}", "pass tensor.to_dense()"
        elif given.is_conj() or given.is_neg():
            kind, remedy = "a tensor whose conjugation or negation is still to be done", "pass tensor.resolve_conj().resolve_neg()"
        elif not (given.is_cuda or given.is_cpu):
            kind = f"a tensor on device {given.device}"
        if kind:
            raise UnsupportedTensor(index=self.index, value=self.shown, given=kind, remedy=remedy)

    def _bind_axes(self, sizes: tuple[int, ...], strides: tuple[int, ...], env: dict[Sym, Number]) -> None:
        """Check sizes and strides, and bind their variables. Strides of axes of size 1, and of empty tensors, are ignored."""
        is_empty = 0 in sizes
        running = 1
        free: list[Sym] = []  # stride variables of axes of size 1 since the last axis with a meaningful stride
        for axis in self.axes:
            size, stride = sizes[axis.dim], strides[axis.dim]
            if axis.size is not None and size != axis.size:
                raise self._wrong_size(axis, size, sizes)
            if axis.size_var is not None:
                env[axis.size_var] = size
            if axis.stride is not None:
                env[axis.stride] = stride
            elif axis.outer_stride is not None:
                env[axis.outer_stride] = stride
            if size == 1 or is_empty:
                if axis.stride is not None:
                    free.append(axis.stride)
                continue
            if axis.is_broadcast:
                if stride != 0:
                    raise self._wrong_stride(axis, 0, sizes, strides)
                continue
            if axis.is_contiguous and free:
                for variable in free:  # the kernel computes this stride from that of an axis of size 1, which is arbitrary, so choose the one that fits
                    env[variable] = stride
            elif axis.is_contiguous and stride != running:
                raise self._wrong_stride(axis, running, sizes, strides)
            free.clear()
            running = stride * size

    def _wrong_size(self, axis: _Axis, size: int, sizes: tuple[int, ...]) -> WrongSize:
        remedy = f"define that dimension with size -1 for sizes known at execution, or pass size {axis.size}"
        if axis.is_broadcast and not axis.is_expanded:
            remedy = "define that dimension with size -1; 1 says that it is broadcast"
        return WrongSize(index=self.index, value=self.shown, expected=axis.size, dim=axis.dim, given=size, sizes=list(sizes), remedy=remedy)

    def _wrong_stride(self, axis: _Axis, expected: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> WrongStride:
        why, remedy = "the definition says it is contiguous", "pass tensor.contiguous(), or define that dimension with contiguity False"
        if axis.is_broadcast:
            why = f"the definition says it is expanded: it has expanded extent but input tensor has size {sizes[axis.dim]}"
            remedy = "pass tensor.expand(...), or define that dimension with contiguity True or False"
        given = strides[axis.dim]
        return WrongStride(
            index=self.index, value=self.shown, expected=expected, dim=axis.dim, why=why, given=given, sizes=list(sizes), strides=list(strides), remedy=remedy
        )


def cpu_scalar_var(tensor: TensorView) -> Sym:
    """The variable of the value of a CPU scalar."""
    return var(f"T{tensor.name}.value", tensor.dtype())


def _shown_value(given: Any) -> str:
    if isinstance(given, complex):
        return f"scalar ({given.real:g},{given.imag:g})"
    if isinstance(given, (bool, int, float)):
        return f"scalar {given:g}" if isinstance(given, float) else f"scalar {given}"
    return f"{type(given).__name__} {in_few_words(given)}"


def integer_range(dtype: DataType) -> tuple[int, int]:
    """Return the least and the largest integer of a type."""
    return (0, (1 << dtype.bits) - 1) if dtype.name.startswith(("UInt", "Byte")) else (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)


class _ScalarInput:
    def __init__(self, index: int, scalar: Scalar, shown: Val) -> None:
        self.index, self.scalar, self.shown = index, scalar, shown

    def bind(self, given: Any, env: dict[Sym, Number]) -> None:
        if isinstance(given, torch.Tensor):
            shown = f"{type_name(given.dtype)} tensor of rank {given.dim()}"
            raise ExpectedScalar(index=self.index, value=self.shown, given=shown)
        given = number(given)
        if not isinstance(given, (bool, int, float, complex)):
            if hasattr(given, "__index__"):
                given = given.__index__()
            elif hasattr(given, "__float__"):
                given = float(given)
            else:
                raise ExpectedScalar(index=self.index, value=self.shown, given=_shown_value(given))
        dtype = self.scalar.dtype()
        if not _accepts(dtype, given):
            shown = _shown_value(given).removeprefix("scalar ")
            raise WrongScalarType(index=self.index, value=self.shown, given=shown, dtype=dtype.value)
        try:
            value = convert(given, dtype)
        except (OverflowError, ValueError):  # an integer too large for a double; nan or infinity for an integer
            value = None
        if value is not None and dtype.is_integer:
            low, high = integer_range(dtype)
            value = value if low <= value <= high else None  # type: ignore[operator]
        if value is None:
            raise WrongScalarType(index=self.index, value=self.shown, given=_shown_value(given).removeprefix("scalar ")[:60], dtype=dtype.value)
        env[self.scalar.sym] = value


def _accepts(dtype: DataType, given: Number) -> bool:
    """True if a number is of the kind of `dtype` or of a lower one (bool, integer, real, complex)."""
    if isinstance(given, complex):
        return dtype.is_complex
    if isinstance(given, float):
        return dtype.is_float or dtype.is_complex
    return isinstance(given, bool) or not dtype.is_bool


def convert(value: Number, dtype: DataType) -> Number:
    """Return a number as Python's type for `dtype`."""
    if dtype.is_bool:
        return bool(value)
    if dtype.is_integer:
        return int(value)  # type: ignore[arg-type]
    return complex(value) if dtype.is_complex else float(value)  # type: ignore[arg-type]


# ---------------------------------------------------------------- all inputs
class InputPlan:
    """The inputs of a fusion, ready to be bound. `shown`: the same inputs as the caller's definition names them (default: the fusion's own)."""

    def __init__(self, fusion: Fusion, equalities: Sequence[SizeEquality], shown: Sequence[Val] | None = None) -> None:
        values = fusion.inputs()
        self.shown = list(values if shown is None else shown)
        self.equalities = list(equalities)
        self.inputs = [
            _TensorInput(index, value, name) if isinstance(value, TensorView) else _ScalarInput(index, value, name)  # type: ignore[arg-type]
            for index, (value, name) in enumerate(zip(values, self.shown))
        ]
        folds = [e for e in fusion.tensor_exprs() if isinstance(e, BlockFoldOp)]
        self.blocks = [(_short(e.inputs[0]), e.outputs[0].get_logical_domain()[-1].sym, e.block) for e in folds]  # type: ignore[attr-defined]
        self._axes_of_vars = {
            axis.size_var: f"dimension {axis.dim} of input {entry.index}, {_short(entry.shown)},"
            for entry in reversed(self.inputs)
            if isinstance(entry, _TensorInput)
            for axis in entry.axes
            if axis.size_var is not None
        }

    def bind(self, values: Sequence[Any]) -> Bound:
        """Check the (flat) values of a call and return the bound values.

        Errors: the UserErrors of this module; each names the input, what was expected and what was given.
        """
        if len(values) != len(self.inputs):
            raise WrongArgumentCount(expected=len(self.inputs), names=", ".join(map(_short, self.shown)), given=len(values))
        env: dict[Sym, Number] = {}
        tensors: dict[int, BoundTensor] = {}
        first: tuple[int, torch.Tensor] | None = None
        for entry, value in zip(self.inputs, values):
            bound = entry.bind(value, env)
            if bound is None:
                continue
            tensors[entry.index] = bound
            if not entry.tensor.is_cpu_scalar:  # type: ignore[union-attr]
                first = first or (entry.index, value)
                if value.device != first[1].device:
                    raise DevicesDiffer(
                        index=entry.index, value=_short(entry.shown), expected=first[1].device, first=f"input {first[0]}", given=value.device
                    )
        self._check_equalities(env)
        for tensor, extent, block in self.blocks:
            if evaluate(extent, env) % block:  # type: ignore[operator]
                raise NoWholeBlocks(tensor=tensor, elems=evaluate(extent, env), block=block)
        is_gpu = first is not None and first[1].is_cuda
        return Bound(env, tensors, first[1].get_device() if is_gpu else None, first is not None and not is_gpu)  # type: ignore[index]

    def _check_equalities(self, env: Mapping[Sym, Number]) -> None:
        for equality in self.equalities:
            a, b = evaluate(equality.a, env), evaluate(equality.b, env)
            if not equality.holds(a, b):
                raise SizesDiffer(a=self._axis_text(equality.a, equality), size_a=a, b=self._axis_text(equality.b, equality), size_b=b, reason=equality.reason)

    def _axis_text(self, sym: Sym, equality: SizeEquality) -> str:
        if sym.is_const:
            return f"the constant size that the definition gives it ({equality.what})"
        return self._axes_of_vars.get(sym) or f"{sym} ({equality.what})"


def _short(value: Val) -> str:
    return f"T{value.name}_g" if isinstance(value, TensorView) else str(value)
