"""What compiles and why, for `logging.getLogger("weft")` (and TORCH_LOGS="weft"): one line per kernel that is made, with what was new about the call.

Owns the sentences. Nothing is computed unless the logger listens. Read first: `tell`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

LOGGER = logging.getLogger("weft")
Seen = list[tuple[Any, ...]]


def facts_of(values: Sequence[Any]) -> Seen:
    """Return what a call's kernel may depend on: (sizes, strides, dtype, alignment in bytes up to 16) per tensor, the type of another value."""
    out: Seen = []
    for value in values:
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
            out.append((tuple(value.shape), tuple(value.stride()), value.dtype, min(address & -address or 16, 16)))
        else:
            out.append((type(value).__name__, value))
    return out


def tell(values: Sequence[Any], before: Seen | None, made: Sequence[Any], seconds: float) -> Seen | None:
    """Log the kernels `made` by a call; return the call's facts, to compare the next one with. Returns `before` when nobody listens."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return before
    now = facts_of(values)
    if made:
        names = ", ".join(runtime.program.name for runtime in made)
        LOGGER.info("%s %s in %.2f s: %s", "compiled" if before is None else "recompiled", names, seconds, reason(before, now))
    return now


def reason(before: Seen | None, now: Seen) -> str:
    """Say what is new about a call, and what would avoid a kernel of its own."""
    if before is None:
        return "first call of this definition"
    labels = ("sizes", "strides", "dtype", "alignment")
    changed: list[str] = []
    hints: list[str] = []
    for index, (old, new) in enumerate(zip(before, now)):
        for label, a, b in zip(labels, old, new):
            if a == b or (label == "strides" and "sizes" in "".join(changed[-1:])):
                continue
            changed.append(f"{label} of input {index} from {_shown(a)} to {_shown(b)}")
            if label == "alignment":
                hints.append("allocate inputs on 16 bytes (no slices that begin at odd elements)")
            elif label == "strides":
                hints.append("keep one layout, for example by contiguous()")
            elif label == "sizes":
                hints.append("sizes of one scheduler's choice share a kernel; keep to few of them, for example by padding")
    if not changed:
        return "the same sizes under other settings"
    text = "; ".join(changed[:4])
    return text + (f" (to avoid it: {hints[0]})" if hints else "")


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
