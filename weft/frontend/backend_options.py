"""The options of `torch.compile(backend="weft", options={...})`. Read first: `BackendOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, shown


class BadOption(UserError):
    code = "W880"
    what = "torch.compile(backend=\"weft\") has no {kind} {name!r}"
    fix = "use one of {known}, or omit it"


class BadOptionValue(UserError):
    code = "W887"
    what = "torch.compile(backend=\"weft\"): {name} is {value}, not {wanted}"
    fix = "pass a valid value, or omit it"


class OldTorch(UserError):
    code = "W886"
    what = "torch.compile(backend=\"weft\") needs torch {least} or later, and this is {version}"
    fix = "install a newer torch; FusionDefinition and weft.nn work with this one"


LEAST_TORCH = (2, 8)
"""The oldest torch whose graphs the backend is tested with."""


def check_torch(version: str) -> None:
    """Refuse versions of torch that make other graphs. Errors: OldTorch."""
    if tuple(map(int, version.split(".")[:2])) < LEAST_TORCH:
        raise OldTorch(least=".".join(map(str, LEAST_TORCH)), version=version)


@dataclass(frozen=True)
class BackendOptions:
    """strict: what cannot be translated raises instead of staying with torch. emulate: regions of CPU tensors run in the emulator, with its checks.
    debug: types and strides of every region's results are compared with what was traced. min_ops: regions of fewer ops stay with torch.
    cache: graphs are kept in torch's caches, so that a second process traces and compiles nothing. graphs: as mode="reduce-overhead", which torch.compile takes
    only without options."""

    strict: bool = False
    emulate: bool = False
    debug: bool = False
    min_ops: int = 1
    cache: bool = True
    graphs: bool = False


def chosen_options(options: Any) -> BackendOptions:
    """Return the BackendOptions for `options` of torch.compile. Errors: BadOption, BadOptionValue."""
    known = BackendOptions.__dataclass_fields__
    if not isinstance(options, Mapping):
        raise BadOptionValue(name="options", value=type(options).__name__, wanted="a dictionary")
    for name, value in options.items():
        if not isinstance(name, str) or name not in known:
            raise BadOption(kind="option", name=name, known=", ".join(known))
        wanted = type(known[name].default)
        if type(value) is not wanted:
            raise BadOptionValue(name=name, value=shown(value), wanted=f"of type {wanted.__name__}")
    chosen = BackendOptions(**options)
    if chosen.min_ops < 1:
        raise BadOptionValue(name="min_ops", value=chosen.min_ops, wanted="1 or more")
    return chosen


__all__ = ["BackendOptions", "BadOption", "BadOptionValue", "OldTorch", "check_torch", "chosen_options"]
