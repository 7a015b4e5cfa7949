"""Quantization recipes: functions of torch tensors, each one kernel where one pass over the data is enough.

Owns the public names. A recipe (`formats.py`) says how elements and scales are computed; a function here puts one behind a norm or an activation (`before.py`)
and runs it. Scales multiply when dequantizing (they are decode scales); a `global_scale` of NVFP4 is an encode scale. Read first: `nvfp4`, `rms_norm_nvfp4`.
"""

from __future__ import annotations

from .back import dequantize
from .behind import (
    add_rms_norm_mxfp4, add_rms_norm_mxfp8, add_rms_norm_nvfp4, add_rms_norm_per_1x128, add_rms_norm_per_row, add_rms_norm_per_tensor, layer_norm_mxfp4,
    layer_norm_mxfp8, layer_norm_nvfp4, layer_norm_per_1x128, layer_norm_per_row, layer_norm_per_tensor, rms_norm_mxfp4, rms_norm_mxfp8, rms_norm_nvfp4,
    rms_norm_per_1x128, rms_norm_per_row, rms_norm_per_tensor, silu_mul_mxfp4, silu_mul_mxfp8, silu_mul_nvfp4, silu_mul_per_1x128, silu_mul_per_row,
    silu_mul_per_tensor,
)  # fmt: skip
from .functions import (
    blocks_128x128, delayed_scale, hadamard_transform, mxfp4, mxfp8, mxfp8_both_ways, nvfp4, nvfp4_both_ways, nvfp4_global_scale, per_1x128, per_row,
    per_tensor, per_tensor_current, quantize, silu_mul_mxfp8_both_ways, silu_mul_nvfp4_both_ways,
)  # fmt: skip

__all__ = [
    "add_rms_norm_mxfp4", "add_rms_norm_mxfp8", "add_rms_norm_nvfp4", "add_rms_norm_per_1x128", "add_rms_norm_per_row", "add_rms_norm_per_tensor",
    "blocks_128x128", "delayed_scale", "dequantize", "hadamard_transform", "layer_norm_mxfp4", "layer_norm_mxfp8", "layer_norm_nvfp4",
    "layer_norm_per_1x128", "layer_norm_per_row", "layer_norm_per_tensor", "mxfp4", "mxfp8", "mxfp8_both_ways", "nvfp4", "nvfp4_both_ways",
    "nvfp4_global_scale", "per_1x128", "per_row", "per_tensor", "per_tensor_current", "quantize", "rms_norm_mxfp4", "rms_norm_mxfp8", "rms_norm_nvfp4",
    "rms_norm_per_1x128", "rms_norm_per_row", "rms_norm_per_tensor", "silu_mul_mxfp4", "silu_mul_mxfp8", "silu_mul_mxfp8_both_ways", "silu_mul_nvfp4",
    "silu_mul_nvfp4_both_ways", "silu_mul_per_1x128", "silu_mul_per_row", "silu_mul_per_tensor",
]  # fmt: skip
