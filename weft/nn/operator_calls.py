"""Calls function families as torch operators, in a form that Dynamo can trace. Read first: `call_op`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .sharding import sharded_in_graph

_DTYPE_TEXTS = {
    torch.float64: "'torch.float64'", torch.float32: "'torch.float32'", torch.bfloat16: "'torch.bfloat16'", torch.float16: "'torch.float16'",
    torch.int64: "'torch.int64'", torch.int32: "'torch.int32'", torch.bool: "'torch.bool'", torch.uint8: "'torch.uint8'",
}  # fmt: skip


def _traced_text(value: Any) -> str:
    """`encoded` of one argument in words that Dynamo traces; a number that it made symbolic becomes a constant again."""
    if value is None:
        return "None"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int):
        return f"{int(value)}"
    if isinstance(value, float):
        return f"{float(value)!r}"
    if isinstance(value, str):
        return f"'{value}'"
    return _DTYPE_TEXTS[value]


def _static_text(static: dict[str, Any]) -> str:
    return ", ".join([f"'{key}': {_traced_text(value)}" for key, value in static.items()])


def call_op(name: str, tensors: Sequence[Any], static: dict[str, Any]) -> Any:
    """Call the family of this name as an operator: what torch.compile and torch.export record."""
    present = ", ".join(["True" if t is not None else "False" for t in tensors])
    text = f"(({present},), {{{_static_text(static)}}})"
    outputs = getattr(torch.ops.weft, name).default([t for t in tensors if t is not None], None, text)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def call_sharded(name: str, tensors: Sequence[Any], static: dict[str, Any]) -> Any:
    """Call the family of this name over DTensors as an operator over this process's shards."""
    forms = []
    for t in tensors:
        sizes = "" if t is None else "".join(["1, " if n == 1 else "-1, " for n in t.shape])
        forms.append("None" if t is None else f"({_DTYPE_TEXTS[t.dtype]}, ({sizes}))")
    text = f"(({', '.join(forms)},), {{{_static_text(static)}}})"
    return sharded_in_graph(name, text, tensors, lambda local: call_op(name, local, static))
