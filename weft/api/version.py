"""The version of the API that is offered, as `nvfuser_direct` spells it."""

from __future__ import annotations

from typing import Any

API_VERSION = "0.2.36"
"""The nvfuser_direct version whose calls are understood."""


class NvfuserVersion(str):
    """A version as text that compares with versions, texts and tuples of numbers by the rules of versions."""

    @classmethod
    def _parsed(cls, value: Any) -> Any:
        from packaging.version import Version as Parsed

        if isinstance(value, tuple):
            value = ".".join(map(str, value))
        return Parsed(str(value))

    def _compare(self, other: Any, name: str) -> Any:
        from packaging.version import InvalidVersion

        try:
            return getattr(self._parsed(self), name)(self._parsed(other))
        except InvalidVersion:
            return getattr(str, name)(str(self), other)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, "__lt__")

    def __le__(self, other: Any) -> bool:
        return self._compare(other, "__le__")

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, "__gt__")

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, "__ge__")

    def __eq__(self, other: Any) -> bool:
        return self._compare(other, "__eq__")

    def __ne__(self, other: Any) -> bool:
        return not self == other

    __hash__ = str.__hash__


__version__ = NvfuserVersion(API_VERSION)


def version() -> str:
    """Return the version of nvfuser_direct that is imitated."""
    return __version__


def __getattr__(name: str) -> Any:
    if name in ("Version", "InvalidVersion"):
        import packaging.version

        return getattr(packaging.version, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
