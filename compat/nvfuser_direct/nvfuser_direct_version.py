"""weft.api.version under nvFuser's name."""

from weft.api.version import NvfuserVersion, __version__, version  # noqa: F401


def __getattr__(name):
    from weft.api import version as module

    return getattr(module, name)
