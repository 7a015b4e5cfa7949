"""Known bytes of narrow types through definitions: every byte of codes, blocks by their largest magnitude, scales in tiles, shapes, independence of what is beside."""

from __future__ import annotations

import block_formats
import narrow_values
import numpy as np
import pytest
import torch
from fusion_check import poisoned_outputs
from narrow_tensors import BESIDE, FP4, random_values, same_bytes, values

from weft import DataType, FusionDefinition, quantize
from weft.reference import narrow
from weft.reference.torch_types import torch_dtype

BF16, FLOAT, E4M3 = DataType.BFloat16, DataType.Float, DataType.Float8_e4m3fn
FLOAT_MAX = np.float32(3.4028234663852886e38)


def codes(x: torch.Tensor) -> np.ndarray:
    return x.contiguous().view(torch.uint8).numpy()


@pytest.mark.parametrize("wide", BESIDE, ids=lambda d: d.name)
def test_every_byte_of_two_codes_is_decoded_and_comes_back(wide):
    """All 256 pairs, so that each code stands in both halves of a byte beside each other one."""
    pairs = torch.arange(256, dtype=torch.uint8).view(torch_dtype(FP4))
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=FP4)
        y = fd.ops.cast(x, wide)
        fd.add_output(y)
        fd.add_output(fd.ops.cast(fd.ops.mul(y, 1.0), FP4))
    decoded, again = fd.execute([pairs])
    expected = values(pairs, FP4)
    assert torch.equal(decoded.double(), expected) and torch.equal(torch.signbit(decoded), torch.signbit(expected))
    assert same_bytes(again, pairs)


@pytest.mark.parametrize("step, wanted", [(0, (0, 2, 2, 4, 4, 6, 6)), (1, (1, 2, 3, 4, 5, 6, 7)), (-1, (0, 1, 2, 3, 4, 5, 6))], ids=["tie", "above", "below"])
def test_thresholds_of_e2m1(step, wanted):
    """At each middle between two values, and one place of a float above and below it."""
    middles = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
    near = middles if not step else np.nextafter(middles, np.float32(np.inf * step))
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cast(fd.define_tensor([-1], contiguity=True, dtype=FLOAT), FP4))
    found = fd.execute([torch.from_numpy(np.concatenate([near, -near]))])[0].view(torch.uint8)
    assert torch.stack([found & 15, found >> 4], 1).flatten().tolist() == [*wanted, *(code | 8 for code in wanted)]


BLOCKS = [  # largest magnitude, global scale, code of the scale, multiplier
    (6, 1, 0x38, 1), (6, 448, 0x7E, 1), (3, 448, 0x76, 2), (1, 2688, 0x7E, 6), (5, 537.6, 0x7E, np.nextafter(np.float32(1.2), np.float32(0))),
    (0.01, 2688, 0x49, np.float32(597.3333)), (0.001, 2688, 0x2E, 6144), (2688, 1, 0x7E, np.float32(1) / np.float32(448)), (2**-20, 1, 0x00, FLOAT_MAX), (0, 5, 0x00, FLOAT_MAX),
]  # fmt: skip


@pytest.mark.parametrize("amax, g, code, multiplier", BLOCKS)
def test_nvfp4_blocks_by_their_largest_magnitude(amax, g, code, multiplier):
    """Scale and elements of a block of shares of its largest; elements are those of the known multiplier."""
    shares = np.linspace(-1, 1, 16, dtype=np.float32) * np.float32(amax)
    shares[5] = amax
    elements, scales = quantize.nvfp4(torch.from_numpy(shares[None]), torch.tensor(float(g)))
    assert codes(scales).tolist() == [[code]]
    with np.errstate(over="ignore"):
        wanted = narrow_values.encoded("e2m1", (shares * np.float32(multiplier)).astype(np.float64))
    np.testing.assert_array_equal(codes(elements)[0], block_formats.packed(wanted))


