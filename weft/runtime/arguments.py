"""What callers pass, before it is bound to a fusion's inputs. Needs no torch, so that the front end can import it at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import UserError


class NoInputs(UserError, TypeError):
    code = "W786"
    what = "Expected a list or tuple of inputs, but got {given}"
    fix = "pass [value, ...], one for each define_tensor and define_scalar"


def flattened(inputs: Sequence[Any]) -> list[Any]:
    """Return the values with lists and tuples among them replaced by their items (one level). Errors: NoInputs."""
    out: list[Any] = []
    if isinstance(inputs, (str, bytes, dict, set)) or hasattr(inputs, "shape") or isinstance(inputs, Iterator):
        # iterating an array gives rows and a dict keys, which are not inputs; an iterator can be read only once
        raise NoInputs(given=f"a {type(inputs).__name__}")
    try:
        values = iter(inputs)
    except TypeError:
        raise NoInputs(given=f"a {type(inputs).__name__}") from None
    for value in values:
        if isinstance(value, (list, tuple)):
            out.extend(value)
        else:
            out.append(value)
    return out
