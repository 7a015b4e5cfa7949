"""Five models for `compile_models.py`: a Llama of 8 layers, GPT-2 medium, ViT-L, a block of a diffusion U-Net, a mixture of experts;
parts of a Llama of 7 billion parameters for `blocks7b.py`.

A model called with all its inputs returns its loss; without the last one, the target, it returns what it computes. `with_liger` puts Liger's modules into one.
Read first: `MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE, DTYPE = "cuda", torch.bfloat16


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


def rotated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Rotary(nn.Module):
    """Rotary embedding of queries and keys (batch, heads, tokens, width of a head); cos and sin: (tokens, width of a head)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return q * cos + rotated(q) * sin, k * cos + rotated(k) * sin


class SwiGLU(nn.Module):
    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up


class TokenLoss(nn.Module):
    """Cross entropy in float32 of logits (..., words)."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), target.view(-1))


def squares(out: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
    """The mean squared error where there is a target, else what the model computed."""
    return out if target is None else F.mse_loss(out.float(), target.float())


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2, self.rotary, self.activation = RMSNorm(width), RMSNorm(width), Rotary(), SwiGLU()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((width, hidden), (width, hidden), (hidden, width)))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q, k, cos, sin)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(attention)
        y = self.norm2(x)
        return x + self.down(self.activation(self.gate(y), self.up(y)))


class Llama(nn.Module):
    def __init__(self, width: int = 2048, heads: int = 16, hidden: int = 5632, layers: int = 8, words: int = 32000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, hidden) for _ in range(layers))
        self.norm, self.head, self.head_width, self.loss = RMSNorm(width), nn.Linear(width, words, bias=False), width // heads, TokenLoss()

    def forward(self, tokens: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(tokens)
        frequency = 10000 ** (-torch.arange(0, self.head_width, 2, device=tokens.device).float() / self.head_width)
        angle = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), frequency)
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x))
        return logits if target is None else self.loss(logits, target)


class Block7B(nn.Module):
    """One layer of a Llama of 7 billion parameters."""

    def __init__(self, width: int = 4096, heads: int = 32, hidden: int = 11008, length: int = 2048) -> None:
        super().__init__()
        self.layer = LlamaLayer(width, heads, hidden)
        frequency = 10000 ** (-torch.arange(0, width // heads, 2).float() / (width // heads))
        angle = torch.outer(torch.arange(length).float(), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        return squares(self.layer(x, self.cos[: x.shape[1]], self.sin[: x.shape[1]]), target)


class Head7B(nn.Module):
    """The last norm, the head and the loss of such a model."""

    def __init__(self, width: int = 4096, words: int = 32000) -> None:
        super().__init__()
        self.norm, self.head, self.loss = RMSNorm(width), nn.Linear(width, words, bias=False), TokenLoss()

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.head(self.norm(x))
        return logits if target is None else self.loss(logits, target)


class GPTLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.drop, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.1), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, -1))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.drop(self.out(attention))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class GPT(nn.Module):
    """GPT-2 medium; dropout 0.1 behind embeddings, attention and MLP, none inside attention; the head is the table of words."""

    def __init__(self, layers: int = 24, width: int = 1024, heads: int = 16, words: int = 50257, places: int = 1024) -> None:
        super().__init__()
        self.words, self.places, self.drop = nn.Embedding(words, width), nn.Embedding(places, width), nn.Dropout(0.1)
        self.layers = nn.Sequential(*[GPTLayer(width, heads) for _ in range(layers)])
        self.norm, self.loss = nn.LayerNorm(width), TokenLoss()
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        x = self.drop(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        logits = F.linear(self.norm(self.layers(x)), self.words.weight)
        return logits if target is None else self.loss(logits, target)


class ViTLayer(nn.Module):
    """Attention over all tokens, GELU with erf."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 16, width // 16).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """ViT-L/16: images of 224 x 224, a class token, 1000 classes."""

    def __init__(self, layers: int = 24, width: int = 1024) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers, self.norm, self.head = nn.Sequential(*[ViTLayer(width) for _ in range(layers)]), nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 1000)
        self.loss = TokenLoss()

    def forward(self, images: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.position
        logits = self.head(self.norm(self.layers(x))[:, 0])
        return logits if target is None else self.loss(logits, target)


class UNet(nn.Module):
    """Two residual blocks with group norm and a change by the time step, as in diffusion models."""

    def __init__(self, channels: int = 320) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4))
        self.times = nn.ModuleList(nn.Linear(1280, 2 * channels) for _ in range(2))

    def forward(self, x: torch.Tensor, time: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        for block in range(2):
            y = self.convs[2 * block](F.silu(self.norms[2 * block](x)))
            scale, shift = self.times[block](F.silu(time))[:, :, None, None].chunk(2, 1)
            x = x + self.convs[2 * block + 1](F.silu(self.norms[2 * block + 1](y) * (1 + scale) + shift))
        return squares(x, target)


class MoELayer(nn.Module):
    """Top 2 of 8 experts: every expert gets the tokens with the largest shares of it, up to a capacity."""

    def __init__(self, width: int, hidden: int, experts: int = 8) -> None:
        super().__init__()
        self.norm, self.router, self.activation = RMSNorm(width), nn.Linear(width, experts, bias=False), SwiGLU()
        self.up = nn.Parameter(torch.randn(experts, width, 2 * hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.experts = experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.norm(x).view(-1, x.shape[-1])
        weight, chosen = torch.softmax(self.router(flat).float(), -1).topk(2, -1)
        share = torch.zeros(flat.shape[0], self.experts, device=x.device).scatter(1, chosen, weight / weight.sum(-1, keepdim=True))
        share, token = share.t().topk(flat.shape[0] // 4, -1)
        gate, up = torch.bmm(flat[token], self.up).chunk(2, -1)
        y = torch.bmm(self.activation(gate, up), self.down) * share.unsqueeze(-1).to(x.dtype)
        return x + torch.zeros_like(flat).index_add(0, token.flatten(), y.flatten(0, 1)).view(x.shape)


class MoE(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[MoELayer(2048, 1408) for _ in range(layers)])

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        return squares(self.layers(x), target)


def _tokens(batch: int, length: int, words: int) -> tuple[torch.Tensor, ...]:
    tokens = torch.randint(0, words, (batch, length), device=DEVICE)
    return tokens, tokens.roll(1, 1)


def _normal(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, device=DEVICE, dtype=DTYPE)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "llama": (Llama, lambda: _tokens(4, 2048, 32000)),
    "gpt": (GPT, lambda: _tokens(8, 1024, 50257)),
    "vit": (ViT, lambda: (_normal(64, 3, 224, 224), torch.randint(0, 1000, (64,), device=DEVICE))),
    "unet": (UNet, lambda: (_normal(16, 320, 64, 64), _normal(16, 1280), _normal(16, 320, 64, 64))),
    "moe": (MoE, lambda: (_normal(4, 2048, 2048), _normal(4, 2048, 2048))),
}
"""Name -> what makes the model, what makes its inputs; the last input is the target."""

BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "block7b": (Block7B, lambda: (_normal(4, 2048, 4096), _normal(4, 2048, 4096))),
    "block7b, batch 1": (Block7B, lambda: (_normal(1, 2048, 4096), _normal(1, 2048, 4096))),
    "head7b": (Head7B, lambda: (_normal(4, 2048, 4096), torch.randint(0, 32000, (4, 2048), device=DEVICE))),
}
"""The same for `blocks7b.py`."""


def made(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a model with its inputs, the same in each call."""
    torch.manual_seed(0)
    make_model, make_inputs = (MODELS | BLOCKS)[name]
    with torch.device(DEVICE):
        model = make_model().to(DTYPE)
    return model, make_inputs()


