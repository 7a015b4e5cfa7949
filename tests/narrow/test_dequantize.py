"""weft.quantize.dequantize: one kernel from every layout; the product of elements and scales is one rounding in Float, so that results are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusion_check import poisoned_outputs
from narrow_tensors import FP4, random_values

from weft import DataType, FusionDefinition, quantize
from weft.quantize import back
from weft.reference import narrow

BF16, E4M3, E8M0 = DataType.BFloat16, DataType.Float8_e4m3fn, DataType.Float8_e8m0fnu


def values(tensor: torch.Tensor) -> torch.Tensor:
    """What the codes of elements or scales stand for, in float64."""
    kinds = {torch.float4_e2m1fn_x2: FP4, torch.float8_e4m3fn: E4M3, torch.float8_e8m0fnu: E8M0}
    return narrow.values_of(tensor, kinds[tensor.dtype]) if tensor.dtype in kinds else tensor.double()


def product(elements: torch.Tensor, scales: torch.Tensor, g: float = 1.0) -> torch.Tensor:
    """Elements times the scale of their block, repeated along each axis; rounded to Float, divided by g, rounded again."""
    wide, s = values(elements), values(scales)
    for axis in range(s.dim()):
        s = s.repeat_interleave(wide.shape[axis] // max(1, s.shape[axis]), axis)
    return ((wide * s).float().double() / g).float()


class Recorded(FusionDefinition):
    """A definition that is kept, so that its kernels can be counted."""

    made: list["Recorded"] = []

    def __init__(self) -> None:
        super().__init__()
        Recorded.made.append(self)


@pytest.fixture(autouse=True)
def definitions_are_recorded(monkeypatch):
    monkeypatch.setattr(back, "FusionDefinition", Recorded)
    for cached in (back._back, back._back_from_tiles):
        cached.cache_clear()
    yield
    Recorded.made.clear()
    for cached in (back._back, back._back_from_tiles):
        cached.cache_clear()


def kernels() -> int:
    return sum(len(fd.fec.kernel_runtimes) for fd in Recorded.made if hasattr(fd, "fec"))


def check(elements: torch.Tensor, scales: torch.Tensor, wanted: torch.Tensor, *rest: object, **given: object) -> None:
    """Compare bits; there is one kernel, or none where there is nothing."""
    before = kernels()
    with poisoned_outputs():
        found = quantize.dequantize(elements, scales, *rest, dtype=torch.float32, **given)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted, atol=0, rtol=0, equal_nan=True)
    assert kernels() - before <= 1


@pytest.mark.parametrize("shape", [(1, 128), (5, 256), (2, 3, 384), (0, 128)], ids=str)
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "mxfp4", "per_row", "per_1x128", "per_tensor_current"])
def test_every_recipe_comes_back_in_one_kernel(name, shape):
    elements, scales = getattr(quantize, name)(random_values(shape, BF16))
    check(elements, scales, product(elements, scales).view(shape))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "mxfp4"])
def test_scales_in_tiles_are_looked_up(name):
    for rows, columns in [(1, 32), (128, 64), (300, 160), (129, 2048), (0, 64)]:
        x = random_values((rows, columns), BF16)
        elements, scales = getattr(quantize, name)(x)
        tiled, tiles = getattr(quantize, name)(x, layout="128x4")
        check(tiled, tiles, product(elements, scales).view(rows, columns), layout="128x4")


def test_squares_columns_and_both_ways():
    w = random_values((256, 384), BF16)
    check(*(pair := quantize.blocks_128x128(w)), product(*pair))
    elements, scales = quantize.per_1x128(w, "columns")
    assert scales.stride() == (1, 256)
    check(elements, scales, product(elements, scales))
    x, g = random_values((96, 64), BF16), torch.tensor(50.0)
    rows, row_scales, columns, column_scales = quantize.mxfp8_both_ways(x)
    check(columns, column_scales, product(columns, column_scales))
    rows, row_scales, columns, column_scales = quantize.nvfp4_both_ways(x, g)
    check(rows, row_scales, product(rows, row_scales, 50.0), g)
    check(columns, column_scales, product(columns, column_scales, 50.0), g)
    np.testing.assert_allclose(product(columns, column_scales, 50.0).t(), x.float(), atol=0.25 * float(x.abs().max()))


def test_special_codes_and_other_types():
    """NaN stays, and the smallest scale of e8m0 is 2^-127, a subnormal number."""
    elements = torch.arange(256, dtype=torch.uint8).view(8, 32).view(torch.float8_e4m3fn)
    scales = torch.tensor([0, 1, 126, 127, 128, 253, 254, 255], dtype=torch.uint8).view(8, 1).view(torch.float8_e8m0fnu)
    check(elements, scales, product(elements, scales))
    half = quantize.dequantize(elements, torch.tensor(0.5), dtype=torch.float16)
    assert torch.equal(half.nan_to_num(7), (values(elements) * 0.5).half().nan_to_num(7))


@pytest.mark.parametrize(
    "elements, scales, given, message",
    [
        ((4, 96), (4, 5), {}, "scales of (4, 5) for elements of (4, 96)"),
        ((4, 96), (3, 3), {}, "scales of (3, 3)"),
        ((4, 96), (3,), {}, "scales of (3,)"),
        ((4, 96), (4, 3), {"layout": "8x4"}, 'layout is "8x4"'),
        ((4, 96), (4, 3), {"layout": "128x4"}, "in tiles, for elements of (4, 96)"),
    ],
    ids=str,
)
def test_scales_that_do_not_fit_are_refused(elements, scales, given, message):
    q, s = torch.zeros(elements).to(torch.float8_e4m3fn), torch.ones(scales).to(torch.float8_e8m0fnu)
    with pytest.raises(RuntimeError) as refused:
        quantize.dequantize(q, s, **given)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "mxfp4", "rms_norm_nvfp4", "rms_norm_mxfp8", "rms_norm_mxfp4", "silu_mul_nvfp4", "layer_norm_mxfp8"])
def test_defaults_of_both_directions_agree(name: str) -> None:
    """Scales in tiles and in rows have the same shape here, so that nothing could tell them apart."""
    x, more = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0)).bfloat16(), {"rms": 1, "layer": 2}.get(name.split("_")[0], 0)
    operands = [x, *[torch.ones(1024).bfloat16(), torch.zeros(1024).bfloat16()][:more], *([torch.ones_like(x)] if "silu" in name else [])]
    wide = x.double()
    rms = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    wanted = {"rms": rms, "silu": torch.nn.functional.silu(wide), "layer": torch.nn.functional.layer_norm(wide, (1024,))}.get(name.split("_")[0], wide)
    made = quantize.dequantize(*getattr(quantize, name)(*operands))
    # half a step of the largest elements: of 4 bits 1, between 4 and 6 times a scale of at most 1 for values below 8; of 8 bits 16 times a scale of 2^-6
    assert (made.double() - wanted).abs().max() < (0.3 if "mxfp8" in name else 1.0)
