"""Small definitions that random search found wrong, refused or slow: how a case is written down, its inputs and its check. Read first: `Found`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft import DataType, FusionDefinition
from weft.options import options

Define = Callable[[FusionDefinition], None]


class Found(dict[str, tuple[Define, Callable[[], list[Any]]]]):
    """Cases by the names of their functions, which say what must hold."""

    def case(self, *inputs: Callable[[], Any]) -> Callable[[Define], Define]:
        def add(define: Define) -> Define:
            assert define.__name__ not in self
            self[define.__name__] = (define, lambda: [make() for make in inputs])
            return define

        return add

    def check(self, name: str) -> None:
        """Run a case with all checks, and compare it with torch in float64."""
        define, make = self[name]
        torch.manual_seed(0)
        with FusionDefinition() as fd:
            define(fd)
        inputs = make()
        with options(check="races", strict_schedules=True):
            fd.validate(inputs)


def tensor(*shape: int, order: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    """Random numbers; order: axes from the outermost in memory."""
    axes = order or tuple(range(len(shape)))
    back = sorted(range(len(axes)), key=axes.__getitem__)
    return lambda: torch.randn([shape[a] for a in axes], dtype=torch.float64).to(dtype).permute(back)


def positions(*shape: int, below: int, dtype: torch.dtype = torch.int64) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, below, shape, dtype=dtype)


def opened(fd: Any, rank: int, dtype: DataType = DataType.Float, order: tuple[int, ...] = ()) -> Any:
    """A tensor whose sizes are open."""
    return fd.define_tensor([-1] * rank, contiguity=[True] * rank, dtype=dtype, stride_order=list(order))
