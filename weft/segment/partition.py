"""How a definition is cut into steps.

Owns the way from groups to steps: order, kernels that equal groups share, and the schedulers' own word on each group. A group that they decline is cut
again, this time asking them about every pair. What the search knows is in `groups.py`, its order in `search.py`.
Read first: `make_plan`.
"""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import replace

from ..analysis.connected import components
from ..analysis.layouts import keep_memory_formats
from ..analysis.op_cost import INSTRUCTIONS_PER_BYTE, LAUNCH_BYTES
from ..analysis.plain_copies import is_copy
from ..compiler import NoScheduler, Reasons, is_taken_at_some_sizes
from ..errors import require
from ..expr import Number, Sym, evaluate_int
from ..graph.few_terms import term_by_term
from ..graph.group_folds import has_groups
from ..graph.looked_up_reshapes import reshapes_looked_up
from ..graph.nested_sums import in_two_steps
from ..graph.sums_of_parts import through_parts
from ..ir.fusion import Fusion
from ..ir.graph_ops import JoinedOp, LookupOp, ReshapeOp, WrittenOp
from ..ir.values import Expr, PointwiseOp, ReductionOp, TensorView, Val, WelfordOp
from ..ops.torch_ops import entry_of
from .alike import join_alike, join_small_sums, results_with_one_loop, tie
from .asking import Answers, Asked, Pairs, Refusals, Takes
from .divided import divided
from .extract import boundary, extract
from .group import Group
from .groups import Graph, bytes_in_memory, is_alone, is_barrier, slots_of
from .joins import Anchors, Joins
from .narrow_edges import narrow_edges
from .plan import JoinStep, KernelStep, Plan, SegmentKey, Step, TorchStep, ViewStep, variables_of_tensors
from .search import join_states, repeat_short_chains, search
from .stored_tables import store_tables

SPILLS = "one kernel has too few registers"
SMALL = 100
"""With up to this many expressions the schedulers are first asked about one kernel for all; with more, only about the groups of the search."""
MOST_DOUBTED = 8
"""Pairs that a cut is made again without, one by one, before schedulers are asked about each pair."""
MOST_TRIED = 600
"""Expressions of a rewritten definition up to which it is cut, too, and both are compared: the time of a search grows with their square."""
MOST_OF_A_KERNEL, MOST_GROWN = 250, 3000
"""The same for a definition that has no more expressions itself: for each kernel of its cut, and in all. Compiling these takes longer than the search."""
FAR_SHORTER = 0.5
"""The part of the time that such a long cut may take. Its kernels have hundreds of expressions and many registers, and take longer than is predicted: of
two that were timed on an H200, the one predicted at 0.30 of the time took 0.30 (12 kernels that become 3), and the one at 0.58 took 1.38 (4 that become 2)."""
FAR_LONGER = 4
"""How many times as long as its bytes the instructions of one kernel take, from which on it has no rows of a few terms, of which a thread would have one."""


def make_plan(fusion: Fusion, takes: Takes, env: Mapping[Sym, Number], order: str = "best") -> Plan:
    """Cut `fusion`, whose outputs are computed, into steps. Unconnected outputs share no kernel. env: sizes, from which the cost of a cut is computed. order:
    "best"; "single" for a kernel per expression, a number for a random partition (for tests).
    Errors: NoScheduler for an expression that no scheduler takes alone.
    """
    asks = Answers(takes, env).of
    found = _in_two_steps(fusion, asks, env, order)
    most = _most_tried(fusion, found)
    for rewritten, cost in ((through_parts, _bytes_moved), (term_by_term, _longer), (reshapes_looked_up, _longer)):
        is_far = rewritten is term_by_term and _is_far_longer(found, env)
        other = rewritten(fusion) if order == "best" and (len(found.kernels) > 1 or is_far) else None
        if other is not None and (rewritten is through_parts or len(other.tensor_exprs()) <= most):
            plan = _make_plan(other, asks, env, order)
            part = FAR_SHORTER if len(other.tensor_exprs()) > MOST_TRIED and rewritten is not through_parts else 1.0
            best = plan if cost(plan, env) < part * cost(found, env) else found
            if is_far and any(isinstance(e, ReductionOp) for e in other.tensor_exprs()):  # one kernel folds rows of few terms beside others
                best = min(found, plan, key=lambda plan: (len(plan.kernels), plan is found))
            found = replace(best, declined=(*found.declined, *plan.declined))
    return found


