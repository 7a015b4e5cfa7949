"""Architectures of timm with random weights, few blocks and small images: nothing is downloaded. For `whole_models.py`.

A model is made by a function that returns (module that returns its loss, inputs of a batch and length).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

Made = tuple[nn.Module, Callable[[int, int], dict[str, Any]]]
CLASSES = 10
ONE, SHORT = {"depths": (1, 1, 1, 1)}, {"depth": 2}
TOKENS = {"embed_dim": 64, "depth": 2, "num_heads": 4}
SMALL = {"depths": (1, 1), "embed_dim": 32, "num_heads": (2, 4)}

CONFIGS: dict[str, tuple[str, int, dict[str, Any]]] = {
    # convolutions
    "EfficientNet": ("test_efficientnet", 64, {}), "EfficientNetGN": ("test_efficientnet_gn", 64, {}), "EfficientNetEvo": ("test_efficientnet_evos", 64, {}),
    "MobileNetV3": ("mobilenetv3_small_050", 64, {}), "MobileNetV4": ("mobilenetv4_conv_small_035", 64, {}), "MobileNetV4Hybrid": ("mobilenetv4_hybrid_medium", 64, {}),
    "TinyNet": ("tinynet_e", 64, {}), "RegNet": ("regnety_002", 64, {}), "RegNetZ": ("regnetz_005", 64, {}), "ResNet": ("test_resnet", 64, {}), "ResNeXt": ("resnext50_32x4d", 64, {"layers": (1, 1, 1, 1)}),
    "SEResNet": ("seresnet18", 64, {"layers": (1, 1, 1, 1)}), "ECAResNet": ("ecaresnet26t", 64, {"layers": (1, 1, 1, 1)}), "CBAM": ("resnet18", 64, {"layers": (1, 1, 1, 1), "block_args": {"attn_layer": "cbam"}}),
    "GCResNet": ("gcresnext26ts", 64, {}), "BAT": ("bat_resnext26ts", 256, {}), "ResNetBlur": ("resnetblur18", 64, {"layers": (1, 1, 1, 1)}), "ResNetV2": ("resnetv2_18", 64, {"layers": (1, 1, 1, 1)}),
    "BiT": ("resnetv2_50x1_bit", 64, {}), "ResNeSt": ("resnest14d", 64, {}), "SKNet": ("skresnet18", 64, {}), "Res2Net": ("res2net50_14w_8s", 64, {"layers": (1, 1, 1, 1)}),
    "NFNet": ("test_nfnet", 64, {}), "NFECA": ("eca_nfnet_l0", 64, {}), "DenseNet": ("densenet121", 64, {"block_config": (2, 2, 2, 2)}), "DPN": ("dpn48b", 64, {}), "DLA": ("dla46_c", 64, {}),
    "InceptionV3": ("inception_v3", 96, {}), "InceptionV4": ("inception_v4", 96, {}), "Xception": ("xception41", 64, {}), "HRNet": ("hrnet_w18_small", 64, {}), "GhostNet": ("ghostnet_050", 64, {}),
    "GhostNetV2": ("ghostnetv2_100", 64, {}), "RepGhost": ("repghostnet_050", 64, {}), "RepVGG": ("repvgg_a0", 64, {}), "MobileOne": ("mobileone_s0", 64, {}), "RepViT": ("repvit_m0_9", 64, {}),
    "ReXNet": ("rexnet_100", 64, {}), "SelecSLS": ("selecsls42", 64, {}), "TResNet": ("tresnet_m", 64, {}), "VoVNet": ("ese_vovnet19b_slim_dw", 64, {}), "CSPNet": ("cs3darknet_focus_s", 64, {}), "HGNet": ("hgnetv2_b0", 64, {}),
    "StarNet": ("starnet_s050", 64, {}), "FasterNet": ("fasternet_t0", 64, {}), "LCNet": ("lcnet_035", 64, {}), "FBNet": ("fbnetv3_b", 64, {}),
    "ConvNeXt": ("test_convnext", 64, {}), "ConvNeXtV2": ("convnextv2_atto", 64, ONE), "ConvNeXtRMS": ("convnext_atto_rms", 64, ONE), "InceptionNeXt": ("inception_next_atto", 64, ONE),
    "RDNet": ("rdnet_tiny", 64, {}), "MambaOut": ("mambaout_femto", 64, {"depths": (1, 1, 1, 1)}), "FocalNet": ("focalnet_tiny_srf", 64, {}), "CSATv2": ("csatv2", 64, {}),
    # both
    "MaxViT": ("maxvit_rmlp_pico_rw_256", 64, {"img_size": 64}), "MaxViT2": ("maxvit_tiny_tf_224", 64, {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": (32, 32, 64, 64), "stem_width": 16}),
    "CoAtNet": ("coatnet_0_rw_224", 64, {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": (32, 32, 64, 64)}), "CoAtNetRMLP": ("coatnet_rmlp_nano_rw_224", 64, {"img_size": 64}),
    "BoTNet": ("botnet26t_256", 64, {"img_size": 64}), "LambdaNet": ("lambda_resnet26rpt_256", 64, {"img_size": 64}),
    "EdgeNeXt": ("edgenext_xx_small", 64, {}), "FastViT": ("fastvit_t8", 64, {}), "EfficientFormer": ("efficientformer_l1", 224, {}), "EfficientFormerV2": ("efficientformerv2_s0", 224, {}),
    "NextViT": ("nextvit_small", 64, {}), "EfficientViTMIT": ("efficientvit_b0", 64, {}), "EfficientViTMSRA": ("efficientvit_m0", 64, {"img_size": 64}), "MobileViT": ("mobilevit_xxs", 64, {}), "MobileViTV2": ("mobilevitv2_050", 64, {}),
    "LeViT": ("levit_128s", 64, {"img_size": 64}), "LeViTConv": ("levit_conv_128s", 64, {"img_size": 64}), "TinyViT": ("tiny_vit_5m_224", 64, {}), "ViTamin": ("vitamin_small_224", 64, {"img_size": 64, "depth": 2}),
    "PoolFormer": ("poolformer_s12", 64, {}), "PoolFormerV2": ("poolformerv2_s12", 64, {}), "CAFormer": ("caformer_s18", 64, {}), "SwiftFormer": ("swiftformer_xs", 64, {}), "SHViT": ("shvit_s1", 64, {}), "iFormer": ("iformer_t", 64, {}),
    "Visformer": ("visformer_tiny", 64, {"img_size": 64}), "CoaT": ("coat_lite_tiny", 64, {"img_size": 64}), "CoaTFull": ("coat_tiny", 64, {"img_size": 64}), "EfficientViM": ("efficientvim_m1", 64, {}), "LowFormer": ("lowformer_b0", 64, {}), "CPUBone": ("cpubone_b0_bfrobust", 64, {}), "LCNetV2": ("lcnetv2_small", 64, {}),
    "Sequencer": ("sequencer2d_s", 64, {"img_size": 64, "layers": (1, 1, 1, 1)}), "ViTHybrid": ("vit_tiny_r_s16_p8_224", 64, {"img_size": 64, "depth": 2}),
    # attention
    "ViT": ("test_vit", 64, {"img_size": 64}), "ViT2": ("test_vit2", 64, {"img_size": 64}), "DeiT3": ("deit3_small_patch16_224", 64, {"img_size": 64} | TOKENS), "ViTRelPos": ("vit_relpos_small_patch16_224", 64, {"img_size": 64} | TOKENS),
    "ViTRelPosRPN": ("vit_relpos_base_patch32_plus_rpn_256", 64, {"img_size": 64} | TOKENS), "ViTParallel": ("vit_small_patch16_18x2_224", 64, {"img_size": 64} | TOKENS), "ViTDiff": ("vit_dlittle_patch16_reg1_gap_256", 64, {"img_size": 64} | TOKENS),
    "BEiT": ("beit_base_patch16_224", 64, {"img_size": 64} | TOKENS), "BEiTV2": ("beitv2_base_patch16_224", 64, {"img_size": 64} | TOKENS), "EVA02": ("eva02_tiny_patch14_224", 56, {"img_size": 56} | TOKENS), "EVAMim": ("eva_large_patch14_196", 56, {"img_size": 56} | TOKENS), "RoPE": ("vit_small_patch16_rope_mixed_224", 64, {"img_size": 64} | TOKENS), "DINOv3": ("vit_small_patch16_dinov3", 64, {"img_size": 64} | TOKENS),
    "CaiT": ("cait_xxs24_224", 64, {"img_size": 64} | TOKENS), "XCiT": ("xcit_nano_12_p16_224", 64, {"img_size": 64, "depth": 2}), "VOLO": ("volo_d1_224", 64, {"img_size": 64}), "TNT": ("tnt_s_patch16_224", 64, {"img_size": 64, "depth": 2}),
    "CrossViT": ("crossvit_9_240", 240, {}), "TwinsSVT": ("twins_svt_small", 64, {"img_size": 64, "depths": (1, 1, 1, 1)}), "TwinsPCPVT": ("twins_pcpvt_small", 64, {"img_size": 64, "depths": (1, 1, 1, 1)}), "PiT": ("pit_ti_224", 64, {"img_size": 64}), "ConViT": ("convit_tiny", 64, {"img_size": 64, "depth": 2, "local_up_to_layer": 1}),
    "Swin": ("swin_tiny_patch4_window7_224", 64, {"img_size": 64, "window_size": 4} | SMALL), "SwinS3": ("swin_s3_tiny_224", 64, {"img_size": 64, "depths": (2, 2), "embed_dim": 32, "num_heads": (2, 4), "window_size": (4, 4)}), "SwinV2": ("swinv2_tiny_window8_256", 64, {"img_size": 64, "window_size": 4, "depths": (2, 2), "embed_dim": 32, "num_heads": (2, 4)}),
    "SwinV2CR": ("swinv2_cr_tiny_224", 64, {"img_size": 64, "window_size": 4, "depths": (2, 2), "embed_dim": 32, "num_heads": (2, 4)}), "DaViT": ("davit_tiny", 64, {"depths": (1, 1), "embed_dims": (32, 64), "num_heads": (2, 4)}), "GCViT": ("gcvit_xxtiny", 224, {}),
    "NesT": ("nest_tiny", 64, {"img_size": 64}), "MViTV2": ("mvitv2_tiny", 64, {"img_size": 64}), "PVTV2": ("pvt_v2_b0", 64, {}), "PVTV2Linear": ("pvt_v2_b2_li", 64, {}),
    "Hiera": ("hiera_tiny_224", 64, {"img_size": (64, 64), "stages": (1, 1, 1, 1)}), "HieraDet": ("sam2_hiera_tiny", 64, {"stages": (1, 1, 1, 1), "global_att_blocks": (2,), "num_classes": CLASSES}), "SAM": ("samvit_base_patch16_224", 64, {"img_size": 64, "num_classes": CLASSES, "global_attn_indexes": (1,), "window_size": 3} | TOKENS),
    # without attention
    "Mixer": ("mixer_s32_224", 64, {"img_size": 64}), "gMLP": ("gmlp_ti16_224", 64, {"img_size": 64}), "ResMLP": ("resmlp_12_224", 64, {"img_size": 64}), "gMixer": ("gmixer_12_224", 64, {"img_size": 64}),
}  # fmt: skip
"""Name -> model of timm, width of its images, settings."""


class WithLoss(nn.Module):
    """A model of images that returns its loss: cross entropy with smoothed labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y = self.model(x)
        y = y[0] if isinstance(y, (list, tuple)) else y
        return F.cross_entropy(y.flatten(1), labels, label_smoothing=0.1)


def _make(name: str) -> Made:
    import timm

    kind, width, settings = CONFIGS[name]
    model = timm.create_model(kind, **{"num_classes": CLASSES} | settings).train()
    for module in model.modules():
        for key in ("p", "drop_prob", "drop_rate"):
            if isinstance(getattr(module, key, None), float):
                setattr(module, key, 0.0)
    with torch.no_grad():  # weights of norms and scales that begin as zero would hide what is behind them
        for parameter in model.parameters():
            if parameter.dim() < 2 or not parameter.any():
                parameter.add_(0.1 * torch.randn_like(parameter))

    def inputs(batch: int, length: int) -> dict[str, Any]:
        return {"x": torch.randn(2 * batch, 3, width, width), "labels": torch.randint(0, CLASSES, (2 * batch,))}

    return WithLoss(model), inputs


TIMM_MODELS: dict[str, Callable[[], Made]] = {name: (lambda name=name: _make(name)) for name in CONFIGS}  # type: ignore[misc]
"""Name -> function that makes a model."""
