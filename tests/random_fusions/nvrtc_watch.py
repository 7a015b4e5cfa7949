"""Compiles what the emulator runs by NVRTC, too: its text is to compile for a GPU, which none is needed for.

Read first: `compile_by_nvrtc`.
"""

from __future__ import annotations

from weft.arch import arch_by_name
from weft.options import current
from weft.runtime import engines
from weft.runtime.resources import TooManySpills

_compiled: set[str] = set()


def compile_by_nvrtc() -> None:
    """Compile each kernel of this process by NVRTC, from now on, before its first launch in the emulator. Calls then raise what NVRTC refuses."""
    if _compile not in engines.watchers:
        engines.watchers.append(_compile)


def _compile(call: engines.EmulatedCall) -> None:
    program, options = call.program, current()
    if program.text in _compiled:
        return
    try:
        engines.machine_code(arch_by_name(options.chip), program, options)
    except TooManySpills:  # on a GPU, the runtime goes on with another candidate
        pass
    _compiled.add(program.text)
