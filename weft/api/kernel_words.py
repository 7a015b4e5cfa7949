"""`Fusion.print_kernel`: the text of a kernel with nvFuser's names for indices and roles.

Indices are of the type `nvfuser_index_t`, their constants end in LL, and the conditions that tell roles of warps apart have nvFuser's brackets. This text is
not compiled; `get_cuda_kernel` gives what is. Read first: `in_nvfusers_words`.
"""

from __future__ import annotations

import re

from ..ir.enums import BLOCK_TYPES, GRID_TYPES

INDEX = "nvfuser_index_t"
_BUILTINS = "|".join(p.value for p in (*BLOCK_TYPES, *GRID_TYPES))
_CAST = re.compile(rf"\((?:int|long long)\)({_BUILTINS})\b".replace(".", r"\."))
_ROLE = re.compile(rf"\bif \(({_BUILTINS}) (>=|<) (\d+)\)".replace(".", r"\."))
_CONSTANT = re.compile(r"(?<=[-+*/%<>] )(-?\d+)(?![\w.])|(?<=[<>=]= )(-?\d+)(?![\w.])|(?<= = )(-?\d+)(?=;)")
_NOT_INDICES = re.compile(r"#pragma|__restrict__|//")


def in_nvfusers_words(text: str) -> str:
    """Return a kernel's text with indices as nvFuser writes them. text: of a kernel whose index type is Int."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    if _NOT_INDICES.search(line.split("for (", 1)[0]):
        return line
    role = _ROLE.search(line)
    if role is not None:
        condition = f"(({INDEX}){role[1]}) {role[2]} {role[3]}LL"
        return f"{line[: role.start()]}if (({condition})){line[role.end() :]}"
    line = _CAST.sub(rf"(({INDEX})\1)", line)
    line = re.sub(r"\blong long (?=[\w]+ = )|\bint (?=[\w]+ = )", f"{INDEX} ", line)
    return _CONSTANT.sub(lambda found: f"{found[0]}LL", line)
