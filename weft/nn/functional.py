"""Functions of torch tensors with gradients: torch's names, arguments and results where torch has the function, Liger's and quack's where only they do.

Owns the list of names. The functions and their argument forms are in one file per theme; formulas are the composites of `weft.ops`, so `fd.ops.layer_norm`
and `weft.nn.functional.layer_norm` are one text.
All of them: any number of leading axes, any strides, empty batches, float32, bfloat16, float16 and float64; statistics and sums in float32 (float64 for
float64); out of place; the same bits from run to run. Under autocast, functions on torch's float32 list return float32, as torch's do:
norms, softmaxes and losses on a GPU, losses on a CPU.
Read first: `weft.nn.norms.layer_norm`.
"""

from __future__ import annotations

from typing import Any

import torch

from .activations import apply_rotary_pos_emb, geglu, gelu, rope, silu, swiglu
from .channel_norms import batch_norm, group_norm, instance_norm, normalize
from .losses import cross_entropy, kl_div
from .norms import add_rms_norm, dropout_add_layer_norm, embedding_layer_norm, embedding_rms_norm, layer_norm, rms_norm
from .softmaxes import log_softmax, scaled_causal_softmax, scaled_masked_softmax, softmax

__all__ = [
    "add_rms_norm", "apply_rotary_pos_emb", "batch_norm", "cross_entropy", "dropout_add_layer_norm", "embedding_layer_norm", "embedding_rms_norm", "geglu",
    "gelu", "group_norm", "instance_norm", "kl_div", "layer_norm", "log_softmax", "normalize", "rms_norm", "rope", "scaled_causal_softmax",
    "scaled_masked_softmax", "silu", "softmax", "swiglu",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    known = hasattr(torch.nn.functional, name)
    theirs = f': use torch.nn.functional.{name}; torch.compile(model, backend="weft") fuses it with what stands around it' if known else ""
    raise AttributeError(f"module 'weft.nn.functional' has no attribute {name!r}{theirs or '; dir(weft.nn.functional) lists what it has'}")


def __dir__() -> list[str]:
    return sorted(__all__)
