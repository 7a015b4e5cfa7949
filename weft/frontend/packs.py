"""Stores the cache entries of a graph's calls as one entry: a warm start then reads one file and checks one checksum instead of two per kernel.

A pack holds copies under the keys of the entries; what it does not hold, or holds no more, is read one by one. The process that makes the kernels writes it
when they are there. Read first: `use_pack`, `write_pack`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..cache import Artefact, artefact_key, default_cache
from ..options import current
from ..runtime import engines
from ..runtime.call_records import surroundings
from .ahead import Likeness
from .region_call import RegionCall

log = logging.getLogger(__name__)

FORMAT = 1
MOST_BYTES = 64 * 2**20
"""Limit of a pack: the entries of a graph with more machine code are read one by one."""


def pack_key(calls: Sequence[RegionCall]) -> str:
    """Return the key of a pack: the definitions of its calls, the tensors that they were traced with, and the common part of call keys."""
    likes = [like for call in calls for like in call.plan.inputs or () if isinstance(like, Likeness)]
    index = next((like.device.index for like in likes if like.device.type == "cuda"), None)
    asked = next((call.plan.device for call in calls if call.plan.device is not None), None)
    engine = engines.choose(current(), device=index, has_cpu_tensors=any(like.device.type == "cpu" and like.sizes for like in likes), asked=asked)
    return artefact_key("pack", FORMAT, surroundings(engine, current()), repr([(call.plan.key, call.plan.inputs) for call in calls]))


def use_pack(calls: Sequence[RegionCall]) -> bool:
    """Make the cache find the entries of these calls in their pack; return whether there is one."""
    cache = default_cache()
    pack = None if cache is None else cache.get(pack_key(calls))
    if cache is None or pack is None:
        return False
    entries = pack.metadata.get("entries")
    cache.hold(unpacked(entries, pack.blobs) if isinstance(entries, dict) else {})
    return True


def write_pack(calls: Sequence[RegionCall]) -> None:
    """Write the pack of the prepared calls."""
    cache = default_cache()
    keys = dict.fromkeys(key for call in calls for key in call.calls.entries)
    found = {key: entry for key in keys if cache is not None and (entry := cache.get(key)) is not None}
    size = sum(len(blob) for entry in found.values() for blob in entry.blobs.values())
    if cache is None or len(found) < 2 or size > MOST_BYTES:
        return
    entries = {key: [dict(entry.metadata), list(entry.blobs)] for key, entry in found.items()}
    blobs = {f"{key} {name}": blob for key, entry in found.items() for name, blob in entry.blobs.items()}
    cache.put(pack_key(calls), Artefact({"kind": "pack", "entries": entries}, blobs))


def drop_pack() -> None:
    """Drop entries that no call has requested."""
    cache = default_cache()
    if cache is not None:
        cache.release()


def unpacked(entries: dict[str, Any], blobs: Mapping[str, bytes]) -> dict[str, Artefact]:
    """Return the entries of a pack by their keys; malformed ones are omitted."""
    found: dict[str, Artefact] = {}
    for key, entry in entries.items():
        try:
            metadata, names = entry
            found[key] = Artefact(metadata, {name: blobs[f"{key} {name}"] for name in names})
        except (KeyError, TypeError, ValueError) as error:
            log.debug("an entry of a pack is left out: %s", error)
    return found


__all__ = ["drop_pack", "pack_key", "unpacked", "use_pack", "write_pack"]
