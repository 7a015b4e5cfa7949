"""Distances between all pairs of points (`torch.cdist`) as differences and a norm, for points of a few coordinates: they are computed where they are read.

torch has them as one op, whose result kernels would read from memory, or for more than 25 points as a product of matrices with two columns more than the points
have coordinates, which loses the digits of points that are near each other. Read first: `spell_distances`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.fx import GraphModule

MOST_COORDINATES = 16
"""Points of more coordinates are left to torch: each would be read again for each pair."""

_SIGNATURE = inspect.signature(torch.functional.cdist)


def spell_distances(gm: GraphModule, *, is_emulated: bool) -> None:
    """Replace `cdist` in a Dynamo graph, in place, but not where it counts coordinates that differ (p = 0), which has no gradient. On a CPU only where the
    emulator runs the graph: torch would store all differences."""
    found = [node for node in gm.graph.nodes if node.op == "call_function" and node.target is torch.functional.cdist]
    for node in found:
        named = _SIGNATURE.bind(*node.args, **node.kwargs)
        named.apply_defaults()
        points = [named.arguments[name] for name in ("x1", "x2")]
        if named.arguments["p"] != 0 and all(isinstance(point, torch.fx.Node) and _are_short(point.meta.get("example_value"), is_emulated) for point in points):
            node.target, node.args, node.kwargs = distances, (*points, named.arguments["p"]), {}
    if found:
        gm.recompile()


def _are_short(points: Any, is_emulated: bool) -> bool:
    """True for points of a few coordinates, in a type that torch has distances of."""
    if not isinstance(points, torch.Tensor) or points.dim() < 2 or points.dtype not in (torch.float32, torch.float64):
        return False
    coordinates = points.shape[-1]
    return isinstance(coordinates, int) and 0 < coordinates <= MOST_COORDINATES and (is_emulated or points.device.type != "cpu")


def distances(a: torch.Tensor, b: torch.Tensor, p: float) -> torch.Tensor:
    """Return the p-norms [..., n, m] of the differences between points a [..., n, coordinates] and b [..., m, coordinates]."""
    apart = a.unsqueeze(-2) - b.unsqueeze(-3)
    last = apart.dim() - 1  # torch 2.11's norm of a graph keeps an axis of one element that is counted from the end
    return apart.abs().amax(last) if p == float("inf") else torch.linalg.vector_norm(apart, p, dim=last)


__all__ = ["spell_distances"]
