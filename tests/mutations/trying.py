"""Running tests on a copy of the checkout, in children forked from a process that has torch loaded already.

Read first: `Runner.first_failing`.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy  # noqa: F401
import pytest
import torch  # noqa: F401

MEMORY_BYTES = 16 << 30
"""Of addresses, for a child: a mistake may ask for everything."""


class _InOrder:
    """Runs tests in the order in which they were given."""

    def __init__(self, names: list[str]) -> None:
        self.place = {name: i for i, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.place.get(item.nodeid, len(self.place)))


class Runner:
    """Runs tests of `copy`; what they print is in `work/tests.log`. unsteady: tests that failed without any mutation."""

    def __init__(self, copy: Path, work: Path) -> None:
        self.copy, self.work = copy, work
        self.unsteady: set[str] = set()
        self.steady: set[str] = set()

    @contextlib.contextmanager
    def planted(self, file: str, text: str) -> Iterator[None]:
        """Put a mutated text in a file's place for a while."""
        target = self.copy / file
        source, times = target.read_text(encoding="utf-8"), target.stat()
        target.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            target.write_text(source, encoding="utf-8")
            os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))

    def passes_unchanged(self, test: str) -> bool:
        """Tell whether a test that killed a mutation passes without one."""
        if test not in self.steady and test not in self.unsteady:
            (self.unsteady if self.first_failing([test], 60.0) else self.steady).add(test)
        return test in self.steady

    def first_failing(self, names: list[str], expected_s: float) -> str:
        """Return the first of these tests that fails ("timeout" when they do not end), or ""."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            self._run(names)
        end = time.monotonic() + 45 + 6 * expected_s
        while time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                self._kill(child)
                return "" if os.waitstatus_to_exitcode(status) in (0, 5) else self._failed(status)
            time.sleep(0.05)
        self._kill(child)
        os.waitpid(child, 0)
        return "timeout"

    def _kill(self, group: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)

    def _failed(self, status: int) -> str:
        text = (self.work / "tests.log").read_text(encoding="utf-8", errors="replace")
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", text, re.MULTILINE)
        return failed[0] if failed else f"crash {os.waitstatus_to_exitcode(status)}: " + (text.strip().splitlines() or [""])[-1][:160]

    def _run(self, names: list[str]) -> None:
        """Be the child: run tests and end."""
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        log = os.open(self.work / "tests.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.copy)
        sys.path[:] = [str(self.copy), *(p for p in sys.path if "mutations" not in p and not p.endswith("/tests"))]
        others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and not (Path(p) / "weft").exists()]
        os.environ.update(PYTHONPATH=os.pathsep.join([str(self.copy), *others]), PYTHONDONTWRITEBYTECODE="1", WEFT_CACHE_DIR=str(self.work.parent / "cache"), TEST_SEED="1")
        sys.dont_write_bytecode = True
        code = 70
        try:
            code = pytest.main(["-q", "-x", "--tb=line", "-p", "no:xdist", "-p", "no:faulthandler", *names], plugins=[_InOrder(names)])
        finally:
            sys.stdout.flush()
            os._exit(int(code))
