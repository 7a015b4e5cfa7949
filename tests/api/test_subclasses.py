"""Definitions written as methods of a subclass, nvFuser's older form."""

from __future__ import annotations

import torch

from weft import FusionDefinition, ParallelType

X = torch.arange(12.0).reshape(3, 4)


class Relu(FusionDefinition):
    def definition(self) -> None:
        x = self.define_tensor([-1, -1], contiguity=True)
        self.y = self.ops.relu(x)
        self.add_output(self.y)


class Scheduled(Relu):
    def schedule(self) -> None:
        self.y.merge(0, 1)
        self.y.split(0, 32)
        self.y.axis(1).parallelize(ParallelType.block_x)


def test_a_method_defines_and_another_schedules() -> None:
    fd = Relu()
    assert torch.equal(fd.execute([X - 5])[0], (X - 5).relu()) and torch.equal(fd.execute([-X])[0], (-X).relu())
    assert "fd.ops.relu" in repr(fd) and hasattr(fd, "fec")
    assert torch.equal(Relu().validate([X])[0], X) and torch.equal(Relu().execute([X], _enable_options=["fuse_matmul"])[0], X)
    fd = Scheduled()
    for x in (X - 5, X.t().contiguous()):
        assert torch.equal(fd.execute([x])[0], x.relu())
    assert not hasattr(fd, "fec") and "ithreadIdx.x" in str(fd.fusion)
    assert torch.equal(Scheduled().manual_execute([X])[0], X)


def test_what_is_defined_in_a_block_is_not_defined_again() -> None:
    with Relu() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1, -1], contiguity=True)))
    assert torch.equal(fd.execute([X])[0], -X)
