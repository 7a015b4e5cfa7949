"""Diagonals of matrices: one lookup per row, and a comparison of two positions where a diagonal is put into a matrix.

A kernel that computes a matrix computes only the elements that a diagonal has. Read first: `diagonal`.
"""

from __future__ import annotations

import torch

from .rules import Operand, Translation, meta_of, rule
from .shapes import cut

aten = torch.ops.aten


def _why_not(node: torch.fx.Node) -> str:
    """Why a diagonal stays with torch, or ""."""
    found = node if node.target is aten.diagonal.default else node.args[1]
    sizes, count = meta_of(node.args[0]).shape, meta_of(found).shape[-1]
    if not all(isinstance(n, int) for n in sizes):
        return "a diagonal of a matrix with open sizes"
    return "" if count else "a diagonal without elements"


@rule(aten.diagonal.default, cheap=True, claims=_why_not)
def diagonal(t: Translation, x: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Operand:
    """Elements k of two axes, `offset` further right, as a last axis."""
    rank = t.rank(x)
    rows, columns = dim1 % rank, dim2 % rank
    *_, count = t.node.meta["val"].shape
    x = t.ops.permute(x, dims=[*(d for d in range(rank) if d not in (rows, columns)), rows, columns])
    below, right = max(-offset, 0), max(offset, 0)
    x = cut(t, x, rank - 2, below, below + count)
    places = t.ops.broadcast_in_dim(_counted(t, count, right), [*(x.size(d) for d in range(rank - 1)), 1], [rank - 2])
    return t.ops.squeeze(t.ops.gather(x, places, rank - 1), dims=[rank - 1])


@rule(aten.diagonal_scatter.default, claims=_why_not)
def diagonal_scatter(t: Translation, base: Operand, x: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Operand:
    """`base` with a diagonal replaced."""
    rank, dtype = t.rank(base), t.result_dtype
    rows, columns = dim1 % rank, dim2 % rank
    shape = t.node.meta["val"].shape
    count = meta_of(t.node.args[1]).shape[-1]
    base, x = t.to(base, dtype), t.to(x, dtype)
    below, right = max(-offset, 0), max(offset, 0)
    x = t.ops.pad(x, pad_widths=[below, shape[rows] - below - count])  # one for each row
    others = [d for d in range(rank) if d not in (rows, columns)]
    order = sorted(range(rank - 1), key=[*others, rows].__getitem__)
    x = t.ops.broadcast(t.ops.permute(x, dims=order), is_broadcast_dim=[d == columns for d in range(rank)])
    here, there = _counted(t, shape[rows], right - below), _counted(t, shape[columns], 0)
    here, there = (t.ops.broadcast(p, is_broadcast_dim=[d != own for d in range(rank)]) for p, own in ((here, rows), (there, columns)))
    return t.ops.where(t.ops.eq(here, there), x, base)


def _counted(t: Translation, count: int, start: int) -> Operand:
    return t.ops.iota(t.constant(count, torch.int64), t.constant(start, torch.int64), t.constant(1, torch.int64), dtype=t.dtype(torch.int64))


__all__ = ["diagonal", "diagonal_scatter"]
