"""Inputs that lie: tensors without memory, with less than they say, of layouts that only look dense. An error by name, in the first call and in a warm one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft import DataType, FusionDefinition
from weft.errors import UserError
from weft.runtime.storage_check import StorageTooSmall

SHAPE = (6, 8)


def made(is_cpu_scalar: bool = False) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([], dtype=DataType.Float, is_cpu=True) if is_cpu_scalar else fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(x, y))
    return fd


def shrunk(size_bytes: int) -> torch.Tensor:
    tensor = torch.ones(SHAPE)
    tensor.untyped_storage().resize_(size_bytes)
    return tensor


def offset() -> torch.Tensor:
    """The second half of a storage that has lost its last quarter."""
    whole = torch.ones(2 * SHAPE[0], SHAPE[1])
    half = whole[SHAPE[0] :]
    whole.untyped_storage().resize_(whole.nbytes * 3 // 4)
    return half


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(SHAPE)


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(8)] * 6, layout=layout)


class Wrapped(torch.Tensor):
    """A subclass without memory of its own."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, SHAPE, dtype=torch.float32, device="cpu")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


LIES: dict[str, Callable[[], Any]] = {
    "no storage": lambda: shrunk(0),
    "half a storage": lambda: shrunk(96),
    "a byte short": lambda: shrunk(191),
    "the end of a shrunk storage": offset,
    "meta": lambda: torch.ones(SHAPE, device="meta"),
    "fake": fake,
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "coo": lambda: torch.eye(6, 8).to_sparse(),
    "csr": lambda: torch.eye(6, 8).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(SHAPE).to_mkldnn(),
    "zero tensor": lambda: torch._efficientzerotensor(SHAPE),
    "wrapper subclass": Wrapped,
    "a list of numbers": lambda: [1.0, 2.0],
    "None": lambda: None,
    "text": lambda: "tensor",
    "a class": lambda: torch.Tensor,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("place", [0, 1])
def test_a_lie_is_an_error_by_name_cold_and_warm(lie: str, place: int) -> None:
    fd = made()
    for is_warm in (False, True):
        if is_warm:
            for _ in range(3):
                (y,) = fd.execute([torch.ones(SHAPE), torch.ones(SHAPE)])
            assert (y == 2).all()
        inputs = [torch.ones(SHAPE), torch.ones(SHAPE)]
        inputs[place] = LIES[lie]()
        with pytest.raises(UserError, match=r"W(147|7[78]\d)"):
            fd.execute(inputs)
    (y,) = fd.execute([torch.ones(SHAPE), torch.ones(SHAPE)])
    assert (y == 2).all()


def test_a_storage_that_loses_its_end_between_calls_is_noticed() -> None:
    fd, x, y = made(), torch.ones(SHAPE), torch.ones(SHAPE)
    for _ in range(3):
        fd.execute([x, y])
    y.untyped_storage().resize_(100)
    with pytest.raises(StorageTooSmall, match="to have 192 bytes of memory for its sizes .6, 8. and strides .8, 1., but its storage has 100"):
        fd.execute([x, y])
    y.untyped_storage().resize_(192)
    y.fill_(3)
    assert (fd.execute([x, y])[0] == 4).all()
    x.untyped_storage().resize_(0)
    with pytest.raises(StorageTooSmall):
        fd.execute([x, y])


def test_a_scalar_on_the_cpu_without_memory() -> None:
    fd, x = made(is_cpu_scalar=True), torch.ones(SHAPE)
    fd.execute([x, torch.tensor(2.0)])
    empty = torch.tensor(2.0)
    empty.untyped_storage().resize_(0)
    for value in (empty, torch.tensor(2.0, device="meta")):
        with pytest.raises(UserError):
            fd.execute([x, value])


def test_empty_and_expanded_tensors_have_no_memory_and_are_no_lies() -> None:
    fd = made()
    for shape in ((0, 8), (6, 0)):
        (y,) = fd.execute([torch.ones(shape), torch.ones(shape)])
        assert y.shape == shape
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 8], contiguity=[None, True], stride_order=[1, 0])
        fd.add_output(fd.ops.add(x, 1.0))
    assert (fd.execute([torch.ones(1, 8).expand(6, 8)])[0] == 2).all()
