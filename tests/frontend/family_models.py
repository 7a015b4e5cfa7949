"""Families of language, vision-language, audio and diffusion models beyond `hf_models.py`, with random weights, two layers of width 64. For `whole_models.py --families`.

Owns the configurations; nothing is downloaded. Needs the packages transformers and diffusers. Read first: `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
from hf_models import DEEPSEEK, EXPERTS, MAMBA, TEXT, WORDS, Made

Inputs = Callable[[int, int], dict[str, Any]]
NARROW = {k: v for k, v in TEXT.items() if k not in ("head_dim", "num_key_value_heads")}
BART = {
    "vocab_size": WORDS, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
}  # fmt: skip
WAVE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "conv_dim": (32, 32), "conv_stride": (5, 4), "conv_kernel": (10, 8),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "vocab_size": 32, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0,
    "apply_spec_augment": False,
}  # fmt: skip
VISION = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32, "patch_size": 8}
CLIP_TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA3N = {
    "vocab_size_per_layer_input": WORDS, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0, "laurel_rank": 8, "altup_num_inputs": 2,
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "intermediate_size": [128, 128], "activation_sparsity_pattern": [0.95, 0.0],
}  # fmt: skip
GRANITE = {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 4.0, "attention_multiplier": 0.25}
HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8, "mamba_expand": 2}
NEXT = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "shared_expert_intermediate_size": 64,
    "layer_types": ["linear_attention", "full_attention"], "partial_rotary_factor": 0.5,
}  # fmt: skip


class WithTotal(nn.Module):
    """A model that returns its loss; without one, the mean square of its first result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> torch.Tensor:
        out = self.model(**inputs)
        loss = getattr(out, "loss", None)
        if loss is not None:
            return loss.mean()
        first = next(t for t in (out if isinstance(out, tuple) else out.to_tuple()) if isinstance(t, torch.Tensor) and t.requires_grad)
        return first.float().square().mean()


def words(batch: int, length: int) -> dict[str, Any]:
    tokens = torch.randint(3, WORDS, (batch, length))
    return {"input_ids": tokens, "labels": tokens}


def plain_words(batch: int, length: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, WORDS, (batch, length))}


def masked_words(batch: int, length: int) -> dict[str, Any]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -3:] = 0
    return {**words(batch, length), "attention_mask": mask}


def images(batch: int, length: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def pairs(batch: int, length: int) -> dict[str, Any]:
    return {**plain_words(batch, length), "pixel_values": torch.randn(batch, 3, 32, 32), "return_loss": True}


def sounds(batch: int, length: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 40 * length)}


def spectra(batch: int, length: int) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 16, 64), "labels": torch.randint(3, WORDS, (batch, length))}


def noisy(channels: int, **more: Any) -> Inputs:
    """Return a maker of inputs of a denoiser of 16 x 16 images: sample, time, and the given ones, (sizes after the batch) or a tensor."""

    def inputs(batch: int, length: int) -> dict[str, Any]:
        rest = {k: torch.randn(batch, *(length if n == 0 else n for n in v)) if isinstance(v, tuple) else v for k, v in more.items()}
        return {**rest, "timestep": torch.arange(batch) * 7 + 1} | ({"sample": torch.randn(batch, channels, 16, 16)} if channels else {})

    return inputs


def hf(prefix: str, kind: str, inputs: Inputs = words, *, trains: bool = True, **settings: Any) -> Callable[[], Made]:
    """Return the maker of a model of transformers. kind: what follows the prefix in the name of its class, or the whole name after ":". trains: False for a
    model that draws random numbers in training.
    """

    def make() -> Made:
        import transformers

        transformers.logging.set_verbosity_error()
        config = getattr(transformers, f"{prefix}Config")(**settings)
        for part in (config, *(v for v in vars(config).values() if isinstance(v, transformers.PretrainedConfig))):
            for key in list(vars(part)):
                if ("drop" in key or key.endswith("_prob")) and isinstance(getattr(part, key), float):
                    setattr(part, key, 0.0)
        model = getattr(transformers, kind[1:] if kind.startswith(":") else prefix + kind)(config)
        return WithTotal(model).train(trains), inputs

    return make


