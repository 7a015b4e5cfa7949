"""Prepared calls as JSON values: numbers, texts, tuples, types of torch, and the few classes that a record has. Nothing is pickled.

A tuple is an array; everything that JSON has no word for is an object of one entry, which names what it is. Read first: `encoded`, `decoded`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch


class NoRecord(Exception):
    """A value that cannot be recorded, or text that is not a record."""


def encoded(value: Any, classes: Mapping[str, type]) -> Any:
    """Return a value as JSON data. classes: dataclasses that may occur, by name. Errors: NoRecord."""
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
    """Return the value that was given to `encoded`. Errors: NoRecord."""
    if type(value) is list:
        return tuple(_each(value, classes))
    if type(value) is not dict:
        return value
    if len(value) != 1:
        raise NoRecord(f"an object of {len(value)} entries")
    ((kind, inner),) = value.items()
    try:
        if kind in classes:
            return classes[kind](*_each(inner, classes))
        if kind == "list":
            return _each(inner, classes)
        if kind == "dict":
            return {decoded(k, classes): decoded(v, classes) for k, v in inner}
        if kind in ("float", "complex") and type(inner) is str:
            return float(inner) if kind == "float" else complex(inner)
        if kind == "dtype" and isinstance(found := getattr(torch, inner, None), torch.dtype):
            return found
    except (TypeError, ValueError) as error:
        raise NoRecord(f"{kind}: {error}") from None
    raise NoRecord(f"a {kind}")


def _each(values: list[Any], classes: Mapping[str, type]) -> list[Any]:
    return [decoded(v, classes) if type(v) in (list, dict) else v for v in values]  # most are strings and numbers


class Later(Sequence[Any]):
    """A tuple that is decoded from a record's text on first use: the origins of a kernel's lines are half of a record and rarely needed."""

    def __init__(self, text: str, classes: Mapping[str, type]) -> None:
        self._text, self._classes = text, classes

    @functools.cached_property
    def _values(self) -> tuple[Any, ...]:
        return tuple(decoded(json.loads(self._text), self._classes))

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)


def as_text(values: Sequence[Any], classes: Mapping[str, type]) -> str:
    """Return the text of a `Later`. Errors: NoRecord."""
    return json.dumps(encoded(tuple(values), classes))


__all__ = ["Later", "NoRecord", "as_text", "decoded", "encoded"]
