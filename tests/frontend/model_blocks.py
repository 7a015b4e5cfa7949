"""Nine small blocks for `whole_models.py`: width 64, each with a loss. A block is made by a function that returns (module, inputs of a batch and length).

Dropout has the probability 0, so that values can be compared with eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

Made = tuple[nn.Module, Callable[[int, int], dict[str, Any]]]
WIDTH, HEADS = 64, 4


def _tokens(batch: int, length: int) -> dict[str, Any]:
    return {"x": torch.randn(batch, length, WIDTH)}


def _image(batch: int, length: int) -> dict[str, Any]:
    return {"x": torch.randn(batch, 16, length // 2, length // 2)}


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)


def _joined(x: torch.Tensor) -> torch.Tensor:
    x = x.transpose(1, 2)
    return x.reshape(*x.shape[:2], WIDTH)


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(WIDTH, 176, bias=False), nn.Linear(WIDTH, 176, bias=False), nn.Linear(176, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = _heads(self.q(y)), _heads(self.k(y)), _heads(self.v(y))
        d = WIDTH // HEADS
        angle = torch.outer(torch.arange(x.shape[1], device=x.device).to(x.dtype), 10000 ** (-torch.arange(0, d, 2, device=x.device).to(x.dtype) / d))
        cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()

        def rotated(t: torch.Tensor) -> torch.Tensor:
            a, b = t.chunk(2, -1)
            return t * cos + torch.cat((-b, a), -1) * sin

        x = x + self.out(_joined(F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)))
        y = self.norm2(x)
        return (x + self.down(F.silu(self.gate(y)) * self.up(y))).square().mean()


class GPT2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.drop = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.0)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (_heads(t) for t in self.qkv(self.norm1(x)).split(WIDTH, -1))
        score = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        share = self.drop(torch.softmax(score.masked_fill(~mask, float("-inf")), -1))
        x = x + self.drop(self.out(_joined(share @ v)))
        return (x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))).square().mean()


class ViTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.patch, self.token = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), self.patch(x)), 1)
        return self.norm(self.layer(x))[:, 0].square().mean()


class UNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.film = nn.Linear(WIDTH, 32)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        scale, shift = self.film(F.silu(time))[:, :, None, None].chunk(2, 1)
        y = self.conv1(F.silu(self.norm1(x)))
        y = x + self.conv2(F.silu(self.norm2(y) * (1 + scale) + shift))
        return F.interpolate(y, scale_factor=2.0, mode="nearest").square().mean()


class ResNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y))).square().mean()


class MoE(nn.Module):
    """Top 2 of 4 experts, each computed for all tokens and weighted by its share."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, WIDTH, 128) / 8), nn.Parameter(torch.randn(4, 64, WIDTH) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, WIDTH)
        weight, chosen = torch.softmax(self.router(x), -1).topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        share = torch.zeros(x.shape[0], 4, device=x.device, dtype=x.dtype).scatter(1, chosen, weight)
        gate, up = torch.bmm(x.expand(4, -1, -1), self.up).chunk(2, -1)
        y = torch.bmm(F.silu(gate) * up, self.down)
        return (y * share.t().unsqueeze(-1)).sum(0).square().mean()


class LMHead(nn.Module):
    """Norm, logits with a soft cap, cross entropy with smoothing, and the square of the normalizer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, 97, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(x)).flatten(0, 1)
        logits = 30 * torch.tanh(logits / 30)
        loss = F.cross_entropy(logits, target.flatten(), label_smoothing=0.1, ignore_index=3)
        return loss + 1e-2 * torch.logsumexp(logits, -1).square().mean()


class AdaLN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.change, self.up, self.down = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.change(F.silu(time)).unsqueeze(1).chunk(3, -1)
        y = self.norm(x) * (1 + scale) + shift
        return (x + gate * self.down(F.gelu(self.up(y), approximate="tanh"))).square().mean()


class Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x), self.b(x)
        p = torch.sigmoid(b)
        return (
            F.mse_loss(a, b) + F.l1_loss(a, b) + F.smooth_l1_loss(a, b) + F.huber_loss(a, b, delta=0.5) + F.binary_cross_entropy_with_logits(a, p)
            + F.kl_div(torch.log_softmax(a, -1), torch.softmax(b, -1), reduction="batchmean") + F.soft_margin_loss(a, torch.sign(x)) + F.poisson_nll_loss(a, p)
        )  # fmt: skip


def _made(module: Callable[[], nn.Module], inputs: Callable[[int, int], dict[str, Any]]) -> Callable[[], Made]:
    return lambda: (module(), inputs)


BLOCKS: dict[str, Callable[[], Made]] = {
    "llama block": _made(LlamaBlock, _tokens),
    "gpt2 block": _made(GPT2Block, _tokens),
    "vit block": _made(ViTBlock, _tokens),
    "unet block": _made(UNetBlock, lambda n, s: {**_image(n, s), "time": torch.randn(n, WIDTH)}),
    "resnet block": _made(ResNetBlock, _image),
    "mixture of experts": _made(MoE, _tokens),
    "lm head": _made(LMHead, lambda n, s: {**_tokens(n, s), "target": torch.randint(0, 97, (n, s))}),
    "adaln": _made(AdaLN, lambda n, s: {**_tokens(n, s), "time": torch.randn(n, WIDTH)}),
    "losses": _made(Losses, _tokens),
}
"""Name -> function that makes a block."""

__all__ = ["BLOCKS"]
