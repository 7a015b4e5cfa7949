"""scaled_mm and grouped_mm of narrow elements: what torch computes where the chip has it, and the missing hardware by name where it has not."""

from __future__ import annotations

import pytest
import torch
from narrow_tensors import random_values

from weft import DataType, FusionDefinition, quantize
from weft.ops.matmuls import WrongOperand
from weft.ops.torch_ops import MissingHardware, check_hardware
from weft.runtime.binding import WrongDtype

BF16, E4M3, E8M0 = DataType.BFloat16, DataType.Float8_e4m3fn, DataType.Float8_e8m0fnu
FP4 = DataType.Float4_e2m1fn_x2


def product(elements: DataType, scales: DataType, rank: int = 2) -> FusionDefinition:
    """a [m, k] and b [k, n], which lies as [n, k]; scales of rank `rank`."""
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1], contiguity=True, dtype=elements)
        b = fd.define_tensor([-1, -1], contiguity=True, dtype=elements, stride_order=[0, 1])
        pair = [fd.define_tensor([-1] * rank, contiguity=False, dtype=scales) for _ in range(2)]
        fd.add_output(fd.ops.scaled_mm(a, b, *pair, dtype=DataType.Float)[0])
    return fd


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return random_values((128, 512), BF16), random_values((256, 512), BF16)  # torch 2.11 refuses squares of which a row has fewer than four, padded too


CASES = {
    "per row": (lambda a, b: (*quantize.per_row(a), *quantize.per_row(b)), "rows", E4M3, DataType.Float),
    "1x128": (lambda a, b: (*quantize.per_1x128(a, "torch"), *quantize.blocks_128x128(b, "torch")), "rows", E4M3, DataType.Float),
    "mxfp8": (lambda a, b: (*quantize.mxfp8(a, "torch"), *quantize.mxfp8(b, "torch")), "128x4", E4M3, E8M0),
    "nvfp4": (lambda a, b: (*quantize.nvfp4(a, None, "torch"), *quantize.nvfp4(b, None, "torch")), "128x4", FP4, E4M3),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_that_of_what_dequantize_gives(name):
    """In the emulator, where no chip is asked: sums in float64, rounded to Float at the end; what dequantize gives is rounded to Float, too, element by element."""
    made, layout, elements, scales = CASES[name]
    qa, sa, qb, sb = made(*operands())
    (found,) = product(elements, scales).execute([qa, qb.t(), sa, sb if layout == "128x4" else sb.t()])
    wide = [quantize.dequantize(q, s, dtype=torch.float32, layout=layout).double() for q, s in ((qa, sa), (qb, sb))]
    bound = 2.0**-22 * (wide[0].abs() @ wide[1].abs().t())
    assert ((found.double() - wide[0] @ wide[1].t()).abs() <= bound).all()


F8, F4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2


@pytest.mark.parametrize(
    "elements, scales, capability, needed",
    [
        (F8, torch.ones(()), (8, 6), "8.9 (Ada) or later"), (F8, torch.ones(4, 1), (8, 0), "8.9 (Ada) or later"), (F8, torch.ones(()), (8, 9), ""),
        (F8, torch.ones(4, 1), (9, 0), ""), (F8, torch.ones(4, 2), (8, 9), "9.0 (Hopper)"), (F8, torch.ones(4, 2), (9, 0), ""),
        (F8, torch.ones(4, 2), (10, 0), "9.0 (Hopper)"), (F8, torch.ones(128, 4, dtype=torch.uint8).view(torch.float8_e8m0fnu), (9, 0), "10.0 (Blackwell) or later"),
        (F8, torch.ones(128, 4, dtype=torch.uint8).view(torch.float8_e8m0fnu), (10, 0), ""), (F4, torch.ones(128, 4).to(F8), (9, 0), "10.0 (Blackwell) or later"),
        (F4, torch.ones(128, 4).to(F8), (12, 0), ""),
    ],
    ids=str,
)
def test_the_missing_hardware_is_named(elements, scales, capability, needed):
    if not needed:
        check_hardware("scaled_mm", elements, scales, capability, "a GPU")
        return
    with pytest.raises(MissingHardware) as refused:
        check_hardware("scaled_mm", elements, scales, capability, "NVIDIA X")
    text = str(refused.value)
    assert f"needs a GPU of compute capability {needed}; this is NVIDIA X, of compute capability {capability[0]}.{capability[1]}" in text
    assert "weft.quantize.dequantize" in text and str(elements).removeprefix("torch.") in text


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_computes_it_or_says_what_is_missing(name):
    made, layout, elements, scales = CASES[name]
    qa, sa, qb, sb = made(*(t.cuda() for t in operands()))
    given = [qa, qb.t(), sa, sb if layout == "128x4" else sb.t()]
    major = torch.cuda.get_device_capability()[0]
    if layout == "128x4" and major < 10 or name == "1x128" and major != 9:
        with pytest.raises(MissingHardware, match="needs a GPU of compute capability"):
            product(elements, scales).execute(given)
        return
    (found,) = product(elements, scales).execute(given)
    wide = [quantize.dequantize(q, s, dtype=torch.float32, layout=layout).double() for q, s in ((qa, sa), (qb, sb))]
    wanted = wide[0] @ wide[1].t()
    torch.testing.assert_close(found.double(), wanted, rtol=0.02, atol=0.01 * float(wanted.abs().max()))


def grouped(elements: DataType, scales: DataType) -> FusionDefinition:
    """Rows of a [m, k] in groups, each times its own b [g, k, n], which lies as [g, n, k]."""
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1], contiguity=True, dtype=elements)
        b = fd.define_tensor([-1, -1, -1], contiguity=True, dtype=elements, stride_order=[2, 0, 1])
        ends = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int32)
        rows, columns = fd.define_tensor([-1, -1], contiguity=False, dtype=scales), fd.define_tensor([-1, -1, -1], contiguity=False, dtype=scales)
        out, *rest = fd.ops.grouped_mm(a, b, ends, rows, columns, dtype=DataType.Float)
        assert rest == [None, None]
        fd.add_output(out)
    return fd


