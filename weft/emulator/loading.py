"""Shared libraries from bytes: what was checked is what is loaded, and it is unloaded when nothing refers to it.

Owns loading and unloading. On Linux the bytes pass through anonymous memory, else through a file with a name that nobody can guess, which is
removed at once. Read first: `Library`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from _ctypes import dlclose

from weft.cache.private import write_new
from weft.emulator.toolchain import CompilerUnusable

_numbers = itertools.count()


class Library:
    """A shared library in this process. It is unloaded when this object is collected, unless `kept`."""

    def __init__(self, code: bytes, name: str, *, is_global: bool = False) -> None:
        with _file_of(code, name) as path:
            try:
                self.handle = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL if is_global else ctypes.RTLD_LOCAL)
            except OSError as error:
                raise CompilerUnusable(compiler="of this machine", reason=f"what it made cannot be loaded: {error}") from None
        self._unload = weakref.finalize(self, dlclose, self.handle._handle)
        self._unload.atexit = False  # a thread may still be running it

    def kept(self) -> ctypes.CDLL:
        """Return the library, and never unload it."""
        self._unload.detach()
        return self.handle


@contextlib.contextmanager
def _file_of(code: bytes, name: str) -> Iterator[str]:
    """A path at which the bytes can be loaded, different each time, because the loader identifies libraries by their path."""
    if hasattr(os, "memfd_create"):
        try:
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        except OSError:
            descriptor = -1
        if descriptor >= 0:
            with os.fdopen(descriptor, "wb") as file:
                file.write(code)
                file.flush()
                yield _spelled(descriptor, next(_numbers))
            return
    with tempfile.TemporaryDirectory(prefix="weft-load-") as folder:
        path = Path(folder) / f"{name}.so"
        write_new(path, code, 0o700)
        yield str(path)


def _spelled(descriptor: int, number: int) -> str:
    """Return a path of a descriptor that differs for each `number`: descriptors are used again, paths must not be.

    Example: _spelled(5, 0b110) is "/proc/self/fd/.//.//./5": a binary digit 1 is ".//", a 0 is "./".
    """
    return "/proc/self/fd/" + "".join(".//" if digit == "1" else "./" for digit in f"{number:b}") + str(descriptor)
