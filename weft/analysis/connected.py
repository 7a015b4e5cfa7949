"""Whether the tensors of a fusion hang together, so that one kernel makes sense for them.

Owns that one fact. Read first: `components`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.fusion import Fusion
from ..ir.values import TensorView
from .axes import TIE


def components(fusion: Fusion, among: Callable[[TensorView], bool] = lambda tensor: True) -> list[list[TensorView]]:
    """Return the connected components of the fusion's tensors (by expressions and tied loops), in order of first appearance. among: tensors that count."""
    parent: dict[TensorView, TensorView] = {t: t for t in fusion.tensors() if among(t)}

    tied: dict[object, TensorView] = {}

    def find(tensor: TensorView) -> TensorView:
        while parent[tensor] is not tensor:
            parent[tensor] = parent[parent[tensor]]
            tensor = parent[tensor]
        return tensor

    for expr in fusion.tensor_exprs():
        members = [v for v in (*expr.outputs, *expr.tensor_inputs) if isinstance(v, TensorView) and v in parent]
        if TIE in expr.attributes and members:
            members.append(tied.setdefault(expr.attributes[TIE], members[0]))
        for other in members[1:]:
            parent[find(other)] = find(members[0])
    groups: dict[TensorView, list[TensorView]] = {}
    for tensor in parent:
        groups.setdefault(find(tensor), []).append(tensor)
    return list(groups.values())


def is_connected(fusion: Fusion) -> bool:
    """True if expressions connect all outputs (unread inputs do not count)."""
    outputs = set(fusion.tensor_outputs())
    return sum(1 for group in components(fusion) if outputs.intersection(group)) <= 1
