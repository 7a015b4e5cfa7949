"""The whole training step of a Hugging Face Llama, as it is, patched by weft, by Liger, and compiled: time, loss and peak memory.

    python bench/patched_llama.py [OUT.json] [--layers 4] [--hidden 2048] [--batch 4] [--tokens 1024] [--only NAMES]

Random weights in bfloat16, AdamW with one fused kernel; nothing is downloaded. Each contender has a new model with the same weights.
Needs a GPU and transformers.
Owns the measurement. Read first: `contenders`.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import weft
from weft.frontend.backend import backend


def a_llama(given: argparse.Namespace) -> nn.Module:
    """Return a LlamaForCausalLM with random weights that are the same in each call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = given.hidden // 64
    config = LlamaConfig(
        hidden_size=given.hidden, intermediate_size=4 * given.hidden, num_hidden_layers=given.layers, num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4), vocab_size=given.vocab, max_position_embeddings=given.tokens, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model: nn.Module = LlamaForCausalLM(config)
    return model.to(torch.bfloat16)


def _liger(model: nn.Module, fused: bool) -> nn.Module:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(model=model, fused_linear_cross_entropy=fused, cross_entropy=not fused)
    return model


def _quack(model: nn.Module, in_place: bool = False) -> nn.Module:
    """Put quack's RMS norm and cross entropy in: it has no patch of its own, and no gated unit apart from its products.

    in_place: the gradient of the logits is written over them, an option of quack's.
    """
    import quack

    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = functools.partial(_quack_norm, quack.rmsnorm, module)  # type: ignore[method-assign]

    def loss(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **more: Any) -> torch.Tensor:
        """The mean over the next tokens, in the type of the logits; transformers casts them to float32 first."""
        targets = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        found: torch.Tensor = quack.cross_entropy(logits.view(-1, vocab_size), targets.view(-1), inplace_backward=in_place)
        return found

    model.loss_function = loss  # type: ignore[assignment]
    return model


def _quack_norm(norm: Callable[..., torch.Tensor], module: Any, x: torch.Tensor) -> torch.Tensor:
    return norm(x, module.weight, eps=module.variance_epsilon)


def contenders() -> dict[str, Callable[[nn.Module], Any]]:
    """Return what is done to the model. Liger's come last: they patch classes, too, for all models made later."""

    def patched(model: nn.Module) -> nn.Module:
        print(weft.patch(model), flush=True)
        return model

    return {
        "eager": lambda model: model, "weft": patched, "torch.compile": torch.compile, "weft, torch.compile": lambda model: torch.compile(patched(model)),
        'torch.compile(backend="weft")': lambda model: torch.compile(model, backend=backend), "quack": _quack,
        "quack, logits written over": lambda model: _quack(model, True),
        "liger": lambda model: _liger(model, True), "liger, logits kept": lambda model: _liger(model, False),
    }  # fmt: skip


def measured(model: Any, given: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds of the median step, host time included, MiB at the peak, the first loss, and seconds until the first step is done."""
    ids = torch.randint(0, given.vocab, (given.batch, given.tokens), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
        torch.autograd.backward([loss])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    start = time.perf_counter()
    first = float(step())
    torch.cuda.synchronize()
    first_s = time.perf_counter() - start
    for _ in range(4):
        step()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(12):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms": sorted(times)[len(times) // 2], "peak_mib": torch.cuda.max_memory_allocated() / 2**20, "loss": first, "first_step_s": first_s}


def main() -> None:
    """Measure each contender, print and write what comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    for name, default in (("layers", 4), ("hidden", 2048), ("batch", 4), ("tokens", 1024), ("vocab", 128256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", help="names, separated by semicolons")
    given = parser.parse_args()
    results: dict[str, Any] = {"chip": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__}
    results["command"] = " ".join(sys.argv)
    for name, change in contenders().items():
        if given.only and name not in given.only.split(";"):
            continue
        try:
            results[name] = measured(change(a_llama(given)), given)
        except Exception as error:  # noqa: BLE001  (another library's failure is a result)
            results[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(name, json.dumps(results[name]), flush=True)
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()
        if given.out:
            with open(given.out, "w", encoding="utf-8") as out:
                json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
