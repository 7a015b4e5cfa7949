"""Execution of a fusion as the user scheduled it.

Owns the order compile, then run; the executor is the runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.fusion import Fusion


def compile_and_run(executor: Any, fusion: Fusion, inputs: Sequence[Any], heuristic_params: Any = None) -> list[Any]:
    """Compile `fusion` with the KernelExecutor unless it is compiled, run it, return the outputs."""
    launch = getattr(heuristic_params, "lparams", None)
    keywords = {"compile_params": heuristic_params.cparams} if getattr(heuristic_params, "cparams", None) is not None else {}
    if not executor.is_compiled():
        scheduler = {} if heuristic_params is None else {"scheduler_type": heuristic_params.scheduler_type}
        executor.compile(fusion, inputs, launch, **keywords, **scheduler)
    return executor.run(inputs, launch, **keywords)
