"""Ops on lists of tensors, as optimizers and gradient clipping use them: each is torch's op of every element, and norms of vectors are sums.

Regions then hold a parameter's whole update, which reads and writes each tensor once; torch's own kernels for lists read and write all of them in each op.
Lists of numbers on the CPU, such as step counts, stay one call. Read first: `_of_elements`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten

_OWN_NAMES: dict[str, Callable[..., Any]] = {
    "_foreach_norm": torch.linalg.vector_norm, "_foreach_max": torch.Tensor.max, "_foreach_zero": torch.zeros_like, "_foreach_copy": aten.copy.default,
}  # fmt: skip
"""Ops on lists whose op per element has another name."""


def _of_elements(overload: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the decomposition of an op on lists: its lists are processed element by element, and other arguments apply to each element."""
    arguments = overload._schema.arguments
    lists = {a.name for a in arguments if str(a.type).startswith("List[")}
    named = {a.name for a in arguments if a.kwarg_only} | {"value", "dtype"}

    def made(*args: Any, **keywords: Any) -> Any:
        given = dict(zip((a.name for a in arguments), args)) | keywords
        tensors = next(value for name, value in given.items() if name in lists and isinstance(value[0], torch.Tensor))
        if all(x.device.type == "cpu" and not x.dim() for x in tensors):
            return NotImplemented
        return [_element(function, given, lists, named, n) for n in range(len(tensors))]

    return made


def _element(function: Callable[..., Any], given: dict[str, Any], lists: set[str], named: set[str], place: int) -> Any:
    """Return one element of the result."""
    own = {name: value[place] if name in lists else value for name, value in given.items()}
    if "tensor2" in own and "scalars" in own:  # factors of addcmul and addcdiv
        own["value"] = own.pop("scalars")
    return function(*[value for name, value in own.items() if name not in named], **{name: value for name, value in own.items() if name in named})


def _overloads() -> dict[Any, Callable[..., Any]]:
    """The functional ops on lists whose op per element exists in torch; products stay with torch."""
    names = {name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::_foreach_")}
    found: dict[Any, Callable[..., Any]] = {}
    for name in sorted(names - {"_foreach_mm"}):
        function = _OWN_NAMES.get(name) or getattr(torch, name.removeprefix("_foreach_"), None)
        if name.endswith("_") or function is None:
            continue
        packet = getattr(aten, name)
        for overload in [getattr(packet, each) for each in packet.overloads()]:
            arguments = overload._schema.arguments
            is_read_on_the_host = any(a.name == "scalars" and str(a.type) == "Tensor" for a in arguments)
            if not (overload._schema.is_mutable or is_read_on_the_host):
                found[overload] = _of_elements(overload, function)
    return found


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload -> the same in ops that have rules."""
    return _overloads() | get_decompositions([aten.linalg_vector_norm])


__all__ = ["decompositions"]
