"""What tuning found: for each kernel's structure, class of sizes, chip and version the fastest params, in memory and on disk.

Owns the keys, the entries and their files. An entry is text that is compared and never evaluated: it stands for params only where a scheduler proposes the
same ones now. So an entry of another version, of another chip, from somebody's file, or one that does not fit the sizes, is a miss and nothing worse.
Read first: `winner`, `Found`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import compiler, forking
from ..cache.disk import DiskCache
from ..cache.entry import Artefact, artefact_key
from ..errors import UserError
from ..expr import Sym, evaluate_int
from ..ir.structure import digest, known_key
from ..ir.values import TensorView, no_reductions
from ..options import Options
from .engines import Engine
from .steps import KernelUse

FORMAT = 1
"""Format version of entries and files: increment it if the meaning of sizes or params changes."""

EXACT_ELEMS, STEPS_OF_A_DOUBLING, LARGEST_DIVISOR = 64, 8, 16
"""Each size up to the first is a class of its own; above that there are so many classes between a size and its double, and sizes of one class are divisible by
the same power of two, up to the last."""

LIMIT_MIB = 64
"""Limit of the folder of entries; each has about 1 kB."""


class NotTuned(UserError):
    code = "W787"
    what = "{path} holds no tuning results: {reason}"
    fix = "make the file with `weft tune --export {path}`"


@dataclass(frozen=True)
class Place:
    """The key of an entry. kernel: the structure's digest; sizes: their classes; chip: engine and chip; settings: those that change code; version: weft's."""

    kernel: str
    sizes: tuple[tuple[int, ...], ...]
    chip: str
    settings: str
    version: str

    @property
    def key(self) -> str:
        """The name of the entry's file."""
        return artefact_key("tuned", FORMAT, *dataclasses.astuple(self))


@dataclass(frozen=True)
class Found:
    """The result of tuning for one key. scheduler, params: of the fastest candidate, as text. chosen_us, best_us: times of the default choice, and of the
    fastest. timed, candidates: how many were timed, of how many. title: a readable description of the kernel.
    """

    scheduler: str
    way: str
    params: str
    chosen_us: float
    best_us: float
    timed: int
    candidates: int
    title: str = ""

    @property
    def gain(self) -> float:
        """The speed of the fastest relative to the default choice."""
        return self.chosen_us / self.best_us if self.best_us else 1.0


# ---------------------------------------------------------------- where
def size_class(elems: int) -> tuple[int, ...]:
    """Return the class of a size; see EXACT_ELEMS.

    Example: size_class(4096) != size_class(4097) != size_class(4105) == size_class(4107)
    """
    if elems <= EXACT_ELEMS:
        return (elems,)
    exponent = elems.bit_length() - 1
    return exponent, (elems * STEPS_OF_A_DOUBLING >> exponent) - STEPS_OF_A_DOUBLING, min(elems & -elems, LARGEST_DIVISOR)


def place_of(use: KernelUse, alignment_bits: Mapping[str, int], engine: Engine, options: Options) -> Place:
    """Return the key for tuning results of a kernel."""
    fusion, sizes, widest = use.part.fusion, [], engine.arch.max_access_bits
    memo: dict[Sym, Any] = {}
    for tensor in (*fusion.inputs(), *fusion.outputs()):
        if isinstance(tensor, TensorView):
            sizes += [size_class(evaluate_int(axis.logical_extent, use.env, memo)) for axis in no_reductions(tensor.get_logical_domain())]
            sizes.append((min(widest, alignment_bits.get(f"T{tensor.name}", widest)),))
            sizes += [_stride_class(use.env[v]) for n in range(len(tensor.get_logical_domain())) if (v := tensor.stride_var(n)) in use.env]  # type: ignore[arg-type]
    kind = "emulator" if engine.device is None else "gpu"
    arch = engine.arch
    chip = f"{kind} {arch.name} {arch.compute_capability} {arch.sm_count}"
    return Place(digest(known_key(fusion)), tuple(sizes), chip, repr(options.code_key()), sys.modules["weft"].__version__)


def _stride_class(stride: int) -> tuple[int, ...]:
    return (stride,) if stride <= 1 else (-1, min(stride & -stride, LARGEST_DIVISOR))


# ---------------------------------------------------------------- entries
_found: dict[Hashable, Found] = {}
_lock = forking.lock()


