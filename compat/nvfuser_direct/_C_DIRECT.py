"""The names of nvFuser's extension module. The executors are found when first used, since they need the runtime."""

import sys

import weft
from weft.api import idm, multidevice, nvf_cutlass, schedule
from weft.api.ops import ops

_RUNTIME = ("FusionExecutorCache", "KernelExecutor")
__all__ = [name for name in weft.__all__ if name not in (*_RUNTIME, "WeftError", "UserError", "InternalError", "Unsupported")]
globals().update({name: getattr(weft, name) for name in __all__})

# `from nvfuser_direct.schedule import ...` works as for submodules.
for _name, _module in {"idm": idm, "multidevice": multidevice, "nvf_cutlass": nvf_cutlass, "ops": ops, "schedule": schedule}.items():
    sys.modules[f"nvfuser_direct.{_name}"] = _module


def __getattr__(name):
    if name in _RUNTIME:
        return getattr(weft, name)
    raise AttributeError(f"module 'nvfuser_direct._C_DIRECT' has no attribute {name!r}")
