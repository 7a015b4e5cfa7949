"""Every function of weft.nn.functional beside what it must equal: a table that the tests of this folder go through.

Shapes are letters, so that one table serves small tensors in the emulator and odd ones on a GPU. Read first: `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from weft.nn import functional as W

SMALL = {"b": 2, "m": 4, "n": 6, "N": 12, "c": 4, "h": 3, "w": 2, "q": 4, "k": 6, "s": 5, "d": 8, "v": 7, "e": 5, "1": 1}
ODD = {"b": 3, "m": 37, "n": 1027, "N": 2054, "c": 6, "h": 13, "w": 11, "q": 33, "k": 257, "s": 19, "d": 66, "v": 5003, "e": 41, "1": 1}
WIDE = {"b": 2, "m": 301, "n": 4096, "N": 8192, "c": 32, "h": 32, "w": 16, "q": 128, "k": 128, "s": 64, "d": 128, "v": 32000, "e": 500, "1": 1}
"""Letters are: batch, rows, hidden, twice hidden, channels, height, width, queries, keys, positions, size of a head, classes, entries of a table."""


@dataclass(frozen=True)
class Case:
    """ours, theirs: functions of the same tensors. inputs: "m n" is a tensor of floats, "m <v" of integers below v, "q k ?" of booleans, "n +" positive floats, "n !" without gradient.

    folds_first: the first axis of the first input may be empty. float32_under_autocast: torch has the function, on the list of float32 of CUDA's autocast.
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: tuple[str, ...]
    folds_first: bool = True
    float32_under_autocast: bool = True

    def make(self, sizes: dict[str, int], dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 11) -> list[torch.Tensor]:
        """Return its inputs; floats require gradients. Values are the same for all types and devices, but for rounding."""
        g = torch.Generator().manual_seed(seed)
        out = []
        for text in self.inputs:
            words = text.split()
            shape = [sizes[word] for word in words if word in sizes]
            if "?" in words:
                mask = torch.rand(shape, generator=g) > 0.3
                mask[..., 0] = True
                out.append(mask.to(device))
            elif words[-1].startswith("<"):
                numbers = torch.randint(0, sizes[words[-1][1:]], shape, generator=g)
                if words[-1] == "<v" and numbers.numel():
                    numbers.view(-1)[0] = -100  # a target that is ignored
                out.append(numbers.to(device))
            else:
                x = torch.randn(shape, generator=g, dtype=torch.float64)
                out.append((x.abs() + 0.1 if "+" in words else x).to(dtype).to(device).requires_grad_("!" not in words))
        return out

    def exact(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return what `theirs` is asked in float64."""
        return [t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in inputs]


def turned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)


def causal(x: torch.Tensor) -> torch.Tensor:
    q, k = x.shape[-2:]
    return F.softmax((x * 0.5).masked_fill(torch.ones(q, k, device=x.device).tril(k - q) == 0, -torch.inf), -1)


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.chunk(2, -1)
    return a, b


def rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def add_rms(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.rms_norm(x + r, x.shape[-1:], w, 1e-6), x + r


def add_layer_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.layer_norm(x + r, x.shape[-1:], w, b), x + r


def z_loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    capped = 5.0 * torch.tanh(x / 5.0)
    return F.cross_entropy(capped, t) + 0.1 * capped.logsumexp(-1).square()[t != -100].mean()


CASES: dict[str, Case] = {
    "softmax": Case(lambda x: W.softmax(x, -1), lambda x: F.softmax(x, -1), ("m n",)),
    "softmax of columns": Case(lambda x: W.softmax(x, 0), lambda x: F.softmax(x, 0), ("m n",), folds_first=False),
    "log_softmax": Case(lambda x: W.log_softmax(x, -1), lambda x: F.log_softmax(x, -1), ("b m n",)),
    "scaled_masked_softmax": Case(lambda x, k: W.scaled_masked_softmax(x, k, 0.5), lambda x, k: F.softmax((x * 0.5).masked_fill(~k, -torch.inf), -1), ("b q k", "q k ?"), float32_under_autocast=False),
    "scaled_masked_softmax, added": Case(lambda x, k: W.scaled_masked_softmax(x, k, 0.5), lambda x, k: F.softmax(x * 0.5 + k, -1), ("b q k", "q k"), float32_under_autocast=False),
    "scaled_causal_softmax": Case(lambda x: W.scaled_causal_softmax(x, 0.5), causal, ("b q k",), float32_under_autocast=False),
    "layer_norm": Case(lambda x, w, b: W.layer_norm(x, x.shape[-1:], w, b), lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), ("m n", "n", "n")),
    "layer_norm of two axes": Case(lambda x: W.layer_norm(x, x.shape[-2:]), lambda x: F.layer_norm(x, x.shape[-2:]), ("b m n",)),
    "rms_norm": Case(lambda x, w: W.rms_norm(x, x.shape[-1:], w, 1e-6), lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), ("b m n", "n")),
    "rms_norm with offset": Case(lambda x, w: W.rms_norm(x, x.shape[-1:], w, 1e-6, weight_offset=1.0), lambda x, w: F.rms_norm(x, x.shape[-1:], w + 1, 1e-6), ("m n", "n")),
    "add_rms_norm": Case(W.add_rms_norm, add_rms, ("m n", "m n", "n")),
    "dropout_add_layer_norm": Case(W.dropout_add_layer_norm, add_layer_norm, ("m n", "m n", "n", "n"), float32_under_autocast=False),
    "group_norm": Case(lambda x, w, b: W.group_norm(x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b), ("b c h w", "c", "c")),
    "batch_norm": Case(lambda x, w, b: W.batch_norm(x, None, None, w, b, True), lambda x, w, b: F.batch_norm(x, None, None, w, b, True), ("b c h w", "c", "c"), folds_first=False, float32_under_autocast=False),
    "batch_norm, evaluated": Case(lambda x, m, v: W.batch_norm(x, m, v), lambda x, m, v: F.batch_norm(x, m, v), ("b c h w", "c !", "c + !"), float32_under_autocast=False),
    "instance_norm": Case(lambda x, w, b: W.instance_norm(x, weight=w, bias=b), lambda x, w, b: F.instance_norm(x, weight=w, bias=b), ("b c h w", "c", "c"), folds_first=False, float32_under_autocast=False),
    "normalize": Case(lambda x: W.normalize(x, dim=-1), lambda x: F.normalize(x, dim=-1), ("m n",)),
    "gelu": Case(lambda x: W.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), ("m n",), float32_under_autocast=False),
    "gelu by erf": Case(lambda x: W.gelu(x), lambda x: F.gelu(x), ("m n",), float32_under_autocast=False),
    "silu": Case(lambda x: W.silu(x), lambda x: F.silu(x), ("m n",), float32_under_autocast=False),
    "swiglu": Case(lambda a, b: W.swiglu(a, b), lambda a, b: F.silu(a) * b, ("m n", "m n"), float32_under_autocast=False),
    "swiglu packed": Case(lambda x: W.swiglu(x), lambda x: F.silu(halves(x)[0]) * halves(x)[1], ("b m N",), float32_under_autocast=False),
    "geglu": Case(lambda a, b: W.geglu(a, b), lambda a, b: F.gelu(a, approximate="tanh") * b, ("m n", "m n"), float32_under_autocast=False),
    "geglu packed": Case(lambda x: W.geglu(x, approximate="none"), lambda x: F.gelu(halves(x)[0]) * halves(x)[1], ("b m N",), float32_under_autocast=False),
    "rope": Case(lambda x, c, s: W.rope(x, c, s), lambda x, c, s: x * c + turned(x) * s, ("b c s d", "1 1 s d", "1 1 s d"), float32_under_autocast=False),
    "apply_rotary_pos_emb": Case(W.apply_rotary_pos_emb, rotary, ("b c s d", "b w s d", "b s d", "b s d"), float32_under_autocast=False),
    "cross_entropy": Case(lambda x, t: W.cross_entropy(x, t), lambda x, t: F.cross_entropy(x, t), ("m v", "m <v"), folds_first=False),
    "cross_entropy, weighed and smoothed": Case(lambda x, t, w: W.cross_entropy(x, t, w, label_smoothing=0.1), lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1), ("m v", "m <v", "v + !"), folds_first=False),
    "cross_entropy of images": Case(lambda x, t: W.cross_entropy(x, t, reduction="none"), lambda x, t: F.cross_entropy(x, t, reduction="none"), ("b v h w", "b h w <v")),
    "cross_entropy with z_loss": Case(lambda x, t: W.cross_entropy(x, t, z_loss=0.1, softcap=5.0), z_loss, ("m v", "m <v"), folds_first=False),
    "kl_div": Case(lambda x, y: W.kl_div(x, y, reduction="batchmean", log_target=True), lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True), ("m n", "m n"), folds_first=False),
    "embedding_rms_norm": Case(lambda t, i, w: W.embedding_rms_norm(i, t, w), lambda t, i, w: F.rms_norm(F.embedding(i, t), t.shape[-1:], w, 1e-6), ("e n", "m <e", "n"), folds_first=False),
    "embedding_layer_norm": Case(lambda t, i, w, b: W.embedding_layer_norm(i, t, w, b), lambda t, i, w, b: F.layer_norm(F.embedding(i, t), t.shape[-1:], w, b), ("e n", "m <e", "n", "n"), folds_first=False),
}  # fmt: skip


def flat(result: Any) -> list[torch.Tensor]:
    """Return the outputs of a function as a list."""
    return list(result) if isinstance(result, tuple) else [result]


def floats(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t for t in inputs if t.requires_grad]


def with_gradients(function: Callable[..., Any], inputs: list[torch.Tensor], seed: int = 3) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return outputs and gradients of the inputs that require one, for random gradients of the outputs."""
    outputs = flat(function(*inputs))
    g = torch.Generator().manual_seed(seed)
    grads = [torch.randn(o.shape, generator=g, dtype=torch.float64).to(o.dtype).to(o.device) for o in outputs]
    return outputs, list(torch.autograd.grad(outputs, floats(inputs), grads, allow_unused=True))


def agree(case: Case, got: Any, want: Any, **tolerance: float) -> None:
    """Compare outputs and gradients; None is a gradient of zeros."""
    for a, b in zip(got[0], want[0]):
        torch.testing.assert_close(a, b, check_dtype=False, **tolerance)
    for a, b in zip(got[1], want[1]):
        if a is None or b is None:
            assert all(t is None or not t.any() for t in (a, b))
        else:
            torch.testing.assert_close(a, b, check_dtype=False, **tolerance)
