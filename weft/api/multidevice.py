"""The `multidevice` namespace for one process with one device: a mesh has one device, which holds every shard.

Owns nvFuser's names and what they mean on one device: a tensor that is sharded over a mesh of one is whole. Everything that needs a second device raises
Unsupported. Read first: `DeviceMesh`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Unsupported, shown
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from ..ops.arguments import WrongArgument
from ..schedule.primitives import reset_loops
from .enums import CommunicatorBackend

REMEDY = "run one process per device and communicate with torch.distributed"
MESH_TYPES = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)


class Communicator:
    """The processes of a job: this one. Errors: Unsupported where torch.distributed runs several."""

    @staticmethod
    def instance() -> "Communicator":
        """Return the communicator of the process."""
        import torch

        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise Unsupported("multidevice.Communicator of several processes", remedy=REMEDY)
        return _COMMUNICATOR

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0

    def local_size(self) -> int:
        return 1

    def local_rank(self) -> int:
        return 0

    def barrier(self) -> None:
        """Wait for nobody."""


_COMMUNICATOR = Communicator()


class DeviceMesh:
    """A mesh of one device, given as a list of device numbers or a tensor of them. Errors: Unsupported for more devices."""

    def __init__(self, devices: Any) -> None:
        import torch

        try:
            self._devices = torch.as_tensor(devices, dtype=torch.int64)
        except (TypeError, ValueError, RuntimeError):
            problem = f"devices must be a list or a tensor of device numbers, not {shown(devices)}"
            raise WrongArgument(op="DeviceMesh", problem=problem, remedy="give [0]") from None
        if self._devices.numel() != 1:
            raise Unsupported(f"multidevice.DeviceMesh of {self._devices.numel()} devices", remedy=REMEDY)

    @property
    def size(self) -> int:
        """How many devices it has."""
        return 1

    @property
    def shape(self) -> list[int]:
        """Its extents."""
        return list(self._devices.shape) or [1]

    def shard_tensor(self, tensor: Any, axis: int, device_id: int = 0) -> Any:
        """Return the part of `tensor` along `axis` that this device holds: all of it."""
        if not -tensor.dim() <= axis < tensor.dim():
            raise WrongArgument(op="shard_tensor", problem=f"axis is {axis}, and the tensor has {tensor.dim()}", remedy="give one of its axes")
        return tensor

    def __str__(self) -> str:
        return f"DeviceMesh({self._devices.tolist()})"

    __repr__ = __str__


class Sharding:
    """How an output lies on a mesh."""

    def __init__(self, mesh: DeviceMesh, sharded: dict[ParallelType, int] | None = None) -> None:
        self.mesh, self._sharded = mesh, sharded or {}

    def axis_sharded_on(self, parallel_type: ParallelType) -> int:
        """Return the axis that is sharded along `parallel_type`, -1 for none."""
        return self._sharded.get(parallel_type, -1)


@dataclass
class MultiDeviceExecutorParams:
    """Options of executions over several devices; on one device none of them changes anything."""

    use_allocation_cache: bool = False
    number_of_streams: int = 4
    backend_type: CommunicatorBackend = CommunicatorBackend.nccl
    offset_stream_indexing_by_rank: bool = True
    inter_stream_synchronization: bool = False


class MultiDeviceExecutor:
    """Runs a fusion on the one device of its meshes."""

    def __init__(self, fusion: Fusion, params: MultiDeviceExecutorParams | None = None) -> None:
        from . import executors

        self.params = params or MultiDeviceExecutorParams()
        settle_on_one_device(fusion)
        self._executor = executors.executor_cache(fusion)

    def run(self, args: Sequence[Any]) -> list[Any]:
        """Run the fusion on `args` and return its outputs."""
        outputs: list[Any] = self._executor.execute(args)
        return outputs

    def __str__(self) -> str:
        return str(self._executor)


def set_device_mesh(tensor: TensorView, mesh: Any) -> None:
    """Say on which devices a tensor lies: on the one of `mesh`."""
    if not isinstance(mesh, DeviceMesh):
        raise WrongArgument(op="set_device_mesh", problem=f"mesh must be a DeviceMesh, not {shown(mesh)}", remedy="give multidevice.DeviceMesh([0])")


def settle_on_one_device(fusion: Fusion) -> None:
    """Unbind axes of one index that are bound to a mesh, in place: on one device nothing is split. Errors: Unsupported for longer axes."""
    for value in fusion.vals():
        if not isinstance(value, TensorView):
            continue
        bound = [a for a in value.get_loop_domain() if a.parallel in MESH_TYPES]
        for axis in bound:
            if not (axis.sym.is_const and axis.sym.value == 1):
                raise Unsupported(f"{value} with {axis} bound to a mesh", detail="this process has one device", remedy=REMEDY)
        if bound:
            reset_loops(value)


def shard_tensor(tensor: Any, tv: TensorView) -> Any:
    """Return the part of `tensor` that this device holds of `tv`: all of it."""
    return tensor


def execute_with_dtensors(fd: Any, in_dtensors: Sequence[Any]) -> list[Any]:
    """Execute a definition on DTensors of one device; return its outputs as DTensors, replicated on the mesh of the inputs.

    Errors: Unsupported for meshes of several devices.
    """
    from torch.distributed.tensor import DTensor, Replicate

    meshes = [t.device_mesh for t in in_dtensors if isinstance(t, DTensor)]
    if any(mesh.size() != 1 for mesh in meshes):
        raise Unsupported("execute_with_dtensors of several devices", remedy=REMEDY)
    outputs: list[Any] = fd.execute([t.to_local() if isinstance(t, DTensor) else t for t in in_dtensors])
    return [DTensor.from_local(t, meshes[0], [Replicate()] * meshes[0].ndim) for t in outputs] if meshes else outputs


__all__ = [
    "Communicator", "CommunicatorBackend", "DeviceMesh", "MultiDeviceExecutor", "MultiDeviceExecutorParams", "Sharding", "execute_with_dtensors",
    "shard_tensor",
]  # fmt: skip
