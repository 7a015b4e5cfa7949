"""Cats whose parts are stored one by one in the memory of the result: the gradient of a packed projection, a norm of a part of each row beside the rest.

A cat is a selection in one kernel, which computes each part. A part that depends on sums of the same rows is then computed anew, from what the kernel of the
sums has read: that kernel can store the part itself. Owns which cats are such, and the rewriting. Read first: `store_parts_of_rows`.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence, Set

from ..analysis.plain_copies import is_plain_copy
from ..expr import Sym, add, mul, product
from ..ir.fusion import Fusion
from ..ir.graph_ops import CatOp, JoinedOp, ReshapeOp, TorchOp
from ..ir.values import Expr, LoadStoreOp, ReductionOp, TensorView, WelfordOp
from ..ops.build import logical_axes
from .moved_lookups import extent_count, is_moved

SHORTEST_PIECE_BYTES = 128
"""Neighbouring bytes of a part, down to which kernels store parts one by one: a line of memory. Of shorter pieces several kernels would write each line."""
PIECES_BEGIN_AT_BYTES = 16
"""Multiples at which pieces begin, so that they are stored in the widest vectors of a thread."""
MOST_OF_A_ROW = 1 << 16
"""Elements of a reduction that a kernel keeps while it folds them, about; of longer ones the results are stored, and rows are read again in any case."""


def store_parts_of_rows(fusion: Fusion) -> None:
    """Let kernels store parts of cats in place of one that computes all, where parts depend on sums of the same rows.

    Before: no axis is open; cats are `CatOp`.   After: such a cat is a `JoinedOp`, whose operands are copies of the parts that have the strides of the result.
    Neighbouring parts that depend on no such sums are one operand: a cat of their own, which one kernel computes.
    """
    exprs = fusion.tensor_exprs()
    needed = set(map(id, exprs))
    for expr in exprs:
        out = _in_memory(fusion, expr, needed) if isinstance(expr, CatOp) else None
        if out is None:
            continue
        groups, dim = _groups(expr.tensor_inputs), expr.attributes["dim"]
        if groups is not None and _are_pieces(out, groups, dim):
            for made in {id(e): e for e in (expr, out.definition())}.values():
                fusion.remove(made)  # type: ignore[arg-type]
            fusion.register(JoinedOp([_stored(fusion, out, group, dim) for group in groups], [out], op="cat", dim=dim))


def _in_memory(fusion: Fusion, cat: CatOp, needed: Set[int]) -> TensorView | None:
    """Return the result of a cat, or a copy of it, that no kernel reads by its own loops, so that it is in memory in any case; None if there is none, or if it
    is written into an input. needed: expressions, by identity."""
    out = cat.tensor_outputs[0]
    uses = [use for use in out.uses() if id(use) in needed]
    if len(uses) == 1 and is_plain_copy(uses[0]) and not fusion.is_output(out):
        (out,) = uses[0].tensor_outputs
        uses = [use for use in out.uses() if id(use) in needed]
    return out if out not in fusion.aliases and all(isinstance(use, (ReshapeOp, TorchOp)) for use in uses) else None


def _groups(parts: Sequence[TensorView]) -> list[list[TensorView]] | None:
    """Return the parts of a cat that one kernel stores: each that depends on sums of its rows, and neighbours that do not. None if no part depends on such."""
    of_rows = [_has_sums_of_its_rows(part) for part in parts]
    if not any(of_rows):
        return None
    groups: list[list[TensorView]] = []
    for is_of_rows, found in itertools.groupby(zip(of_rows, parts), lambda pair: pair[0]):
        members = [part for _, part in found]
        groups += [[part] for part in members] if is_of_rows else [members]
    return groups


def _are_pieces(out: TensorView, groups: Sequence[Sequence[TensorView]], dim: int) -> bool:
    """True if neighbouring elements of each group are whole lines of memory in the result, and no axis is repeated."""
    axes, domain = logical_axes(out), out.domain()
    if len(groups) < 2 or out.dtype().bits < 8 or domain.rolled or False in domain.contiguity:
        return False
    for part in (out, *itertools.chain(*groups)):
        pairs = zip(logical_axes(part), axes)
        if any(a.expanded_extent is not None or d != dim and a.is_broadcast() is not b.is_broadcast() for d, (a, b) in enumerate(pairs)):
            return False
    stored = [axis for axis in domain.maybe_allocation if not axis.is_reduction()]
    inner = product(axis.sym for axis in stored[stored.index(axes[dim]) + 1 :])
    pieces = [mul(_length(group, dim), inner) for group in groups]
    sizes_bytes = [int(piece.value) * out.dtype().bits // 8 for piece in pieces if piece.is_const]  # type: ignore[arg-type]
    is_aligned = all(size_bytes >= SHORTEST_PIECE_BYTES and size_bytes % PIECES_BEGIN_AT_BYTES == 0 for size_bytes in sizes_bytes)
    return len(sizes_bytes) == len(pieces) and is_aligned


def _length(group: Sequence[TensorView], dim: int) -> Sym:
    return functools.reduce(add, (logical_axes(part)[dim].sym for part in group))


# ---------------------------------------------------------------- sums of rows
def _has_sums_of_its_rows(part: TensorView) -> bool:
    """Tell whether a tensor is computed from something as large as it is, and from sums of that whose loops are its own, not those of the whole cat."""
    read, folds = _sources(part)
    large, sizes = {t for t in read if extent_count(t) >= extent_count(part)}, _sizes(part)
    of_rows = [fold.tensor_inputs[0] for fold in folds if _is_of_rows(fold)]
    return any(_sizes(folded) == sizes and not large.isdisjoint(_sources(folded)[0]) for folded in of_rows)


def _sizes(tensor: TensorView) -> Counter[Sym]:
    """Return the sizes of the axes along which a tensor has elements of its own, in no order."""
    return Counter(axis.sym for axis in logical_axes(tensor) if not axis.is_broadcast())


def _sources(tensor: TensorView) -> tuple[list[TensorView], list[Expr]]:
    """Return the tensors that one is computed from, and the reductions among what computes these."""
    found: dict[TensorView, None] = {tensor: None}
    stack, ends, folds = [tensor], list[TensorView](), list[Expr]()
    while stack:
        current = stack.pop()
        above = current.definition()
        if above is not None and (is_moved(above) or isinstance(above, CatOp)):
            stack += [t for t in above.tensor_inputs if t not in found]
            found.update(dict.fromkeys(above.tensor_inputs))
        else:
            ends.append(current)
            folds += [above] if isinstance(above, (ReductionOp, WelfordOp)) else []
    return ends, folds


def _is_of_rows(fold: Expr) -> bool:
    """True for a reduction over some of the axes, of which a kernel keeps what it folds."""
    axes = fold.tensor_outputs[0].get_logical_domain()
    count = product(a.sym for a in axes if a.is_reduction())
    return count.is_const and int(count.value) <= MOST_OF_A_ROW and any(a.is_iteration() for a in axes)  # type: ignore[arg-type]


# ---------------------------------------------------------------- copies
def _stored(fusion: Fusion, out: TensorView, members: Sequence[TensorView], dim: int) -> TensorView:
    """Return a copy of parts that has the order and the strides of the whole."""
    axes = [fusion.copy_axis(a) for a in logical_axes(members[0])]
    if len(members) > 1:
        axes[dim] = fusion.new_axis(_length(members, dim))
    part = fusion.new_tensor(axes, out.dtype())
    fusion.register(LoadStoreOp(members, [part]) if len(members) == 1 else CatOp(members, [part], op="cat", dim=dim))
    order = [logical_axes(out).index(a) for a in out.domain().maybe_allocation if not a.is_reduction()]
    domain = part.domain()
    domain.allocation = None if order == sorted(order) else [axes[d] for d in order]
    domain.contiguity = [None if a.is_broadcast() else True for a in domain.maybe_allocation]
    outer = [n for n in range(order.index(dim)) if not domain.maybe_allocation[n].is_broadcast()]
    if outer:
        domain.contiguity[outer[-1]] = False
    return part


__all__ = ["store_parts_of_rows"]
