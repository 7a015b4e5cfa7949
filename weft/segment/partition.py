"""How a definition is cut into steps.

Owns the search for groups of expressions that one kernel computes. Whether a kernel can, the caller says (`takes`).
Read first: `make_plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set

from ..analysis.connected import components
from ..compiler import NoScheduler
from ..ir.fusion import Fusion
from ..ir.graph_ops import ReshapeOp, TorchOp
from ..ir.values import Expr, LoadStoreOp, TensorView
from ..ops.torch_ops import entry_of
from .extract import boundary, extract
from .plan import KernelStep, Plan, SegmentKey, Step, TorchStep, ViewStep, variables_of_inputs

Takes = Callable[[Fusion], "dict[str, str] | None"]
"""Tells whether one kernel can compute a fusion: None, or why each scheduler declines."""


def make_plan(fusion: Fusion, takes: Takes) -> Plan:
    """Cut `fusion`, whose outputs are computed, into steps. Outputs that have nothing in common share no kernel.

    Errors: NoScheduler for an expression that no scheduler takes alone.
    """
    steps: list[Step] = []
    for outputs in _connected_outputs(fusion):
        exprs = [e for e in fusion.exprs(outputs) if isinstance(e.outputs[0], TensorView)]
        whole = None if any(map(_ends_segment, exprs)) else kernel_step(fusion, exprs, outputs)
        if whole is not None and takes(whole.fusion) is None:
            steps.append(whole)
        else:
            steps += _Partition(fusion, exprs, outputs, takes).steps()
    returned = set(fusion.outputs())
    return Plan(tuple(steps), tuple(t for step in steps for t in step.outputs if t not in returned))


def _connected_outputs(fusion: Fusion) -> list[list[TensorView]]:
    outputs = [v for v in fusion.outputs() if isinstance(v, TensorView)]
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


class _Group:
    """Expressions of one step, in order."""

    def __init__(self, exprs: Sequence[Expr], *, is_kernel: bool) -> None:
        self.exprs, self.is_kernel = list(exprs), is_kernel


class _Partition:
    def __init__(self, fusion: Fusion, exprs: Sequence[Expr], outputs: Sequence[TensorView], takes: Takes) -> None:
        self.fusion, self.takes, self.exprs = fusion, takes, list(exprs)
        self.order = {id(e): n for n, e in enumerate(self.exprs)}
        self.outputs = set(outputs)
        self.readers: dict[TensorView, list[Expr]] = {}
        for expr in self.exprs:
            for tensor in expr.tensor_inputs:
                self.readers.setdefault(tensor, []).append(expr)
        self.shared: dict[object, tuple[KernelStep, SegmentKey]] = {}

    # -- search
    def groups(self) -> list[_Group]:
        groups: list[_Group] = []
        of: dict[int, _Group] = {}
        for expr in self.exprs:
            alone = _Group([expr], is_kernel=not isinstance(expr, (TorchOp, ReshapeOp)))
            home = alone
            if alone.is_kernel:
                sources = {id(of[id(d)]): of[id(d)] for t in expr.tensor_inputs if (d := t.definition()) is not None and not _is_barrier(d)}
                for group in sources.values():
                    if group.is_kernel and not self._makes_cycle(of, group, alone) and self.takes(self._fusion_of([*group.exprs, expr])) is None:
                        home = group
                        home.exprs.append(expr)
                        break
            if home is alone:
                groups.append(home)
            of[id(expr)] = home
        return self._merged(groups, of)

    def _merged(self, groups: list[_Group], of: dict[int, _Group]) -> list[_Group]:
        """Join producers with consumers while a scheduler takes both."""
        changed = True
        while changed:
            changed = False
            for consumer in groups:
                if not consumer.is_kernel:
                    continue
                sources = (t.definition() for e in consumer.exprs for t in e.tensor_inputs)
                producers = {id(of[id(d)]): of[id(d)] for d in sources if d is not None and not _is_barrier(d)}
                for producer in producers.values():
                    if producer is consumer or not producer.is_kernel or self._makes_cycle(of, producer, consumer):
                        continue
                    exprs = sorted([*producer.exprs, *consumer.exprs], key=lambda e: self.order[id(e)])
                    if self.takes(self._fusion_of(exprs)) is None:
                        producer.exprs = exprs
                        of.update((id(e), producer) for e in consumer.exprs)
                        groups.remove(consumer)
                        changed = True
                        break
                if changed:
                    break
        return groups

    def _makes_cycle(self, of: dict[int, _Group], producer: _Group, consumer: _Group) -> bool:
        """Tell whether a path leads from `producer` to `consumer` through another group."""
        stack = [g for g in self._sources(of, consumer) if g is not producer]
        seen: set[int] = set()
        while stack:
            group = stack.pop()
            if group is producer:
                return True
            if id(group) not in seen:
                seen.add(id(group))
                stack += self._sources(of, group)
        return False

    @staticmethod
    def _sources(of: dict[int, _Group], group: _Group) -> list[_Group]:
        found = {id(of[id(d)]): of[id(d)] for e in group.exprs for t in e.tensor_inputs if (d := t.definition()) is not None and id(d) in of}
        found.pop(id(group), None)
        return list(found.values())

    # -- steps
    def _outside(self, exprs: Sequence[Expr]) -> set[TensorView]:
        """The tensors that are outputs, or that expressions beside `exprs` read."""
        own = set(map(id, exprs))
        return {t for e in exprs for t in e.tensor_outputs if t in self.outputs or any(id(u) not in own for u in self.readers.get(t, ()))}

    def _fusion_of(self, exprs: Sequence[Expr]) -> Fusion:
        return kernel_step(self.fusion, exprs, self._outside(exprs)).fusion

    def _kernel(self, exprs: Sequence[Expr]) -> Step:
        step = kernel_step(self.fusion, exprs, self._outside(exprs))
        reasons = self.takes(step.fusion)
        if reasons is None:
            return self._shared(step)
        if len(exprs) == 1 and entry_of(exprs[0]) is not None:
            return TorchStep(exprs[0])
        raise NoScheduler(reasons)

    def _shared(self, step: KernelStep) -> KernelStep:
        """Return the step with the fusion of an earlier one of equal structure."""
        key = SegmentKey(step.fusion)
        first, known = self.shared.setdefault(key.build(), (step, key))
        if first is step:
            return step
        variables = dict(zip(known.variables_found, key.variables_found))
        variables.update(zip(variables_of_inputs(first.fusion), variables_of_inputs(step.fusion)))
        return KernelStep(first.fusion, step.inputs, step.outputs, variables)

    def steps(self) -> list[Step]:
        steps: list[Step] = []
        for group in self._sorted(self.groups()):
            if group.is_kernel:
                steps.append(self._kernel(group.exprs))
            elif isinstance(group.exprs[0], ReshapeOp):
                steps.append(_view(group.exprs[0]))
            else:
                steps.append(TorchStep(group.exprs[0]))
        return steps

    def _sorted(self, groups: list[_Group]) -> list[_Group]:
        """Return the groups, producers before consumers; else in the order of their first expressions."""
        of = {id(e): g for g in groups for e in g.exprs}
        done: set[int] = set()
        out: list[_Group] = []
        for group in sorted(groups, key=lambda g: self.order[id(g.exprs[0])]):
            stack = [(group, False)]
            while stack:
                current, ready = stack.pop()
                if id(current) in done:
                    continue
                if ready:
                    done.add(id(current))
                    out.append(current)
                    continue
                stack.append((current, True))
                stack += [(g, False) for g in self._sources(of, current) if id(g) not in done]
        return out


def _ends_segment(expr: Expr) -> bool:
    """True for an expression that no kernel holds together with what reads it, or with what it reads."""
    return isinstance(expr, (TorchOp, ReshapeOp)) or _is_barrier(expr)


def _is_barrier(expr: Expr) -> bool:
    """True for an expression whose readers run in another kernel."""
    return isinstance(expr, LoadStoreOp) and expr.op_name == "segment_set"


def _view(expr: Expr) -> ViewStep:
    source, output = expr.inputs[0], expr.outputs[0]
    assert isinstance(source, TensorView) and isinstance(output, TensorView)
    return ViewStep((expr,), source, output)


__all__ = ["kernel_step", "make_plan"]
