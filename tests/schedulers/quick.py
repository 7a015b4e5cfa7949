"""How much work a pure function is, on a machine that others use too.

Times of a millisecond move by half there, whatever they are scaled by; lines of Python that run are the same everywhere.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

LINES_OF_A_MILLISECOND = 4000
"""What one idle core of a server runs in a millisecond at least, with numpy's share between them: Python 3.11, the choices of reductions and of rows (4,000 to 7,000)."""


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines of the package a call runs, the second time: what it remembers of the first may help."""
    call()
    return lines_by_function(call).total()


def lines_by_function(call: Callable[[], object]) -> Counter[CodeType]:
    """Return how many lines of each function of the package a call runs."""
    lines: Counter[int] = Counter()  # by what tells a function apart in no time: the hash of a code object reads it
    functions: dict[int, CodeType] = {}

    def count(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines[id(frame.f_code)] += 1
        return count

    def start(frame: FrameType, _: str, __: Any) -> Any:
        if "weft" not in frame.f_code.co_filename:
            return None
        functions[id(frame.f_code)] = frame.f_code
        return count

    run_traced(call, start)
    return Counter({functions[key]: count for key, count in lines.items()})


def run_traced(call: Callable[[], object], trace: Callable[[FrameType, str, Any], Any]) -> None:
    """Call a function under a trace function, in place of the one that is set."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
