"""Scales by the name of who takes them, with their padding; largest magnitudes as further results; delayed scaling."""

from __future__ import annotations

import block_formats
import numpy as np
import pytest
import torch
from fusion_check import poisoned_outputs
from narrow_tensors import random_values

from weft import DataType, FusionDefinition, quantize
from weft.options import options
from weft.quantize import behind, functions
from weft.quantize.formats import LAYOUTS, Mx, NvFp4, PerTensor
from weft.reference.block_rules import out_of_tiles

BF16 = DataType.BFloat16
SHAPES = [(1, 128), (127, 640), (129, 384), (128, 512), (256, 128)]


def codes(x: torch.Tensor) -> np.ndarray:
    return x.contiguous().view(torch.uint8).numpy()


def padded(scales: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Zeros up to multiples of so many rows and columns."""
    out = np.zeros((-(-scales.shape[0] // rows) * rows, -(-scales.shape[1] // columns) * columns), scales.dtype)
    out[: scales.shape[0], : scales.shape[1]] = scales
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_scales_of_blocks(name, shape):
    """torch: (m to 128, c to 4) in tiles; TransformerEngine: the same sizes in rows. What no scale is in is zero."""
    x = random_values(shape, BF16)
    wanted = (block_formats.mx if name == "mxfp8" else block_formats.nvfp4)(x.float().numpy())[1]
    with poisoned_outputs():
        for layout, places in (("torch", block_formats.in_tiles(wanted)), ("te", padded(wanted, 128, 4)), ("128x4", block_formats.in_tiles(wanted)), ("rows", wanted)):
            np.testing.assert_array_equal(codes(getattr(quantize, name)(x, layout=layout)[1]), places)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scales_of_1x128(shape):
    x = random_values(shape, BF16)
    rows = quantize.per_1x128(x)[1]
    with poisoned_outputs():
        for layout in ("torch", "deepgemm"):
            scales = quantize.per_1x128(x, layout)[1]
            assert torch.equal(scales, rows) and scales.stride() == (1, -(-shape[0] // 4) * 4)
        te = quantize.per_1x128(x, "te", is_power_of_two=True)[1]
    two = quantize.per_1x128(x, is_power_of_two=True)[1]
    assert te.is_contiguous() and te.shape == (shape[1] // 128, -(-shape[0] // 4) * 4)
    np.testing.assert_array_equal(te.numpy(), padded(two.t().numpy(), 1, 4))
    assert (torch.frexp(two)[0] == 0.5).all()


def test_scales_of_squares():
    for shape in ((128, 384), (256, 512)):
        w = random_values(shape, BF16)
        elements, scales = quantize.blocks_128x128(w)
        assert torch.equal(quantize.blocks_128x128(w, "deepgemm")[1], scales)
        begins = quantize.blocks_128x128(w, "torch")[1]
        assert torch.equal(begins, scales) and begins.stride() == (4, 1)
        with poisoned_outputs():
            again, te = quantize.blocks_128x128(w, "te")
        np.testing.assert_array_equal(te.numpy(), padded(scales.numpy(), 1, 4))
        np.testing.assert_array_equal(codes(again), codes(elements))


def test_scales_of_both_ways():
    for shape in ((32, 32), (96, 1056), (160, 128)):
        x = random_values(shape, BF16)
        rows, columns = (block_formats.mx(t.numpy())[1] for t in (x.float(), x.float().t().contiguous()))
        with poisoned_outputs():
            found = quantize.mxfp8_both_ways(x, "te")
        np.testing.assert_array_equal(codes(found[1]), padded(rows, 128, 4))
        np.testing.assert_array_equal(codes(found[3]), padded(columns.T, 4, 128))
        rows, columns = (block_formats.nvfp4(t.numpy())[1] for t in (x.float(), x.float().t().contiguous()))
        with poisoned_outputs():
            found = quantize.nvfp4_both_ways(x, None, "te")
        np.testing.assert_array_equal(codes(found[1]), padded(rows, 128, 4))
        np.testing.assert_array_equal(codes(found[3]), padded(columns, 128, 4))


def test_names_that_nobody_has_are_refused():
    x = random_values((4, 128), BF16)
    for call in (lambda: quantize.mxfp8(x, "deepgemm"), lambda: quantize.per_1x128(x, "cublas"), lambda: quantize.nvfp4(x, None, "8x4")):
        with pytest.raises(RuntimeError, match=r'layout is "\w+"(.|\n)*use one of rows, 128x4, columns'):
            call()
    assert set(LAYOUTS) == {"blocks", "columns of blocks", "1x128", "128x128"}


# ---------------------------------------------------------------- largest magnitudes
@pytest.mark.parametrize("before", ["", "silu_mul", "rms_norm", "add_rms_norm", "layer_norm"])
@pytest.mark.parametrize("recipe", [Mx(), NvFp4("128x4")], ids=["mxfp8", "nvfp4"])
def test_the_largest_magnitude_is_a_further_result(recipe, before):
    """Of what is quantized, to the last bit where that is an input; elements and scales are what they are without it."""
    for rows, columns in ((3, 32), (40, 1024)):
        x, y, w, b = (random_values(shape, BF16) for shape in ((rows, columns), (rows, columns), (columns,), (columns,)))
        y = -y
        inputs = {"": (x,), "silu_mul": (x, y), "rms_norm": (x, w), "add_rms_norm": (x, y, w), "layer_norm": (x, w, b)}[before]
        v, total = x.float(), x.float() + y.float()
        norm = lambda t: t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-5) * w.float()  # noqa: E731
        wanted = {
            "": v, "silu_mul": torch.nn.functional.silu(v) * y.float(), "rms_norm": norm(v), "add_rms_norm": norm(total),
            "layer_norm": torch.nn.functional.layer_norm(v, (columns,), w.float(), b.float()),
        }[before].abs().max()  # fmt: skip
        with poisoned_outputs():
            elements, scales, amax, *_ = quantize.quantize(recipe, *inputs, before=before, has_amax=True)
        torch.testing.assert_close(amax, wanted, rtol=0 if not before else 1e-5, atol=0)
    plain = quantize.quantize(recipe, *inputs, before=before)
    assert np.array_equal(codes(plain[0]), codes(elements)) and np.array_equal(codes(plain[1]), codes(scales))
    fd = functions._definition(recipe, before, tuple((BF16, t.dim(), True) for t in inputs), 1e-5, True)
    kernels = fd.fec.get_cuda_kernel(list(inputs)).count("__global__")
    assert kernels == (2 if "norm" in before else 1)  # the second folds one number per row
    assert not before or "norm" in before or kernels == 1


@pytest.mark.parametrize("before", ["rms_norm", "add_rms_norm", "layer_norm", "silu_mul"])
def test_delayed_scaling_stands_behind_norms(before):
    """q = saturate(y * scale), where y is what the same definition without a recipe gives; and the largest magnitude of y."""
    x, y, w, b = (random_values(shape, BF16) for shape in ((6, 256), (6, 256), (256,), (256,)))
    y = y.flip(0)
    inputs = {"silu_mul": (x, y), "rms_norm": (x, w), "add_rms_norm": (x, y, w), "layer_norm": (x, w, b)}[before]
    elements, amax, *more = getattr(quantize, f"{before}_per_tensor")(*inputs, torch.tensor(20.0))
    rows, scales, *_ = getattr(quantize, f"{before}_per_row")(*inputs)
    back = quantize.dequantize(rows, scales, dtype=torch.float32)
    torch.testing.assert_close(elements.float() / 20, back.clamp(-22.4, 22.4), atol=0.13 * float(back.abs().max()), rtol=0.13)
    largest = float((scales * 448).max())
    assert abs(float(amax) - largest) <= 1e-5 * largest and len(more) == (before == "add_rms_norm")


@pytest.mark.parametrize("before", ["rms_norm", "add_rms_norm", "layer_norm", "silu_mul"])
def test_1x128_stands_behind_norms(before):
    x, y, w, b = (random_values(shape, BF16) for shape in ((6, 256), (6, 256), (256,), (256,)))
    inputs = {"silu_mul": (x, y), "rms_norm": (x, w), "add_rms_norm": (x, y, w), "layer_norm": (x, w, b)}[before]
    elements, scales, *_ = getattr(quantize, f"{before}_per_1x128")(*inputs, "torch")
    rows, row_scales, *_ = getattr(quantize, f"{before}_per_row")(*inputs)
    torch.testing.assert_close(scales.amax(-1, keepdim=True), row_scales, rtol=1e-5, atol=0)
    a, c = (quantize.dequantize(q, s, dtype=torch.float32) for q, s in ((elements, scales), (rows, row_scales)))
    torch.testing.assert_close(a, c, atol=0.07 * float(c.abs().max()), rtol=0)


def test_the_scale_of_the_next_step():
    history = torch.tensor([2.0, 7.0, 0.5])
    assert float(quantize.delayed_scale(history)) == float(torch.tensor(448.0) / 7)
    assert float(quantize.delayed_scale(history, is_most_recent=True)) == 224
    assert float(quantize.delayed_scale(history, torch.float8_e5m2, margin=2)) == float(torch.tensor(57344.0) / 7 / 4)
    for unusable in (0.0, float("inf"), float("nan")):
        assert float(quantize.delayed_scale(torch.full((3,), unusable))) == 1
        assert float(quantize.delayed_scale(torch.full((3,), unusable), previous=torch.tensor(9.0))) == 9
    assert float(quantize.delayed_scale(torch.tensor([1e-45]))) == torch.finfo(torch.float32).max
    with pytest.raises(RuntimeError, match="pass a float32 tensor with one axis"):
        quantize.delayed_scale(history.double())
    x = random_values((4, 64), BF16)
    elements, amax = quantize.per_tensor(x, quantize.delayed_scale(history))
    assert float(amax) == float(x.float().abs().max())
    assert isinstance(PerTensor(), PerTensor) and elements.dtype is torch.float8_e4m3fn


# ---------------------------------------------------------------- products that take them
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["per_tensor_current", "per_row", "1x128"])
def test_torch_takes_what_recipes_return(name):
    """torch._scaled_mm of an H100 or H200 is the product of what dequantize gives."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("products with scales of blocks of 128 are for Hopper")
    a, b = (random_values(shape, BF16).cuda() for shape in ((256, 512), (384, 512)))
    if name == "1x128":
        (qa, sa), (qb, sb) = quantize.per_1x128(a, "torch"), quantize.blocks_128x128(b, "torch")
        given_b = sb.t()
    else:
        (qa, sa), (qb, sb) = (getattr(quantize, name)(t) for t in (a, b))
        given_b = sb.t() if sb.dim() else sb
    found = torch._scaled_mm(qa, qb.t(), scale_a=sa, scale_b=given_b, out_dtype=torch.bfloat16)
    wanted = quantize.dequantize(qa, sa, dtype=torch.float32).double() @ quantize.dequantize(qb, sb, dtype=torch.float32).double().t()
    torch.testing.assert_close(found.double(), wanted, atol=0.02 * float(wanted.abs().max()), rtol=0.01)


def test_a_recipe_is_a_definition_of_a_few_lines():
    """Whoever wants another recipe behind another op writes these lines."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        y = fd.ops.gelu(x)
        amax = fd.ops.maximum(fd.ops.block_amax(y, 64), 1e-4)
        scale = fd.ops.div(amax, 448.0)
        fd.add_output(fd.ops.cast(fd.ops.div(y, scale), DataType.Float8_e4m3fn))
        fd.add_output(fd.ops.block_sample(scale, 64))
    x = random_values((5, 256), BF16)
    elements, scales = fd.execute([x])
    wanted = torch.nn.functional.gelu(x.float())
    torch.testing.assert_close(quantize.dequantize(elements, scales, dtype=torch.float32), wanted, atol=0.05 * float(wanted.abs().max()), rtol=0)
    assert fd.fec.get_cuda_kernel([x]).count("__global__") == 1


@pytest.mark.parametrize("layout", ["rows", "128x4", "columns", "padded columns"])
@pytest.mark.parametrize("shape", [(130, 96), (1, 32), (0, 64), (3, 5, 64)], ids=str)
@pytest.mark.parametrize("is_folded", [False, True], ids=["of a sum", "of largest magnitudes"])
def test_one_element_per_block_may_be_the_only_output(shape, layout, is_folded):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * len(shape), contiguity=True)
        y = fd.ops.block_amax(x, 16) if is_folded else fd.ops.add(x, 1.0)
        fd.add_output(fd.ops.block_sample(y, 16, layout))
    x = torch.randn(shape)
    with poisoned_outputs(), options(check="races"):
        (found,) = fd.execute([x])
    blocks = x.unflatten(-1, (-1, 16))
    wanted = blocks.abs().amax(-1) if is_folded else blocks[..., 0] + 1
    if layout == "rows":
        assert torch.equal(found, wanted)
        return
    wanted = wanted.flatten(0, -2)
    if layout == "128x4":
        assert torch.equal(out_of_tiles(found, *wanted.shape), wanted) and found.count_nonzero() == wanted.count_nonzero()
    else:
        assert torch.equal(found if layout == "columns" else found[: wanted.shape[1], : wanted.shape[0]].t(), wanted)


def test_padding_of_e8m0_scales_has_no_bit_set_in_the_reference_too():
    """That is the number 2^-127, not 0, to an exact comparison."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.block_sample(fd.ops.cast(fd.ops.block_amax(x, 32), DataType.Float8_e8m0fnu), 32, "128x4"))
    (found,) = fd.validate([torch.randn(5, 96)])
    assert np.count_nonzero(codes(found)) == 15


# ---------------------------------------------------------------- inputs at any address
def shifted(x: torch.Tensor, elems: int) -> torch.Tensor:
    """The same numbers, so many elements behind an aligned address."""
    store = torch.empty(x.numel() + elems, dtype=x.dtype)
    store[elems:] = x.flatten()
    return store[elems:].view(x.shape)


@pytest.mark.parametrize("which", ["rows", "weight", "both"])
@pytest.mark.parametrize("name", [n for n in behind.FUNCTIONS if "norm" in n])
def test_norms_take_rows_and_weights_at_any_address(name, which):
    """What is at an odd address is read element by element, and whole bytes are written; sums of rows may add in another order."""
    x, y, w, b = (random_values(shape, BF16) for shape in ((6, 256), (6, 256), (256,), (256,)))
    inputs = {"rms_norm": (x, w), "add_rms_norm": (x, y.flip(0), w), "layer_norm": (x, w, b)}[name.partition("_norm")[0] + "_norm"]
    moved = [shifted(t, 1) if which == "both" or (t.dim() == 2) == (which == "rows") else t for t in inputs]
    scale = [torch.tensor(20.0)] if name.endswith("per_tensor") else []
    with poisoned_outputs():
        found, wanted = (getattr(quantize, name)(*given, *scale) for given in (moved, inputs))
    for got, want in zip(found, wanted, strict=True):
        if got.dtype.itemsize == 1:
            assert (codes(got) != codes(want)).mean() < 0.01
        else:
            torch.testing.assert_close(got, want, rtol=1e-5, atol=0)


@pytest.mark.parametrize("elems", [1, 2, 4])
def test_bytes_do_not_depend_on_the_address(elems):
    """Where nothing is summed: blocks of rows, of columns, and the largest magnitude."""
    x = random_values((64, 256), BF16)
    cases = {
        "largest": lambda t: quantize.nvfp4(t, has_amax=True), "largest in tiles": lambda t: quantize.nvfp4(t, torch.tensor(50.0), "128x4", has_amax=True),
        "mxfp4": lambda t: quantize.quantize(Mx(DataType.Float4_e2m1fn), t, has_amax=True), "both ways": lambda t: quantize.nvfp4_both_ways(t, None, "128x4"),
        "activation": lambda t: quantize.silu_mul_nvfp4(t, x), "both ways of an activation": lambda t: quantize.silu_mul_nvfp4_both_ways(t, x),
        "1x128": quantize.per_1x128, "mxfp8 both ways": lambda t: quantize.mxfp8_both_ways(t, "te"),
    }  # fmt: skip
    for name, recipe in cases.items():
        with poisoned_outputs():
            for got, want in zip(recipe(shifted(x, elems)), recipe(x), strict=True):
                np.testing.assert_array_equal(codes(got) if got.dim() else got.numpy(), codes(want) if want.dim() else want.numpy(), name)


def test_columns_become_4_bits_from_any_address():
    """Both ways of outer_persistent: columns in registers, and columns that are read again."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        fd.add_output(fd.ops.cast(fd.ops.sub(x, fd.ops.mul(fd.ops.sum(x, [0], True), 0.01)), DataType.Float4_e2m1fn))
    for rows in (40, 3000):
        x = random_values((rows, 64), BF16)
        fd.validate([shifted(x, 1)])
    assert {runtime.scheduler for runtime in fd.fec.kernel_runtimes} == {"outer_persistent"}
