"""Inputs that a later kernel of a definition reads, too: reductions leave them in L2 if they fit there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.options import options


def kept_of(define: Callable[[FusionDefinition, Any], Any], x: torch.Tensor, want: torch.Tensor) -> list[tuple[int, ...]]:
    """Run a definition of one float matrix; return the names of the kept inputs of each reduction, in the order of the kernels."""
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1] * x.dim(), contiguity=True, dtype=DataType.Float)
        fd.add_output(define(fd, t))
    (y,) = fd.execute([x])
    torch.testing.assert_close(y.double(), want, rtol=1e-4, atol=1e-6)
    return [runtime.proposal.params.kept for runtime in fd.fec.kernel_runtimes if hasattr(runtime.proposal.params, "kept")]


def total_softmax(fd: FusionDefinition, x: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [0, 1], True)))
    return fd.ops.div(e, fd.ops.sum(e, [0, 1], True))


def test_a_reduction_keeps_what_the_next_kernel_reads() -> None:
    x = torch.randn(300, 2051)
    kept = kept_of(total_softmax, x, x.double().flatten().softmax(0).view_as(x))
    assert len(kept) >= 1 and all(kept)


def test_a_lone_reduction_keeps_nothing() -> None:
    x = torch.randn(70, 513)
    assert kept_of(lambda fd, x: fd.ops.sum(x, [1]), x, x.double().sum(1)) == [()]


@pytest.mark.parametrize("chip, is_kept", [("H200", True), ("A100", False)])
def test_what_l2_cannot_hold_is_streamed(chip: str, is_kept: bool) -> None:
    """48 MB fit into the 60 MB of an H200, and not into the 40 MB of an A100."""
    x = torch.randn(3, 4_000_000)
    with options(chip=chip, check=()):
        kept = kept_of(total_softmax, x, x.double().flatten().softmax(0).view_as(x))
    assert [bool(names) for names in kept] == [is_kept] * len(kept) and kept
