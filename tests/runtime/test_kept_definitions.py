"""What a process keeps of definitions that nothing uses any more is bounded by their size, and what is used is found again."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
import torch

from weft import DataType, FusionDefinition, options
from weft.runtime import runtimes


def chain(ops: int, rows: int) -> FusionDefinition:
    """A chain of pointwise ops."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[rows], contiguity=True, dtype=DataType.Float)
        for _ in range(ops):
            x = fd.ops.sin(x)
        fd.add_output(x)
    return fd


def test_unused_definitions_go_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four definitions with 20 ops, which keep 40 expressions each before a plan is made, two fit 100; the number of definitions alone would keep all."""
    runtimes.forget_kernels()
    monkeypatch.setattr(runtimes, "MOST_KEPT_EXPRS", 100)
    known = []
    for rows in range(3, 7):
        known.append(weakref.ref(runtimes.shared_definition(chain(20, rows).fusion)))
        gc.collect()
    assert [found() is not None for found in known] == [False, False, True, True]


def test_what_is_used_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes.forget_kernels()
    monkeypatch.setattr(runtimes, "MOST_KEPT_EXPRS", 1)
    first, other = chain(20, 3), chain(20, 4)
    used = runtimes.shared_definition(first.fusion)
    runtimes.shared_definition(other.fusion)
    assert runtimes.shared_definition(first.fusion) is used


def test_kernels_of_unused_definitions_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the program nor the launched kernel of a definition keeps its fusion when others were made after it, and nothing uses it."""
    runtimes.forget_kernels()
    monkeypatch.setattr(runtimes, "MOST_KEPT_EXPRS", 1)
    parts = []
    with options(cache=False):
        for rows in (3, 5, 7):
            fd = chain(4, rows)
            x = torch.randn(rows)
            torch.testing.assert_close(fd.execute([x])[0], x.sin().sin().sin().sin())
            runtime = runtimes.SHARED._runtimes.values()[-1]
            parts.append(weakref.ref(runtime.part.fusion))
            del fd, runtime
    for _ in range(40):  # threads that compiled a kernel may end later
        gc.collect()
        if not any(found() for found in parts[:2]):
            break
        time.sleep(0.1)
    assert [found() is not None for found in parts[:2]] == [False, False]
