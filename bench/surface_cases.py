"""What `surface.py` measures: functions of weft.nn with what torch, Liger and quack have for them, over rows and hidden sizes.

Read first: `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from weft.nn import functional as W

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, HIDDEN = (1, 32, 512, 4096, 16384), (1024, 4096, 16384)
CLASSES = ((512, 32000), (4096, 32000), (4096, 128256))


def liger() -> dict[str, Callable[..., Any]]:
    """Return Liger's functions by our names, none where it is not installed. Its in-place gradients are switched off: the gradient is used again."""
    try:
        from liger_kernel.transformers import functional as theirs
    except ImportError:
        return {}
    return {
        "rms_norm": lambda x, w: theirs.liger_rms_norm(x, w, 1e-6, 0.0, "llama", False),
        "add_rms_norm": lambda x, r, w: theirs.liger_fused_add_rms_norm(x, r, w, 1e-6, 0.0, "llama", False),
        "layer_norm": lambda x, w, b: theirs.liger_layer_norm(x, w, b, 1e-5), "softmax": theirs.liger_softmax, "swiglu": theirs.liger_swiglu,
        "geglu": theirs.liger_geglu, "cross_entropy": theirs.liger_cross_entropy,
    }  # fmt: skip


def quack() -> dict[str, Callable[..., Any]]:
    """Return quack's functions by our names, none where it is not installed."""
    try:
        import quack as theirs
        from quack.softmax import softmax
    except ImportError:
        return {}
    return {
        "rms_norm": lambda x, w: theirs.rmsnorm(x, w, eps=1e-6), "softmax": softmax, "cross_entropy": theirs.cross_entropy,
        "add_rms_norm": lambda x, r, w: theirs.rmsnorm(x, w, residual=r, eps=1e-6, prenorm=True),
    }  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A function at one size. inputs: kinds of the tensors behind the first, [rows, hidden] in bfloat16: "row" [hidden], "same", "classes" [rows]."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: tuple[str, ...]
    rows: int
    hidden: int

    def tensors(self) -> list[torch.Tensor]:
        """Return random arguments; floats require gradients."""
        m, n = self.rows, self.hidden
        out = [torch.randn(m, n, device=DEVICE, dtype=torch.bfloat16).requires_grad_()]
        for kind in self.inputs:
            if kind == "row":
                out.append(torch.rand(n, device=DEVICE, dtype=torch.bfloat16).requires_grad_())
            elif kind == "same":
                out.append(torch.randn(m, n, device=DEVICE, dtype=torch.bfloat16).requires_grad_())
            else:
                out.append(torch.randint(0, n, (m,), device=DEVICE))
        return out


def _eager_add_rms_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + r
    return F.rms_norm(total, x.shape[-1:], w, 1e-6), total


FUNCTIONS: list[tuple[str, Callable[..., Any], Callable[..., Any], tuple[str, ...]]] = [
    ("rms_norm", lambda x, w: W.rms_norm(x, x.shape[-1:], w, 1e-6), lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), ("row",)),
    ("add_rms_norm", lambda x, r, w: W.rms_norm(x, x.shape[-1:], w, 1e-6, residual=r), _eager_add_rms_norm, ("same", "row")),
    ("layer_norm", lambda x, w, b: W.layer_norm(x, x.shape[-1:], w, b), lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), ("row", "row")),
    ("softmax", lambda x: W.softmax(x, -1), lambda x: F.softmax(x, -1), ()),
    ("swiglu", W.swiglu, lambda a, b: F.silu(a) * b, ("same",)),
    ("geglu", W.geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, ("same",)),
    ("cross_entropy", W.cross_entropy, F.cross_entropy, ("classes",)),
]

CASES = [
    Case(*function, rows, hidden) for function in FUNCTIONS
    for rows, hidden in (CLASSES if function[0] == "cross_entropy" else [(m, n) for n in HIDDEN for m in ROWS])
]  # fmt: skip
