"""The `idm` namespace: maps equivalent axes of a fusion, under nvFuser's names.

Owns the names; the equivalences are those of `weft.analysis.axes`.
"""

from __future__ import annotations

from ..analysis.axes import AxisMaps, UnionFind
from ..ir.enums import IdMappingMode
from ..ir.fusion import Fusion
from ..ir.values import IterDomain

_GRAPHS = {
    IdMappingMode.exact: "exact_sets", IdMappingMode.almost_exact: "exact_sets", IdMappingMode.broadcast: "permissive_sets",
    IdMappingMode.permissive: "permissive_sets",
}  # fmt: skip


class DisjointValSets:
    """Sets of axes that are the same."""

    def __init__(self, sets: UnionFind) -> None:
        self._sets = sets

    def strict_are_mapped(self, a: IterDomain, b: IterDomain) -> bool:
        """Tell whether two axes are in one set."""
        return self._sets.find(a) is self._sets.find(b)


class ValGraph:
    """One equivalence of axes; `map_vals` adds to it."""

    def __init__(self, maps: AxisMaps, sets: UnionFind) -> None:
        self._maps, self._sets = maps, sets

    def disjoint_val_sets(self) -> DisjointValSets:
        return DisjointValSets(self._sets)

    def map_vals(self, a: IterDomain, b: IterDomain) -> None:
        """Make two axes the same, and with them what equal splits and merges make of them."""
        self._sets.union(a, b)
        self._maps._close(self._sets)


class IdModel:
    """The equivalences of the axes of a fusion."""

    def __init__(self, fusion: Fusion, build_graphs: bool = False, allow_self_mapping: bool = True, validate: bool = False) -> None:
        self._fusion = fusion
        self._graphs: dict[IdMappingMode, ValGraph] = {}
        if build_graphs:
            for mode in IdMappingMode:
                self.maybe_build_graph(mode)

    def maybe_build_graph(self, mode: IdMappingMode) -> ValGraph:
        """Return the graph of `mode`, built now if it is not there yet."""
        if mode not in self._graphs:
            maps = AxisMaps(self._fusion)
            sets = _shared_loops(self._fusion, maps) if mode is IdMappingMode.loop else getattr(maps, _GRAPHS[mode])
            self._graphs[mode] = ValGraph(maps, sets)
        return self._graphs[mode]


def _shared_loops(fusion: Fusion, maps: AxisMaps) -> UnionFind:
    """Return the sets of loop axes that one loop iterates over: those that inlining made common to a tensor and its readers."""
    sets = UnionFind()
    for expr in fusion.tensor_exprs():
        for producer in expr.tensor_inputs:
            for axis in producer.get_loop_domain()[: producer.compute_at]:
                for consumer in expr.tensor_outputs:
                    same = next((c for c in consumer.get_loop_domain() if maps.permissive(c) is maps.permissive(axis)), None)
                    if same is not None:
                        sets.union(axis, same)
    return sets
