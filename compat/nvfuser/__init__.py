"""The older module name of nvFuser's Python API, for programs that still ask for it: lightning-thunder 0.2.6 does in one place. All of it is nvfuser_direct."""

from nvfuser_direct import *  # noqa: F403
from nvfuser_direct import DataType, FusionDefinition, compute_tensor_descriptor, version

__all__ = ["DataType", "FusionDefinition", "compute_tensor_descriptor", "version"]