def test_mxfp8_blocks_by_their_largest_magnitude():
    """448 * 2^k has the scale 2^k, to the last place of 1 / 448, for every k; and what is just above the next one."""
    amaxes = [448.0 * 2.0**k for k in range(-126, 120)]
    known = {448: 127, 449: 128, 447.9: 127, 255: 127, 256: 127, 896: 128, 1: 119, 448 * 2.0**-10: 117, 1e-40: 0, 3e38: 247, 0: 0}
    x = torch.tensor([*amaxes, *known], dtype=torch.float64).float()[:, None].expand(-1, 32).contiguous()
    elements, scales = quantize.mxfp8(x)
    assert codes(scales)[:, 0].tolist() == [*range(1, 247), *known.values()]
    assert (codes(elements)[: len(amaxes)] == 0x7E).all()


def test_an_identity_block():
    x = narrow.values_of_codes(torch.arange(16), FP4).float()[None]
    elements, scales = quantize.nvfp4(x, torch.tensor(1.0))
    assert codes(elements)[0].tobytes().hex() == "1032547698badcfe" and codes(scales).tolist() == [[0x38]]


@pytest.mark.parametrize("shape", [(1, 64), (128, 4), (300, 10), (300, 5), (129, 128), (0, 4)], ids=str)
def test_every_scale_is_where_its_offset_says(shape):
    """Scales that are there already, numbered; all bytes, padding too; and back by the inverse of the offset."""
    rows, columns = shape
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    numbered = ((r * columns + c) % 127).astype(np.uint8)  # e4m3 has a NaN at 127
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.block_sample(fd.define_tensor([-1, -1], contiguity=True, dtype=E4M3), 1, "128x4"))
    with poisoned_outputs():
        found = codes(fd.execute([torch.from_numpy(numbered).view(torch.float8_e4m3fn)])[0])
    np.testing.assert_array_equal(found, block_formats.in_tiles(numbered))
    assert found.shape == (-(-rows // 128) * 128, -(-columns // 4) * 4)
    place, tiles = np.arange(found.size), -(-columns // 4)
    tile, within = place // 512, place % 512
    back = np.zeros(found.shape, np.uint8)
    back[tile // tiles * 128 + within % 16 // 4 * 32 + within // 16, tile % tiles * 4 + within % 4] = found.reshape(-1)
    np.testing.assert_array_equal(back[:rows, :columns], numbered)
    assert not back[rows:].any() and not back[:, columns:].any()


@pytest.mark.parametrize("shape", [*((3, k) for k in (16, 32, 48, 64, 4096, 4112, 8192, 16384)), *((m, 48) for m in (1, 127, 128, 129, 16384))], ids=str)
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_shapes(name, shape):
    x = random_values(shape, BF16)
    if name == "mxfp8" and shape[1] % 32:
        with pytest.raises(RuntimeError, match="not a multiple of the block of 32"):
            quantize.mxfp8(x)
        return
    wanted = (block_formats.nvfp4 if name == "nvfp4" else block_formats.mx)(x.float().numpy())
    with poisoned_outputs():
        elements, scales = getattr(quantize, name)(x)
    np.testing.assert_array_equal(codes(scales), wanted[1])
    np.testing.assert_array_equal(codes(elements), block_formats.packed(wanted[0]) if name == "nvfp4" else wanted[0])


# ---------------------------------------------------------------- independence
def dequantized(fd, elements, scales, rows: int, columns: int, block: int):  # noqa: ANN001, ANN201
    spread = [rows, columns // block, block]
    q = fd.ops.reshape(fd.ops.cast(elements, FLOAT), spread)
    return fd.ops.reshape(fd.ops.mul(q, fd.ops.broadcast_in_dim(fd.ops.cast(scales, FLOAT), spread, [0, 1])), [rows, columns])


@pytest.mark.parametrize("is_output", [True, False], ids=["scales an output, too", "scales inside only"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_there_and_back_in_one_definition_is_what_two_give(name, is_output):
    """One kernel must have stored all of a row's scales before another spreads them: definitions are cut there."""
    for rows, columns in ((6, 64), (130, 96)):
        with FusionDefinition() as fd:
            x = fd.define_tensor([rows, columns], contiguity=True, dtype=BF16)
            elements, scales = fd.ops.nv_block_quantize(x) if name == "nvfp4" else fd.ops.nv_block_quantize(x, None, False, 32, E4M3)
            fd.add_output(dequantized(fd, elements, scales, rows, columns, 16 if name == "nvfp4" else 32))
            for result in (elements, scales) if is_output else ():
                fd.add_output(result)
        x = random_values((rows, columns), BF16)
        q, s = getattr(quantize, name)(x)
        with poisoned_outputs():
            back, *more = fd.execute([x])
        assert torch.equal(back, quantize.dequantize(q, s, dtype=torch.float32))
        for got, want in zip(more, (q, s)):
            np.testing.assert_array_equal(codes(got), codes(want))


@pytest.mark.parametrize("shape, kernels", [([6, 128], 2), ([24, 32], 1), ([2, 3, 128], 2), ([768], 2)], ids=str)
def test_what_is_reshaped_is_quantized(shape, kernels):
    """Blocks run along the axis that the reshape made; axes before it may be cut freely."""
    x = random_values((2, 3, 4, 32), FLOAT)
    with FusionDefinition() as fd:
        y = fd.ops.reshape(fd.ops.mul(fd.define_tensor([2, 3, 4, 32], contiguity=True, dtype=FLOAT), 2.0), shape)
        for result in fd.ops.nv_block_quantize(y):
            fd.add_output(result)
    for got, want in zip(fd.execute([x]), quantize.nvfp4((2 * x).view(shape)), strict=True):
        np.testing.assert_array_equal(codes(got), codes(want))
    assert len(fd.fec.kernel_runtimes) <= kernels


def test_elements_may_be_reshaped_beside_their_scales():
    with FusionDefinition() as fd:
        elements, scales = fd.ops.nv_block_quantize(fd.define_tensor([6, 64], contiguity=True, dtype=FLOAT))
        fd.add_output(fd.ops.reshape(fd.ops.cast(elements, FLOAT), [6, 4, 16]))
        fd.add_output(scales)
    x = random_values((6, 64), FLOAT)
    wide, scales = fd.execute([x])
    q, s = quantize.nvfp4(x)
    np.testing.assert_array_equal(wide.view(6, 64).double().numpy(), values(q, FP4).numpy())
    np.testing.assert_array_equal(codes(scales), codes(s))


@pytest.mark.parametrize("source", ["input", "constant", "reduction"])
def test_a_global_scale_comes_from_anywhere(source):
    x = random_values((6, 64), FLOAT)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        g = {
            "input": lambda: fd.define_tensor([], dtype=FLOAT), "constant": lambda: fd.ops.full([], 50.0, FLOAT),
            "reduction": lambda: fd.ops.div(2688.0, fd.ops.max(fd.ops.abs(t), [0, 1])),
        }[source]()  # fmt: skip
        for result in fd.ops.nv_block_quantize(t, g):
            fd.add_output(result)
    used = torch.tensor(2688.0) / x.abs().max() if source == "reduction" else torch.tensor(50.0)
    for got, want in zip(fd.execute([x, used] if source == "input" else [x]), quantize.nvfp4(x, used), strict=True):
        np.testing.assert_array_equal(codes(got), codes(want))


def test_a_transposed_input_is_quantized_in_one_kernel():
    """nvfp4 of x.t(), by a permute in the definition."""
    x = random_values((64, 96), BF16)
    with FusionDefinition() as fd:
        y = fd.ops.permute(fd.define_tensor([-1, -1], contiguity=True, dtype=BF16), [1, 0])
        for result in fd.ops.nv_block_quantize(y):
            fd.add_output(result)
    for got, want in zip(fd.execute([x]), quantize.nvfp4(x.t().contiguous()), strict=True):
        np.testing.assert_array_equal(codes(got), codes(want))
    assert len(fd.fec.kernel_runtimes) == 1


@pytest.mark.parametrize("layout, sizes", [("rows", (5, 0)), ("128x4", (128, 0))])
def test_rows_without_elements_have_no_scales(layout, sizes):
    codes, scales = quantize.nvfp4(torch.zeros(5, 0, dtype=torch.bfloat16), None, layout)
    assert tuple(codes.shape) == (5, 0) and tuple(scales.shape) == sizes
