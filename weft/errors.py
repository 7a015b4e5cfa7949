"""Base classes of errors. There is one class per mistake; its message names the values and what to do instead.

Owns the base classes. Each layer defines its own mistakes as subclasses beside the code that raises them.
Read first: `WeftError`.
"""

from __future__ import annotations

import linecache
import os
import sys
from types import FrameType

_PACKAGE_DIR = os.path.dirname(os.path.abspath(__file__))


Place = tuple[str, int]
"""A file and a line of it."""


def user_place() -> Place | None:
    """Return the place of the innermost frame outside the package, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        is_torch = frame.f_globals.get("__name__", "").partition(".")[0] == "torch"  # between a user and our autograd functions
        if not filename.startswith(_PACKAGE_DIR) and not filename.startswith("<frozen") and not is_torch:
            return filename, frame.f_lineno
        frame = frame.f_back
    return None


def place_text(place: Place) -> str:
    """Return `file:line: text`."""
    return f"{place[0]}:{place[1]}: {linecache.getline(*place).strip()}"


def user_location() -> str | None:
    """Return `file:line: text` of the innermost frame outside the package, or None."""
    place = user_place()
    return None if place is None else place_text(place)


class WeftError(RuntimeError):
    """Base of all errors of the package.

    A subclass sets `code`, `what` and `fix`; the latter two are format strings over the keyword arguments given when
    raised, which are kept as `values`. Example:

        class TooManyThreads(UserError):
            code = "W210"
            what = "the block has {threads} threads; {arch} allows {limit}"
            fix = "use fewer threads per block"

        raise TooManyThreads(threads=2048, arch="H200", limit=1024)
    """

    code = "W000"
    what = "{message}"
    fix = ""
    is_usable = False  # True for a kernel that is refused only because others are probably faster
    spilled_bytes = 0  # spilled bytes per thread, if that is why the kernel is refused

    def __init__(self, message: str | None = None, **values: object) -> None:
        if message is not None:
            values.setdefault("message", message)
        self.values = values
        self.location = user_location()
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"{self.code}: {self.what.format(**self.values)}"]
        if self.location:
            lines.append(f"  at   {self.location}")
        if self.fix:
            lines.append(f"  fix: {self.fix.format(**self.values)}")
        return "\n".join(lines)


class UserError(WeftError):
    """The input is wrong; the text says which value and what to do."""

    code = "W100"


class Unsupported(WeftError):
    """The input is valid, and this version does not do it."""

    code = "W200"
    what = "{name} is not supported yet{detail}"
    fix = "{remedy}"

    def __init__(self, name: str = "", detail: str = "", remedy: str = "compute it with torch outside the fusion", **values: object) -> None:
        super().__init__(None, name=name, detail=(": " + detail) if detail else "", remedy=remedy, **values)


class InternalError(WeftError):
    """A defect of the package itself."""

    code = "W900"
    fix = "this is a defect of weft; please report it with the script below, or with the definition that repr(fd) prints"


def require(condition: object, message: str) -> None:
    """Raise `InternalError` with `message` unless `condition` holds."""
    if not condition:
        raise InternalError(message)


def find_stacklevel() -> int:
    """Return the depth of the first frame outside of this package, for warnings."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "weft").partition(".")[0] == "weft":
        frame, level = frame.f_back, level + 1
    return level


def axes_to_give(rank: int) -> str:
    """Return the valid axes of a tensor of `rank` axes, for the remedy of an error."""
    return f"use an axis from {-rank} to {rank - 1}" if rank else "use a tensor with at least one axis: this one has none"


LONGEST_SHOWN = 100
"""Characters of a value in a message."""


def shown(value: object) -> str:
    """Return a short text of a value for a message. It must not assume anything about the value, which may be the cause of the error."""
    if hasattr(value, "data_ptr"):
        return f"a tensor of type {getattr(value, 'dtype', type(value).__name__)}"
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a repr that fails is part of the report
        text = f"<{type(value).__name__}, whose repr fails: {type(error).__name__}>"
    if "\n" in text:
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."
