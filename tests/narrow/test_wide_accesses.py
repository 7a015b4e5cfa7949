"""Accesses of 256 bits, which chips from 10.0 on have: chosen where addresses allow, right in the emulator, in the machine code, and nowhere on other chips."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from narrow_tensors import FP4, random_tensor, same_bytes, values
from test_chips import CHIPS, compiled

from weft import DataType, FusionDefinition
from weft.arch import A100, B200, CHIPS as KNOWN_CHIPS, H200
from weft.check.records import programs
from weft.options import options
from weft.reference import narrow
from weft.reference.torch_types import torch_dtype
from weft.runtime.resources import disassemble, disassembler

BF16, HALF, FLOAT, DOUBLE, E4M3 = DataType.BFloat16, DataType.Half, DataType.Float, DataType.Double, DataType.Float8_e4m3fn
WIDE = {target: chip for target, chip in CHIPS.items() if chip.max_access_bits == 256}
CASTS = [(FP4, FLOAT), (FP4, BF16), (E4M3, BF16), (BF16, FP4), (FLOAT, E4M3), (DOUBLE, FP4)]
OWN = [BF16, FLOAT, DOUBLE, E4M3]
"""Types that are copied with their signs changed; a cast from one to itself."""


def pointwise(source: DataType, target: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=source)
        fd.add_output(fd.ops.cast(fd.ops.neg(x) if source is target else x, target))
    return fd


def rms_norm(source: DataType, target: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=source), FLOAT)
        mean = fd.ops.mul(fd.ops.sum(fd.ops.mul(x, x), [1], True), 1.0 / 64)
        fd.add_output(fd.ops.cast(fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean, 1e-5))), target))
    return fd


def access_bits(text: str) -> dict[str, int]:
    """Return the widest vector of each kind, "load" and "store", of global memory."""
    types = {f"T{name}": bits for name, bits in _bits_of_tensors(text)}
    found: dict[str, int] = {}
    for kind, elems, tensor in re.findall(r"weft::(load|store)_global_vector<(\d+)[^(]*\((?:T\d+, [^,]+, )?(T\d+)", text):
        found[kind] = max(found.get(kind, 0), int(elems) * types[tensor])
    return found


def _bits_of_tensors(text: str) -> list[tuple[str, int]]:
    sizes = {"e2m1_pair": 4, "e4m3": 8, "bf16": 16, "f16": 16, "float": 32, "double": 64}
    return [(name, sizes[ctype]) for ctype, name in re.findall(r"(?:weft::)?(\w+)\* __restrict__ T(\d+)", text)]


def kernel(fd: FusionDefinition, given: tuple[int, ...] | torch.Tensor, chip=B200):  # noqa: ANN001, ANN201
    (made,) = programs(fd, [given], chip)
    return made.program


def tensor_at(offset_bytes: int, shape: tuple[int, int], dtype: DataType) -> torch.Tensor:
    """A tensor whose first element lies so many bytes behind a multiple of 64."""
    plain = random_tensor(shape, dtype)
    store = torch.zeros(plain.numel() * plain.element_size() + 128, dtype=torch.uint8)
    start = -store.data_ptr() % 64 + offset_bytes
    at = store[start : start + plain.numel() * plain.element_size()].view(plain.dtype).view(plain.shape)
    at.view(torch.uint8).copy_(plain.view(torch.uint8))
    return at


def expected(x: torch.Tensor, source: DataType, target: DataType) -> torch.Tensor:
    exact = values(x, source) * (-1 if source is target else 1)
    return narrow.packed(exact, target) if target.is_narrow_float else exact.to(torch_dtype(target))


def test_the_width_is_a_figure_of_the_chip():
    assert {name: chip.max_access_bits for name, chip in KNOWN_CHIPS.items()} == {"A100": 128, "H100": 128, "H200": 128, "B200": 256}
    assert set(WIDE) == {"sm_100a", "sm_103a", "sm_120a"}


@pytest.mark.parametrize("source, target", [*CASTS, *((t, t) for t in OWN)], ids=lambda d: d.name)
def test_the_widest_type_moves_256_bits_where_the_chip_has_them(source, target):
    shape = (16384, 4096 // source.elems_per_unit)
    assert max(access_bits(kernel(pointwise(source, target), shape).text).values()) == 256
    for chip in (A100, H200, replace(B200, max_access_bits=128)):
        assert max(access_bits(kernel(pointwise(source, target), shape, chip).text).values()) == 128


@pytest.mark.parametrize("source, target", [(FP4, BF16), (BF16, FP4), (FLOAT, FLOAT)], ids=lambda d: d.name)
def test_a_tensor_of_the_widest_type_at_16_bytes_falls_back(source, target):
    """The narrow side may begin anywhere that suits its own vectors."""
    shape = (2048, 4096)
    for offset_bytes in (0, 16, 32, 48):
        found = access_bits(kernel(pointwise(source, target), tensor_at(offset_bytes, shape, source)).text)
        is_narrow_side = source is FP4
        assert max(found.values()) == (256 if offset_bytes % 32 == 0 or is_narrow_side else 128), (offset_bytes, found)


@pytest.mark.parametrize("source, target", [(FP4, BF16), (BF16, FP4), (HALF, HALF), (FLOAT, E4M3)], ids=lambda d: d.name)
def test_results_are_exact_on_a_chip_that_has_them(source, target):
    """Rows of few and of many vectors, sizes that 16 or 8 elements divide or neither, one row, none, addresses at any 16 bytes."""
    fd = pointwise(source, target)
    with options(chip="B200"):
        for shape in [(1, 2), (0, 64), (1, 99072), (37, 2568), (37, 2064), (33, 3076)]:
            for offset_bytes in (0, 16) if shape[0] == 1 else (0,):
                x = tensor_at(offset_bytes, shape, source)
                assert same_bytes(fd.execute([x])[0], expected(x, source, target)), (shape, offset_bytes)


def test_a_call_at_another_alignment_has_a_kernel_of_its_own():
    """Warm calls ask for the low five bits of an address."""
    fd = pointwise(FLOAT, FLOAT)
    with options(chip="B200"):
        for offset_bytes in (0, 16, 0, 32, 16, 4, 0):
            x = tensor_at(offset_bytes, (300, 512), FLOAT)
            torch.testing.assert_close(fd.execute([x])[0], -x, atol=0, rtol=0)


@pytest.mark.parametrize("source, target", [(FP4, BF16), (E4M3, FLOAT), (BF16, FP4)], ids=lambda d: d.name)
def test_rows_beside_narrow_types_are_normalized_with_them(source, target):
    fd = rms_norm(source, target)
    assert max(access_bits(kernel(fd, (4096, 4096 // source.elems_per_unit)).text).values()) == 256
    with options(chip="B200"):
        for shape in [(1, 32), (3, 4096), (5, 1040), (2, 3000)]:
            fd.validate([random_tensor(shape, source)])


def test_rows_cut_from_wider_ones_and_broadcasts():
    """A stride of 24 floats is a multiple of 32 bytes, one of 20 is not; weights of a row are loaded as wide as the rest."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=FLOAT)
        w = fd.define_tensor([1, -1], contiguity=[None, True], dtype=FLOAT)
        fd.add_output(fd.ops.add(x, w))
    with options(chip="B200"):
        for wide in (1048, 1044, 1041):
            x, w = random_tensor((300, wide), FLOAT)[:, :1024], random_tensor((1, 1024), FLOAT)
            torch.testing.assert_close(fd.execute([x, w])[0], x + w, atol=0, rtol=0)


