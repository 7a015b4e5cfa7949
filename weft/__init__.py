"""weft: a fusion compiler for NVIDIA GPUs, call-compatible with nvFuser's Python API.

Owns the public names, and loads each when it is first used, so that importing a submodule does not import torch. `weft.ops` and
`weft.schedule` are the packages of those layers; the namespaces of the front end are `fd.ops` and `fd.sched`.
Read first: `FusionDefinition`.
"""

from __future__ import annotations

import importlib
import sys
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


_MODULES = ("nn", "options", "quantize")
"""Modules that users name without importing them."""

_INSTEAD = {
    "compile": 'torch.compile(model, backend="weft")', "jit": 'torch.compile(model, backend="weft"), or define with weft.FusionDefinition',
    "fuse": 'torch.compile(model, backend="weft"), or define with weft.FusionDefinition',
    "Tensor": "torch.Tensor; a value of a definition is a weft.TensorView",
    "settings": "weft.options(...), as a with block", "config": "weft.options(...), as a with block", "functional": "weft.nn.functional",
    "float32": "torch.float32, or weft.DataType.Float", "float16": "torch.float16, or weft.DataType.Half",
    "bfloat16": "torch.bfloat16, or weft.DataType.BFloat16", "autograd": "fd.autograd()", "register_op": 'weft.op("namespace::name", fd)',
}  # fmt: skip
"""What to write for a name that one may look for here; the texts follow "write "."""


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if home is None:
        remedy = f": write {_INSTEAD[name]}" if name in _INSTEAD else "; dir(weft) lists what it has"
        raise AttributeError(f"module 'weft' has no attribute {name!r}{remedy}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    if name == "FusionDefinition":
        importlib.import_module(".runtime.preload", __name__).start()
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})


_OPERATORS = (
    "batch_norm", "cross_entropy", "dropout_add_layer_norm", "geglu", "gelu", "group_norm", "instance_norm", "kl_div", "layer_norm", "log_softmax", "normalize",
    "packed_geglu", "packed_swiglu", "rms_norm", "rope", "scaled_masked_softmax", "silu", "softmax", "swiglu",
)  # fmt: skip
"""The operators of weft.nn; each has two more, whose names end as `_ENDINGS`."""
_ENDINGS = ("_saving", "_backward")


def _let_names_find_operators() -> None:
    """Make `torch.ops.weft` import weft.nn, which registers its operators, when one of them is named: `torch.export.load` finds those of a program that another
    process has written. Only where torch is imported before weft, which must not import it."""
    ops: Any = getattr(sys.modules.get("torch"), "ops", None)
    if ops is None or "weft" in vars(ops):
        return
    plain = type(ops.aten)

    class Operators(plain):  # type: ignore[misc, valid-type]
        __module__ = plain.__module__  # torch writes it into the names of operators, by which graphs are stored

        def __getattr__(self, name: str) -> Any:
            if next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name) in _OPERATORS:
                importlib.import_module(".nn", __name__)
            return super().__getattr__(name)

    ops.weft = Operators("weft")


_let_names_find_operators()
