"""Processes that are forked, spawned and served: kernels run in all of them, or an error says why not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from weft import FusionDefinition
from weft.emulator import native
from weft.runtime import driver

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def made(number: int = 0) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, float(number + 2)), [1]))
    return fd


def works(number: int = 0) -> str:
    (y,) = made(number).execute([torch.ones(3, 4)])
    return "right" if y.tolist() == [4.0 * (number + 2)] * 3 else str(y)


def in_child(function: Callable[[], str]) -> str:
    """Return what a function returns in a forked child, or its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = function()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent reads it
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.close(writing)
    end, found = time.monotonic() + 60, 0
    while not found and time.monotonic() < end:
        found, _ = os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)
    if not found:
        os.kill(child, 9)
        os.waitpid(child, 0)
        return "it waits for ever"
    with os.fdopen(reading) as pipe:
        return pipe.read()


def test_a_child_forked_beside_running_and_compiling_threads_works() -> None:
    works()
    stop = threading.Event()

    def launches() -> None:
        fd, x = made(), torch.ones(100, 100)
        while not stop.is_set():
            fd.execute([x])

    def compiles() -> None:
        number = 10
        while not stop.is_set():
            number += 1
            works(number)

    threads = [threading.Thread(target=launches), threading.Thread(target=compiles)]
    for thread in threads:
        thread.start()
    try:
        for number in range(4):
            time.sleep(0.01)
            assert in_child(works) == "right"
            assert in_child(lambda: works(10 + number)) == "right"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_fork_in_the_middle_of_a_long_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork waits for the kernel; after the limit the child says what happened, and does not wait for ever."""
    works()
    monkeypatch.setattr(native, "LONGEST_WAIT_S", 0.05)
    is_held, may_end = threading.Event(), threading.Event()

    def holds() -> None:
        with native._one_machine:
            is_held.set()
            may_end.wait()

    thread = threading.Thread(target=holds)
    thread.start()
    is_held.wait()
    said = in_child(works)
    may_end.set()
    thread.join()
    assert "W426" in said and "spawn" in said, said
    assert works() == in_child(works) == "right"


def test_a_child_of_a_process_that_used_the_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_contexts", {0: object()})
    monkeypatch.setattr(driver, "_is_forked", False)
    said = in_child(lambda: str(driver.primary_context(0)))
    assert "W764" in said and "spawn" in said, said


@pytest.mark.slow  # each process imports torch
def test_every_start_method_works(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing
        from test_forks import works

        if __name__ == "__main__":
            assert works() == "right"
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    assert pool.map(works, [0, 3]) == ["right"] * 2
        """)
    )
    folders = [str(Path(__file__).parent), str(Path(native.__file__).parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "WEFT_CHECK": ""}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
