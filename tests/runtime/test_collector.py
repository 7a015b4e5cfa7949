"""The garbage collector is off while a kernel is made, and as before afterwards."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from calls_on_cpu import assert_same

from weft import DataType, FusionDefinition
from weft.runtime import calls
from weft.runtime.collector import paused


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


def test_it_is_off_within_and_on_again_after_errors_too() -> None:
    @paused
    def state(fails: bool) -> bool:
        if fails:
            raise ValueError("as the test asks")
        return gc.isenabled()

    assert state(False) is False and gc.isenabled()
    with pytest.raises(ValueError, match="as the test asks"):
        state(True)
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    paused(lambda: None)()
    assert not gc.isenabled()


def test_the_last_of_several_calls_turns_it_on() -> None:
    first_is_in, first_may_end = threading.Event(), threading.Event()

    @paused
    def first() -> None:
        first_is_in.set()
        assert first_may_end.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(60)
    paused(lambda: None)()
    assert not gc.isenabled()
    first_may_end.set()
    thread.join()
    assert gc.isenabled()


def test_it_is_off_while_a_kernel_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plain = calls.prepare_call

    def observed(*arguments: object) -> object:
        seen.append(gc.isenabled())
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(calls, "prepare_call", observed)
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, x), dims=[1]))
    value = torch.randn(3, 7)
    (y,) = fd.execute([value])
    assert seen == [False] and gc.isenabled()
    assert_same([y], [(value.double() ** 2).sum(1).float()])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("is_on", [True, False])
def test_a_child_that_is_forked_within_collects_as_the_parent_did_before(is_on: bool) -> None:
    """The threads that compile are the parent's, so nobody in the child would turn it on again."""
    (gc.enable if is_on else gc.disable)()

    @paused
    def forked() -> int:
        child = os.fork()
        if child == 0:
            os._exit(int(gc.isenabled()))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert forked() == is_on


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_forked_outside_keeps_what_the_program_chose() -> None:
    paused(lambda: None)()  # the collector was on then
    gc.disable()
    child = os.fork()
    if child == 0:
        os._exit(int(gc.isenabled()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
