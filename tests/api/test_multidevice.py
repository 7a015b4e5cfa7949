"""nvFuser's names for several devices, on one: a mesh of one device holds whole tensors, and all else raises Unsupported."""

from __future__ import annotations

import pytest
import torch

from weft import FusionDefinition, ParallelType, Unsupported, execute_with_dtensors
from weft.api import multidevice

X = torch.arange(12.0).reshape(3, 4)


def test_one_process_is_all_there_is() -> None:
    one = multidevice.Communicator.instance()
    assert (one.size(), one.rank(), one.local_size(), one.local_rank()) == (1, 0, 1, 0)
    one.barrier()
    for devices in ([0], torch.tensor([0]), (0,)):
        mesh = multidevice.DeviceMesh(devices)
        assert (mesh.size, mesh.shape) == (1, [1]) and mesh.shard_tensor(X, 1) is X
    assert multidevice.DeviceMesh(torch.tensor([[0]])).shape == [1, 1]
    assert multidevice.Sharding(mesh).axis_sharded_on(ParallelType.mesh_x) == -1
    with pytest.raises(Unsupported, match="DeviceMesh of 2 devices"):
        multidevice.DeviceMesh([0, 1])
    for wrong in (None, "a", 1.5 + 2j):
        with pytest.raises(TypeError):
            multidevice.DeviceMesh(wrong)
    with pytest.raises(TypeError, match="axis is 2"):
        mesh.shard_tensor(X, 2)


def sharded(count: int) -> FusionDefinition:
    """x + 1, both sharded along axis 0 into `count` parts, rotated by the index of the device."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.add(x, 1.0)
        fd.add_output(y)
        for tensor in (x, y):
            tensor.set_device_mesh(multidevice.DeviceMesh([0]))
            tensor.outer_split(0, count)
            tensor.axis(0).parallelize(ParallelType.mesh_x)
            tensor.set_allocation_domain(tensor.get_loop_domain(), True)
            assert tensor.swizzle1d(0, ParallelType.mesh_x) is tensor
    return fd


def test_a_definition_over_a_mesh_of_one_is_whole() -> None:
    assert torch.equal(sharded(1).execute([X])[0], X + 1)
    executor = multidevice.MultiDeviceExecutor(sharded(1).fusion, multidevice.MultiDeviceExecutorParams())
    assert torch.equal(executor.run([X])[0], X + 1)
    assert multidevice.shard_tensor(X, sharded(1).fusion.inputs()[0]) is X
    with pytest.raises(Unsupported, match="bound to a mesh"):
        sharded(2).execute([X])
    fd = sharded(1)
    with pytest.raises(Unsupported, match="swizzle1d along ParallelType.block_x"):
        fd.fusion.inputs()[0].swizzle1d(0, ParallelType.block_x)
    with pytest.raises(TypeError, match="mesh must be a DeviceMesh"):
        fd.fusion.inputs()[0].set_device_mesh(None)


def test_dtensors_of_one_device(tmp_path) -> None:
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        (out,) = execute_with_dtensors(sharded(1), [DTensor.from_local(X, mesh, [Replicate()])])
        assert isinstance(out, DTensor) and torch.equal(out.to_local(), X + 1)
    finally:
        torch.distributed.destroy_process_group()
    (out,) = execute_with_dtensors(sharded(1), [X])
    assert torch.equal(out, X + 1)
