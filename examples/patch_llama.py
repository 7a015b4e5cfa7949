"""Let weft compute the norms, gated MLPs and activations of a Llama from Hugging Face, and put everything back: `python examples/patch_llama.py`.

With transformers installed it is a LlamaForCausalLM with random weights (nothing is downloaded); without, a model of the same structure.
"""

from __future__ import annotations

import torch
from torch import nn

import weft

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class LlamaRMSNorm(nn.Module):
    """Hugging Face's, in its words."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class LlamaMLP(nn.Module):
    """Hugging Face's, in its words."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return out


class Stand(nn.Module):
    """A model of Llama's structure for machines without transformers."""

    def __init__(self, size: int = 32, tokens: int = 100) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(tokens, size), nn.Linear(size, tokens)
        self.layers = nn.ModuleList(nn.Sequential(LlamaRMSNorm(size), LlamaMLP(size)) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


def a_model() -> nn.Module:
    """Return a Llama with random weights."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return Stand()
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=100)
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes))
    return model


def main() -> float:
    """Patch, compare logits and a gradient with the model as it was, put it back; return the largest difference of the logits."""
    torch.manual_seed(0)
    model = a_model().to(DEVICE).eval()
    ids = torch.randint(0, 100, (2, 16), device=DEVICE)

    def logits() -> torch.Tensor:
        out = model(ids)
        found: torch.Tensor = getattr(out, "logits", out)
        return found

    before = logits()
    with weft.patch(model) as done:
        print(done)
        for name, kind in list(done.swapped.items())[:4]:
            print(f"    {name}: {kind}")
        after = logits()
        torch.autograd.backward([after.float().square().mean()])  # through weft's backward
    difference = float((after - before).detach().abs().max())
    print(f"largest difference of the logits: {difference:.2g}; gradients: {sum(p.grad is not None for p in model.parameters())} parameters")
    assert torch.equal(logits(), before), "undo puts back what was there"
    return difference


if __name__ == "__main__":
    main()
