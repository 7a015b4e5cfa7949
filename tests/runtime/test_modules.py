"""Machine code on a GPU: unloaded when nothing refers to it and there is more than the settings allow. The driver is a fake one."""

from __future__ import annotations

import gc
from collections import defaultdict, deque
from typing import Any

import pytest

from weft.options import options
from weft.runtime import modules
from weft.runtime.driver import LoadedKernel, load_kernel
from weft.runtime.resources import Resources
from weft.runtime.runtimes import OnceTable


@pytest.fixture(autouse=True)
def nothing_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_retired", defaultdict(deque))


def loaded() -> LoadedKernel:
    return load_kernel(b"\x7fELF and more", "scale", 0, Resources(32, 0, 0, 0))


def test_modules_are_unloaded_together_when_there_are_too_many(fake_driver: Any) -> None:
    with options(kept_kernels=3):
        for _ in range(4):
            loaded()
        gc.collect()
        assert fake_driver.get("unloads") == 0 and len(modules._retired[0]) == 4
        kept = loaded()
        assert fake_driver.get("unloads") == 4
        record = kept.record((1,), (32,), 0, [("pointer", 0)])
        del kept
        gc.collect()
        assert not modules._retired[0]  # the record keeps it
        del record
        gc.collect()
        assert len(modules._retired[0]) == 1


def test_nothing_is_unloaded_without_a_limit_or_while_work_cannot_end(fake_driver: Any) -> None:
    for _ in range(4):
        loaded()
    gc.collect()
    with options(kept_kernels=0):
        loaded()
    fake_driver.set(sync_status=900)  # a stream is being captured
    with options(kept_kernels=1):
        loaded()
        assert fake_driver.get("unloads") == 0
        fake_driver.set(sync_status=0)
        loaded()
        assert fake_driver.get("unloads") >= 4


def test_nothing_is_unloaded_while_a_graph_lives(fake_driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Graph:
        pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    graph = Graph()
    with options(kept_kernels=1):
        for _ in range(4):
            loaded()
        gc.collect()
        assert fake_driver.get("unloads") == 0
        del graph
        loaded()
        assert fake_driver.get("unloads") >= 3


def test_a_limited_table_forgets_what_was_used_longest_ago() -> None:
    class Kept(str):
        """A string that can be referred to weakly."""

    table: OnceTable[Kept] = OnceTable(len)
    with options(kept_kernels=2):
        for key in "abac":
            table.get_or_make(key, lambda key=key: Kept(key.upper()))  # type: ignore[misc]
        assert table.get("b") is None and table.get("a") == "A" and table.get("c") == "C" and len(table) == 2
