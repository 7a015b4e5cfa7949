"""What a call costs in Python, as a number that is the same on a busy machine and on a quiet one: how many instructions of the interpreter it takes.

`warm_path_cost.py` and `launch_cost.py` tell the microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from quick import run_traced


def instructions_of(call: Callable[[], Any]) -> int:
    """Return how many instructions of the interpreter `call` executes, those of all functions in Python below it included. What C code does counts as one."""
    return _monitored(call) if hasattr(sys, "monitoring") else _traced(call)


def _monitored(call: Callable[[], Any]) -> int:
    """From Python 3.12 on, where a frame that is traced for the first time misses its own instructions."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    count, event, tool = 0, monitoring.events.INSTRUCTION, monitoring.PROFILER_ID

    def executed(code: Any, offset: int) -> None:
        nonlocal count
        count += 1

    monitoring.use_tool_id(tool, __name__)
    monitoring.register_callback(tool, event, executed)
    monitoring.set_events(tool, event)
    try:
        call()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
    return count


def _traced(call: Callable[[], Any]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    run_traced(call, trace)
    return count
