"""Caches of executors by the structure of a definition.

Owns `LRUCache` (executors by fusion, the least recently used leaves first) and the decorator `LruFusionCache`.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..ir.fusion import Fusion
from ..ir.structure import structural_key
from . import executors
from .overloads import IncompatibleArguments


class EmptyCapacity(UserError):
    code = "W130"
    what = "max_fusions is {max_fusions}, so the cache could not hold any fusion"
    fix = "use max_fusions=1 or more"


class NotADefinition(UserError, TypeError):
    code = "W131"
    what = "{function} returned {kind}, not a FusionDefinition"
    fix = "decorate a function that defines a fusion and returns its FusionDefinition"


@dataclass
class _Entry:
    fec: Any
    visits: int = 0


class LRUCache:
    """Executors by the structure of their fusions: a definition made again gets the executor, and the kernels, of the first."""

    def __init__(self, max_fusions: int) -> None:
        if isinstance(max_fusions, bool) or not isinstance(max_fusions, int):
            raise IncompatibleArguments(function="LRUCache", signatures="    1. (max_fusions: int)", given=repr(max_fusions))
        if max_fusions < 1:
            raise EmptyCapacity(max_fusions=max_fusions)
        self.max_fusions = max_fusions
        self._entries: "OrderedDict[Hashable, _Entry]" = OrderedDict()  # the most recently used last
        self._compiled = self._lookups = self._hits = 0

    def cache_compile(self, fusion: Fusion) -> Any:
        """Return the executor of a fusion of this structure; the first one is made here and owns `fusion`."""
        self._lookups += 1
        key = structural_key(fusion)
        entry = self._entries.get(key)
        if entry is not None:
            self._hits += 1
            entry.visits += 1
            self._entries.move_to_end(key)
            return entry.fec
        fec = executors.executor_cache(fusion, self._compiled)
        if len(self._entries) == self.max_fusions:
            self._entries.popitem(last=False)
        self._entries[key] = _Entry(fec)
        self._compiled += 1
        return fec

    def num_fusions(self) -> int:
        """Return how many fusions the cache holds."""
        return len(self._entries)

    def stats(self) -> str:
        """Return counts of lookups and hits as text, entries from the most recently used."""
        lines = [f"Max Fusions Allowed: {self.max_fusions}"]
        if not self._entries:
            return "\n".join([*lines, "The fusion cache is empty.", ""])
        lines += [f"Total Fusions in Cache: {len(self._entries)}", f"Total Unique Fusions Compiled: {self._compiled}", "Cache Hits by LRU ordering:"]
        lines += [f"\t{index} -> {entry.visits} hits" for index, entry in enumerate(reversed(self._entries.values()))]
        rate = 100.0 * self._hits / self._lookups if self._lookups else 0.0
        return "\n".join([*lines, f"Cache Lookups: {self._lookups}", f"Cache Hits: {self._hits}", f"Hit Rate: {rate:g}%", ""])


def LruFusionCache(max_fusions: int = 16384) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # noqa: N802  (nvFuser's name)
    """Decorate a function that returns a FusionDefinition, so that definitions of one structure share an executor.

    The decorated function has `stats()` and `num_fusions()`.
    """
    cache = LRUCache(max_fusions)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            from .definition import FusionDefinition

            fd = function(*args, **kwargs)
            if not isinstance(fd, FusionDefinition):
                raise NotADefinition(function=function.__name__, kind=type(fd).__name__)
            fd.fec = cache.cache_compile(fd._checked_fusion())
            fd.__dict__.pop("_fusion", None)
            return fd

        wrapper.stats, wrapper.num_fusions = cache.stats, cache.num_fusions  # type: ignore[attr-defined]
        return wrapper

    return decorate
