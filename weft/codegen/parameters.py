"""The declarations of a kernel's parameters. Read first: `signature_lines`."""

from __future__ import annotations

from ..dtypes import CUDA_NAMES
from ..lower.program import Param, RandomParam, ScalarParam, TensorMapParam, TensorParam, WorkParam


def signature_lines(params: tuple[Param, ...], *, overlaps: bool) -> list[str]:
    """The lines of the parameters; a comment after each scalar says what the host computes."""
    lines = []
    for n, param in enumerate(params):
        end = ") {" if n == len(params) - 1 else ","
        what = f"  // {param.sym}" if isinstance(param, ScalarParam) else ""
        lines.append(f"    {_declare(param, overlaps=overlaps)}{end}{what}")
    return lines or ["    ) {"]


def _declare(param: Param, *, overlaps: bool) -> str:
    """Return the declaration of a parameter. overlaps: dependent launch: other kernels write until this one has waited for them, so no load may be moved before
    the wait."""
    if isinstance(param, TensorParam):
        ctype = param.dtype.record.pointer
        if not param.written and overlaps:
            return f"const {ctype}* {param.name}"
        return f"{ctype}* __restrict__ {param.name}" if param.written else f"const {ctype}* __restrict__ {param.name}"
    if isinstance(param, WorkParam):
        return f"{CUDA_NAMES[param.dtype]}* {param.name}"
    if isinstance(param, TensorMapParam):
        return f"const __grid_constant__ weft::TensorMap {param.name}"
    if isinstance(param, RandomParam):
        ctype = {"seed": "unsigned long long", "offset": "const unsigned long long", "seed_at": "const unsigned long long* __restrict__"}[param.what]
        return f"{ctype} {param.name}"
    return f"const {param.ctype} {param.name}"


__all__ = ["signature_lines"]
