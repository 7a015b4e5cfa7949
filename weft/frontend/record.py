"""Records of compiled graphs, for `weft.explain`, logs and traces. Read first: `CompiledGraph`."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import Node

from .region_call import RegionCall
from .regions import Region, is_cheap, is_getitem


@dataclass
class CompiledGraph:
    """The record of one compiled aten graph. kind: forward, backward or inference. calls: of its regions. torch_ops: op -> (times, why it stays with torch)."""

    kind: str
    calls: list[RegionCall] = field(default_factory=list)
    torch_ops: dict[str, tuple[int, str]] = field(default_factory=dict)
    compute_nodes: int = 0

    @property
    def regions(self) -> list[tuple[Region, RegionCall]]:
        """The regions with their calls; for a graph from a cache they are found again on demand."""
        return [(call.region, call) for call in self.calls]

    @property
    def covered_nodes(self) -> int:
        """Compute nodes inside regions."""
        return sum(call.plan.weight for call in self.calls)


GRAPHS: list[CompiledGraph] = []
"""Graphs compiled since the last `torch._dynamo.reset()`, for `weft.explain`."""


def counts(node: Node) -> bool:
    """True for a compute node: no view, no factory, no part of a result."""
    return not is_cheap(node) and not is_getitem(node)


def weight(region: Region) -> int:
    """Return the number of compute nodes of a region."""
    return sum(map(counts, region.nodes))


__all__ = ["GRAPHS", "CompiledGraph", "counts", "weight"]
