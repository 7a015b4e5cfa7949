"""The structure of a region as a hashable key: regions with equal keys have one definition. Read first: `structure_of`."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import Node

from .regions import Region


def structure_of(region: Region) -> Hashable:
    """Return the key without `reuses`: nodes by number, targets, arguments, types, sizes and strides; symbols by the order in which they appear."""
    numbers: dict[Node, int] = {}
    symbols: dict[str, int] = {}
    inputs = tuple(_value(n.meta.get("val"), symbols) for n in region.inputs)
    for node in (*region.inputs, *region.nodes):
        numbers[node] = len(numbers)
    nodes = tuple((str(n.target), _argument(n.args, numbers), _argument(dict(n.kwargs), numbers), _value(n.meta.get("val"), symbols)) for n in region.nodes)
    outputs = tuple(numbers[n] for n in region.outputs)
    return inputs, nodes, outputs, tuple((numbers[value], numbers[argument]) for value, argument in region.updates.items())


def digest_of(structure: Hashable, region: Region) -> str:
    """Return a digest of a key, with the traced values of symbolic sizes that translation depends on."""
    values = [n.meta.get("val") for n in (*region.inputs, *region.nodes)]
    sizes = [s for v in values if isinstance(v, torch.Tensor) for s in (*v.shape, *v.stride())] + [v for v in values if isinstance(v, torch.SymInt)]
    hints = [s.node.hint for s in sizes if isinstance(s, torch.SymInt)]
    return hashlib.sha256(repr((structure, hints)).encode()).hexdigest()


def _argument(value: Any, numbers: dict[Node, int]) -> Hashable:
    if isinstance(value, Node):
        return "node", numbers[value]
    if type(value) is int:
        return value
    if isinstance(value, (list, tuple)):
        return tuple([_argument(v, numbers) for v in value])
    if isinstance(value, dict):
        return tuple((k, _argument(v, numbers)) for k, v in sorted(value.items()))
    return type(value).__name__, str(value)


def _value(value: Any, symbols: dict[str, int]) -> Hashable:
    if isinstance(value, torch.Tensor):
        sizes = tuple([s if type(s) is int else _size(s, symbols) for s in (*value.shape, *value.stride())])
        return str(value.dtype), value.device.type, sizes
    if isinstance(value, (tuple, list)):
        return tuple([_value(v, symbols) for v in value])
    return type(value).__name__, _size(value, symbols)


def _size(value: Any, symbols: dict[str, int]) -> Hashable:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        expression = value.node.expr
        names = {s: symbols.setdefault(str(s), len(symbols)) for s in sorted(expression.free_symbols, key=str)}
        return "symbol", str(expression.xreplace({s: type(s)(f"size{number}", integer=s.is_integer, positive=s.is_positive) for s, number in names.items()}))
    return value if isinstance(value, (int, float, bool)) else None


__all__ = ["digest_of", "structure_of"]
