"""What `surface.py` measures: functions of weft.nn with what torch, Liger and quack have for them, over rows and hidden sizes.

Read first: `CASES`, then `chosen`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from weft.nn import functional as W

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, HIDDEN = (1, 32, 512, 4096, 16384), (1024, 4096, 16384)
HEAD = 128
CLASSES = ((512, 32000), (4096, 32000), (4096, 128256))


@functools.cache
def liger() -> dict[str, Callable[..., Any]]:
    """Return Liger's functions by our names, none where it is not installed. Its in-place gradients are switched off: the gradient is used again."""
    try:
        from liger_kernel.transformers import functional as theirs
    except ImportError:
        return {}
    return {
        "rms_norm": lambda x, w: theirs.liger_rms_norm(x, w, 1e-6, 0.0, "llama", False),
        "gemma_rms_norm": lambda x, w: theirs.liger_rms_norm(x, w, 1e-6, 1.0, "gemma", False),
        "add_rms_norm": lambda x, r, w: theirs.liger_fused_add_rms_norm(x, r, w, 1e-6, 0.0, "llama", False),
        "layer_norm": lambda x, w, b: theirs.liger_layer_norm(x, w, b, 1e-5), "softmax": theirs.liger_softmax, "swiglu": theirs.liger_swiglu,
        "geglu": theirs.liger_geglu, "cross_entropy": theirs.liger_cross_entropy,
    }  # fmt: skip


@functools.cache
def quack() -> dict[str, Callable[..., Any]]:
    """Return quack's functions by our names, none where it is not installed. They take what `arguments` makes of a case's tensors."""
    try:
        import quack as theirs
        from quack.rmsnorm import layernorm_bwd, layernorm_fwd
        from quack.rotary import apply_rotary_emb
    except ImportError:
        return {}

    class LayerNorm(torch.autograd.Function):
        """quack has both kernels, and no Function of them."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            y, rstd, mean = layernorm_fwd(x, w, b, 1e-5, return_rstd=True, return_mean=True)
            ctx.save_for_backward(x, w, rstd, mean)
            return y  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            x, w, rstd, mean = ctx.saved_tensors
            return layernorm_bwd(x, w, grad, rstd, mean)

    return {
        "rms_norm": lambda x, w: theirs.rmsnorm(x, w, eps=1e-6), "softmax": theirs.softmax, "cross_entropy": theirs.cross_entropy,
        "gemma_rms_norm": lambda x, w: theirs.rmsnorm(x, w, eps=1e-6, weight_offset=1.0),
        "add_rms_norm": lambda x, r, w: theirs.rmsnorm(x, w, residual=r, eps=1e-6, prenorm=True),
        "layer_norm": LayerNorm.apply, "rope": apply_rotary_emb,
    }  # fmt: skip


def arguments(kind: str, name: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return a case's tensors as contender `kind` takes them: quack's layer norm has float32 weights only, its rotary embedding one half of the angles."""
    if kind == "quack" and name == "layer_norm":
        return [tensors[0], *(t.detach().float().requires_grad_() for t in tensors[1:])]
    if kind == "quack" and name == "rope":
        return [tensors[0], *(t[:, 0, : t.shape[-1] // 2].contiguous() for t in tensors[1:])]
    return tensors


@dataclass(frozen=True)
class Case:
    """A function at one size. inputs: kinds of the tensors behind the first, [rows, hidden] in bfloat16: "row" [hidden], "same", "classes" [rows].

    "angles" are the cosines and sines [rows, 1, HEAD] of a rotary embedding, whose first tensor is [1, rows, hidden / HEAD, HEAD].
    """

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: tuple[str, ...]
    rows: int
    hidden: int

    def tensors(self) -> list[torch.Tensor]:
        """Return random arguments; floats require gradients."""
        m, n = self.rows, self.hidden
        if self.inputs == ("angles",):
            turns = torch.rand(m, 1, HEAD // 2, device=DEVICE).repeat(1, 1, 2) * 6.28
            x = torch.randn(1, m, n // HEAD, HEAD, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
            return [x, turns.cos().bfloat16(), turns.sin().bfloat16()]
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


def _eager_gemma_rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.rms_norm(x.float(), x.shape[-1:], None, 1e-6) * (1.0 + w.float())).to(x.dtype)


def _eager_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


Function = tuple[str, Callable[..., Any], Callable[..., Any], tuple[str, ...]]

FUNCTIONS: list[Function] = [
    ("rms_norm", lambda x, w: W.rms_norm(x, x.shape[-1:], w, 1e-6), lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), ("row",)),
    ("add_rms_norm", lambda x, r, w: W.rms_norm(x, x.shape[-1:], w, 1e-6, residual=r), _eager_add_rms_norm, ("same", "row")),
    ("layer_norm", lambda x, w, b: W.layer_norm(x, x.shape[-1:], w, b), lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), ("row", "row")),
    ("softmax", lambda x: W.softmax(x, -1), lambda x: F.softmax(x, -1), ()),
    ("swiglu", W.swiglu, lambda a, b: F.silu(a) * b, ("same",)),
    ("geglu", W.geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, ("same",)),
    ("cross_entropy", W.cross_entropy, F.cross_entropy, ("classes",)),
]

BY_NAME: list[Function] = [
    ("gemma_rms_norm", lambda x, w: W.rms_norm(x, x.shape[-1:], w, 1e-6, weight_offset=1.0, casting="gemma"), _eager_gemma_rms_norm, ("row",)),
    ("rope", W.rope, _eager_rope, ("angles",)),
]
"""Functions that Liger or quack have, too; they are measured only where they are named, so that the table of all cases stays one table."""

CASES = [
    Case(*function, rows, hidden) for function in FUNCTIONS
    for rows, hidden in (CLASSES if function[0] == "cross_entropy" else [(m, n) for n in HIDDEN for m in ROWS])
]  # fmt: skip


def chosen(names: Sequence[str] | None, rows: Sequence[int] | None, hidden: Sequence[int] | None) -> list[Case]:
    """Return the cases of the named functions (None: all of CASES). rows, hidden: these sizes, for every function, instead of the table's."""
    functions = [f for f in [*FUNCTIONS, *(BY_NAME if names else [])] if names is None or f[0] in names]
    unknown = set(names or ()) - {f[0] for f in functions}
    if unknown:
        raise SystemExit(f"no such function: {', '.join(sorted(unknown))}")
    if rows or hidden:
        return [Case(*f, m, n) for f in functions for n in hidden or HIDDEN for m in rows or ROWS]
    more = [Case(*f, m, n) for f in functions if f in BY_NAME for n in HIDDEN for m in ROWS]
    return [case for case in CASES if names is None or case.name in names] + more
