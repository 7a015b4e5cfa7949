"""Train a small GPT on generated text with weft's norms, activations and loss: `python examples/train_gpt.py [steps]`.

The text is sentences of a small grammar, so the loss has a floor that a model can reach. On a machine without a GPU the kernels run in the emulator.
"""

from __future__ import annotations

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn

import weft.nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS = {"who": ["a cat", "the dog", "one bird"], "does": ["sees", "likes", "hears"], "what": ["rain", "the moon", "a song"]}


def generated_text(sentences: int, seed: int = 0) -> str:
    """Return sentences such as "the dog hears rain."."""
    pick = random.Random(seed)
    return " ".join(f"{pick.choice(WORDS['who'])} {pick.choice(WORDS['does'])} {pick.choice(WORDS['what'])}." for _ in range(sentences))


class Block(nn.Module):
    """Attention and a gated MLP, each behind an RMSNorm that adds the residual in the same kernel."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = weft.nn.RMSNorm(size, eps=1e-6), weft.nn.RMSNorm(size, eps=1e-6)
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.up, self.down = nn.Linear(size, 4 * size, bias=False), nn.Linear(2 * size, size, bias=False)
        self.gate = weft.nn.SwiGLU()

    def forward(self, branch: torch.Tensor, stream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (what is still to be added, the sum so far)."""
        x, stream = self.norm1(branch, stream)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x, stream = self.norm2(self.out(attended), stream)
        return self.down(self.gate(self.up(x))), stream


class GPT(nn.Module):
    """Token and position embeddings, blocks, a norm and a head."""

    def __init__(self, tokens: int, length: int, size: int = 32, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, size), nn.Embedding(length, size)
        self.blocks = nn.ModuleList(Block(size, heads) for _ in range(depth))
        self.norm, self.head = weft.nn.RMSNorm(size, eps=1e-6), nn.Linear(size, tokens, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits for the next token at each place."""
        branch = self.token(ids)
        stream = self.position(torch.arange(ids.shape[1], device=ids.device)).expand_as(branch)
        for block in self.blocks:
            branch, stream = block(branch, stream)
        logits: torch.Tensor = self.head(self.norm(branch, stream)[0])
        return logits


def main(steps: int = 40, length: int = 32, batch: int = 8) -> list[float]:
    """Train, and return the loss of each step."""
    torch.manual_seed(0)
    text = generated_text(500)
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(c) for c in text], device=DEVICE)
    model = GPT(len(alphabet), length).to(DEVICE)
    loss_of = weft.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        starts = torch.randint(len(data) - length - 1, (batch,))
        ids = torch.stack([data[s : s + length + 1] for s in starts.tolist()])
        logits = model(ids[:, :-1])
        loss = loss_of(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
