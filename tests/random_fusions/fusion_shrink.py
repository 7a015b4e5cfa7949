"""Makes a failing random fusion small: outputs, ops, sizes, layouts and types go as long as it fails in the same way.

Read first: `shrink`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from fusion_case import Case, Extent, Ref, ScalarInput, TensorInput


def shrink(case: Case, fails: Callable[[Case], bool], limit_s: float = 120.0) -> Case:
    """Return the smallest case found for which `fails` is true, as it is for `case`."""
    stop = time.monotonic() + limit_s
    changed = True
    while changed:
        changed = False
        for smaller in candidates(case):
            if time.monotonic() > stop:
                return case
            if _still_fails(smaller, fails):
                case, changed = smaller, True
                break
    return case


def _still_fails(case: Case, fails: Callable[[Case], bool]) -> bool:
    try:
        return fails(case)
    except Exception:  # noqa: BLE001  (the smaller definition is not valid)
        return False


def candidates(case: Case) -> Iterator[Case]:
    """Yield simpler cases, the boldest changes first."""
    for pair in case.aliases:
        yield case.replaced(aliases=tuple(p for p in case.aliases if p is not pair)).without_unused()
    for name in case.outputs:
        if len(case.outputs) > 1:
            yield case.replaced(outputs=(name,)).without_unused()
    for name in case.outputs:
        if len(case.outputs) > 1:
            yield case.replaced(outputs=tuple(n for n in case.outputs if n != name)).without_unused()
    labels = {target: node.labels for node in case.nodes for target in node.targets}
    labels.update({i.name: i.labels for i in case.inputs if isinstance(i, TensorInput)})
    for node in reversed(case.nodes):
        for argument in node.args:
            if isinstance(argument, Ref) and labels.get(argument.name) == node.labels:
                yield _bypass(case, node.targets[0], argument.name)
    for node in reversed(case.nodes):  # an op's operand as an output in its place
        if node.targets[0] in case.outputs:
            for argument in node.args:
                if isinstance(argument, Ref) and argument.name in labels and argument.name not in {i.name for i in case.inputs}:
                    yield case.replaced(outputs=tuple(argument.name if n == node.targets[0] else n for n in case.outputs)).without_unused()
    for label, size in case.sizes.items():
        for smaller in (1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 64, 100, 128, size // 2, size - 1):
            if 0 < smaller < size:
                yield case.replaced(sizes={**case.sizes, label: smaller})
    for n, given in enumerate(case.inputs):
        if isinstance(given, ScalarInput):
            continue
        for change in (dict(order=()), dict(expanded=frozenset()), dict(gapped=frozenset()), dict(offset=0), dict(specials=0), dict(dtype="Float"), dict(static=False), dict(static=True)):
            key, value = next(iter(change.items()))
            if getattr(given, key) != value and not (key == "static" and value and not given.static and False):
                if key == "static" and value:
                    continue
                yield _with_input(case, n, dataclasses.replace(given, **change))
    for node in reversed(case.nodes):
        if len(node.args) >= 1 and node.op not in ("neg", "abs") and node.labels and any(isinstance(a, Ref) and labels.get(a.name) == node.labels for a in node.args):
            first = next(a for a in node.args if isinstance(a, Ref) and labels.get(a.name) == node.labels)
            if len(node.targets) == 1:
                yield _with_node(case, node, dataclasses.replace(node, op="neg", args=(first,), kwargs=()))


def _bypass(case: Case, old: str, new: str) -> Case:
    def change(argument: Any) -> Any:
        if isinstance(argument, Ref) and argument.name == old:
            return Ref(new)
        if isinstance(argument, Extent) and argument.tensor == old:
            return dataclasses.replace(argument, tensor=new)
        return type(argument)(change(a) for a in argument) if isinstance(argument, (list, tuple)) else argument

    nodes = tuple(
        dataclasses.replace(node, args=tuple(map(change, node.args)), kwargs=tuple((k, change(v)) for k, v in node.kwargs)) for node in case.nodes if old not in node.targets
    )
    inputs = {i.name for i in case.inputs}
    outputs = tuple(dict.fromkeys(new if n == old else n for n in case.outputs if n != old or new not in inputs))
    return case.replaced(nodes=nodes, outputs=outputs).without_unused()


def _with_input(case: Case, n: int, given: TensorInput) -> Case:
    return case.replaced(inputs=tuple(given if i == n else old for i, old in enumerate(case.inputs)))


def _with_node(case: Case, old: Any, new: Any) -> Case:
    return case.replaced(nodes=tuple(new if node is old else node for node in case.nodes)).without_unused()
