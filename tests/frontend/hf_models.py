"""24 Hugging Face configurations with random weights, two layers of width 64: nothing is downloaded. For `whole_models.py`.

A model is made by a function that returns (module that returns its loss, inputs of a batch and length).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn

Made = tuple[nn.Module, Callable[[int, int], dict[str, Any]]]
WORDS = 256
TEXT = {
    "vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 16, "use_cache": False,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
DEEPSEEK = {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_key_value_heads": 4,
}  # fmt: skip
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": WORDS, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32, "patch_size": 8}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
CONVNEXT = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 32, "patch_size": 4}
T5 = {"vocab_size": WORDS, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0, "pad_token_id": 0, "use_cache": False}
MAMBA = {"vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("Llama", "ForCausalLM", TEXT), "Qwen2": ("Qwen2", "ForCausalLM", TEXT), "Qwen3": ("Qwen3", "ForCausalLM", TEXT),
    "Mistral": ("Mistral", "ForCausalLM", TEXT), "Phi3": ("Phi3", "ForCausalLM", TEXT), "Gemma": ("Gemma", "ForCausalLM", TEXT),
    "Gemma2": ("Gemma2", "ForCausalLM", TEXT), "Gemma3": ("Gemma3Text", "Gemma3ForCausalLM", TEXT), "Olmo2": ("Olmo2", "ForCausalLM", TEXT),
    "Mixtral": ("Mixtral", "ForCausalLM", TEXT | EXPERTS), "Qwen3Moe": ("Qwen3Moe", "ForCausalLM", TEXT | EXPERTS), "GptOss": ("GptOss", "ForCausalLM", TEXT | EXPERTS),
    "DeepseekV3": ("DeepseekV3", "ForCausalLM", TEXT | DEEPSEEK), "GPT2": ("GPT2", "LMHeadModel", GPT2), "GPTNeoX": ("GPTNeoX", "ForCausalLM", TEXT),
    "Mamba": ("Mamba", "ForCausalLM", MAMBA), "Bert": ("Bert", "ForMaskedLM", TEXT), "Roberta": ("Roberta", "ForMaskedLM", TEXT | {"max_position_embeddings": 80}),
    "ModernBert": ("ModernBert", "ForMaskedLM", TEXT | {"cls_token_id": 1, "sep_token_id": 2, "reference_compile": False}),
    "T5": ("T5", "ForConditionalGeneration", T5), "ViT": ("ViT", "ForImageClassification", IMAGE), "Dinov2": ("Dinov2", "ForImageClassification", IMAGE),
    "Swin": ("Swin", "ForImageClassification", SWIN), "ConvNext": ("ConvNext", "ForImageClassification", CONVNEXT),
}  # fmt: skip
"""Name -> prefix of the configuration's class, the model's class (with or without that prefix), settings."""


class WithLoss(nn.Module):
    """A model that returns its loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.model(**inputs).loss


def _make(name: str) -> Made:
    import transformers

    transformers.logging.set_verbosity_error()
    prefix, kind, settings = CONFIGS[name]
    config = getattr(transformers, f"{prefix}Config")(**settings)
    for key in list(vars(config)):
        if ("drop" in key or key.endswith("_prob")) and isinstance(getattr(config, key), float):
            setattr(config, key, 0.0)
    model = getattr(transformers, kind if kind.startswith(name) else f"{prefix}{kind}")(config)
    is_image = "image_size" in settings

    def inputs(batch: int, length: int) -> dict[str, Any]:
        if is_image:
            return {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": torch.randint(0, 2, (batch,))}
        tokens = torch.randint(3, WORDS, (batch, length))
        return {"input_ids": tokens, "labels": tokens}

    return WithLoss(model).train(), inputs


HF_MODELS: dict[str, Callable[[], Made]] = {name: (lambda name=name: _make(name)) for name in CONFIGS}  # type: ignore[misc]
"""Name -> function that makes a model."""

__all__ = ["HF_MODELS"]
