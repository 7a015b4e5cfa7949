"""The loop axes of a fusion before it is scheduled: classes of logical axes that run in one loop.

Owns the numbering of the classes, their extents, and the choice of the tensor that covers them all (the reference).
A class joins an axis with those it is computed from or with, and with the broadcast axes that it concretizes (permissive equivalence). A class whose
members are all broadcast axes has one iteration and gets no number.
Read first: `LoopAxes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..expr import Sym, evaluate_int
from ..ir.block_ops import loop_sources, sample_of
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, TensorView
from .axes import AxisMaps, axis_maps
from .lookups import lookup_of, memory_order


@dataclass(frozen=True)
class Obstacle:
    """Why an analysis does not apply to a fusion; schedulers decline with `reason`."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def loop_axes(fusion: Fusion) -> "LoopAxes":
    """Return the classes of a fusion's axes; the same object until the fusion, or the loops of a tensor, change."""
    return fusion.known("loop axes", LoopAxes)


class LoopAxes:
    """Classes of logical axes, numbered 0, 1, ... in the order of appearance in the fusion's tensors.

    conflict: None, or why one loop per class cannot compute the fusion (two axes of one tensor in a class; a broadcast axis used with two extents). found: what
    analyses know of the fusion's tensors, whatever the sizes, by a name of their own.
    """

    def __init__(self, fusion: Fusion, maps: AxisMaps | None = None) -> None:
        self.fusion = fusion
        self.found: dict[str, dict[Any, Any]] = {}
        self.maps = maps or axis_maps(fusion)
        self.tensors: list[TensorView] = self.maps.tensors
        self._class_of: dict[IterDomain, int] = {}
        self._extents: list[Sym] = []
        self.conflict: str | None = None
        exact_of: list[IterDomain] = []
        for tensor in self.tensors:
            for axis in self._axes(tensor):
                if axis.is_broadcast():
                    continue
                root = self.maps.permissive(axis)
                number = self._class_of.get(root)
                if number is None:
                    self._class_of[root] = len(self._extents)
                    self._extents.append(axis.sym)
                    exact_of.append(self.maps.exact(axis))
                    continue
                if self._extents[number] is not axis.sym and axis.sym.is_const:
                    self._extents[number] = axis.sym
                if exact_of[number] is not self.maps.exact(axis) and self.conflict is None:
                    self.conflict = f"an axis of {tensor} and another axis are joined by one broadcast axis, which has two extents"
        self._concrete: dict[TensorView, frozenset[int]] = {}
        self._stored: dict[TensorView, frozenset[int]] = {}
        for tensor in self.tensors:
            numbers = [self.of(a) for a in loop_sources(tensor) if not a.is_broadcast()]
            self._concrete[tensor] = frozenset(n for n in numbers if n is not None)
            everything = [n for n in map(self.of, loop_sources(tensor)) if n is not None]
            if len(set(everything)) != len(everything) and self.conflict is None:
                self.conflict = f"two axes of {tensor} would have to run in the same loop"

    @staticmethod
    def _axes(tensor: TensorView) -> Iterable[IterDomain]:
        domain = tensor.domain()
        if sample_of(tensor) is not None:
            return domain.maybe_root
        return (*domain.maybe_root, *domain.logical) if domain.root is not None else domain.logical

    def __len__(self) -> int:
        return len(self._extents)

    def of(self, axis: IterDomain) -> int | None:
        """Return the class of a logical axis; None if it has one iteration everywhere."""
        return self._class_of.get(self.maps.permissive(axis))

    def concrete(self, tensor: TensorView) -> frozenset[int]:
        """Return the classes in which `tensor` has a non-broadcast axis (reduced axes of a reduction's output count)."""
        return self._concrete[tensor]

    def stored(self, tensor: TensorView) -> frozenset[int]:
        """Return the classes that the elements of `tensor` depend on: `concrete` without reduced axes."""
        found = self._stored.get(tensor)
        if found is None:
            numbers = (self.of(a) for a in loop_sources(tensor) if not a.is_broadcast() and not a.is_reduction())
            found = self._stored[tensor] = frozenset(n for n in numbers if n is not None)
        return found

    def memory_order(self, tensor: TensorView) -> tuple[int, ...]:
        """Return the classes that `tensor` depends on, in memory order, outermost first."""
        lookup = lookup_of(tensor)
        axes = tensor.domain().maybe_allocation if lookup is None else memory_order(lookup)
        return tuple(n for a in axes if not a.is_broadcast() and not a.is_reduction() and (n := self.of(a)) is not None)

    def logical_order(self, tensor: TensorView) -> tuple[int, ...]:
        """Return the classes of the logical axes of `tensor`, reduced ones and concretized broadcasts included, outermost first."""
        return tuple(n for a in tensor.get_logical_domain() if (n := self.of(a)) is not None)

    def extent_sym(self, number: int) -> Sym:
        return self._extents[number]

    def extents_elems(self, env: Mapping[Sym, int]) -> tuple[int, ...]:
        """Return the extent of every class for the sizes in `env`."""
        return tuple(extent.payload if extent.is_const else evaluate_int(extent, env) for extent in self._extents)  # type: ignore[misc]


def loop_order(axes: LoopAxes, covered: Sequence[int], tensors: Iterable[TensorView]) -> tuple[int, ...]:
    """Order the classes `covered` (given in logical order) like the memory order of most of the data. The first of `tensors` with the most of these classes
    decides; classes that it lacks keep their place relative to the logical order.
    """
    wanted = set(covered)
    best: tuple[int, ...] = ()
    for tensor in tensors:
        order = tuple(n for n in axes.memory_order(tensor) if n in wanted)
        if len(order) > len(best):
            best = order
    present = set(best)
    placed = iter(best)
    return tuple(next(placed) if n in present else n for n in covered)


def pointwise_reference(axes: LoopAxes) -> TensorView | Obstacle:
    """Return the output whose axes cover those of every input that is read and of every output; among several, one with an element per iteration if there is
    one, and of these the one that depends on most of them.

    The loops of a pointwise kernel are the axes of this tensor.
    """
    fusion = axes.fusion
    if axes.conflict:
        return Obstacle(axes.conflict)
    outputs = [v for v in fusion.tensor_outputs() if not any(v is i for i in fusion.inputs())]
    if not outputs:
        return Obstacle("no output tensor has to be computed")
    read = {t for e in fusion.tensor_exprs() for t in e.read_by_loops}
    needed = set().union(*(axes.concrete(t) for t in (*outputs, *(v for v in fusion.inputs() if v in read))))
    covering = [t for t in outputs if needed <= axes.stored(t)]
    if not covering:
        return Obstacle("no output has every axis of all inputs and outputs")
    return max(covering, key=lambda t: (_has_every_element(t), len(axes.stored(t))))


def _has_every_element(tensor: TensorView) -> bool:
    """Tell whether each iteration of a tensor's loops has an element, not only the first of each block."""
    return (sample := sample_of(tensor)) is None or sample.block == 1
