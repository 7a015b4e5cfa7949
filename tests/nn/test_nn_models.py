"""Whole models by weft's functions and modules: the loss and every gradient are those of eager torch in float64."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from nn_models import MODELS, both, loss_and_gradients

import weft


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient_in_float64(name: str) -> None:
    ours, theirs = both(name, 16, 2, 11, (2, 7), torch.float64, "cpu")
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-12, rtol=1e-12)
    assert set(ours[1]) == set(theirs[1]) and len(ours[1]) > 10
    for parameter, grad in theirs[1].items():
        torch.testing.assert_close(ours[1][parameter], grad, atol=1e-12, rtol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "share"), [(torch.float64, 1e-11), (torch.float32, 1e-3), (torch.bfloat16, 0.15)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient_on_a_gpu(name: str, dtype: torch.dtype, share: float) -> None:
    """share: of the largest element of a gradient, which is a sum over 8,000 tokens; products run in torch, in TF32 nowhere. bfloat16 has 2**-8 per rounding."""
    ours, theirs = both(name, 520, 4, 5003, (8, 61), dtype, "cuda")
    torch.testing.assert_close(ours[0].double(), theirs[0], atol=0, rtol=share)
    for parameter, grad in theirs[1].items():
        error = (ours[1][parameter].double() - grad).abs().max() / grad.abs().max()
        assert error < share, (parameter, float(error))


CONFIGURATIONS = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 211}),
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 211, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "BERT": ("BertConfig", "BertForMaskedLM", {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 211, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "ViT": ("ViTConfig", "ViTForImageClassification", {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8, "num_labels": 11, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
}  # fmt: skip
NAMES_OF_PATCHED = {"Llama": {"Hugging Face RMSNorm", "gated MLP", "loss of the next token"}, "GPT-2": {"LayerNorm", "loss of the next token"}, "BERT": {"LayerNorm"}, "ViT": {"LayerNorm"}}


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_patched_model_of_transformers(name: str, device: str) -> None:
    """Llama's norms and the losses of the next token are computed in float32 by transformers, in float64 by us."""
    import transformers

    config, kind, sizes = CONFIGURATIONS[name]
    torch.manual_seed(3)
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).to(device, torch.float64)
    g = torch.Generator().manual_seed(4)
    images, ids = torch.randn(3, 3, 32, 32, generator=g, dtype=torch.float64).to(device), torch.randint(0, 211, (2, 13), generator=g).to(device)
    given = {"pixel_values": images, "labels": ids[0, :3] % 11} if name == "ViT" else {"input_ids": ids, "labels": ids}

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, _: torch.Tensor) -> torch.Tensor:
            return self.model(**given).loss  # type: ignore[no-any-return]

    theirs = loss_and_gradients(Loss(), ids)
    with weft.patch(model) as done:
        assert NAMES_OF_PATCHED[name] <= set(done.swapped.values()), done
        ours = loss_and_gradients(Loss(), ids)
    torch.testing.assert_close(ours[0].double(), theirs[0].double(), atol=1e-6, rtol=1e-6)
    largest = max(float(grad.abs().max()) for grad in theirs[1].values())
    for parameter, grad in theirs[1].items():  # the gradient of a key's bias is nothing but rounding
        assert (ours[1][parameter] - grad).abs().max() <= 2e-6 * grad.abs().max() + 1e-12 * largest, parameter
    again = loss_and_gradients(Loss(), ids)
    assert torch.equal(again[0], theirs[0]), "what was patched is put back"
