"""Runs a definition the way programs written against nvFuser do: through the LRU cache, through its own text, and twice.

Read first: `run`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft import DataType, FusionDefinition, LRUCache
from weft.device.library import translation_unit
from weft.runtime.nvrtc import compile_cubin

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CACHE = LRUCache(max_fusions=16384)
"""One cache for all tests of the process: two of their definitions that differ must not be taken for one."""


def defined(define: Callable[[FusionDefinition], Any]) -> FusionDefinition:
    with FusionDefinition() as fd:
        define(fd)
    return fd


def defined_again(fd: FusionDefinition) -> FusionDefinition:
    """Return the definition that the text of `fd` makes, with FusionDefinition and DataType in scope and nothing else."""
    scope: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), scope)  # noqa: S102  (the text of a definition of this test)
    return defined(scope["nvfuser_fusion"])


def run(
    define: Callable[[FusionDefinition], Any], inputs: Sequence[Any], *, is_new: bool | None = True, validates: bool = False, **keywords: Any
) -> list[torch.Tensor]:
    """Execute `define` on `inputs` and return the outputs.

    Checks besides: the cache tells that the definition is new the first time and not the second, and the text of the definition gives the same values and strides.
    """
    captured = copy.deepcopy(list(inputs))
    before = CACHE.num_fusions()
    for _ in range(2):
        fd = defined(define)
        fd.fec = CACHE.cache_compile(fd.fusion)
        del fd._fusion
    if is_new is not None:
        assert CACHE.num_fusions() == before + is_new
    torch.manual_seed(0)
    outputs = fd.validate(inputs, **keywords) if validates else fd.execute(inputs, **keywords)
    again = defined_again(fd)
    torch.manual_seed(0)
    same = again.execute(captured, **keywords)
    assert len(outputs) == len(same)
    for a, b in zip(outputs, same):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        wide = torch.complex128 if a.is_complex() else torch.float64
        assert torch.allclose(a.to(wide), b.to(wide), equal_nan=True)
    return outputs


def compile_for_gpu(fd: FusionDefinition, inputs: Sequence[Any]) -> None:
    """Compile the kernels that `inputs` need, so that a type the emulator takes and a GPU does not is seen without one."""
    for kernel in fd.fec._compiled(inputs, 0):
        text = translation_unit(kernel.program.text, kernel.program.blocks)
        compile_cubin(text, kernel.program.name, "sm_90a")


def same(got: torch.Tensor, expected: torch.Tensor, **tolerance: float) -> None:
    """Require the dtype, shape and values of `expected`."""
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    torch.testing.assert_close(got, expected.to(got.device), equal_nan=True, **tolerance)
