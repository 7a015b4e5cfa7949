"""Source lines of a region and the bytes that it moves, for pages, logs and profiles. Read first: `places_of`."""

from __future__ import annotations

import functools
import linecache
import re
from pathlib import Path

import torch
from torch.fx import Node

from .regions import Region, is_cheap

MODULE = "weft_module"
"""A mark on nodes (`meta`): the path of the module that they come from, which also stays in files."""


def module_of(node: torch.fx.Node) -> str:
    """Return the path of the innermost module that a node comes from, or ""."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    path = str(list(stack.values())[-1][0]) if stack else str(node.meta.get(MODULE, ""))
    return re.sub(r"^L\['\w+'\]\.?", "", path)  # Dynamo's name of the compiled function's argument


def name_lines(gm: torch.fx.GraphModule) -> None:
    """Give a source line to ops of a Dynamo graph that have none because all code around them is torch's own: a compiled `nn.Sequential`, or a function in
    torch.nn after a graph break at hooks. The line is that of the innermost module's `forward`, or of the frame that was compiled."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    frame = next(reversed(getattr(reason, "user_stack", ())), None)
    end = f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}' if frame is not None else ""
    for node in gm.graph.nodes:
        if node.op.startswith("call_") and not node.meta.get("stack_trace"):
            node.meta["stack_trace"] = _forward_of(node) or end


def _forward_of(node: Node) -> str:
    """The first line of the `forward` of the innermost module that a node comes from, as a trace; "" if it comes from none."""
    stack = node.meta.get("nn_module_stack")
    kind = list(stack.values())[-1][1] if stack else None
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    if code is None:
        return ""
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f'  File "{code.co_filename}", line {code.co_firstlineno}, in forward\n    {line}'


def places_of(region: Region, most: int = 4) -> list[str]:
    """Return the modules and source lines of a region's ops, each once."""
    found: dict[str, None] = {}
    for node in region.nodes:
        place = _place(node)
        if place:
            found[place] = None
    places = list(found)
    return places if len(places) <= most else [*places[:most], f"and {len(places) - most} more"]


@functools.lru_cache(maxsize=4096)
def _line(trace: str) -> str:
    """The innermost line of a stack trace: file, number, text."""
    lines = trace.splitlines()
    last = max((n for n, line in enumerate(lines) if line.lstrip().startswith("File ")), default=None)
    if last is None:
        return ""
    _, path, rest = lines[last].split('"', 2)
    number = rest.split("line ", 1)[-1].split(",")[0]
    return f"{Path(path).name}:{number} {lines[last + 1].strip() if last + 1 < len(lines) else ''}".strip()


def origin_of(region: Region) -> str:
    """Return the module and the source line of a region's first op, and those of its last if they differ."""
    nodes = [node for node in region.nodes if not is_cheap(node)]
    found = dict.fromkeys(_place(node) for node in (nodes[:1] + nodes[-1:]))
    return ", ".join(place for place in found if place)


def _place(node: Node) -> str:
    return f"{module_of(node)} {_line(node.meta.get('stack_trace') or '')}".strip()


def bytes_of(nodes: list[Node]) -> int:
    """The bytes of tensors at the traced sizes; symbolic sizes have the traced values."""
    total = 0
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            elems = 1
            for size in value.shape:
                elems *= size if isinstance(size, int) else int(size.node.hint or 0)
            total += elems * value.element_size()
    return total


__all__ = ["MODULE", "bytes_of", "module_of", "name_lines", "origin_of", "places_of"]
