"""Ops: definitions as data (unary, binary, ternary, cast), monoids, and the functions that add ops to a fusion (see `functions.FUNCTIONS`)."""

from . import binary, cast, ternary, unary  # they fill the registry
from . import names  # and this one the table of names, by which ops call each other

__all__ = ["binary", "cast", "names", "ternary", "unary"]