def _in_two_steps(fusion: Fusion, asks: Asked, env: Mapping[Sym, Number], order: str) -> Plan:
    """The same with sums that begin in the kernel of a normalization, where they do."""
    cut, parts = in_two_steps(fusion) if order == "best" else (fusion, {})
    tried: list[Fusion] = []
    whole = functools.cache(lambda: _make_plan(fusion, asks, env, order))
    if parts and has_groups(fusion):  # the kernel of rows that folds groups of them has whole sums, too
        if len(whole().kernels) == 1:
            return whole()
    while parts:
        found = _make_plan(cut, asks, env, order)
        kept = {name for name, part in parts.items() if _is_beside_rows(found, part, parts.values())}
        if len(kept) == len(parts):
            if not _are_few(found, parts.values(), env):
                found = replace(min(found, whole(), key=lambda plan: _bytes_moved(plan, env)), declined=(*found.declined, *whole().declined))
            return replace(found, declined=(*found.declined, *tried))
        tried += [part for part in found.declined if _has_parts(part, parts.values(), parts.values())]
        cut, parts = in_two_steps(fusion, kept)
    return replace(whole(), declined=(*whole().declined, *tried)) if tried else whole()


def _most_tried(fusion: Fusion, found: Plan) -> int:
    """Return the expressions up to which a rewritten definition is cut, too. found: the cut of the definition itself."""
    is_short = len(fusion.tensor_exprs()) <= MOST_TRIED
    return max(MOST_TRIED, min(MOST_GROWN, MOST_OF_A_KERNEL * len(found.kernels))) if is_short else MOST_TRIED


def _are_few(plan: Plan, parts: Collection[int], env: Mapping[Sym, Number]) -> bool:
    """Tell whether the results of first steps, written and read, are fewer bytes than an input of their kernels, which would be read again without them."""
    steps = [step for step in plan.kernels if any(t.name in parts for t in step.outputs)]
    moved = 2 * sum(bytes_in_memory(t, env) for step in steps for t in step.outputs if t.name in parts)
    return moved < max((bytes_in_memory(t, env) for step in steps for t in step.inputs if isinstance(t, TensorView)), default=0)


def _bytes_moved(plan: Plan, env: Mapping[Sym, Number]) -> float:
    """Return the bytes that the kernels of a plan read and write, launches included."""
    tensors = [t for step in plan.kernels for t in (*step.inputs, *step.outputs) if isinstance(t, TensorView)]
    return len(plan.kernels) * LAUNCH_BYTES + sum(bytes_in_memory(t, env) for t in tensors)


def _longer(plan: Plan, env: Mapping[Sym, Number]) -> float:
    """The same, where instructions of a kernel take longer than its bytes with the bytes that would move meanwhile."""
    total = 0.0
    for step in plan.kernels:
        tensors = [t for t in (*step.inputs, *step.outputs) if isinstance(t, TensorView)]
        moved = sum(bytes_in_memory(t, env) for t in tensors)
        total += LAUNCH_BYTES + max(moved, _slots_of_kernel(step, env) / INSTRUCTIONS_PER_BYTE)
    return total


def _is_far_longer(plan: Plan, env: Mapping[Sym, Number]) -> bool:
    """Tell whether a plan is one kernel whose instructions take much longer than its bytes."""
    return len(plan.kernels) == 1 and _slots_of_kernel(plan.kernels[0], env) > FAR_LONGER * INSTRUCTIONS_PER_BYTE * _bytes_moved(plan, env)


def _slots_of_kernel(step: KernelStep, env: Mapping[Sym, Number]) -> float:
    own = {**env, **{mine: evaluate_int(theirs, env) for mine, theirs in step.variables.items()}}
    return sum(slots_of(e, own) for e in step.fusion.tensor_exprs())


def _is_beside_rows(plan: Plan, name: int, parts: Collection[int]) -> bool:
    """Tell whether T`name`, a sum over rows or parts of rows, is computed in a kernel that also reduces the rows. parts: all such sums."""
    for step in plan.kernels:
        own = {t.name: own.name for t, own in zip(step.outputs, step.fusion.outputs())}
        if name in own and _has_parts(step.fusion, [own[name]], [own[part] for part in parts if part in own]):
            return True
    return False


