"""A defect of weft leaves a script that shows it: the definition, inputs like those of the call, the settings.

Owns when the script is written and that the error names it, once. Its text is made by whoever hands a writer in (`weft.api.repro`): definitions as Python are
above this layer. Read first: `keep_script`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..cache.failures import keep_failure
from ..errors import InternalError
from ..ir.fusion import Fusion

Writer = Callable[[Fusion, Sequence[Any], InternalError], str]
_writers: list[Writer] = []


def writes_scripts(writer: Writer) -> Writer:
    """Register `writer(fusion, inputs, error)`, which writes the scripts. A decorator."""
    _writers[:] = [writer]
    return writer


def keep_script(fusion: Fusion, values: Sequence[Any], error: InternalError) -> None:
    """Write a script that defines `fusion` and executes it on inputs like `values`, and add its path to the error's text.

    An error that already names a script is not changed. A failure here is added to the text of the error, which is still the one that is raised.
    """
    if "repro" in error.values or not _writers:
        return
    error.values["repro"] = ""
    try:
        text = _writers[0](fusion, values, error)
        error.values["repro"] = path = str(keep_failure(f"internal_error_{error.code}", text, {"repro.py": text}))
        line = f"  repro: {path}"
    except Exception as trouble:  # noqa: BLE001  (said below)
        line = f"  no repro was written: {type(trouble).__name__}: {trouble}"
    error.args = (f"{error.args[0]}\n{line}", *error.args[1:])