def experts(device: str):  # noqa: ANN201
    """Rows of three experts quantized per row, their weights per column, where the rows of each end, and the product of what they stand for."""
    a, b, ends = random_values((96, 64), BF16).to(device), random_values((3 * 32, 64), BF16).to(device), [16, 64, 96]
    (qa, sa), (qb, sb) = quantize.per_row(a), quantize.per_row(b)
    given = [qa, qb.view(3, 32, 64).transpose(1, 2), torch.tensor(ends, dtype=torch.int32, device=device), sa, sb.view(3, 1, 32)]
    wide = [quantize.dequantize(q, s, dtype=torch.float32).double() for q, s in ((qa, sa), (qb, sb))]
    parts = [wide[0][i:j] @ wide[1].view(3, 32, 64)[g].t() for g, (i, j) in enumerate(zip([0, *ends], ends))]
    return given, torch.cat(parts)


def test_groups_of_rows_with_a_scale_each():
    given, wanted = experts("cpu")
    (found,) = grouped(E4M3, DataType.Float).execute(given)
    torch.testing.assert_close(found.double(), wanted, rtol=2.0**-20, atol=2.0**-20 * float(wanted.abs().max()))


def layouts_of_groups(device: str):  # noqa: ANN201
    """For each place of the groups: operands, ends and scales as nvFuser has them, and the product."""
    g, m, n, k = 3, 32, 64, 96
    spread = {"k": ((m, g * k), (g * k, n), (g, m, 1), (g, 1, n)), "m": ((g * m, k), (g, k, n), (g * m, 1), (g, 1, n)), "n": ((g, m, k), (k, g * n), (g, m, 1), (1, g * n))}
    for axis, (shape_a, shape_b, shape_rows, shape_columns) in spread.items():
        a = random_values(shape_a, BF16).to(device).to(torch.float8_e4m3fn)
        b = random_values((*shape_b[:-2], shape_b[-1], shape_b[-2]), BF16).to(device).to(torch.float8_e4m3fn).transpose(-1, -2)
        rows, columns = torch.rand(shape_rows, device=device) + 0.5, torch.rand(shape_columns, device=device) + 0.5
        size = {"k": k, "m": m, "n": n}[axis]
        ends = torch.tensor([size // 2, size * 2, size * 3], dtype=torch.int32, device=device)
        bounds = [0, *ends.tolist()]
        wide_a, wide_b, parts = a.double(), b.double(), []
        for i, (first, last) in enumerate(zip(bounds, bounds[1:])):
            along_k, along_m, along_n = (slice(first, last) if axis == name else slice(None) for name in "kmn")
            at = slice(None) if axis == "m" else i
            part_a = wide_a[i] if axis == "n" else wide_a[along_m, along_k]
            part_b = wide_b[i] if axis == "m" else wide_b[along_k, along_n]
            row = rows[along_m] if axis == "m" else rows[at]
            column = columns[:, along_n] if axis == "n" else columns[i]
            parts.append((part_a @ part_b) * row.double() * column.double())
        yield [a, b, ends, rows, columns], torch.stack(parts) if axis == "k" else torch.cat(parts, 0 if axis == "m" else 1)


def check_layouts_of_groups(device: str, tolerance: float) -> None:
    for given, wanted in layouts_of_groups(device):
        with FusionDefinition() as fd:
            out, *rest = fd.ops.grouped_mm(*(fd.from_pytorch(t) for t in given), dtype=DataType.Float)
            fd.add_output(out)
        (found,) = fd.execute(given)
        assert rest == [None, None] and found.shape == wanted.shape
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def test_groups_along_each_axis_with_scales() -> None:
    check_layouts_of_groups("cpu", 2.0**-20)


@pytest.mark.gpu
def test_groups_along_each_axis_with_scales_on_a_gpu() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("torch's products of scaled groups are Hopper's")
    check_layouts_of_groups("cuda", 2.0**-7)


@pytest.mark.gpu
def test_a_gpu_computes_groups_or_says_what_is_missing():
    given, wanted = experts("cuda")
    if torch.cuda.get_device_capability() < (8, 9):
        with pytest.raises(MissingHardware, match="needs a GPU of compute capability 8.9"):
            grouped(E4M3, DataType.Float).execute(given)
        return
    (found,) = grouped(E4M3, DataType.Float).execute(given)
    torch.testing.assert_close(found.double(), wanted, rtol=0.02, atol=0.01 * float(wanted.abs().max()))


@pytest.mark.parametrize("elements, scales, name", [(FP4, E4M3, "float4_e2m1fn_x2 with scales of float8_e4m3fn"), (E4M3, E8M0, "float8_e4m3fn with scales of float8_e8m0fnu")], ids=str)
def test_groups_with_scales_of_blocks_name_the_missing_hardware(elements, scales, name):
    """On the CPU, and on every GPU before Blackwell."""
    device = "cuda" if torch.cuda.is_available() and torch.cuda.get_device_capability() < (10, 0) else "cpu"
    recipe = quantize.nvfp4 if elements is FP4 else quantize.mxfp8
    (q, s), (qb, sb) = (recipe(random_values((32, 64), BF16).to(device)) for _ in range(2))
    given = [q, qb.view(1, 32, -1).transpose(1, 2), torch.tensor([32], dtype=torch.int32, device=device), s, sb.view(1, 32, -1).transpose(1, 2)]
    with pytest.raises(MissingHardware, match=f"grouped_mm of {name} needs a GPU of compute capability 10.0"):
        grouped(elements, scales).execute(given)


@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_products_without_scales_are_refused_by_name(op):
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1, -1], contiguity=True, dtype=FP4) for _ in range(2))
        with pytest.raises(WrongOperand, match=f"W394: {op}: torch has no {op} of Float4_e2m1fn without scales(.|\n)*scaled_mm"):
            getattr(fd.ops, op)(a, b)
        fd.add_output(fd.ops.cast(a, BF16))
    with pytest.raises(WrongDtype, match=r"W773(.|\n)*bytes of codes as tensor.view\(torch.float4_e2m1fn_x2\)"):
        fd.execute([torch.zeros(4, 8, dtype=torch.uint8), torch.zeros(4, 8, dtype=torch.uint8)])
