"""All tests: helpers beside a test can be imported by name, tests of the GPU are skipped where there is none, kernels run with all checks.

Every kernel that runs in the emulator is checked for races, deadlocks and the rest, unless a test sets `check` itself.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft import options as options_module

# Test modules are imported by path (--import-mode=importlib), so their folders are not on sys.path by themselves.
sys.path.extend(str(folder) for folder in sorted(Path(__file__).parent.iterdir()) if folder.is_dir() and not folder.name.startswith(("_", ".")))

OWN_SEED = "TEST_SEED"
os.environ.setdefault(OWN_SEED, str(random.SystemRandom().randrange(1 << 31)))  # workers inherit it
DATA_SEED = "TEST_DATA_SEED"
os.environ.setdefault(DATA_SEED, "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: its threads wait in loops for each other, while other processes have the cores
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")  # see YOUNG_OBJECTS
os.environ.setdefault("WEFT_CHECK", "races")  # before anything reads the settings; programs that tests start inherit it


def pytest_report_header() -> str:
    return f"{DATA_SEED}={os.environ[DATA_SEED]} (another number: other random data); order of threads that only this run tries: {OWN_SEED}={os.environ[OWN_SEED]} repeats it"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test has the same random data in every run, whatever ran before it: a commit that passed here does not fail elsewhere by chance."""
    import torch

    seed = zlib.crc32(f"{os.environ[DATA_SEED]} {item.nodeid}".encode())
    random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def checks_are_for_the_emulator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test of the GPU runs its kernels there: with checks on, its tensors would be copied to the emulator."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    monkeypatch.setenv("WEFT_CHECK", "")
    options_module.refresh_environment()
    yield
    monkeypatch.undo()
    options_module.refresh_environment()


VERIFIED = {"circular", "graph", "index", "lower", "narrow", "random_fusions", "schedulers", "segment"}
"""Folders whose kernels are checked after every pass of lowering: there are kernels of all kinds, and it takes 50 ms for each."""


@pytest.fixture(autouse=True)
def kernels_are_well_formed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check the Kernel IR after every pass."""
    if request.path.parent.name not in VERIFIED:
        yield
        return
    with options_module.options(verify=True):
        yield


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give neighbours to one process: they share kernels, fixtures and processes that they start. One that has nothing left takes half of what another has."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


YOUNG_OBJECTS = 400_000
"""New objects until the garbage collector looks for cycles among them. With Python's 700 it takes an eighth of the time of a test that compiles a function."""


def pytest_collection_finish() -> None:
    """What torch, the package and the tests are made of stays for ever: no pass of the garbage collector looks at it again, and passes over the rest are rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 5, 5)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` on a machine without a CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def has_gpu() -> bool:
    """Tell whether torch can use a CUDA device."""
    import torch

    return torch.cuda.is_available()