class _Calls(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor | tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return self.function(*inputs)


def with_liger(model: nn.Module) -> nn.Module:
    """Replace norms, SwiGLU, rotary embeddings and the loss over words by Liger's, with the same parameters."""
    from liger_kernel.ops import LigerSiLUMulFunction
    from liger_kernel.transformers import LigerCrossEntropyLoss, LigerLayerNorm, LigerRMSNorm, liger_rotary_pos_emb
    from liger_kernel.transformers.group_norm import LigerGroupNorm

    loss = LigerCrossEntropyLoss()

    def instead(module: nn.Module) -> nn.Module | None:
        new: nn.Module | None = None
        if isinstance(module, RMSNorm):
            new = LigerRMSNorm(module.weight.numel(), 1e-6)
        elif isinstance(module, nn.LayerNorm):
            new = LigerLayerNorm(module.weight.numel(), module.eps)
        elif isinstance(module, nn.GroupNorm):
            new = LigerGroupNorm(module.num_channels, module.num_groups, module.eps)
        elif isinstance(module, SwiGLU):
            return _Calls(LigerSiLUMulFunction.apply)
        elif isinstance(module, Rotary):
            return _Calls(lambda q, k, cos, sin: liger_rotary_pos_emb(q, k, cos[None], sin[None]))
        elif isinstance(module, TokenLoss):
            return _Calls(lambda logits, target: loss(logits.view(-1, logits.shape[-1]), target.view(-1)))
        if new is not None:
            for key, parameter in module.named_parameters():
                setattr(new, key, parameter)
        return new

    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            new = instead(child)
            if new is not None:
                setattr(parent, key, new)
    return model


__all__ = ["BLOCKS", "MODELS", "GPT", "Llama", "MoE", "UNet", "ViT", "made", "with_liger"]
