"""Ops: definitions as data (unary, binary, ternary, cast), monoids, and the functions that add ops to a fusion (see `functions.FUNCTIONS`)."""

from . import binary, cast, divisors, ternary, unary  # they fill the registry

__all__ = ["binary", "cast", "divisors", "ternary", "unary"]