def _has_parts(fusion: Fusion, names: Collection[int], parts: Collection[int]) -> bool:
    """Tell whether a fusion has one of the named sums, and a reduction over as many axes or more that is none of `parts`; beside a sum over rows, which is not
    along the innermost axis, a reduction along that."""
    results = [e.tensor_outputs[0] for e in fusion.tensor_exprs() if isinstance(e, (ReductionOp, WelfordOp))]
    folds = {t.name: sum(a.is_reduction() for a in t.get_logical_domain()) for t in results}
    rows = {t.name for t in results if t.get_logical_domain()[-1].is_reduction()}
    most = max((count for name, count in folds.items() if name not in parts), default=0)
    return any(folds[name] <= most if name in rows else bool(rows.difference(parts)) for name in names if name in folds)


def _make_plan(fusion: Fusion, asks: Asked, env: Mapping[Sym, Number], order: str) -> Plan:
    """The same without splitting sums in two steps."""
    steps: list[Step] = []
    reasons: dict[tuple[TensorView, Step], str] = {}
    declined: dict[int, Fusion] = {}  # by identity

    def asked(part: Fusion, key: SegmentKey, structure: Hashable) -> tuple[Fusion, dict[str, str] | None]:
        first, why = asks(part, key, structure)
        if why is not None:
            declined[id(first)] = first
        return first, why

    for outputs in _connected_outputs(fusion):
        exprs = [e for e in fusion.exprs(outputs) if isinstance(e.outputs[0], TensorView)]
        is_small = len(exprs) <= SMALL and not any(is_alone(e) or is_barrier(e) for e in exprs)
        whole = kernel_step(fusion, exprs, outputs) if is_small and order == "best" else None
        key = None if whole is None else SegmentKey(whole.fusion)
        if whole is not None and key is not None and asked(whole.fusion, key, key.build())[1] is None:
            steps.append(whole)
        else:
            part = _Partition(fusion, exprs, outputs, asked, env, order)
            steps += part.steps()
            reasons.update(part.reasons)
    returned = set(fusion.outputs())
    edges = dict.fromkeys(t for step in steps for t in step.outputs if t not in returned)
    if order == "best" and (narrow_edges(fusion, steps, edges) or _keep_formats_between(fusion, steps, edges) or store_tables(fusion, steps, env)):
        return _make_plan(fusion, asks, env, order)
    _mark_read_again(steps)
    return Plan(tuple(steps), tuple(edges), reasons, tuple(part for part in declined.values() if order == "best" and is_taken_at_some_sizes(part)))


def _keep_formats_between(fusion: Fusion, steps: Sequence[Step], edges: Collection[TensorView]) -> bool:
    """Let tensors between kernels lie in memory as the inputs that they are computed from, such as channels last; True if any does so now. Otherwise one kernel
    would write their rows transposed, and another read them so.
    """
    others = {value for step in steps if not isinstance(step, KernelStep) for value in (*step.reads, *step.outputs)}
    whole = {t for e in fusion.tensor_exprs() if type(e) is not LookupOp for t in e.read_whole}
    kept = [t for t in edges if t not in others and t not in whole and _may_lie_otherwise(t.definition())]
    if not kept or not keep_memory_formats(fusion, kept, follows_rows=True):
        return False
    for tensor in kept:
        if tensor.domain().allocation is not None:
            tensor.domain().user = None  # its axes as the user wrote them may have no stride in that order, and nobody but kernels sees it
    return True


def _may_lie_otherwise(expr: Expr | None) -> bool:
    """True for a pointwise op, and for a copy that does not stand for what is in memory, such as that of a gradient in rows of its own axes."""
    return isinstance(expr, PointwiseOp) or is_copy(expr)


def _mark_read_again(steps: Sequence[Step]) -> None:
    """Tell each kernel which of its inputs a later step reads, too. Kernels of one structure share a fusion, and what one of them is told."""
    later: set[Val] = set()
    for step in reversed(steps):
        if isinstance(step, KernelStep):
            found = [own for own, value in zip(step.fusion.inputs(), step.inputs) if value in later and isinstance(own, TensorView)]
            if found:
                step.fusion.mark_read_again(found)
        later.update(step.reads)


