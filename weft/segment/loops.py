"""Which axes of a group's tensors one kernel would run in the same loop, and whether that is impossible: two axes of one tensor cannot share a loop.

Owns the classes of axes of a group, and of two groups as one, without a fusion of their own. It knows what `analysis.loop_axes` finds for the kernel, or less:
a conflict here is one there, so schedulers need not be asked. A join costs what the smaller group has. Read first: `Loops`, `joined`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from ..analysis.axes import UnionFind, lookup_key, pairwise, siblings
from ..ir.block_ops import loop_sources
from ..ir.graph_ops import LookupOp, TorchOp
from ..ir.values import Expr, IterDomain, ReductionOp, TensorView, WelfordOp
from ..schedule.planned_loops import set_bits


@dataclass(frozen=True)
class Loops:
    """The classes of axes of some expressions, numbered from 0.

    class_of: by axis, and by what makes axes of other expressions the same (`analysis.axes.lookup_key`). equal_of: the same for axes that are no broadcasts, by
    equal extents: a class may have several of these numbers, if a broadcast axis joins them. beside: for each class the classes of other axes of the same
    tensors, as a bit set. classes: the class of each number of `equal_of`; other classes have one iteration, and no loop. read: the classes of what the
    expressions read in loops, as a bit set. folded: those of each reduction, the reduced ones included.
    """

    class_of: dict[Hashable, int]
    equal_of: dict[Hashable, int]
    beside: tuple[int, ...]
    classes: tuple[int, ...]
    read: int
    folded: frozenset[int] = frozenset()

    @property
    def has_conflict(self) -> bool:
        """True if two axes of one tensor are in one class that has a loop. Then it is so for every group with these expressions."""
        return any(self.beside[n] >> n & 1 for n in self.classes)

    @property
    def has_two_extents(self) -> bool:
        """True if a broadcast axis joins two axes that nothing else makes equal."""
        return len(set(self.classes)) < len(self.classes)

    def of(self, tensor: TensorView) -> int:
        """Return the classes of the axes that a tensor's elements depend on, as a bit set."""
        return _of(self.class_of, tensor)


EMPTY = Loops({}, {}, (), (), 0)


def _of(class_of: Mapping[Hashable, int], tensor: TensorView, *, is_with_reduced: bool = False) -> int:
    found = 0
    for axis in loop_sources(tensor):
        number = class_of.get(axis)
        if number is not None and not axis.is_broadcast() and (is_with_reduced or not axis.is_reduction()):
            found |= 1 << number
    return found


def of_expr(expr: Expr) -> Loops:
    """Return the classes of one expression's axes."""
    sets, equal = UnionFind(), UnionFind()
    for a, b in _related(expr):
        sets.union(a, b)
        if a.is_broadcast() == b.is_broadcast():
            equal.union(a, b)
    numbers: dict[IterDomain, int] = {}
    equal_numbers: dict[IterDomain, int] = {}
    class_of: dict[Hashable, int] = {}
    equal_of: dict[Hashable, int] = {}
    beside: list[int] = []
    classes: list[int] = []
    for tensor in dict.fromkeys((*expr.tensor_inputs, *expr.tensor_outputs)):
        bits = 0
        for axis in loop_sources(tensor):
            number = class_of[axis] = numbers.setdefault(sets.find(axis), len(numbers))
            if number == len(beside):
                beside.append(0)
            beside[number] |= bits & 1 << number  # both axes of a pair are in this class
            bits |= 1 << number
            if not axis.is_broadcast():
                equal_of[axis] = equal_numbers.setdefault(equal.find(axis), len(equal_numbers))
                if equal_of[axis] == len(classes):
                    classes.append(number)
        for number in set_bits(bits):
            beside[number] |= bits & ~(1 << number)
    if isinstance(expr, LookupOp):
        key = lookup_key(expr)
        for dim, axis in enumerate(expr.tensor_outputs[0].get_maybe_root_domain()):
            for known in (class_of, equal_of):
                if axis in known:
                    known[key, dim] = known[axis]
    read = functools.reduce(operator.or_, [_of(class_of, t) for t in expr.read_by_loops], 0)
    is_fold = isinstance(expr, (ReductionOp, WelfordOp))
    folded = frozenset(_of(class_of, t, is_with_reduced=True) for t in expr.tensor_outputs) if is_fold else frozenset[int]()
    return Loops(class_of, equal_of, tuple(beside), tuple(classes), read, folded)


def _related(expr: Expr) -> Iterable[tuple[IterDomain, IterDomain]]:
    for out in expr.tensor_outputs:
        for source in expr.tensor_inputs:
            yield from pairwise(source, out, expr)
    first, *others = expr.tensor_outputs
    for other in others if not isinstance(expr, TorchOp) else ():
        yield from siblings(first, other)


def joined(a: Loops, b: Loops) -> Loops:
    """Return the classes of two groups as one."""
    if len(a.class_of) < len(b.class_of):
        a, b = b, a
    new, count = _merged(a.class_of, len(a.beside), b.class_of, len(b.beside))
    new_equal, count_equal = _merged(a.equal_of, len(a.classes), b.equal_of, len(b.classes))
    beside, classes, read, folded = [0] * count, [0] * count_equal, 0, set[int]()
    for loops, start, start_equal in ((a, 0, 0), (b, len(a.beside), len(a.classes))):
        for n, bits in enumerate(loops.beside):
            for other in set_bits(bits):
                beside[new[start + n]] |= 1 << new[start + other]
        read |= _renamed(loops.read, new, start)
        folded.update([_renamed(bits, new, start) for bits in loops.folded])
        for n, number in enumerate(loops.classes):
            classes[new_equal[start_equal + n]] = new[start + number]
    class_of = _renumbered(a.class_of, new) | {key: new[len(a.beside) + n] for key, n in b.class_of.items()}
    equal_of = _renumbered(a.equal_of, new_equal) | {key: new_equal[len(a.classes) + n] for key, n in b.equal_of.items()}
    return Loops(class_of, equal_of, tuple(beside), tuple(classes), read, frozenset(folded))


def _renamed(bits: int, new: list[int], start: int) -> int:
    """Return a bit set of classes with their new numbers."""
    found = 0
    for n in set_bits(bits):
        found |= 1 << new[start + n]
    return found


def _merged(a: dict[Hashable, int], count_a: int, b: dict[Hashable, int], count_b: int) -> tuple[list[int], int]:
    """Return the new number of each class of `a`, then of each of `b`, where those that have a key in common are one; and how many there are."""
    parent = list(range(count_a + count_b))

    def find(n: int) -> int:
        while parent[n] != n:
            n = parent[n]
        return n

    for key, number in b.items():
        other = a.get(key)
        if other is not None:
            x, y = find(other), find(count_a + number)
            parent[max(x, y)] = min(x, y)
    roots = [find(n) for n in range(len(parent))]
    numbers = {root: n for n, root in enumerate(dict.fromkeys(roots))}
    return [numbers[root] for root in roots], len(numbers)


def _renumbered(known: dict[Hashable, int], new: list[int]) -> dict[Hashable, int]:
    count = max(known.values(), default=-1) + 1
    return known if new[:count] == list(range(count)) else {key: new[n] for key, n in known.items()}


def joined_all(parts: Collection[Loops]) -> Loops:
    """Return the classes of several groups as one."""
    found = EMPTY
    for part in parts:
        found = joined(found, part)
    return found


__all__ = ["EMPTY", "Loops", "joined", "joined_all", "of_expr"]
