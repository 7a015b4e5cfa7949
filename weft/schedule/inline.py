"""Inlining: how many leading loops each tensor shares with its consumers (`TensorView.compute_at`).

Owns which positions are legal. The rules: each shared axis corresponds to a loop axis of every consumer (`consumer_axis`); one axis of a shared loop
runs over all that the others run over, and no tensor in it has another loop over the same; and within it no tensor depends on another that is not
itself inlined there (it is complete only after the loop: a reduction, a vector), nor through other loops.
Lowering builds its loop groups from `compute_at` and `consumer_axis`.
Read first: `consumer_axis`, `_Planner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..analysis.axes import AxisMaps, axis_maps
from ..errors import UserError
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, TensorView
from .planned_loops import Coverage, Crossings, PlannedLoop, first_bit, set_bits, union


class InlineTooDeep(UserError):
    code = "W650"
    what = "cannot inline {tensor} at position {position}: only {limit} of its loops can be shared, since {reason}"
    fix = "inline at position {limit} or less, pass best_effort=True, or give the tensor and its consumers the same transforms (transform_like)"


class BadInlinePosition(UserError):
    code = "W651"
    what = "there is no inline position {position} in {tensor}, which has {rank} loop axes"
    fix = "use a position from 0 to {rank}, or a negative one that counts from the end: -1 is after the last axis"


def loop_position(tensor: TensorView, pos: int) -> int:
    """Return `pos` as a nonnegative position: -1 is after the last loop axis. Errors: BadInlinePosition."""
    rank = len(tensor.get_loop_domain())
    if not -rank - 1 <= pos <= rank:
        raise BadInlinePosition(position=pos, tensor=tensor, rank=rank)
    return pos + rank + 1 if pos < 0 else pos


def consumer_axis(maps: AxisMaps, producer: TensorView, k: int, consumer: TensorView) -> IterDomain | None:
    """Return the loop axis of `consumer` that becomes one loop with loop axis `k` of `producer` if that is inlined past it, or None."""
    return maps.loop_match(producer, consumer).get(producer.get_loop_domain()[k])


def inline_most(
    selected_tensors: Iterable[TensorView] = (), except_tensors: Iterable[TensorView] = (), *, fusion: Fusion | None = None
) -> None:  # fmt: skip
    """Inline the selected tensors (all if none is named) as deep as is legal; a position that is already set is only made deeper. `fusion` is needed if no
    tensor is named.
    """
    selected, spared = list(selected_tensors), set(except_tensors)
    if fusion is None:
        if not selected and not spared:
            return
        fusion = (selected or list(spared))[0].fusion  # type: ignore[assignment]
    chosen = [t for t in (selected or fusion.tensors()) if t not in spared]  # type: ignore[union-attr]
    _inline(fusion, {t: len(t.get_loop_domain()) for t in chosen}, best_effort=True)  # type: ignore[arg-type]


def inline_at(reference: TensorView, pos: int = -1, best_effort: bool = False, selected_tensors: Iterable[TensorView] = ()) -> None:
    """Inline the selected tensors (all if none is named) at the loops that correspond to the first `pos` of `reference`.

    Without best_effort a tensor that cannot be inlined there is an error.
    """
    pos = loop_position(reference, pos)
    fusion: Fusion = reference.fusion  # type: ignore[assignment]
    maps = axis_maps(fusion)
    wanted = mapped_positions(maps, reference, pos)
    selected = list(selected_tensors)
    _inline(fusion, {t: p for t, p in wanted.items() if not selected or t in selected}, best_effort, maps)


def mapped_positions(maps: AxisMaps, reference: TensorView, pos: int) -> dict[TensorView, int]:
    """Return for each tensor how many of its leading loop axes correspond to the first `pos` of `reference`."""
    classes = {maps.permissive(a) for a in reference.get_loop_domain()[:pos]}
    out = {}
    for tensor in maps.tensors:
        position = 0
        for axis in tensor.get_loop_domain():
            if maps.permissive(axis) not in classes:
                break
            position += 1
        out[tensor] = position
    out[reference] = pos
    return out


def legal_positions(fusion: Fusion) -> dict[TensorView, tuple[int, str]]:
    """Return the deepest legal position of every tensor if all are inlined as deep as possible, and the reason why each cannot be deeper ("" if none)."""
    planner = _Planner(fusion, axis_maps(fusion), {t: len(t.get_loop_domain()) for t in fusion.tensors()}, True)
    planner.run()
    return {t: (p, planner.reasons.get(t, "")) for t, p in planner.positions.items()}


def inline_to(fusion: Fusion, positions: Mapping[TensorView, int]) -> None:
    """Inline each tensor of `positions` as deep as its position says, or as deep as is legal."""
    _inline(fusion, positions, best_effort=True)


def _inline(fusion: Fusion, wanted: Mapping[TensorView, int], best_effort: bool, maps: AxisMaps | None = None) -> None:
    maps = maps or axis_maps(fusion)
    planner = _Planner(fusion, maps, wanted, best_effort)
    try:
        planner.run()
    except InlineTooDeep:
        if not best_effort:
            raise
        planner = _one_by_one(fusion, maps, wanted)
    for tensor, position in planner.positions.items():
        tensor.compute_at = position


def _one_by_one(fusion: Fusion, maps: AxisMaps, wanted: Mapping[TensorView, int]) -> "_Planner":
    """Return a plan that deepens one tensor after the other, because deepening all at once would make a position that is already set illegal."""
    chosen: dict[TensorView, int] = {}
    planner = _Planner(fusion, maps, chosen, True)
    planner.run()
    for tensor in reversed(list(wanted)):
        attempt = _Planner(fusion, maps, {**chosen, tensor: wanted[tensor]}, True)
        try:
            attempt.run()
        except InlineTooDeep:
            continue
        planner = attempt
        chosen[tensor] = wanted[tensor]
    return planner


class _Planner:
    """Chooses positions, consumers before producers, each as deep as wanted and legal.

    Each tensor has a list of the loops around it: its own, and loops of consumers with more axes that it is computed in. Sharing a loop merges the loops of all
    consumers at that depth. A tensor of the merged loop that is not inlined there is complete only after the loop, so none of its descendants may be in the
    loop, and no other loop may be between it and the loop.
    """

    def __init__(self, fusion: Fusion, maps: AxisMaps, wanted: Mapping[TensorView, int], best_effort: bool) -> None:
        self.fusion, self.maps, self.wanted, self.best_effort = fusion, maps, wanted, best_effort
        self.exprs = fusion.tensor_exprs()
        self.tensors = list(maps.tensors)
        self.number = {t: n for n, t in enumerate(self.tensors)}
        self.bit = {t: 1 << n for t, n in self.number.items()}
        self.consumers: dict[TensorView, list[TensorView]] = {t: [] for t in self.tensors}
        for expr in self.exprs:
            for producer in dict.fromkeys(expr.tensor_inputs):
                self.consumers[producer].extend(expr.outputs)  # type: ignore[arg-type]
        self.readers = {t: sum({self.bit[c] for c in consumers}) for t, consumers in self.consumers.items()}
        self.crossings = Crossings(len(self.tensors))  # counts loops, not bound axes
        self.descendants: dict[TensorView, int] = {}
        self.nests: dict[TensorView, list[PlannedLoop]] = {}  # the loops around a tensor, outermost first
        self.depths: dict[TensorView, list[int]] = {}  # per loop axis: its index in the nest
        self.drawn: dict[TensorView, set[tuple[ParallelType, IterDomain]]] = {}  # bound axes that a tensor is drawn into, by what they run over
        self.positions: dict[TensorView, int] = {t: 0 for t in self.tensors}
        self.reasons: dict[TensorView, str] = {}
        self._depths: dict[tuple[TensorView, TensorView], list[int | None]] = {}

    def run(self) -> None:
        for expr in reversed(self.exprs):
            tensors: list[TensorView] = list(expr.outputs)  # type: ignore[arg-type]
            below = 0
            for tensor in tensors:
                for consumer in self.consumers[tensor]:
                    below |= self.bit[consumer] | self.descendants[consumer]
            for tensor in tensors:
                self.descendants[tensor] = below
            self._place(tensors)

    def _place(self, tensors: list[TensorView]) -> None:
        """Choose one position for the outputs of an expression."""
        first = tensors[0]
        bits = 0
        for tensor in tensors:
            bits |= self.bit[tensor]
        consumers = [(t, c) for t in tensors for c in dict.fromkeys(self.consumers[t])]
        kept = max(t.compute_at for t in tensors)
        target = max(kept, min(len(first.get_loop_domain()), *(self.wanted.get(t, 0) for t in tensors)))
        nest: list[PlannedLoop] = []
        depths: list[int] = []
        position, reason = 0, ""
        reached = [0] * len(consumers)  # number of shared loops of each consumer's nest
        if consumers:
            while position < target:
                reason, shared = self._next(consumers, position, reached, nest)
                if reason:
                    break
                nest.extend(self._merge(loops, bits) for loops in shared)
                nest[-1].cover(self.maps.coverage(first.get_loop_domain()[position]), first.get_loop_domain()[position])
                for n, (tensor, consumer) in enumerate(consumers):
                    reached[n] = self._depth_in(tensor, position, consumer) + 1  # type: ignore[operator]
                depths.append(len(nest) - 1)
                position += 1
            if position < target and (not self.best_effort or position < kept):
                raise InlineTooDeep(tensor=first, position=kept if self.best_effort else target, limit=position, reason=reason)
        for axis in first.get_loop_domain()[position:]:
            nest.append(self._own_loop(axis, tensors, bits))
            depths.append(len(nest) - 1)
        own = {a.parallel for a in first.get_loop_domain() if a.parallel.is_bound and not a.is_broadcast()}  # these threads compute it together
        drawn = {entry for entry in self.drawn.get(consumers[0][0], ()) if entry[0] not in own} if consumers else set()
        for tensor in tensors:
            self.drawn[tensor] = drawn
            self.nests[tensor], self.depths[tensor], self.positions[tensor] = nest, depths, position
            if reason:
                self.reasons[tensor] = reason
            self._add_forms(tensor, nest)

    def _own_loop(self, axis: IterDomain, tensors: Sequence[TensorView], bits: int) -> PlannedLoop:
        """Return a new loop over `axis`, in which the outputs of one expression are computed."""
        loop = PlannedLoop(self.maps.permissive(axis), axis, self.maps.coverage(axis), bits)
        loop.below = self.descendants[tensors[0]]
        loop.open = bits if loop.below else 0
        for tensor in tensors:
            loop.readers |= self.readers[tensor]
        loop.feeds = loop.readers
        if not loop.bound:
            self.crossings.add(loop.low, loop.high, 1)
        return loop

    def _add_forms(self, tensor: TensorView, nest: Sequence[PlannedLoop]) -> None:
        """Record in each loop of `nest`, around a tensor just placed, what the tensor's axes iterate."""
        number, covers = self.number[tensor], [self.maps.coverage(a) for a in tensor.get_loop_domain()]
        at = dict(zip(self.depths[tensor], covers))
        everything = union(covers)
        for depth, loop in enumerate(nest):
            here = at.get(depth, _NOTHING)
            is_apart = not here or sum(map(len, covers)) == len(everything)
            loop.add_form(here, everything - here if is_apart else union(c for d, c in at.items() if d != depth), number)

    def _form(self, tensor: TensorView, loops: Sequence[PlannedLoop]) -> tuple[Coverage, Coverage]:
        """Return what the axes of a placed tensor iterate: those with loops in `loops`, and the others."""
        nest, axes = self.nests[tensor], [(depth, self.maps.coverage(a)) for depth, a in zip(self.depths[tensor], tensor.get_loop_domain())]
        is_here = [nest[depth].root() in loops for depth, _ in axes]
        return union(c for here, (_, c) in zip(is_here, axes) if here), union(c for here, (_, c) in zip(is_here, axes) if not here)

    def _depth_in(self, tensor: TensorView, position: int, consumer: TensorView) -> int | None:
        """Return the index in the consumer's nest of the loop that corresponds to loop axis `position` of `tensor`."""
        return self._depths_in(tensor, consumer)[position]

    def _depths_in(self, tensor: TensorView, consumer: TensorView) -> list[int | None]:
        """Return `_depth_in` of all loop axes of `tensor`."""
        key = (tensor, consumer)
        found = self._depths.get(key)
        if found is None:
            match, place = self.maps.loop_match(tensor, consumer), dict(zip(consumer.get_loop_domain(), self.depths[consumer]))
            found = self._depths[key] = [place.get(match.get(axis)) for axis in tensor.get_loop_domain()]  # type: ignore[arg-type]
        return found

    def _next(
        self, consumers: Sequence[tuple[TensorView, TensorView]], position: int, reached: list[int], nest: list[PlannedLoop]
    ) -> tuple[str, list[list[PlannedLoop]]]:  # fmt: skip
        """Return why loop axis `position` cannot be shared ("" if it can), and the sets of loops that are merged, outermost first. The last set has the loops
        of the axis; those before it are further loops of the consumers around it (bound axes have no loops).
        """
        columns: list[list[PlannedLoop]] | None = None
        witness, around = consumers[0][1], {loop.root() for loop in nest}
        drawn: set[tuple[ParallelType, IterDomain]] = set()
        for n, (tensor, consumer) in enumerate(consumers):
            axis = tensor.get_loop_domain()[position]
            other = consumer_axis(self.maps, tensor, position, consumer)
            reason = _own_stop(axis)
            if not reason and other is None:
                reason = f"{axis} corresponds to no loop axis of its consumer {consumer}"
            if not reason:
                reason = _consumer_stop(axis, other, consumer)  # type: ignore[arg-type]
            if reason:
                return reason, []
            end: int = self._depth_in(tensor, position, consumer)  # type: ignore[assignment]
            if end < reached[n]:
                return f"{axis} stands further out in its consumer {consumer} than the axes before it", []
            for later in range(position + 1, len(tensor.get_loop_domain())):
                depth = self._depth_in(tensor, later, consumer)
                if depth is not None and reached[n] <= depth < end and not self.nests[consumer][depth].root().bound:
                    return f"{axis} stands inside {consumer_axis(self.maps, tensor, later, consumer)} in {consumer}, and outside of it in the tensor", []
            extra = [loop.root() for loop in self.nests[consumer][reached[n] : end]]
            threads = [loop.root() for loop in self.nests[consumer][:end] if loop.bound]
            around.update(threads)
            own_threads = self._own_threads(tensor, consumer) if threads else ()
            drawn |= self.drawn[consumer] | {(loop.widest.parallel, c) for loop in threads if id(loop) not in own_threads for c in loop.coverage}
            repeated = self._repeated_by_threads(tensor, drawn)
            if repeated:
                return repeated, []
            loops = [loop for loop in extra if not loop.bound] + [self.nests[consumer][end].root()]
            if columns is None:
                columns = [[loop] for loop in loops]
            elif [loop.key for loop in loops[:-1]] != [column[0].key for column in columns[:-1]]:
                return f"{axis} stands inside other loops in {consumer} than in {witness}", []
            else:
                for column, loop in zip(columns, loops):
                    column.append(loop)
        assert columns is not None
        for column in columns:
            own = axis if column is columns[-1] else None
            reason = self._dependence(column) or self._cycle(column, around) or self._uncovered(column, own) or self._repeated(column, tensor, own)
            if reason:
                return reason, []
            around.update(column)
        self.drawn[consumers[0][0]] = drawn
        return "", columns

    def _dependence(self, column: list[PlannedLoop]) -> str:
        """Return which tensor of the merged loop would be read before it is complete, or ""."""
        members = below = unfinished = 0
        for loop in column:
            members |= loop.members
            below |= loop.below
            unfinished |= loop.open
        if not below & members:
            return ""
        tensor = next(t for t in self._in(unfinished) if self.descendants[t] & members)
        reader = next(self._in(self.descendants[tensor] & members))
        return f"T{reader.name} needs all of T{tensor.name}, which is complete only after that loop"

    def _cycle(self, column: list[PlannedLoop], around: set[PlannedLoop]) -> str:
        """Return why the merged loop can be neither before nor after another one that both needs its results and computes its operands, or "". around: the
        loops around the merged loop. Inside the innermost of them, every other loop runs completely before or after it; bound axes have no loops, so tensors
        with common bound axes may be on both sides. Tensors after all members lead back to one only through a loop with tensors on both sides; without such a
        loop they are not searched.
        """
        members = unfinished = leaving = high = 0
        for loop in column:
            members |= loop.members
            unfinished |= loop.open
            leaving |= loop.readers
            high = max(high, loop.high)
        if self.crossings.behind(high) == sum(not loop.bound and loop.low <= high < loop.high for loop in around):
            looked_at = (2 << high) - 1
            if not leaving & looked_at:
                return ""
        else:
            looked_at = -1
        return self._way_back(unfinished, members, looked_at, around) if self._leads_back(unfinished, members, looked_at, around) else ""

    def _leads_back(self, unfinished: int, members: int, looked_at: int, around: set[PlannedLoop]) -> bool:
        """Tell whether results of `unfinished` are needed by `members` through other tensors, of `looked_at`, or through loops that others are computed in."""
        left = seen = 0
        for tensor in self._in(unfinished):
            left |= self.readers[tensor]
        while not left & members:
            left &= looked_at & ~seen
            if not left:
                return False
            consumer = self.tensors[first_bit(left)]
            loop = self._outermost(consumer, around)
            seen |= self.bit[consumer] if loop is None else loop.members
            left |= self.readers[consumer] if loop is None else loop.feeds
        return True

    def _outermost(self, tensor: TensorView, around: set[PlannedLoop]) -> PlannedLoop | None:
        """Return the outermost loop of a tensor that is not among `around`."""
        for loop in self.nests[tensor]:
            root = loop if loop.parent is None else loop.root()
            if not root.bound and root not in around:
                return root
        return None

    def _way_back(self, unfinished: int, members: int, looked_at: int, around: set[PlannedLoop]) -> str:
        """Return in words how `_leads_back`."""
        stack, seen = list(self._in(unfinished)), 0
        while stack:
            tensor = stack.pop()
            for consumer in self.consumers[tensor]:
                bit = self.bit[consumer]
                if bit & members:
                    return f"T{consumer.name} reads T{tensor.name}, whose loop can only stand after that loop"
                if bit & looked_at and not bit & seen:
                    unit = self._outermost(consumer, around)
                    new = (bit if unit is None else unit.members) & ~seen
                    seen |= new
                    stack.extend(self._in(new))
        return ""

    def _in(self, bits: int) -> Iterator[TensorView]:
        return (self.tensors[n] for n in set_bits(bits))

    def _uncovered(self, column: list[PlannedLoop], own: IterDomain | None) -> str:
        """Return which axes of the merged loop iterate different axes, or "" if one iterates all."""
        parts = [(loop.coverage, loop.widest) for loop in column]
        if own is not None:
            parts.append((self.maps.coverage(own), own))
        best, widest = max(parts, key=lambda part: len(part[0]))
        other = next((axis for coverage, axis in parts if not coverage <= best), None)
        return "" if other is None else f"{widest} and {other} of its consumers would be one loop, and neither runs over all that the other does"

    def _repeated(self, column: list[PlannedLoop], tensor: TensorView, own: IterDomain | None) -> str:
        """Return which tensor of the merged loop has another loop over an axis that the merged loop iterates and the tensor lacks there, or "". Example: a
        reduction over m that is inlined into a loop over m of its consumers; inside, the index of m would be ambiguous.
        """
        coverage, axes = union(loop.coverage for loop in column), tensor.get_loop_domain()
        forms = [(union(self.maps.coverage(a) for a in axes if a is own), union(self.maps.coverage(a) for a in axes if a is not own), -1)]
        forms += [(*form, number) for form, number in self._forms(column)]
        found = [number for here, elsewhere, number in forms if (coverage - here) & elsewhere]
        if not found:
            return ""
        member = tensor if min(found) < 0 else self.tensors[min(found)]
        widest = max(column, key=lambda loop: len(loop.coverage)).widest
        return f"T{member.name} would be computed inside a loop over {widest}, a part of which it has its own loop over"

    def _forms(self, loops: Sequence[PlannedLoop]) -> Iterable[tuple[tuple[Coverage, Coverage], int]]:
        """Yield what the members of the merged `loops` iterate, each with the first such member."""
        distinct = list(dict.fromkeys(loops))
        members = 0
        for loop in distinct:
            if loop.members & members:  # a member is in both loops, so the merged loop iterates both parts
                return [(self._form(t, distinct), self.number[t]) for one in distinct for t in self._in(one.members) if t in self.nests]
            members |= loop.members
        return [item for loop in distinct for item in loop.forms.items()]

    def _own_threads(self, tensor: TensorView, consumer: TensorView) -> set[int]:
        """Return the bound loops of `consumer` that `tensor` also has, at any position."""
        out = set()
        for axis, depth in zip(tensor.get_loop_domain(), self._depths_in(tensor, consumer)):
            if depth is not None and self.nests[consumer][depth].root().widest.parallel is axis.parallel:
                out.add(id(self.nests[consumer][depth].root()))
        return out

    def _repeated_by_threads(self, tensor: TensorView, drawn: set[tuple[ParallelType, IterDomain]]) -> str:
        """The same for bound axes of the consumers, which have no loops."""
        for axis in tensor.get_loop_domain():
            for parallel, source in drawn:
                if axis.parallel is not parallel and source in self.maps.coverage(axis):
                    return f"T{tensor.name} would be computed by each {parallel.name}, over what it has its own loop {axis} over"
        return ""

    def _merge(self, loops: list[PlannedLoop], bits: int) -> PlannedLoop:
        """Make one loop of `loops`, in which the tensors `bits` are computed too, and return it."""
        roots = list(dict.fromkeys(loop.root() for loop in loops))
        forms = list(self._forms(roots))
        first = roots[0]
        for loop in roots:
            if not loop.bound:
                self.crossings.add(loop.low, loop.high, -1)
        for other in roots[1:]:
            first.absorb(other)
        if len(roots) > 1:
            first.forms = {}
            for form, tensor in forms:
                first.add_form(*form, tensor)
        first.members |= bits
        for own in self._in(bits):
            first.feeds |= self.readers[own]
        first.low, first.high = min(first.low, first_bit(bits)), max(first.high, bits.bit_length() - 1)
        if not first.bound:
            self.crossings.add(first.low, first.high, 1)
        return first


def _own_stop(axis: IterDomain) -> str:
    if axis.is_reduction():
        return f"{axis} is a reduction axis: the result is complete only after its loop"
    if axis.parallel in _WHOLE:
        return f"{axis} is bound to {axis.parallel.name}, which makes all its elements at once"
    return ""


def _consumer_stop(axis: IterDomain, other: IterDomain, consumer: TensorView) -> str:
    if other.parallel in _WHOLE:
        return f"the consumer {consumer} takes all elements of {other} at once ({other.parallel.name})"
    if (other.parallel is ParallelType.unroll) != (axis.parallel is ParallelType.unroll):
        return f"{axis} is {axis.parallel.name} and {other} of the consumer {consumer} is {other.parallel.name}"
    return ""


_NOTHING: Coverage = frozenset()
# Axes without a loop around an element: one instruction handles all of them.
_WHOLE = (ParallelType.vectorize, ParallelType.group, ParallelType.tma, ParallelType.mma)

__all__ = ["consumer_axis", "inline_at", "inline_to", "inline_most", "legal_positions", "mapped_positions"]
