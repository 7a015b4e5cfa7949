"""Blocks of Llama, GPT-2, BERT and ViT with random weights, written once and computed by torch or by weft.

Read first: `MODELS`. A model takes a kit: where its norms, activations, attention weights and loss come from.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from nn_functions import causal, rotary
from torch import nn

import weft.nn
from weft.nn import functional as W


def _masked(x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return F.softmax((x * scale).masked_fill(~mask, -torch.inf), -1)


TORCH = types.SimpleNamespace(
    rms_norm=nn.RMSNorm, layer_norm=nn.LayerNorm, gelu=F.gelu, swiglu=lambda a, b: F.silu(a) * b, rotary=rotary, masked_softmax=_masked, softmax=F.softmax,
    causal_softmax=lambda x, scale: causal(x * (scale / 0.5)), add_rms_norm=lambda norm, x, r: (norm(x + r), x + r), cross_entropy=F.cross_entropy,
    embedding_layer_norm=lambda i, t, norm: norm(F.embedding(i, t)),
)  # fmt: skip
WEFT = types.SimpleNamespace(
    rms_norm=weft.nn.RMSNorm, layer_norm=weft.nn.LayerNorm, gelu=W.gelu, swiglu=W.swiglu, rotary=W.apply_rotary_pos_emb, masked_softmax=W.scaled_masked_softmax,
    softmax=W.softmax, causal_softmax=W.scaled_causal_softmax, add_rms_norm=lambda norm, x, r: norm(x, r), cross_entropy=W.cross_entropy,
    embedding_layer_norm=lambda i, t, norm: W.embedding_layer_norm(i, t, norm.weight, norm.bias, norm.eps),
)  # fmt: skip


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """[batch, tokens, size] -> [batch, heads, tokens, size of a head]"""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Llama(nn.Module):
    """Two layers: RMSNorm with the residual added, rotary positions, causal attention, SwiGLU; loss of the next token."""

    def __init__(self, kit: Any, size: int, count: int, tokens: int) -> None:
        super().__init__()
        self.kit, self.count = kit, count
        self.table, self.head = nn.Embedding(tokens, size), nn.Linear(size, tokens, bias=False)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "norm1": kit.rms_norm(size, eps=1e-6), "norm2": kit.rms_norm(size, eps=1e-6), "qkv": nn.Linear(size, 3 * size, bias=False),
                "out": nn.Linear(size, size, bias=False), "gate": nn.Linear(size, 2 * size, bias=False), "up": nn.Linear(size, 2 * size, bias=False),
                "down": nn.Linear(2 * size, size, bias=False),
            }) for _ in range(2)
        )  # fmt: skip
        self.last = kit.rms_norm(size, eps=1e-6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        kit, stream = self.kit, self.table(ids)
        branch = torch.zeros_like(stream)
        size = stream.shape[-1] // self.count
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] / 100 ** (torch.arange(0, size, 2, device=ids.device) / size)
        angles = torch.cat([angles, angles], -1).to(stream.dtype).expand(ids.shape[0], -1, -1)
        for layer in self.layers:
            x, stream = kit.add_rms_norm(layer["norm1"], branch, stream)
            q, k, v = (heads(part, self.count) for part in layer["qkv"](x).chunk(3, -1))
            q, k = kit.rotary(q, k, angles.cos(), angles.sin())
            branch = layer["out"]((kit.causal_softmax(q @ k.mT, size**-0.5) @ v).transpose(1, 2).flatten(2))
            x, stream = kit.add_rms_norm(layer["norm2"], branch, stream)
            branch = layer["down"](kit.swiglu(layer["gate"](x), layer["up"](x)))
        logits = self.head(kit.add_rms_norm(self.last, branch, stream)[0])
        return kit.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Attention and an MLP; norms stand before them (GPT-2, ViT) or behind (BERT). weights: scores -> what the values are summed by."""

    def __init__(self, kit: Any, size: int, count: int, approximate: str, first: bool) -> None:
        super().__init__()
        self.kit, self.count, self.approximate, self.first = kit, count, approximate, first
        self.norm1, self.norm2 = kit.layer_norm(size), kit.layer_norm(size)
        self.qkv, self.out, self.up, self.down = nn.Linear(size, 3 * size), nn.Linear(size, size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def attention(self, x: torch.Tensor, weights: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        q, k, v = (heads(part, self.count) for part in self.qkv(x).chunk(3, -1))
        return self.out((weights(q @ k.mT) @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.kit.gelu(self.up(x), approximate=self.approximate))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor, weights: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        if self.first:
            x = x + self.attention(self.norm1(x), weights)
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x, weights))
        return self.norm2(x + self.mlp(x))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    def __init__(self, kit: Any, size: int, count: int, tokens: int) -> None:
        super().__init__()
        self.kit, self.scale = kit, (size // count) ** -0.5
        self.table, self.places, self.last = nn.Embedding(tokens, size), nn.Embedding(64, size), kit.layer_norm(size)
        self.layers = nn.ModuleList(Encoder(kit, size, count, "tanh", True) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, lambda scores: self.kit.causal_softmax(scores, self.scale))
        logits = self.last(x) @ self.table.weight.T
        return self.kit.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())  # type: ignore[no-any-return]


class BERT(nn.Module):
    def __init__(self, kit: Any, size: int, count: int, tokens: int) -> None:
        super().__init__()
        self.kit, self.scale = kit, (size // count) ** -0.5
        self.table, self.norm, self.head = nn.Embedding(tokens, size), kit.layer_norm(size), nn.Linear(size, tokens)
        self.layers = nn.ModuleList(Encoder(kit, size, count, "none", False) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Tokens with the number 0 are filled up, and seen by none; a third of the others is to be guessed."""
        seen = (ids != 0)[:, None, None, :]
        x = self.kit.embedding_layer_norm(ids, self.table.weight, self.norm)
        for layer in self.layers:
            x = layer(x, lambda scores: self.kit.masked_softmax(scores, seen, self.scale))
        wanted = torch.where((ids % 3 == 1) & (ids != 0), ids, -100)
        return self.kit.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten(), label_smoothing=0.1)  # type: ignore[no-any-return]


class ViT(nn.Module):
    def __init__(self, kit: Any, size: int, count: int, tokens: int) -> None:
        super().__init__()
        self.kit, self.scale = kit, (size // count) ** -0.5
        self.patches, self.last, self.head = nn.Conv2d(3, size, 4, 4), kit.layer_norm(size), nn.Linear(size, tokens)
        self.layers = nn.ModuleList(Encoder(kit, size, count, "none", True) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Each row of numbers is made into an image of its own."""
        g = torch.Generator().manual_seed(int(ids.sum()))
        images = torch.randn(ids.shape[0], 3, 12, 8, generator=g, dtype=torch.float64).to(self.head.weight)
        x = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, lambda scores: self.kit.softmax(scores * self.scale, dim=-1))
        return self.kit.cross_entropy(self.head(self.last(x).mean(1)), ids[:, 0])  # type: ignore[no-any-return]


MODELS: dict[str, type[nn.Module]] = {"Llama": Llama, "GPT-2": GPT2, "BERT": BERT, "ViT": ViT}


def loss_and_gradients(model: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss and the gradient of every parameter by name."""
    model.zero_grad()
    loss = model(ids)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def both(name: str, size: int, count: int, tokens: int, ids: tuple[int, int], dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    """Return (loss, gradients) by weft in `dtype`, and by torch in float64 for the same weights."""
    torch.manual_seed(5)
    reference = MODELS[name](TORCH, size, count, tokens).to(device, dtype)
    ours = MODELS[name](WEFT, size, count, tokens).to(device, dtype)
    ours.load_state_dict(reference.state_dict())
    numbers = torch.randint(0, tokens, ids, generator=torch.Generator().manual_seed(6)).to(device)
    return loss_and_gradients(ours, numbers), loss_and_gradients(reference.double(), numbers)