def diffuser(name: str, inputs: Inputs, **settings: Any) -> Callable[[], Made]:
    """Return the maker of a model of diffusers."""

    def make() -> Made:
        import diffusers

        return WithTotal(getattr(diffusers, name)(**settings)).train(), inputs

    return make


def flux_inputs(batch: int, length: int) -> dict[str, Any]:
    ids = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1).reshape(16, 3)
    return {
        "hidden_states": torch.randn(batch, 16, 16), "encoder_hidden_states": torch.randn(batch, length, 32), "pooled_projections": torch.randn(batch, 32),
        "timestep": torch.linspace(0.1, 0.9, batch), "img_ids": ids, "txt_ids": torch.zeros(length, 3), "guidance": torch.ones(batch),
    }  # fmt: skip


def llava_inputs(batch: int, length: int) -> dict[str, Any]:
    tokens = torch.randint(3, WORDS - 1, (batch, length + 16))
    tokens[:, 2:18] = WORDS - 1
    return {"input_ids": tokens, "labels": tokens, "pixel_values": torch.randn(batch, 3, 32, 32)}


def qwen_vl_inputs(batch: int, length: int) -> dict[str, Any]:
    tokens = torch.randint(3, WORDS - 8, (batch, length + 4))
    tokens[:, 2] = WORDS - 2
    tokens[:, 3:7] = WORDS - 1
    return {
        "input_ids": tokens,
        "labels": tokens,
        "pixel_values": torch.randn(batch * 16, 3 * 2 * 8 * 8),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * batch),
        "mm_token_type_ids": (tokens == WORDS - 1).int(),
    }


def _vit_pair(text: str, vision: str, **more: Any) -> dict[str, Any]:
    return {"text_config": CLIP_TEXT | {"model_type": text}, "vision_config": VISION | {"model_type": vision}, **more}


UNET = {
    "sample_size": 16, "in_channels": 4, "out_channels": 4, "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32, "norm_num_groups": 8, "attention_head_dim": 8,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
}  # fmt: skip
DIT = {"num_attention_heads": 4, "attention_head_dim": 16, "in_channels": 4, "num_layers": 2, "sample_size": 16, "patch_size": 2}

