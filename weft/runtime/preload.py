"""What the first kernel of a process needs, loaded before it is asked for: NVRTC beside the program, and the modules of the runtime with `FusionDefinition`.

Owns one thread per process. It begins when `weft.FusionDefinition` is first used and a GPU driver is installed (setting `preload`), and takes 0.1 to 0.2 s, in
which the runtime is imported and programs make their tensors. Whoever needs something earlier waits for that part only, or loads it himself. The modules are
imported by the caller: another thread would compete with it for the interpreter, and the first call would wait for the rest. The
driver is not initialised, so children that are forked can use CUDA. Read first: `start`.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable

from .. import forking
from ..errors import WeftError
from ..options import current

LONGEST_WAIT_S = 10.0
"""How long a fork waits for the thread, because a child must not be forked during a load or an import in another thread."""

MODULES = ("fec", "driver", "kernel_executor")

_lock = forking.lock()
_thread: threading.Thread | None = None


def start() -> None:
    """Start loading NVRTC and importing the runtime in the background, unless done already or switched off. Errors are reported by the call that needs it."""
    global _thread
    try:
        wanted = current().preload and current().emulate != "on"
    except WeftError:
        return
    with _lock:
        if wanted and _thread is None:
            # not a daemon thread: the interpreter waits for it at exit, because NVRTC must not be unloaded while it compiles.
            _thread = threading.Thread(target=_load_beside, name="weft-preload", daemon=False)
            _thread.start()
    if wanted and "torch" in sys.modules:  # a program that has not imported torch should not pay for it here
        for name in MODULES:
            importlib.import_module(f".{name}", __package__)


def wait(timeout_s: float | None = None) -> None:
    """Wait until NVRTC is loaded, if loading has begun."""
    if _thread is not None and _thread is not threading.current_thread():
        _thread.join(timeout_s)


def _load_beside() -> None:
    for step in (_find_driver, _load_compiler):
        if not _succeeds(step) or not threading.main_thread().is_alive():
            return


def _succeeds(step: Callable[[], None]) -> bool:
    try:
        step()
    except (WeftError, ImportError, OSError, AttributeError, ValueError, RuntimeError):  # reported by the call that needs it: no driver, no NVRTC, ...
        return False
    return True


def _find_driver() -> None:
    """Raise an error if there is no driver, because then NVRTC will not be needed."""
    from ..arch import open_driver

    open_driver()


def _load_compiler() -> None:
    """Load NVRTC, compile an empty kernel, and read the device library."""
    from ..device.library import registry, translation_unit
    from . import nvrtc

    nvrtc.compile_nothing()
    translation_unit("", registry(), shortened=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: wait(LONGEST_WAIT_S))
