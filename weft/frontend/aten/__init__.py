"""Which aten ops become ops of a definition, each in one place; importing this fills the table.

    rules.py        the table, and what a rule may use
    pointwise.py    arithmetic, comparisons, casts, activations
    reductions.py   sums, means, extrema, variances
    shapes.py       views and factories, which are copied into every region that reads them
    lookups.py      embedding, index, gather, running sums
    replaced_rows.py    rows and elements that an index replaces
    diagonals.py    diagonals of matrices
    unfolded.py     windows of an axis that may overlap
    searches.py     places in sorted lists
    rounded.py      products that are rounded by themselves
    stored_values.py    new values of arguments
    row_sums.py     sums of rows that an index sends to the same row
    running_products.py    gradients of running products
    losses.py       negative log likelihood, and gradients of means of nothing
    formulas.py     decimals, angles, and other formulas of ops above
    fake_quantization.py   values rounded to the steps of an integer type
    foreach.py      ops on lists of tensors, norms of vectors
    randoms.py      dropout and random tensors
    own.py          weft's own operators
"""

import sys
from typing import Any

import torch

from . import (
    casts, diagonals, lookups, losses, pointwise, randoms, reductions, replaced_rows, rounded, row_sums, running_products, searches, shapes, stored_values,
    unfolded,
)  # fmt: skip
from .rules import RULES, Declined, Rule


_known: dict[int, tuple[Any, Rule]] = {}
"""Rules of ops by the id of the op, which is kept alive here. Not by the op itself, because its hash is Python code of torch and is needed very often."""


def lookup(target: Any) -> Rule | None:
    """Return the rule of an op, or None."""
    known = _known.get(id(target))
    if known is not None:
        return known[1]
    found = RULES.get(target)
    if found is None and getattr(target, "namespace", "") == "prims":
        found = RULES.get(str(target))
    if found is not None and isinstance(target, torch._ops.OpOverload):
        _known[id(target)] = target, found
    if found is not None or "weft.nn.library" not in sys.modules:
        return found
    from .own import own_rule  # imports the compiler, which a process that finds its graphs in a cache does not need

    return own_rule(target)


__all__ = [
    "RULES", "Declined", "Rule", "casts", "diagonals", "lookup", "lookups", "losses", "pointwise", "randoms", "reductions", "replaced_rows", "rounded",
    "row_sums", "running_products", "searches", "shapes", "stored_values", "unfolded",
]  # fmt: skip
