"""The `multidevice` namespace: every name is there, and raises Unsupported when used. This version runs on one device."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from .enums import CommunicatorBackend

REMEDY = "run one process per device and communicate with torch.distributed"


def _refused(name: str) -> type:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"multidevice.{name}", remedy=REMEDY)

    doc = f"Not in this version: using it raises Unsupported({name!r})."
    return type(name, (), {"__init__": refuse, "__doc__": doc, "__module__": __name__, "instance": staticmethod(refuse)})


Communicator = _refused("Communicator")
DeviceMesh = _refused("DeviceMesh")
Sharding = _refused("Sharding")
MultiDeviceExecutor = _refused("MultiDeviceExecutor")
MultiDeviceExecutorParams = _refused("MultiDeviceExecutorParams")


def shard_tensor(tensor: Any, tv: Any) -> Any:
    """Not in this version."""
    raise Unsupported("multidevice.shard_tensor", remedy=REMEDY)


def execute_with_dtensors(fd: Any, in_dtensors: Any) -> Any:
    """Not in this version."""
    raise Unsupported("execute_with_dtensors", remedy=REMEDY)


__all__ = [
    "Communicator", "CommunicatorBackend", "DeviceMesh", "MultiDeviceExecutor", "MultiDeviceExecutorParams", "Sharding", "execute_with_dtensors",
    "shard_tensor",
]  # fmt: skip
