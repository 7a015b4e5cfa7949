"""nv_block_quantize: every byte of elements and scales against the definition in numpy, alone and behind what comes before it."""

from __future__ import annotations

import block_formats
import numpy as np
import pytest
import torch
from fusion_check import poisoned_outputs
from narrow_tensors import FP4, random_values

from weft import DataType, FusionDefinition
from weft.options import options

BF16, FLOAT, HALF, E4M3 = DataType.BFloat16, DataType.Float, DataType.Half, DataType.Float8_e4m3fn
SHAPES = [(1, 16), (3, 32), (127, 48), (2, 4112), (129, 64), (1, 1024)]


def quantizer(dtype: DataType, target: DataType, *, swizzled: bool = False, has_global: bool = False, rank: int = 2, before=None) -> FusionDefinition:  # noqa: ANN001
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype)
        g = fd.define_tensor([], dtype=FLOAT) if has_global else None
        y = before(fd, x) if before else x
        for result in fd.ops.nv_block_quantize(y, g, swizzled, 16 if target is FP4 else 32, target):
            fd.add_output(result)
    return fd


def run(fd: FusionDefinition, *inputs: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of elements and scales; what the kernel does not write stays poisoned."""
    with poisoned_outputs():
        elements, scales = fd.execute(list(inputs))
    return elements.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()


def check(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray], target: DataType, swizzled: bool = False) -> None:
    codes, scales = expected
    np.testing.assert_array_equal(found[1], block_formats.in_tiles(scales) if swizzled else scales)
    np.testing.assert_array_equal(found[0], block_formats.packed(codes) if target is FP4 else codes)


def numbers(x: torch.Tensor) -> np.ndarray:
    return x.to(torch.float32).numpy()


@pytest.mark.parametrize("swizzled", [False, True], ids=["rows", "tiles"])
@pytest.mark.parametrize("dtype", [FLOAT, BF16], ids=lambda d: d.name)
def test_nvfp4_is_exact(dtype, swizzled):
    fd = quantizer(dtype, FP4, swizzled=swizzled, has_global=True)
    for shape, g in zip([*SHAPES, (5, 8192)], [1.0, 448.0, 2688.0, 37.5, 1e-3, 1e30, 100.0]):
        x = random_values(shape, dtype)
        check(run(fd, x, torch.tensor(g)), block_formats.nvfp4(numbers(x), g), FP4, swizzled)


def test_nvfp4_without_a_global_scale_and_of_other_ranks():
    for shape in [(64,), (2, 3, 48), (0, 32), (2, 0, 16)]:
        fd = quantizer(HALF, FP4, rank=len(shape))
        x = random_values(shape, HALF)
        check(run(fd, x), block_formats.nvfp4(numbers(x)), FP4)


@pytest.mark.parametrize("dtype", [FLOAT, BF16, HALF], ids=lambda d: d.name)
def test_mxfp8_is_exact(dtype):
    fd = quantizer(dtype, E4M3)
    for shape in [(1, 32), (3, 96), (127, 64), (2, 4096), (33, 8192)]:
        x = random_values(shape, dtype)
        check(run(fd, x), block_formats.mx(numbers(x)), E4M3)


def special_blocks(block: int) -> np.ndarray:
    """Blocks with one NaN, one infinity, negative zeros, the largest at either end, alternating signs, subnormals, one nonzero, all values of a type."""
    rng = np.random.default_rng(5)
    plain = rng.normal(size=(14, block)).astype(np.float32)
    plain[0, 3] = np.nan
    plain[1, 5] = np.inf
    plain[2] = -0.0
    plain[3, 0], plain[4, -1] = 100, -100
    plain[5] *= np.where(np.arange(block) % 2, 1, -1)
    plain[6] = 1e-40
    plain[7] = 0
    plain[8] = 0
    plain[8, block // 2] = 3
    plain[9] = 2.0**-20
    plain[10] = np.nan
    plain[11] = np.tile([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], block // 16)
    plain[12] = 3e38
    plain[13] = 448 * 2.0 ** rng.integers(-120, 100, block)
    return plain


def test_blocks_of_special_values():
    x = special_blocks(16)
    nvfp4, with_global = quantizer(FLOAT, FP4), quantizer(FLOAT, FP4, has_global=True)
    check(run(nvfp4, torch.from_numpy(x)), block_formats.nvfp4(x), FP4)
    for g in (448.0, 2688.0, 1e-30):
        check(run(with_global, torch.from_numpy(x), torch.tensor(g)), block_formats.nvfp4(x, g), FP4)
    x = special_blocks(32)
    check(run(quantizer(FLOAT, E4M3), torch.from_numpy(x)), block_formats.mx(x), E4M3)


def test_known_scales():
    """By (amax, g) and by amax, as computed by hand."""
    table = [(6, 1, 0x38), (6, 448, 0x7E), (3, 448, 0x76), (1, 2688, 0x7E), (5, 537.6, 0x7E), (0.01, 2688, 0x49), (0.001, 2688, 0x2E), (2688, 1, 0x7E), (2**-20, 1, 0), (0, 5, 0)]
    for amax, g, code in table:
        assert block_formats.nvfp4(np.full((1, 16), amax, np.float32), g)[1].tolist() == [[code]], (amax, g)
    known = [(448, 127), (449, 128), (447.9, 127), (255, 127), (256, 127), (896, 128), (1, 119), (448 * 2.0**-10, 117), (1e-40, 0), (3e38, 247), (0, 0)]
    for amax, code in known:
        assert block_formats.mx(np.full((1, 32), amax, np.float32))[1].tolist() == [[code]], amax
    identity = np.array([[0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]], np.float32)
    assert block_formats.packed(block_formats.nvfp4(identity, 1.0)[0])[0].tobytes().hex() == "1032547698badcfe"


@pytest.mark.parametrize("rows, columns", [(1, 1024), (128, 64), (300, 160), (129, 2048), (0, 64)])
def test_scales_in_tiles_are_padded_with_zeros(rows, columns):
    fd = quantizer(BF16, FP4, swizzled=True)
    x = random_values((rows, columns), BF16)
    found = run(fd, x)
    assert found[1].shape == (-(-rows // 128) * 128, -(-columns // 64) * 4)
    check(found, block_formats.nvfp4(numbers(x)), FP4, True)


@pytest.mark.parametrize("dtype", [FLOAT, BF16], ids=lambda d: d.name)
def test_a_misaligned_input_is_exact(dtype):
    """One element off: a thread reads its elements one by one where whole bytes must be written, and a block may take 32 lanes."""
    store = random_values((64 * 4 + 1,), dtype)
    x = store[1:].view(4, 64)
    check(run(quantizer(dtype, E4M3), x), block_formats.mx(numbers(x)), E4M3)
    for swizzled in (False, True):
        check(run(quantizer(dtype, FP4, swizzled=swizzled), x), block_formats.nvfp4(numbers(x)), FP4, swizzled)


def test_a_permuted_input_is_read_where_it_lies():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT, stride_order=[0, 1])
        for result in fd.ops.nv_block_quantize(x):
            fd.add_output(result)
    x = random_values((48, 6), FLOAT).t()
    check(run(fd, x), block_formats.nvfp4(numbers(x)), FP4)


# ---------------------------------------------------------------- fused behind what comes before
def silu_and_mul(fd, x, y):  # noqa: ANN001, ANN201
    return fd.ops.mul(fd.ops.silu(x), y)


def rms_norm(fd, x):  # noqa: ANN001, ANN201
    mean = fd.ops.mean(fd.ops.mul(x, x), [-1], True)
    return fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean, 1e-5)))


def layer_norm(fd, x):  # noqa: ANN001, ANN201
    x = fd.ops.cast(x, FLOAT)  # var_mean of 16 bits is refused, as nvFuser does
    var, mean = fd.ops.var_mean(x, [-1], correction=0, keepdim=True)
    return fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))


def softmax(fd, x):  # noqa: ANN001, ANN201
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [-1], True)))
    return fd.ops.div(e, fd.ops.sum(e, [-1], True))


@pytest.mark.parametrize("target", [FP4, E4M3], ids=lambda d: d.name)
@pytest.mark.parametrize("norm", [rms_norm, layer_norm, softmax], ids=lambda f: f.__name__)
def test_rows_are_normalized_and_quantized_by_one_kernel(norm, target):
    """The normalized row is an output too: elements and scales are those of exactly these numbers."""
    with FusionDefinition() as fd:
        y = norm(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=BF16))
        for result in (y, *fd.ops.nv_block_quantize(y, None, False, 16 if target is FP4 else 32, target)):
            fd.add_output(result)
    for shape in [(1, 32), (5, 96), (3, 1024), (2, 4128)]:
        x = random_values(shape, BF16)
        y, elements, scales = fd.execute([x])
        assert len(fd.fec.kernel_runtimes) >= 1 and fd.fec.get_cuda_kernel([x]).count("__global__") == 1
        check((elements.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()), block_formats.nvfp4(y.numpy()) if target is FP4 else block_formats.mx(y.numpy()), target)


@pytest.mark.parametrize("rows", ["register", "tma", "specialized"])
def test_all_ways_to_keep_rows_quantize(rows):
    with options(rows=rows):
        for target in (FP4, E4M3):
            with FusionDefinition() as fd:
                y = rms_norm(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=BF16))
                for result in (y, *fd.ops.nv_block_quantize(y, None, target is FP4, 16 if target is FP4 else 32, target)):
                    fd.add_output(result)
            x = random_values((6, 2048), BF16)
            y, elements, scales = fd.execute([x])
            expected = block_formats.nvfp4(y.numpy()) if target is FP4 else block_formats.mx(y.numpy())
            check((elements.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()), expected, target, target is FP4)


def test_the_largest_magnitude_of_the_tensor_may_be_a_further_output():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        g = fd.define_tensor([], dtype=FLOAT)
        fd.add_output(fd.ops.max(fd.ops.abs(fd.ops.cast(x, FLOAT)), [0, 1]))
        for result in fd.ops.nv_block_quantize(x, g):
            fd.add_output(result)
    for shape in [(3, 32), (40, 1024)]:
        x = random_values(shape, BF16)
        amax, elements, scales = fd.execute([x, torch.tensor(50.0)])
        assert float(amax) == float(x.abs().max())
        assert fd.fec.get_cuda_kernel([x, torch.tensor(50.0)]).count("__global__") == 1
        check((elements.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()), block_formats.nvfp4(numbers(x), 50.0), FP4)


def test_a_global_scale_from_the_same_data_takes_two_kernels():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        g = fd.ops.div(2688.0, fd.ops.max(fd.ops.abs(x), [0, 1]))
        for result in fd.ops.nv_block_quantize(x, g):
            fd.add_output(result)
    x = random_values((6, 64), FLOAT)
    check(run(fd, x), block_formats.nvfp4(numbers(x), float(np.float32(2688) / np.float32(x.abs().max()))), FP4)


def test_quantized_twice_and_scales_unused():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        a, _ = fd.ops.nv_block_quantize(x)
        b, scales = fd.ops.nv_block_quantize(fd.ops.mul(x, 2.0), None, False, 32, E4M3)
        for result in (a, b, scales):
            fd.add_output(result)
    x = random_values((5, 96), FLOAT)
    a, b, scales = fd.execute([x])
    np.testing.assert_array_equal(a.view(torch.uint8).numpy(), block_formats.packed(block_formats.nvfp4(x.numpy())[0]))
    check((b.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()), block_formats.mx(2 * x.numpy()), E4M3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(dtype=DataType.Float8_e5m2), "Currently only output data type of Float4_e2m1fn or Float8_e4m3fn is supported"),
        (dict(block_size=32), "Block size must be 16 for Float4_e2m1fn, got 32"),
        (dict(dtype=E4M3), "Block size must be 32 for Float8_e4m3fn, got 16"),
        (dict(dtype=E4M3, block_size=32, swizzle_block_scales=True), "swizzle_scales must be false for Float8_e4m3fn"),
    ],
)
def test_arguments_are_refused_in_nvfusers_words(arguments, message):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        with pytest.raises(RuntimeError, match=message):
            fd.ops.nv_block_quantize(x, **arguments)
        fd.add_output(fd.ops.set(x))


def test_tensors_are_refused_in_nvfusers_words():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        whole, wide = fd.define_tensor([4], dtype=FLOAT), fd.define_tensor([], dtype=DataType.Double)
        integers, scalar = fd.define_tensor([4], dtype=DataType.Int), fd.define_tensor([], dtype=FLOAT)
        for call, message in [
            (lambda: fd.ops.nv_block_quantize(x, scalar, False, 32, E4M3), "global_scaling_factor must be nullptr for Float8_e4m3fn"),
            (lambda: fd.ops.nv_block_quantize(integers), "Block quantization expects floating point input but got int64_t"),
            (lambda: fd.ops.nv_block_quantize(x, whole), "Global scaling factor for block quantization must be a scalar tensor"),
            (lambda: fd.ops.nv_block_quantize(x, wide), "Global scaling factor for block quantization must be of float data type"),
            (lambda: fd.ops.nv_block_quantize(scalar), "Block quantization does not support zero-dimensional tensors"),
            (lambda: fd.ops.nv_block_quantize(fd.define_tensor([3, 24], dtype=FLOAT)), "no whole blocks of 16"),
        ]:
            with pytest.raises(RuntimeError, match=message):
                call()
        fd.add_output(fd.ops.set(x))
    fd = quantizer(BF16, FP4)
    for columns in (8, 24, 17):
        with pytest.raises(RuntimeError, match=f"has {columns} elements, which is not a multiple of the block of 16"):
            fd.execute([random_values((2, columns), BF16)])


def grouped(tokens: list[int]) -> tuple[list[int], list[int]]:
    """Where the rows of groups begin, and where their tiles do."""
    begins = np.cumsum([0, *tokens[:-1]]).tolist()
    return begins, np.cumsum([0, *(-(-n // 128) * 128 for n in tokens[:-1])]).tolist()


@pytest.mark.parametrize("tokens", [[115, 144, 8, 33], [1], [0, 128, 0, 5], [300, 0], [0, 0], [1] * 70])
@pytest.mark.parametrize("has_global", [False, True])
def test_groups_have_their_scales_in_tiles_of_their_own(tokens, has_global):
    begins, places = grouped(tokens)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        offsets = [fd.define_tensor([-1], dtype=DataType.Int32) for _ in range(2)]
        g = fd.define_tensor([], dtype=FLOAT) if has_global else None
        for result in fd.ops.nv_grouped_block_quantize(x, *offsets, g):
            fd.add_output(result)
    for columns in (160, 64):
        x = random_values((sum(tokens), columns), BF16)
        inputs = [x, *(torch.tensor(n, dtype=torch.int32) for n in (begins, places)), *([torch.tensor(448.0)] if has_global else [])]
        found = run(fd, *inputs)
        codes, scales = block_formats.nvfp4(numbers(x), 448.0 if has_global else None)
        np.testing.assert_array_equal(found[0], block_formats.packed(codes))
        np.testing.assert_array_equal(found[1], block_formats.in_grouped_tiles(scales, begins, places))
    if sum(tokens):
        assert fd.fec.get_cuda_kernel(inputs).count("__global__") == 1


def test_scales_of_groups_that_are_there_already_are_laid_out_alike():
    begins, places = grouped([5, 130])
    with FusionDefinition() as fd:
        scales = fd.define_tensor([-1, -1], contiguity=True, dtype=E4M3)
        offsets = [fd.define_tensor([-1], dtype=DataType.Int32) for _ in range(2)]
        fd.add_output(fd.ops.preprocess_grouped_matmul_input_sf(scales, *offsets))
    x = torch.arange(135 * 10, dtype=torch.int32).remainder(120).to(torch.uint8).view(135, 10).view(torch.float8_e4m3fn)
    (found,) = fd.execute([x, *(torch.tensor(n, dtype=torch.int32) for n in (begins, places))])
    np.testing.assert_array_equal(found.view(torch.uint8).numpy(), block_formats.in_grouped_tiles(x.view(torch.uint8).numpy(), begins, places))


def test_grouped_arguments_are_refused():
    with FusionDefinition() as fd:
        x, deep = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16), fd.define_tensor([2, 3, 16], dtype=BF16)
        offsets, floats = fd.define_tensor([-1], dtype=DataType.Int32), fd.define_tensor([-1], dtype=FLOAT)
        for call, message in [
            (lambda: fd.ops.nv_grouped_block_quantize(x, offsets, offsets, dtype=E4M3), "only nvfp4 output is implemented"),
            (lambda: fd.ops.nv_grouped_block_quantize(deep, offsets, offsets), "rank 3, not 2"),
            (lambda: fd.ops.nv_grouped_block_quantize(x, floats, offsets), "pass a tensor with one axis and dtype Int32"),
            (lambda: fd.ops.nv_grouped_block_quantize(x, offsets, offsets, block_size=32), "Block size must be 16 for Float4_e2m1fn, got 32"),
        ]:
            with pytest.raises(RuntimeError, match=message):
                call()
        fd.add_output(fd.ops.set(x))


@pytest.mark.parametrize("has_global", [False, True])
@pytest.mark.parametrize("target", [FP4, E4M3])
def test_the_text_of_a_quantizer_defines_it_again(target: DataType, has_global: bool) -> None:
    fd = quantizer(BF16, target, swizzled=target is FP4, has_global=has_global and target is FP4)
    scope: dict = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), scope)  # noqa: S102  (the text of a definition of this test)
    with FusionDefinition() as again:
        scope["nvfuser_fusion"](again)
    inputs = [random_values((128, 64), BF16), *([torch.tensor(3.0)] if has_global and target is FP4 else [])]
    for one, other in zip(run(fd, *inputs), run(again, *inputs), strict=True):
        np.testing.assert_array_equal(one, other)
