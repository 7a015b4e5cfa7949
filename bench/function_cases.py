"""Torch functions with their inputs, for `model_functions.py`. Read first: `case`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BF = torch.bfloat16


@dataclass(frozen=True)
class Input:
    """A tensor of an argument. below: for integers, the number that they are less than."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    below: int = 0

    def made(self, device: str) -> Tensor:
        if self.below:
            return torch.randint(self.below, self.shape, device=device, dtype=self.dtype)
        return torch.zeros(self.shape, dtype=self.dtype) if device == "cpu" else torch.randn(self.shape, device=device, dtype=self.dtype)


def R(*shape: int, dt: torch.dtype = BF) -> Input:
    return Input(shape, dt)


def I(below: int, *shape: int) -> Input:  # noqa: E743
    return Input(shape, torch.int64, below)


@dataclass(frozen=True)
class Case:
    """A function, its inputs, and which of them have gradients."""

    function: Callable[..., Tensor]
    inputs: tuple[Input, ...]
    with_gradient: tuple[int, ...]


CASES: dict[str, Case] = {}


def case(*inputs: Input, grads: tuple[int, ...] | None = None) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function; by default all inputs of floats have gradients."""

    def put(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        chosen = tuple(n for n, given in enumerate(inputs) if given.dtype.is_floating_point) if grads is None else grads
        CASES[function.__name__] = Case(function, inputs, chosen)
        return function

    return put
