"""weft: a fusion compiler for NVIDIA GPUs, call-compatible with nvFuser's Python API.

Owns the public names. They are loaded when first used, so that importing a submodule does not import torch. `weft.ops` and
`weft.schedule` are the packages of those layers; the namespaces of the front end are `fd.ops` and `fd.sched`.
Read first: `FusionDefinition`.
"""

from __future__ import annotations

import importlib
from typing import Any

from .api import fusion_methods as _fusion_methods, tensor_methods as _tensor_methods  # noqa: F401  (methods of Fusion and TensorView)

__version__ = "0.1.0"

_NAMES = {
    "api.enums": (
        "CacheOp", "CommunicatorBackend", "DataType", "IdMappingMode", "LoadStoreOpType", "MatmulBufferingLoopLevel",
        "MatmulCircularBufferingStrategy", "MatmulTileRasterizationOrder", "MatmulTilingStrategy", "MemoryType", "MmaMacroArch",
        "ParallelType", "SchedulerType",
    ),
    "api.definition": ("FusionDefinition",),
    "api.inputs": ("compute_tensor_descriptor", "define_scalar", "define_tensor"),
    "api.fusion_cache": ("LRUCache", "LruFusionCache"),
    "api.translate": ("translate_fusion",),
    "api.validation": ("get_val_tolerances", "validate_with_auto_inferred_outputs"),
    "api.profile": ("FusionProfile", "KernelProfile", "PythonProfiler", "get_fusion_profile", "reset_profiler"),
    "api.params": (
        "CompileParams", "HeuristicParams", "LaunchParams", "PointwiseParams", "ReductionParams",
    ),
    "api.matmul_params": (
        "CircularBufferOptions", "ClusterDims", "GemmTile", "MatMulTileOptions", "MatmulParams", "MmaMacro", "MmaMacroEncode", "SupportedVectorization",
    ),
    "api.multidevice": ("execute_with_dtensors",),
    "api.version": ("version",),
    "errors": ("InternalError", "Unsupported", "UserError", "WeftError"),
    "frontend.explain": ("explain",),
    "frontend.precompile": ("load_precompiled", "precompile"),
    "ir.fusion": ("Fusion", "FusionGuard"),
    "ir.graph_ops": ("ReshapeOp",),
    "ir.values": (
        "BroadcastOp", "Expr", "IterDomain", "Merge", "Scalar", "Split", "SqueezeOp", "Statement", "TensorDomain", "TensorView", "Val",
    ),
    "runtime.bounds": ("PositionOutOfRange", "synchronize"),
    "runtime.fec": ("FusionExecutorCache",),
    "runtime.kernel_executor": ("KernelExecutor",),
    "nn.library": ("op",),
    "nn.patching": ("patch",),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if name == "nn":
        return importlib.import_module(".nn", __name__)
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    if name == "FusionDefinition":
        importlib.import_module(".runtime.preload", __name__).start()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
