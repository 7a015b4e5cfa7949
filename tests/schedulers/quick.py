"""How much work a pure function is, on a machine that others use too.

Times of a millisecond move by half there, whatever they are scaled by; lines of Python that run are the same everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

LINES_OF_A_MILLISECOND = 4000
"""What one idle core of a server runs in a millisecond at least, with numpy's share between them: Python 3.11, the choices of reductions and of rows (4,000 to 7,000)."""


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines of the package a call runs, the second time: what it remembers of the first may help."""
    call()
    lines = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    def start(frame: FrameType, _: str, __: Any) -> Any:
        return count if "weft" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(start)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines
