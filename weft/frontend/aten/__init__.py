"""Which aten ops become ops of a definition, each in one place; importing this fills the table.

    rules.py        the table, and what a rule may use
    pointwise.py    arithmetic, comparisons, casts, activations
    reductions.py   sums, means, extrema, variances
    shapes.py       views and factories, which are copied into every region that reads them
    lookups.py      embedding, index, gather, running sums
    losses.py       negative log likelihood
    randoms.py      dropout and random tensors
"""

from . import lookups, losses, pointwise, randoms, reductions, shapes
from .rules import RULES, Declined, Rule, lookup

__all__ = ["RULES", "Declined", "Rule", "lookup", "lookups", "losses", "pointwise", "randoms", "reductions", "shapes"]