def _connected_outputs(fusion: Fusion) -> list[list[TensorView]]:
    outputs = fusion.tensor_outputs()
    members = [set(group) for group in components(fusion)]
    return [kept for group in members if (kept := [t for t in outputs if t in group])]


def kernel_step(fusion: Fusion, exprs: Sequence[Expr], needed: Collection[TensorView]) -> KernelStep:
    """Return the step that computes `exprs` in one kernel and writes those of their results that are `needed` outside.

    needed: as a sequence it orders the outputs, and the inputs are in the definition's order; as a set both are in order of appearance, so that equal
    layers are equal steps.
    """
    reads, writes = boundary(exprs, needed if isinstance(needed, Set) else set(needed))
    if not isinstance(needed, Set):
        place = {value: n for n, value in enumerate((*fusion.inputs(), *needed))}
        reads.sort(key=place.__getitem__)
        writes.sort(key=place.__getitem__)
    own, inputs = extract(fusion, exprs, reads, writes)
    return KernelStep(own, tuple(inputs), tuple(writes))


class _Partition:
    """The steps of connected expressions."""

    def __init__(
        self, fusion: Fusion, exprs: Sequence[Expr], outputs: Sequence[TensorView], asks: Asked, env: Mapping[Sym, Number], order: str
    ) -> None:
        self.fusion, self.exprs, self.outputs, self.asks, self.env, self.order = fusion, exprs, outputs, asks, env, order
        self.reasons: dict[tuple[TensorView, Step], str] = {}
        self.shared: dict[object, tuple[KernelStep, SegmentKey, dict[str, str] | None]] = {}
        self.known: dict[object, tuple[KernelStep, dict[str, str] | None]] = {}
        self.declined: Anchors = frozenset()  # the anchors of the group for which the last cut was given up

    def steps(self) -> list[Step]:
        if self.order == "single":
            graph = Graph(self.fusion, self.exprs, self.outputs, self.env, repeats=False)
            join_states(graph)
        else:
            graph = Graph(self.fusion, self.exprs, self.outputs, self.env)

            taken: set[object] = set()  # kinds of pairs that schedulers have accepted: asking again for each growing group would be quadratic
            refused: set[object] = set()
            refusals = Refusals(graph)

            def joinable(a: Group, b: Group, is_last: bool) -> bool | None:
                if not graph.is_doubtful(a, b):
                    return True
                kind = graph.kind(a, b)
                if kind in taken:
                    return True
                exact = graph.exact_kind(a, b)
                if exact in refused:
                    return False
                if refusals.is_likely(a, b) and not is_last:
                    return None
                is_taken = self._kernel(graph.members(a, b), graph.writes(a, b), graph.ties(a, b))[1] is None
                (taken if is_taken else refused).add(kind if is_taken else exact)
                refusals.count(a, b, is_taken)
                return is_taken

            search(graph, joinable, None if self.order == "best" else random.Random(int(self.order)))
            repeat_short_chains(graph)
            if self.order == "best":
                join_alike(graph)
                join_small_sums(graph)
        steps: list[Step] = []
        for group in in_order(graph, set(self.fusion.aliases)):
            own = self._steps_of(graph, group)
            self._say_why(graph, group, own)
            steps += own
        return steps

    def _say_why(self, graph: Graph, group: Group, steps: Sequence[Step]) -> None:
        """Record why the tensors that a group reads were not computed in the same kernel."""
        reasons: dict[Group | None, str] = {}
        for step in steps:
            for tensor in step.reads:
                if not isinstance(tensor, TensorView) or tensor.definition() is None or (tensor, step) in self.reasons:
                    continue
                writer = graph.writer.get(tensor)
                if writer not in reasons:
                    reasons[writer] = _reason(graph, writer, group)
                self.reasons[tensor, step] = reasons[writer]

    def _steps_of(self, graph: Graph, group: Group) -> list[Step]:
        expr = group.anchors[0]
        if isinstance(expr, (ReshapeOp, WrittenOp)):
            return [_view(expr)]
        if isinstance(expr, JoinedOp):
            return [JoinStep(expr)]
        members, writes = graph.members(group), graph.writes(group)
        if _is_computed_again(graph, group):
            return []
        step, reasons = self._kernel(members, writes, group.tied)
        if reasons is None:
            return [step]
        if not (group.folds or group.scans or group.scatters or group.tied) and len(tied := results_with_one_loop(graph, group)) > 1:
            step, own_reasons = self._kernel(members, writes, tied)
            if own_reasons is None:
                return [step]
        if len(group.parts) > 1:
            return [own for part in group.parts for own in self._steps_of_exprs(part.exprs, part.writes)]
        if len(members) == 1:
            return [_alone(expr, reasons)]
        return self._divided(reasons, members, writes) or self._cut_again(members, writes)

    def _steps_of_exprs(self, exprs: Sequence[Expr], writes: Set[TensorView]) -> list[Step]:
        step, reasons = self._kernel(exprs, writes)
        return [step] if reasons is None else self._divided(reasons, exprs, writes) or self._cut_again(exprs, writes)

    def _divided(self, reasons: dict[str, str], exprs: Sequence[Expr], writes: Set[TensorView]) -> list[Step]:
        """Return the steps of a group whose kernel spills too much; none if that is not why it is declined, or it cannot be divided."""
        if not isinstance(reasons, Reasons) or reasons.most is None:
            return []
        steps, why = list[Step](), f"{SPILLS}: {reasons.spills}"
        for part in divided(Graph(self.fusion, exprs, writes, self.env), exprs, writes, reasons.most) or ():
            own = self._steps_of_exprs(part.exprs, part.writes)
            self.reasons.update(((t, step), why) for step in own for t in step.reads if isinstance(t, TensorView) and t.definition() is not None)
            steps += own
        return steps

    def _kernel(self, exprs: Sequence[Expr], writes: Set[TensorView], tied: Sequence[TensorView] = ()) -> tuple[KernelStep, dict[str, str] | None]:
        """Return the kernel of a group, with the fusion of an earlier one of equal structure, and why schedulers decline it."""
        asked = frozenset(map(id, exprs)), frozenset(writes), tuple(tied)
        found = self.known.get(asked)
        if found is None:
            found = self.known[asked] = self._new_kernel(exprs, writes, tied)
        return found

    def _new_kernel(self, exprs: Sequence[Expr], writes: Set[TensorView], tied: Sequence[TensorView]) -> tuple[KernelStep, dict[str, str] | None]:
        step = kernel_step(self.fusion, exprs, writes)
        tie(step.fusion, tied)
        key = SegmentKey(step.fusion)
        structure = key.build()
        known = self.shared.get(structure)
        if known is None:
            _, reasons = self.asks(step.fusion, key, structure)
            self.shared[structure] = (step, key, reasons)
            return step, reasons
        first, of_first, reasons = known
        variables = dict(zip(of_first.variables_found, key.variables_found))
        variables.update(zip(variables_of_tensors(first.fusion), variables_of_tensors(step.fusion)))
        return KernelStep(first.fusion, step.inputs, step.outputs, variables), reasons

    def _cut_again(self, exprs: Sequence[Expr], writes: Set[TensorView]) -> list[Step]:
        """Cut the expressions of one group, asking the schedulers about each pair; free expressions and short chains are recomputed, unless the schedulers
        decline a group because of this."""
        for repeats in (True, False):
            steps, is_sure = self._cut_asking(exprs, writes, repeats=repeats)
            if not steps and not is_sure:
                steps = self._cut_doubting(exprs, writes, repeats) or self._cut_asking(exprs, writes, repeats=repeats, is_trusting=False)[0]
            if steps:
                return steps
        return []

    def _cut_doubting(self, exprs: Sequence[Expr], writes: Set[TensorView], repeats: bool) -> list[Step] | None:
        """Cut again without the pair that was declined, a few times."""
        joins = Joins()
        for _ in range(MOST_DOUBTED):
            joins.begin()
            steps, _ = self._cut_asking(exprs, writes, repeats=repeats, joins=joins)
            if steps or not joins.find(self.declined, lambda join: self._kernel(join.exprs, join.writes, join.tied)[1] is None):
                return steps
        return None

    def _cut_asking(
        self, exprs: Sequence[Expr], writes: Set[TensorView], *, repeats: bool, is_trusting: bool = True, joins: Joins | None = None
    ) -> tuple[list[Step] | None, bool]:  # fmt: skip
        """Return the steps, or None if schedulers decline a group of several expressions; and False if that may be because pairs were trusted."""
        graph = Graph(self.fusion, exprs, writes, self.env, repeats=repeats)

        def asks(a: Group, b: Group) -> bool:
            return self._kernel(graph.members(a, b), graph.writes(a, b), graph.ties(a, b))[1] is None

        pairs = Pairs(graph, asks, is_trusting=is_trusting, joins=joins)
        if repeats and any(map(pairs.has_conflict, graph.alive())):
            return None, True
        search(graph, pairs.are_one)
        found, is_sure = _groups_in_order(graph), not pairs.has_trusted
        if repeats and repeat_short_chains(graph):
            pairs.has_trusted = False
            search(graph, pairs.are_one)  # a group that no longer writes a chain's result may be joined: a maximum with the sum of the exponentials below it
            steps = self._taken(_groups_in_order(graph), is_whole=True)
            if steps or pairs.has_trusted:
                return steps, steps is not None
        steps = self._taken(found, is_whole=repeats or is_trusting)
        return steps, is_sure or steps is not None

    def _taken(self, groups: "Sequence[_Own]", *, is_whole: bool) -> list[Step] | None:
        """Return the steps of groups; None if schedulers decline one, which is `declined` then, of several expressions where `is_whole`."""
        steps: list[Step] = []
        for anchors, members, writes, tied in groups:
            step, reasons = self._kernel(members, writes, tied)
            if reasons is not None and is_whole and len(members) > 1:
                self.declined = frozenset(map(id, anchors))
                return None
            steps.append(step if reasons is None else _alone(anchors[0], reasons))
        return steps


