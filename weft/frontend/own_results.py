"""Which ops of torch make results with memory of their own, and which show an operand. Read first: `has_own_results`."""

from __future__ import annotations

from typing import Any

SHARING = ("_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "alias", "detach")
"""Names of ops whose results may share memory with an operand, which their schemas do not say."""


def has_own_results(target: Any) -> bool:
    """True for an op of torch whose results share no memory with its operands, and which changes none of these."""
    schema = getattr(target, "_schema", None)
    if schema is None or schema.is_mutable or schema.name.partition("::")[2] in SHARING:
        return False
    return all(made.alias_info is None for made in schema.returns)


__all__ = ["has_own_results"]