def _folder(options: Options) -> DiskCache | None:
    return DiskCache(options.cache_path / "tuned", LIMIT_MIB * 2**20) if options.cache else None


def known(place: Place, options: Options) -> Found | None:
    """Return the tuning result for a key, from this process or from disk."""
    found = _found.get(place)
    if found is None and (disk := _folder(options)) is not None:
        artefact = disk.get(place.key)
        found = None if artefact is None else _read(artefact.metadata, place)
        if found is not None:
            _found[place] = found
    return found


def keep(place: Place, found: Found, options: Options) -> None:
    """Store a tuning result, also on disk if the settings allow it."""
    with _lock:
        _found[place] = found
    disk = _folder(options)
    if disk is not None:
        disk.put(place.key, Artefact(_metadata(place, found)))


def forget() -> None:
    """Drop the results of this process (for tests); those on disk are kept."""
    _found.clear()


def winner(use: KernelUse, alignment_bits: Mapping[str, int], engine: Engine, options: Options) -> "compiler.Proposal | None":
    """Return the proposal that was fastest when such kernels were tuned; None if there is no result, or no scheduler proposes it now."""
    if options.rows != "auto":
        return None
    found = known(place_of(use, alignment_bits, engine, options), options)
    if found is None:
        return None
    proposals = compiler.candidates(use.part.fusion, use.env, alignment_bits, engine.arch)
    return next((p for p in proposals if p.scheduler.name == found.scheduler and repr(p.params) == found.params), None)


def _metadata(place: Place, found: Found) -> dict[str, object]:
    return {"format": FORMAT, "place": dataclasses.asdict(place), "found": dataclasses.asdict(found)}


def _read(metadata: Mapping[str, Any], place: Place | None = None) -> Found | None:
    """Return the entry that metadata describes; None if it has another format or another key."""
    try:
        is_right = metadata["format"] == FORMAT and (place is None or _place(metadata) == place)
        found = Found(**metadata["found"]) if is_right else None
    except (KeyError, TypeError, ValueError):
        return None
    return found if found is not None and all(isinstance(getattr(found, name), kind) for name, kind in _KINDS.items()) else None


_KINDS: dict[str, Any] = {
    "scheduler": str, "way": str, "params": str, "chosen_us": (int, float), "best_us": (int, float), "timed": int, "candidates": int, "title": str,
}  # fmt: skip


def _place(metadata: Mapping[str, Any]) -> Place:
    fields = dict(metadata["place"])
    return Place(**{**fields, "sizes": tuple(tuple(map(int, size)) for size in fields["sizes"])})


# ---------------------------------------------------------------- files
def entries(options: Options) -> Iterator[tuple[Place, Found]]:
    """Yield the results on disk."""
    disk = _folder(options)
    for artefact in () if disk is None else disk.artefacts():
        found = _read(artefact.metadata)
        if found is not None:
            yield _place(artefact.metadata), found


def export_file(path: Path, options: Options) -> int:
    """Write the results to a file; return the number of entries. Other machines with the same chip and version can import it."""
    kept = sorted((_metadata(place, found) for place, found in entries(options)), key=lambda entry: json.dumps(entry, sort_keys=True))
    path.write_text(json.dumps({"weft tuned": FORMAT, "entries": kept}, indent=1) + "\n", encoding="utf-8")
    return len(kept)


def import_file(path: Path, options: Options) -> int:
    """Store the entries of a file; return their number. Errors: NotTuned for a file of another kind."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NotTuned(path=path, reason=error) from None
    if not isinstance(content, dict) or content.get("weft tuned") != FORMAT or not isinstance(content.get("entries"), list):
        raise NotTuned(path=path, reason=f"it is not of format {FORMAT}")
    pairs = []
    for number, entry in enumerate(content["entries"]):
        found = _read(entry) if isinstance(entry, dict) else None
        try:
            place = _place(entry) if found else None
        except (KeyError, TypeError, ValueError):
            place = None
        if found is None or place is None:
            raise NotTuned(path=path, reason=f"entry {number} is not a tuning result")
        pairs.append((place, found))
    for place, found in pairs:
        keep(place, found, options)
    return len(pairs)


def clear(options: Options) -> int:
    """Remove every entry; return how many there were."""
    disk = _folder(options)
    count = 0 if disk is None else disk.use().entries
    if disk is not None:
        disk.clear()
    forget()
    return count
