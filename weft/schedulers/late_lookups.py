"""Params of kernels whose threads look up much: all is loaded before its first use, or each where it is used if the kernel spills otherwise.

The field `lookups` of the params says which: see `PointwiseParams`. Read first: `late_instead`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .limits import STEP_BYTES

WHY_LATE = "what is looked up is loaded where it is used, because the kernel spills otherwise"


def late(params: Any) -> Any:
    """Return params with late lookups in place of early ones."""
    return replace(params, lookups="late") if getattr(params, "lookups", "few") == "early" else params


def late_instead(rejected: Mapping[Any, int]) -> Any | None:
    """Return the params that were rejected last with late lookups; None if theirs are not early."""
    last = list(rejected)[-1]
    made = late(last)
    return None if made is last else made


def accepted_spill_bytes(params: Any) -> int | None:
    """Return how much a kernel may spill per thread before its lookups are late; None where that is no question."""
    return STEP_BYTES if params.lookups == "early" else None


__all__ = ["WHY_LATE", "accepted_spill_bytes", "late", "late_instead"]
