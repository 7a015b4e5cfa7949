"""What compiles and why, for `logging.getLogger("weft")` (and TORCH_LOGS="weft"): one line per kernel that is made, with what was new about the call.
On a terminal a compile that takes long says so while it runs.

Owns the sentences. Nothing is computed unless the logger listens, or a terminal is there. Read first: `tell`, `WordIfLong`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import user_location
from .binding import alignment_bytes

LOGGER = logging.getLogger("weft")
LONG_S = 1.0
"""Seconds of silence after which a terminal gets a message."""
Seen = list[tuple[Any, ...]]


def facts_of(values: Sequence[Any]) -> Seen:
    """Return what a call's kernel may depend on: (sizes, strides, dtype, alignment in bytes up to 32) per tensor, the type of another value."""
    out: Seen = []
    for value in values:
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
            out.append((tuple(value.shape), tuple(value.stride()), value.dtype, alignment_bytes(address)))
        else:
            out.append((type(value).__name__, value))
    return out


def tell(values: Sequence[Any], before: Seen | None, made: Sequence[Any], seconds: float) -> Seen | None:
    """Log the kernels `made` by a call; return the call's facts, for comparison with the next call. Returns `before` if logging is off."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return before
    now = facts_of(values)
    if made:
        names = ", ".join(runtime.program.name for runtime in made)
        LOGGER.info("%s %s in %.2f s: %s", "compiled" if before is None else "recompiled", names, seconds, reason(before, now))
    return now


def reason(before: Seen | None, now: Seen) -> str:
    """Return what is new about a call, and what would avoid a separate kernel."""
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
                hints.append("allocate inputs on 32 bytes (no slices that begin at odd elements)")
            elif label == "strides":
                hints.append("keep one layout, for example by contiguous()")
            elif label == "sizes":
                hints.append("sizes of one scheduler's choice share a kernel; keep to few of them, for example by padding")
    if not changed:
        return "the same sizes under other settings"
    text = "; ".join(changed[:4])
    return text + (f" (to avoid it: {hints[0]})" if hints else "")


class WordIfLong:
    """While a call is prepared: after LONG_S, print to stderr, if it is a terminal, what is being done and where, and at the end how long it took."""

    def __enter__(self) -> None:
        self.stream = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        if self.stream is None:
            return
        self.where, self.start, self.has_spoken = user_location(), time.perf_counter(), False
        self.timer = threading.Timer(LONG_S, self._say)
        self.timer.daemon = True
        self.timer.start()

    def _say(self) -> None:
        self.has_spoken = True
        print(f"weft: compiling what {self.where or 'this call'} needs; the result is kept, and later runs load it", file=self.stream, flush=True)

    def __exit__(self, *error: object) -> None:
        if self.stream is None:
            return
        self.timer.cancel()
        if self.has_spoken:
            print(f"weft: compiled in {time.perf_counter() - self.start:.1f} s", file=self.stream, flush=True)


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