_Own = tuple[list[Expr], list[Expr], set[TensorView], list[TensorView]]
"""Of a group: its anchors, its expressions, what it writes, the tensors whose loops are tied."""


def _groups_in_order(graph: Graph) -> list[_Own]:
    groups = [group for group in in_order(graph, set()) if not _is_computed_again(graph, group)]
    return [(list(group.anchors), graph.members(group), graph.writes(group), list(group.tied)) for group in groups]


def _is_computed_again(graph: Graph, group: Group) -> bool:
    """True for a group of which nothing is written, because all readers compute it again."""
    return not (graph.writes(group) or group.is_single or group.scatters)


def _reason(graph: Graph, writer: Group | None, reader: Group) -> str:
    if writer is None or writer is reader:
        return "schedulers declined both together"
    obstacle = graph.obstacle(writer, reader)
    if obstacle is None and graph.makes_cycle(writer, reader):
        obstacle = "another step lies between them"
    return obstacle or "schedulers declined both together"


def _alone(expr: Expr, reasons: dict[str, str]) -> Step:
    """Return the step of an expression that no scheduler takes. Errors: NoScheduler unless torch runs it."""
    if entry_of(expr) is None:
        raise NoScheduler(reasons, [expr])
    return TorchStep(expr)


def _view(expr: Expr) -> ViewStep:
    source, *after = expr.tensor_inputs
    return ViewStep((expr,), source, expr.tensor_outputs[0], tuple(after))


def in_order(graph: Graph, written_in_place: Collection[object]) -> list[Group]:
    """Return the groups, producers before consumers; among those that are ready the first in the definition, except that those that write into inputs come
    last."""
    groups = graph.alive()
    missing = {g: graph.producers(g) - {g} for g in groups}
    readers: dict[Group, list[Group]] = {}
    for group, producers in missing.items():
        for producer in producers:
            readers.setdefault(producer, []).append(group)

    def key(group: Group) -> tuple[bool, int]:
        return any(t in written_in_place for t in group.produced), group.first

    ready = [(*key(g), n, g) for n, g in enumerate(groups) if not missing[g]]
    heapq.heapify(ready)
    out: list[Group] = []
    count = len(groups)
    while ready:
        group = heapq.heappop(ready)[-1]
        out.append(group)
        for reader in readers.get(group, ()):
            missing[reader].discard(group)
            if not missing[reader]:
                count += 1
                heapq.heappush(ready, (*key(reader), count, reader))
    require(len(out) == len(groups), f"{len(groups) - len(out)} of {len(groups)} groups of a definition wait for each other")
    return out


__all__ = ["kernel_step", "make_plan"]
