"""Helpers of the executors' tests: small definitions, kernels whose launch is replaced, counted compilations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from weft import DataType, FusionDefinition
from weft.runtime import engines


def define(build: Callable[[FusionDefinition], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        build(fd)
    return fd


def tensor(fd: FusionDefinition, rank: int, dtype: DataType = DataType.Float, **keywords: Any) -> Any:
    """A tensor input of symbolic sizes, contiguous unless told otherwise."""
    keywords.setdefault("contiguity", True)
    return fd.define_tensor(shape=[-1] * rank, dtype=dtype, **keywords)


def add(rank: int = 2) -> FusionDefinition:
    return define(lambda fd: fd.add_output(fd.ops.add(tensor(fd, rank), tensor(fd, rank))))


def relu(rank: int = 2, **keywords: Any) -> FusionDefinition:
    return define(lambda fd: fd.add_output(fd.ops.relu(tensor(fd, rank, **keywords))))


@contextmanager
def counted_builds() -> Iterator[list[str]]:
    """Count the kernels that the emulator's engine builds: a list of their names."""
    names: list[str] = []
    plain = engines.EmulatorEngine.build

    def build(self: Any, program: Any, options: Any, **keywords: Any) -> Any:
        names.append(program.name)
        return plain(self, program, options, **keywords)

    engines.EmulatorEngine.build = build  # type: ignore[method-assign]
    try:
        yield names
    finally:
        engines.EmulatorEngine.build = plain  # type: ignore[method-assign]


def record_launches(executor: Any) -> list[tuple[Any, ...]]:
    """Let every prepared call of an executor record its launches instead of making them."""
    launches: list[tuple[Any, ...]] = []
    for prepared in executor._caller._prepared.values():
        prepared.run.__globals__["launch0"] = lambda *arguments: launches.append(arguments)
    return launches


def assert_same(given: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Equal types, sizes and values; the tolerance is that of float32 sums of a hundred numbers of size 1 in another order (100 * 2^-24 = 6e-6)."""
    assert len(given) == len(expected)
    for a, b in zip(given, expected):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
