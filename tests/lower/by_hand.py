"""Fusions scheduled by hand, lowered, run in the emulator with all checks, and compared with the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from weft import FusionDefinition
from weft.dtypes import DataType
from weft.ir.fusion import Fusion
from weft.ir.values import TensorView
from weft.lower import unswitch
from weft.lower.kernel_ir import Statement, Unswitched
from weft.lower.pipeline import lower
from weft.options import options
from weft.reference.interpreter import evaluate
from weft.runtime.kernel_executor import KernelExecutor


def defined(define: Callable[[FusionDefinition], None]) -> Fusion:
    with FusionDefinition() as fd:
        define(fd)
    return fd.fusion  # type: ignore[return-value]


def named(fusion: Fusion, number: int) -> TensorView:
    return next(t for t in fusion.tensors() if t.name == number)


def run(fusion: Fusion, inputs: Sequence[Any], unscheduled: Fusion) -> str:
    """Run a scheduled fusion, assert that its outputs are right, and return the text of its kernel, "" where nothing was to run."""
    executor = KernelExecutor()
    with options(check="races"):
        executor.compile(fusion, inputs)
        outputs = executor.run(inputs)
    for output, wanted in zip(outputs, evaluate(unscheduled, inputs), strict=True):
        torch.testing.assert_close(output.to(wanted.dtype), wanted, atol=1e-4, rtol=1e-4)
    return executor.kernel_runtimes[0].program.text if executor.kernel_runtimes else ""


def lowered(fusion: Fusion, dump: Callable[[str, str], None] | None = None):
    return lower(fusion.clone()[0], name="kernel", index_type=DataType.Int32, dump=dump)


@contextmanager
def one_branch(kept: str) -> Iterator[None]:
    """Let unswitched nests have one branch only, "fast" (without bounds) or "slow"; the other does nothing."""
    both = unswitch._both

    def one(*given: Any) -> list[Statement]:
        nests = both(*given)
        for nest in nests:
            if isinstance(nest, Unswitched):
                fast, slow = nest.branches
                (slow if kept == "fast" else fast).body = []
        return nests

    with patch.object(unswitch, "_both", one):
        yield
