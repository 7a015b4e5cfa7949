"""Params of our schedulers that a program has changed: values that a field cannot have, and those that together make no kernel.

What a scheduler chose and no kernel can be made of is a defect of weft; after a change it is the program's mistake, and is told as one.
Read first: `check_value`, `told_as_changed`.
"""

from __future__ import annotations

import contextlib
import types
import typing
from collections.abc import Iterator
from typing import Any

from ..compiler import program_of_scheduled
from ..dtypes import DataType
from ..errors import InternalError, UserError
from ..ir.fusion import Fusion
from ..options import options

MOST = 65536
"""The largest number that a field of params may have; numbers of blocks, threads and registers are below it."""
MOST_UNROLLED = 1024
"""The same for what a thread does one after the other without a loop: more would make text that no compiler is done with."""
UNROLLED = ("vector", "unroll", "batches", "neighbours")
"""Parts of the names of such fields."""
ACCESS_BITS = (128, 256)


class NoValueOfField(UserError, ValueError):
    code = "W196"
    what = "{field} of the {scheduler} params is set to {value}, and takes {wanted}"
    fix = "compute_heuristics returns what fits; change one field at a time, and compare the results"


class NoKernelOfParams(UserError):
    code = "W197"
    what = "no kernel can be made of the changed params {params}: {reason}"
    fix = "compute_heuristics returns params that make one; fields of one loop belong together"


def check_value(scheduler: str, params: Any, field: str, value: Any) -> None:
    """Refuse a value that a field of params cannot have. Errors: NoValueOfField."""
    hint = typing.get_type_hints(type(params))[field]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(value) not in [typing.get_origin(kind) or kind for kind in kinds]:
        raise NoValueOfField(field=field, scheduler=scheduler, value=repr(value), wanted=str(getattr(hint, "__name__", hint)))
    if type(value) is not int:
        return
    most = MOST_UNROLLED if any(part in field for part in UNROLLED) else MOST
    if field == "access_bits" and value not in ACCESS_BITS:
        raise NoValueOfField(field=field, scheduler=scheduler, value=value, wanted=f"one of {ACCESS_BITS}")
    if not 0 <= value <= most:
        raise NoValueOfField(field=field, scheduler=scheduler, value=value, wanted=f"a number from 0 to {most}")


@contextlib.contextmanager
def told_as_changed(params: Any, *, is_changed: bool) -> Iterator[None]:
    """Tell what fails inside, because of changed params, as their mistake. Errors: NoKernelOfParams."""
    try:
        yield
    except (InternalError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        if not is_changed or isinstance(error, UserError):
            raise
        raise NoKernelOfParams(params=params, reason=str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def check_kernel(fusion: Fusion) -> None:
    """Lower a scheduled fusion, which is not changed, with all checks. Errors: those of the schedule."""
    with options(verify=True):
        program_of_scheduled(fusion, DataType.Int, name="weft_user")


__all__ = ["check_kernel", "check_value", "told_as_changed"]
