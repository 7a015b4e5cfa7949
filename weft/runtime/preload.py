"""What the first kernel of a process needs, loaded beside the program before it is asked for: NVRTC, and the modules of the runtime.

Owns one thread per process. It begins when `weft.FusionDefinition` is first used and a GPU driver is installed (setting `preload`), and takes 0.1 to 0.3 s, in
which programs make their tensors. Whoever needs something earlier waits for that part only, or loads it himself. The driver is not initialised, so children
that are forked can use CUDA. Read first: `start`.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable

from ..errors import WeftError
from ..options import current

LONGEST_WAIT_S = 10.0
"""How long a fork waits for the thread: a child must not start while another thread of its parent is in the middle of a load or of an import."""

MODULES = ("fec", "driver", "kernel_executor")

_lock = threading.Lock()
_thread: threading.Thread | None = None


def start() -> None:
    """Begin, unless that has happened or is switched off. What goes wrong is told by the call that needs it."""
    global _thread
    try:
        wanted = current().preload and current().emulate != "on"
    except WeftError:
        return
    with _lock:
        if wanted and _thread is None:
            # No daemon: the interpreter waits for it at exit, for NVRTC must not be unloaded while it compiles.
            _thread = threading.Thread(target=_load_all, name="weft-preload", daemon=False)
            _thread.start()


def wait(timeout_s: float | None = None) -> None:
    """Wait until everything is loaded, if loading has begun."""
    if _thread is not None and _thread is not threading.current_thread():
        _thread.join(timeout_s)


def _load_all() -> None:
    for step in (_find_driver, _load_compiler, _import_runtime):
        if not _succeeds(step) or not threading.main_thread().is_alive():
            return


def _succeeds(step: Callable[[], None]) -> bool:
    try:
        step()
    except (WeftError, ImportError, OSError, AttributeError, ValueError, RuntimeError):  # told by the call that needs it: no driver, no NVRTC, ...
        return False
    return True


def _find_driver() -> None:
    """Raise where there is no driver, and so no kernel to come that NVRTC compiles."""
    from ..arch import open_driver

    open_driver()


def _load_compiler() -> None:
    """Load NVRTC, let it compile something, and read the device library."""
    from ..device.library import registry, translation_unit
    from . import nvrtc

    nvrtc.compile_nothing()
    translation_unit("", registry(), shortened=True)


def _import_runtime() -> None:
    """Import the runtime and the compiler, unless the program does without torch so far."""
    if "torch" in sys.modules:
        for name in MODULES:
            importlib.import_module(f".{name}", __package__)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: wait(LONGEST_WAIT_S))
