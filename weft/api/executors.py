"""Loads the runtime's classes when they are first needed, and reads a caller's inputs.

Owns nothing of the runtime. Importing it does not import the runtime, so definitions work where no runtime can.
"""

from __future__ import annotations

from typing import Any

from ..dump import Dump
from ..ir.fusion import Fusion


def executor_cache(fusion: Fusion, fusion_id: int = 0) -> Any:
    """Return a new FusionExecutorCache that owns `fusion`."""
    from ..runtime.fec import FusionExecutorCache
    from . import repro  # noqa: F401  (writes the scripts of internal errors)
    from .translate import translate_fusion

    Dump.python(lambda: translate_fusion(fusion))
    return FusionExecutorCache(fusion, fusion_id)


def kernel_executor() -> Any:
    """Return a new KernelExecutor."""
    from ..runtime.kernel_executor import KernelExecutor

    return KernelExecutor()
