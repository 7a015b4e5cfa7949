"""Functions on torch tensors made from definitions: one cached definition per type, rank and layout of the inputs; gradients by `fd.autograd()`.

Owns the way from a call to the definition that serves it. The functions themselves are in `weft.nn.functional`. Read first: `Family.__call__`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..api.autograd import Differentiable
from ..api.definition import FusionDefinition
from ..api.inputs import compute_tensor_descriptor
from ..errors import Unsupported, UserError
from ..ir.values import TensorView
from ..reference.torch_types import is_known
from ..runtime.argument_kinds import check_tensor
from .operator_calls import call_op, call_sharded
from .quick import TOLD
from .sharding import has_sharded, sharded
from .transforms import apply

LARGEST_TABLE = 4096
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NAMES: dict[str, "Family"] = {}
"""Every family by name."""


class WrongDevice(UserError):
    code = "W141"
    what = "{function}: its tensors are on {devices}"
    fix = "move them to one device"


class NoSuchKind(UserError, TypeError):
    code = "W162"
    what = "{function}: {argument} has the type {dtype}, which no kernel has"
    fix = "cast it: {argument}.to(torch.float32), or .long() for class numbers and indices"


class Traced(Unsupported):
    code = "W191"
    what = "{function}: torch.jit.trace does not see what weft's kernels compute, and would keep this call's result as a constant"
    fix = "use torch.export.export or torch.compile, which record weft's functions as operators"


class Family:
    """A function of tensors. `define(fd.ops, *tensors, **static)` writes its definition for TensorViews (None for tensors that are left out).

    name: how messages and torch.ops call it. arguments: names of its tensors. static: hashable values, one definition each.
    keeps_layout: results of the first tensor's rank lie in memory as that tensor does (channels last stays channels last).
    folds: leading axes of the first tensor count rows, so that `vmap` over it alone is one more leading axis.
    """

    def __init__(self, name: str, define: Callable[..., Any], arguments: Sequence[str], *, keeps_layout: bool = False, folds: bool = False) -> None:
        self.name, self.define, self.arguments = name, define, tuple(arguments)
        self.keeps_layout, self.folds = keeps_layout, folds
        self._by_signature: dict[Any, Differentiable] = {}
        self._by_form: dict[Any, Differentiable] = {}
        NAMES[name] = self

    def __call__(self, tensors: Sequence[Any], **static: Any) -> Any:
        """Return the result for these tensors (None where one is left out), a tuple where there are several."""
        if has_sharded(tensors):
            if torch.compiler.is_compiling():
                return call_sharded(self.name, tensors, static)
            forms = tuple([None if t is None else self.form_of(t) for t in tensors])
            return sharded(self.name, self._of_forms(forms, static).fusion, tensors, lambda local: self(local, **static))
        if torch.compiler.is_compiling():
            return call_op(self.name, tensors, static)
        given = [t for t in tensors if t is not None]
        if torch._C._are_functorch_transforms_active():
            return apply(self, list(tensors), static)
        if given and all([has_no_data(t) for t in given]):
            return call_op(self.name, tensors, static)
        if torch._C._get_tracing_state() is not None:
            raise Traced(function=self.name)
        found = self.differentiable(tensors, static)
        outputs = found.execute(given)
        result = outputs[0] if len(outputs) == 1 else tuple(outputs)
        TOLD.call = tensors, found, result
        return result

    def differentiable(self, tensors: Sequence[Any], static: dict[str, Any]) -> Differentiable:
        """Return the definition that serves such tensors. Errors: NotATensor, WrongDevice, those of the definition."""
        try:
            signature = (tuple([None if t is None else (t.dtype, t.shape, t.stride()) for t in tensors]), tuple(static.values()))
            found = self._by_signature.get(signature)
        except (AttributeError, RuntimeError):
            found, signature = None, None
        if found is None:
            self.check(tensors)
            found = self._form(tensors, static)
            if len(self._by_signature) >= LARGEST_TABLE:
                self._by_signature.clear()
            self._by_signature[signature] = found
        return found

    def check(self, tensors: Sequence[Any]) -> None:
        """Refuse what is no dense tensor, types that no kernel has, and tensors on several devices. Errors: NotATensor, NoSuchKind, WrongDevice."""
        devices = set()
        for name, tensor in zip(self.arguments, tensors):
            if tensor is None:
                continue
            check_tensor(self.name, name, tensor)
            if not is_known(tensor.dtype):
                raise NoSuchKind(function=self.name, argument=name, dtype=tensor.dtype)
            devices.add(str(tensor.device))
        if len(devices) > 1:
            raise WrongDevice(function=self.name, devices=" and ".join(sorted(devices)))

    def _form(self, tensors: Sequence[Any], static: dict[str, Any]) -> Differentiable:
        return self._of_forms(tuple([None if t is None else self.form_of(t) for t in tensors]), static)

    def form_of(self, tensor: torch.Tensor) -> Any:
        """Return what the definition fixes about a tensor: (dtype, sizes with -1 for all but 1, contiguity, order of axes).

        Where results do not take over the layout, a tensor in another order of axes is one with strides: kernels with a single order are simpler.
        """
        dtype, sizes, contiguity, order = _form_of(tensor)
        plain = tuple(range(tensor.dim() - 1, -1, -1))
        if self.keeps_layout or order == plain or any(n != 1 and stride == 0 for n, stride in zip(tensor.shape, tensor.stride())):
            return dtype, sizes, contiguity, order
        return dtype, sizes, _contiguity_in_order(tensor), plain

    def _of_forms(self, forms: tuple[Any, ...], static: dict[str, Any]) -> Differentiable:
        key = (forms, tuple(static.values()))
        found = self._by_form.get(key)
        if found is None:
            found = self._by_form[key] = self.definition(forms, static).autograd()
            found.name = "".join(word.capitalize() for word in self.name.split("_"))
        return found

    def definition(self, forms: Sequence[Any], static: dict[str, Any]) -> FusionDefinition:
        """Return a new definition for tensors of these forms."""
        with FusionDefinition() as fd:
            fd.fusion.shares_results = False  # type: ignore[union-attr]
            values = [None if form is None else _input(fd, form) for form in forms]
            results = self.define(fd.ops, *values, **static)
            for result in results if isinstance(results, tuple) else (results,):
                if isinstance(result, _Written):
                    fd.add_output(result.value, alias_input=result.into)
                else:
                    fd.add_output(self._laid_out(fd, result, values[0], forms[0]))
        return fd

    def _laid_out(self, fd: FusionDefinition, result: TensorView, first: Any, form: Any) -> TensorView:
        """Return the result in the order of axes of the first tensor, if that is dense in another order than usual."""
        if not self.keeps_layout or form is None or result.ndim != first.ndim:
            return result
        order = form[3]
        if order == tuple(range(first.ndim - 1, -1, -1)) or False in form[2]:
            return result
        return fd.ops.stride_order(result, list(order))


def has_no_data(tensor: Any) -> bool:
    """Tell whether a tensor has sizes and no values: of the device "meta", or one that torch works out shapes with."""
    return isinstance(tensor, torch.Tensor) and (tensor.is_meta or isinstance(tensor, FakeTensor))


class _Written:
    """A result that is written into an input, and not returned."""

    def __init__(self, value: TensorView, into: TensorView) -> None:
        self.value, self.into = value, into


def written(value: TensorView, into: TensorView) -> Any:
    """Let a result of a definition be written into an input."""
    return _Written(value, into)


def _form_of(tensor: torch.Tensor) -> Any:
    """Return (dtype, sizes with -1 for all but 1, contiguity, order of axes): what a definition fixes about a tensor."""
    contiguity, order = compute_tensor_descriptor(list(tensor.shape), list(tensor.stride()))
    sizes = tuple([1 if n == 1 else -1 for n in tensor.shape])
    return tensor.dtype, sizes, tuple(contiguity), tuple(order)


def _contiguity_in_order(tensor: torch.Tensor) -> tuple[bool | None, ...]:
    """Return for each axis whether its stride is what the axes behind it take, None for an axis of one element."""
    flags: list[bool | None] = []
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        flags.append(None if size == 1 else bool(stride == expected))
        expected = expected if size == 1 else stride * size
    return tuple(reversed(flags))


def _input(fd: FusionDefinition, form: Any) -> TensorView:
    dtype, sizes, contiguity, order = form
    return fd.define_tensor(shape=list(sizes), contiguity=list(contiguity), dtype=dtype, stride_order=list(order))


def autocast_dtype(tensor: torch.Tensor, *, is_loss: bool = False) -> torch.dtype | None:
    """Return the type that functions on autocast's float32 list return now, None outside of autocast or for a float64.

    Norms and softmaxes are on the list of GPUs only, losses also on that of CPUs.
    """
    if not _any_autocast() or tensor.is_cpu and not is_loss:
        return None
    if torch.is_autocast_enabled(tensor.device.type) and tensor.dtype in (torch.float16, torch.bfloat16, torch.float32):
        return torch.float32
    return None