FAMILIES: dict[str, Callable[[], Made]] = {
    "Gemma3n": hf("Gemma3nText", ":Gemma3nForCausalLM", **(TEXT | GEMMA3N)),
    "Phi": hf("Phi", "ForCausalLM", **TEXT), "Phimoe": hf("Phimoe", "ForCausalLM", trains=False, **(TEXT | EXPERTS)),
    "Olmo": hf("Olmo", "ForCausalLM", **TEXT), "Olmo3": hf("Olmo3", "ForCausalLM", **(TEXT | {"sliding_window": 8})), "Olmoe": hf("Olmoe", "ForCausalLM", **(TEXT | EXPERTS)),
    "Cohere": hf("Cohere", "ForCausalLM", **TEXT), "Cohere2": hf("Cohere2", "ForCausalLM", **(TEXT | {"sliding_window": 8})),
    "Glm": hf("Glm", "ForCausalLM", **TEXT), "Glm4": hf("Glm4", "ForCausalLM", **TEXT), "Glm4Moe": hf("Glm4Moe", "ForCausalLM", **(TEXT | EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1})),
    "Starcoder2": hf("Starcoder2", "ForCausalLM", **TEXT), "StableLm": hf("StableLm", "ForCausalLM", **(TEXT | {"qk_layernorm": True})), "Persimmon": hf("Persimmon", "ForCausalLM", **NARROW),
    "Falcon": hf("Falcon", "ForCausalLM", **(NARROW | {"new_decoder_architecture": False, "parallel_attn": True})),
    "FalconAlibi": hf("Falcon", "ForCausalLM", masked_words, **(NARROW | {"alibi": True, "multi_query": False, "parallel_attn": False})),
    "Bloom": hf("Bloom", "ForCausalLM", vocab_size=WORDS, hidden_size=64, n_layer=2, n_head=4, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "Mpt": hf("Mpt", "ForCausalLM", vocab_size=WORDS, d_model=64, n_layers=2, n_heads=4, expansion_ratio=2, max_seq_len=64, use_cache=False),
    "GPTJ": hf("GPTJ", "ForCausalLM", vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=64, use_cache=False, bos_token_id=1, eos_token_id=2),
    "GPTNeo": hf("GPTNeo", "ForCausalLM", vocab_size=WORDS, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8, max_position_embeddings=64, use_cache=False, bos_token_id=1, eos_token_id=2),
    "GPTBigCode": hf("GPTBigCode", "ForCausalLM", vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=64, use_cache=False, bos_token_id=1, eos_token_id=2),
    "CodeGen": hf("CodeGen", "ForCausalLM", vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=64, n_ctx=64, use_cache=False, bos_token_id=1, eos_token_id=2),
    "OPT": hf("OPT", "ForCausalLM", masked_words, **(NARROW | {"ffn_dim": 128, "word_embed_proj_dim": 64})),
    "DebertaV2": hf("DebertaV2", "ForMaskedLM", masked_words, **(NARROW | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True, "conv_kernel_size": 3})),
    "Albert": hf("Albert", "ForMaskedLM", **(NARROW | {"embedding_size": 32})), "Electra": hf("Electra", "ForMaskedLM", **(NARROW | {"embedding_size": 32})),
    "MPNet": hf("MPNet", "ForMaskedLM", **(NARROW | {"max_position_embeddings": 80})), "NomicBert": hf("NomicBert", "ForMaskedLM", **NARROW),
    "FNet": hf("FNet", "ForMaskedLM", **NARROW), "RoFormer": hf("RoFormer", "ForMaskedLM", **(NARROW | {"embedding_size": 64})),
    "Longformer": hf("Longformer", "ForMaskedLM", masked_words, **(NARROW | {"attention_window": [8, 8], "max_position_embeddings": 80})),
    "BigBird": hf("BigBird", "ForMaskedLM", **(NARROW | {"attention_type": "original_full"})), "XLNet": hf("XLNet", "LMHeadModel", vocab_size=WORDS, d_model=64, n_layer=2, n_head=4, d_inner=128),
    "UMT5": hf("UMT5", "ForConditionalGeneration", vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0, use_cache=False, feed_forward_proj="gated-gelu"),
    "Bart": hf("Bart", "ForConditionalGeneration", **BART), "Pegasus": hf("Pegasus", "ForConditionalGeneration", **BART), "MBart": hf("MBart", "ForConditionalGeneration", **BART),
    "M2M100": hf("M2M100", "ForConditionalGeneration", **BART), "LongT5": hf("LongT5", "ForConditionalGeneration", vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0, use_cache=False, local_radius=7),
    "Whisper": hf("Whisper", "ForConditionalGeneration", spectra, **(BART | {"num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 64})),
    "Wav2Vec2": hf("Wav2Vec2", "Model", sounds, **WAVE), "Wav2Vec2Stable": hf("Wav2Vec2", "Model", sounds, **(WAVE | {"do_stable_layer_norm": True, "feat_extract_norm": "layer"})),
    "Hubert": hf("Hubert", "Model", sounds, **WAVE), "WavLM": hf("WavLM", "Model", sounds, **(WAVE | {"num_buckets": 16})), "Wav2Vec2Bert": hf("Wav2Vec2Bert", "Model", lambda b, n: {"input_features": torch.randn(b, n, 160)}, **(WAVE | {"feature_projection_input_dim": 160})),
    "Wav2Vec2Conformer": hf("Wav2Vec2Conformer", "Model", sounds, **(WAVE | {"position_embeddings_type": "relative", "conv_depthwise_kernel_size": 7})),
    "SeamlessM4T": hf("SeamlessM4Tv2", ":SeamlessM4Tv2ForTextToText", vocab_size=WORDS, hidden_size=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64, use_cache=False, decoder_start_token_id=3),
    "AST": hf("AST", "Model", lambda b, n: {"input_values": torch.randn(b, 64, 32)}, **(NARROW | {"max_length": 64, "num_mel_bins": 32, "patch_size": 8, "frequency_stride": 8, "time_stride": 8})),
    "Encodec": hf("Encodec", "Model", lambda b, n: {"input_values": torch.randn(b, 1, 320)}, num_filters=4, upsampling_ratios=[4, 2], codebook_size=16, hidden_size=16, target_bandwidths=[24.0], num_residual_layers=1, num_lstm_layers=1),
    "Dac": hf("Dac", "Model", lambda b, n: {"input_values": torch.randn(b, 1, 256)}, encoder_hidden_size=8, downsampling_ratios=[2, 4], decoder_hidden_size=32, n_codebooks=2, codebook_size=16, codebook_dim=4),
    "Mimi": hf("Mimi", "Model", lambda b, n: {"input_values": torch.randn(b, 1, 384)}, num_filters=4, upsampling_ratios=[4, 2], codebook_size=16, hidden_size=32, vector_quantization_hidden_dimension=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=16, intermediate_size=64, num_quantizers=2, upsample_groups=32, codebook_dim=32, num_semantic_quantizers=1, frame_rate=1500, sampling_rate=24000),
    "Vits": hf("Vits", "Model", lambda b, n: {"input_ids": torch.randint(1, 30, (b, n))}, vocab_size=38, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64, noise_scale=0.0, noise_scale_duration=0.0),
    "CLIP": hf("CLIP", "Model", pairs, **_vit_pair("clip_text_model", "clip_vision_model", projection_dim=32)),
    "SigLIP": hf("Siglip", "Model", pairs, **_vit_pair("siglip_text_model", "siglip_vision_model")),
    "BLIP": hf("Blip", "Model", pairs, text_config=CLIP_TEXT | {"encoder_hidden_size": 64}, vision_config=VISION, projection_dim=32),
    "LLaVA": hf("Llava", "ForConditionalGeneration", llava_inputs, text_config=TEXT | {"model_type": "llama"}, vision_config=VISION | {"model_type": "clip_vision_model"}, image_token_index=WORDS - 1, image_token_id=WORDS - 1, vision_feature_layer=-1),
    "Qwen2VL": hf("Qwen2VL", "ForConditionalGeneration", qwen_vl_inputs, text_config=TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}, vision_config={"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2, "patch_size": 8}, image_token_id=WORDS - 1, vision_start_token_id=WORDS - 2, vision_end_token_id=WORDS - 3, video_token_id=WORDS - 4),
    "DETR": hf("TableTransformer", "Model", images, use_timm_backbone=False, backbone_config={"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "out_features": ["stage2"]}, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=10),
    "SAM": hf("SamVision", "Model", images, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, mlp_dim=128, image_size=32, patch_size=4, output_channels=32, window_size=4, global_attn_indexes=[1]),
    "Segformer": hf("Segformer", "Model", images, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]),
    "Mamba2": hf("Mamba2", "ForCausalLM", **(MAMBA | {"num_heads": 8, "head_dim": 16, "expand": 2, "n_groups": 1, "chunk_size": 8})),
    "RecurrentGemma": hf("RecurrentGemma", "ForCausalLM", **(TEXT | {"lru_width": 64, "block_types": ["recurrent", "attention"], "attention_window_size": 8})),
    "Rwkv": hf("Rwkv", "ForCausalLM", vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, attention_hidden_size=64, intermediate_size=128, context_length=64, use_cache=False),
    "Jamba": hf("Jamba", "ForCausalLM", **(TEXT | {"num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 8, "mamba_dt_rank": 8})),
    "Bamba": hf("Bamba", "ForCausalLM", **(TEXT | HYBRID | {"attn_layer_indices": [1]})), "Zamba2": hf("Zamba2", "ForCausalLM", **(NARROW | {"layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 8, "chunk_size": 8, "num_mem_blocks": 1, "adapter_rank": 8})),
    "FalconH1": hf("FalconH1", "ForCausalLM", **(TEXT | HYBRID | {"mamba_d_ssm": 128})), "Nemotron": hf("Nemotron", "ForCausalLM", **TEXT), "GraniteMoeHybrid": hf("GraniteMoeHybrid", "ForCausalLM", **(TEXT | GRANITE | EXPERTS | HYBRID | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 64})),
    "Llama4": hf("Llama4Text", ":Llama4ForCausalLM", **(TEXT | {"intermediate_size_mlp": 128, "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 8, "no_rope_layers": [1, 0]})),
    "GraniteMoe": hf("GraniteMoe", "ForCausalLM", **(TEXT | GRANITE | EXPERTS)), "Qwen3Next": hf("Qwen3Next", "ForCausalLM", **(TEXT | EXPERTS | NEXT)), "Ernie45Moe": hf("Ernie4_5_Moe", "ForCausalLM", **(TEXT | EXPERTS | {"moe_num_experts": 4, "moe_k": 2})),
    "DeepseekV2": hf("DeepseekV2", "ForCausalLM", **(TEXT | DEEPSEEK)), "MiniMax": hf("MiniMax", "ForCausalLM", **(TEXT | EXPERTS | {"block_size": 8, "layer_types": ["linear_attention", "full_attention"]})),
    "Lfm2": hf("Lfm2", "ForCausalLM", **(TEXT | {"layer_types": ["conv", "full_attention"]})), "SmolLM3": hf("SmolLM3", "ForCausalLM", **TEXT), "DiffLlama": hf("DiffLlama", "ForCausalLM", **TEXT), "BitNet": hf("BitNet", "ForCausalLM", **TEXT), "Dbrx": hf("Dbrx", "ForCausalLM", vocab_size=WORDS, d_model=64, n_heads=4, n_layers=2, max_seq_len=64, attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}, ffn_config={"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64}, use_cache=False),
    "UNet2DCondition": diffuser("UNet2DConditionModel", noisy(4, encoder_hidden_states=(0, 32)), **UNET), "UNet2D": diffuser("UNet2DModel", noisy(3), sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, attention_head_dim=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    "DiT": diffuser("DiTTransformer2DModel", lambda b, n: {"hidden_states": torch.randn(b, 4, 16, 16), "timestep": torch.arange(b), "class_labels": torch.arange(b)}, **(DIT | {"norm_num_groups": 4, "num_embeds_ada_norm": 10})),
    "PixArt": diffuser("PixArtTransformer2DModel", lambda b, n: {"hidden_states": torch.randn(b, 4, 16, 16), "timestep": torch.arange(b), "encoder_hidden_states": torch.randn(b, n, 32), "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}, **(DIT | {"out_channels": 8, "cross_attention_dim": 64, "caption_channels": 32, "use_additional_conditions": False, "norm_num_groups": 4})),
    "SD3": diffuser("SD3Transformer2DModel", lambda b, n: {"hidden_states": torch.randn(b, 4, 16, 16), "timestep": torch.arange(b) + 1, "encoder_hidden_states": torch.randn(b, n, 32), "pooled_projections": torch.randn(b, 32)}, **(DIT | {"joint_attention_dim": 32, "caption_projection_dim": 64, "pooled_projection_dim": 32, "out_channels": 4, "qk_norm": "rms_norm", "dual_attention_layers": (0,)})),
    "Flux": diffuser("FluxTransformer2DModel", flux_inputs, patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=4, joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=True, axes_dims_rope=(4, 6, 6)),
    "AutoencoderKL": diffuser("AutoencoderKL", lambda b, n: {"sample": torch.randn(b, 3, 32, 32)}, block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8),
    "VQModel": diffuser("VQModel", lambda b, n: {"sample": torch.randn(b, 3, 32, 32)}, block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, num_vq_embeddings=16, latent_channels=3),
    "Wan": diffuser("WanTransformer3DModel", lambda b, n: {"hidden_states": torch.randn(b, 4, 2, 8, 8), "timestep": torch.arange(b) + 1, "encoder_hidden_states": torch.randn(b, n, 32)}, num_attention_heads=4, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=32, freq_dim=32, ffn_dim=128, num_layers=2),
    "CogVideoX": diffuser("CogVideoXTransformer3DModel", lambda b, n: {"hidden_states": torch.randn(b, 2, 4, 8, 8), "timestep": torch.arange(b) + 1, "encoder_hidden_states": torch.randn(b, 16, 32)}, num_attention_heads=4, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=32, text_embed_dim=32, num_layers=2, sample_width=8, sample_height=8, sample_frames=5, max_text_seq_length=16),
    "Sana": diffuser("SanaTransformer2DModel", lambda b, n: {"hidden_states": torch.randn(b, 4, 8, 8), "timestep": torch.arange(b) + 1, "encoder_hidden_states": torch.randn(b, n, 32)}, in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=16, num_layers=2, num_cross_attention_heads=4, cross_attention_head_dim=16, cross_attention_dim=64, caption_channels=32, sample_size=8),
}  # fmt: skip
"""Name -> function that makes a model and its inputs of a batch and a length."""

__all__ = ["FAMILIES"]