def test_slices_and_rows_that_begin_anywhere():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        fd.add_output(fd.ops.neg(fd.ops.slice(x, [0, 16], [257, 2064])))
        fd.add_output(fd.ops.mul(fd.ops.slice(x, [0, 8], [257, 2056]), 2.0))
    with FusionDefinition() as odd:
        x = odd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
        y = odd.define_tensor([1, -1], contiguity=[None, True], dtype=BF16)
        odd.add_output(odd.ops.cast(odd.ops.add(x, y), BF16))
    with options(chip="B200"):
        fd.validate([random_tensor((257, 2064), BF16)])
        odd.validate([random_tensor((301, 1031), BF16), random_tensor((1, 1031), BF16)])


@pytest.mark.skipif(disassembler() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("target", WIDE)
@pytest.mark.parametrize("source, target_type, kinds", [(FP4, BF16, "S"), (BF16, FP4, "L"), (FLOAT, FLOAT, "LS")], ids=["fp4 to bf16", "bf16 to fp4", "float"])
def test_machine_code_has_one_instruction_for_256_bits(source, target_type, kinds, target):
    program = kernel(pointwise(source, target_type), (16384, 4096 // source.elems_per_unit), WIDE[target])
    made = compiled(program.text, program.blocks, "kernel", target, program.max_registers)
    text = disassemble(made.cubin)
    assert not made.resources.has_spills and text is not None
    for kind in kinds:
        assert re.search(rf"{kind}[DT]G\.E\.\S*256", text), kind


def test_text_for_256_bits_compiles_for_chips_without_them():
    """Two accesses of 128 bits each."""
    program = kernel(pointwise(FLOAT, FLOAT), (16384, 4096))
    made = compiled(program.text, program.blocks, "kernel", "sm_90a", program.max_registers)
    assert made.ptx.count("ld.global.nc.v4") == 2 and made.ptx.count("st.global.v4") == 2
