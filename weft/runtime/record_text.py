"""Prepared calls as JSON values: numbers, texts, tuples, types of torch, and the few classes that a record has. Nothing is pickled.

A tuple is an array; everything that JSON has no word for is an object of one entry, which names what it is. Read first: `encoded`, `decoded`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch


class NoRecord(Exception):
    """A value that no record holds, or text that is none."""


def encoded(value: Any, classes: Mapping[str, type]) -> Any:
    """Return a value as JSON has it. classes: dataclasses that may occur, by name. Errors: NoRecord."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or kind is float and math.isfinite(value):
        return value
    if kind is tuple:
        return [encoded(v, classes) for v in value]
    if kind is list:
        return {"list": [encoded(v, classes) for v in value]}
    if kind is dict:
        return {"dict": [[encoded(k, classes), encoded(v, classes)] for k, v in value.items()]}
    if kind in (float, complex):
        return {kind.__name__: repr(value)}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    if classes.get(kind.__name__) is kind:
        return {kind.__name__: [encoded(getattr(value, f.name), classes) for f in dataclasses.fields(value)]}
    raise NoRecord(f"a {kind.__name__}")


def decoded(value: Any, classes: Mapping[str, type]) -> Any:
    """Return the value that `encoded` was given. Errors: NoRecord."""
    if type(value) is list:
        return tuple([decoded(v, classes) for v in value])
    if type(value) is not dict:
        return value
    if len(value) != 1:
        raise NoRecord(f"an object of {len(value)} entries")
    ((kind, inner),) = value.items()
    try:
        if kind in classes:
            return classes[kind](*[decoded(v, classes) for v in inner])
        if kind == "list":
            return [decoded(v, classes) for v in inner]
        if kind == "dict":
            return {decoded(k, classes): decoded(v, classes) for k, v in inner}
        if kind in ("float", "complex") and type(inner) is str:
            return float(inner) if kind == "float" else complex(inner)
        if kind == "dtype" and isinstance(found := getattr(torch, inner, None), torch.dtype):
            return found
    except (TypeError, ValueError) as error:
        raise NoRecord(f"{kind}: {error}") from None
    raise NoRecord(f"a {kind}")


__all__ = ["NoRecord", "decoded", "encoded"]
