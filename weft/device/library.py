"""The device library: blocks of CUDA C++ that kernels use, and putting them into a translation unit.

One block per file `weft/device/<block>.cuh`; a comment line `// requires: cast, math` among a file's first lines names the
blocks it needs. The primitives come first in every unit. Read first: `translation_unit`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from weft.device.used import only_used
from weft.errors import InternalError

FOLDER = Path(__file__).resolve().parent
PRIMITIVES = "primitives"
HEADER_LINES = 5  # a `requires` line is looked for in this many lines
KERNEL_NAME = re.compile(r"__global__[^;{]*?\b(\w+)\s*\((?!\s*\d)")


class UnknownBlock(InternalError):
    code = "W430"
    what = 'there is no device block "{block}" (needed by {user}); there are: {known}'
    fix = "add weft/device/{block}.cuh, or correct the name"


class CircularBlocks(InternalError):
    code = "W431"
    what = "device blocks require each other: {cycle}"
    fix = "move what both need into a third block"


@dataclass(frozen=True)
class Block:
    """One composite of the device library."""

    name: str
    requires: tuple[str, ...]
    text: str


@functools.lru_cache(maxsize=None)
def registry() -> dict[str, Block]:
    """All blocks by name, found by file name."""
    return {path.stem: _read_block(path) for path in sorted(FOLDER.glob("*.cuh")) if path.stem != PRIMITIVES}


def _read_block(path: Path) -> Block:
    text = path.read_text()
    head = "\n".join(text.split("\n")[:HEADER_LINES])
    match = re.search(r"^//\s*requires:[ \t]*(.*)$", head, re.MULTILINE)
    requires = tuple(name for name in re.split(r"[,\s]+", match.group(1)) if name) if match else ()
    return Block(path.stem, requires, text)


def in_order(blocks: Iterable[str]) -> list[Block]:
    """The blocks and all that they require, each after what it requires. Errors: UnknownBlock, CircularBlocks."""
    known = registry()
    done: dict[str, Block] = {}

    def add(name: str, users: tuple[str, ...]) -> None:
        if name in done or name == PRIMITIVES:
            return
        if name in users:
            raise CircularBlocks(cycle=" -> ".join((*users, name)))
        if name not in known:
            raise UnknownBlock(block=name, user=users[-1] if users else "the kernel", known=", ".join(known))
        for required in known[name].requires:
            add(required, (*users, name))
        done[name] = known[name]

    for name in sorted(set(blocks)):
        add(name, ())
    return list(done.values())


@functools.lru_cache(maxsize=None)
def _primitives() -> str:
    return (FOLDER / f"{PRIMITIVES}.cuh").read_text()


_ENTRY = re.compile(r"\bWEFT_ENTRY\(\s*(\w+)\s*\)")


def translation_unit(kernel_text: str, blocks: Iterable[str] = (), *, shortened: bool = False) -> str:
    """Put a kernel and the blocks that it uses into one text, which NVRTC and the emulator both compile.

    shortened: without the library's functions that the kernel does not use, which takes the compiler less time and gives the same machine code.
    A `WEFT_ENTRY(NAME)` is added for each kernel whose text brings none.
    """
    head = '#if defined(WEFT_EMULATOR)\n#include "weft_emulator.h"\n#else'
    parts = [head, _primitives().rstrip(), "#endif", *(block.text.rstrip() for block in in_order(blocks))]
    if shortened:
        parts = only_used(parts, kernel_text)
    parts.append(kernel_text.rstrip())
    brought = _ENTRY.findall(kernel_text)
    parts += [f"WEFT_ENTRY({name})" for name in dict.fromkeys(KERNEL_NAME.findall(kernel_text)) if name not in brought]
    return "\n".join(parts) + "\n"
