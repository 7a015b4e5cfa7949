"""What callers pass, before it is bound to a fusion's inputs. Needs no torch, so that the front end can import it at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def flattened(inputs: Sequence[Any]) -> list[Any]:
    """Return the values with lists and tuples among them replaced by their items (one level)."""
    out: list[Any] = []
    for value in inputs:
        if isinstance(value, (list, tuple)):
            out.extend(value)
        else:
            out.append(value)
    return out
