"""Narrow types for every chip, without one: NVRTC compiles each routine and a kernel of each kind, nothing spills, and a chip's own conversions are used."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from weft import FusionDefinition
from weft.arch import A100, B200, H200, MOST_SPILL_BYTES
from weft.check.record_corpus import _softmax, suite
from weft.check.records import programs
from weft.device.library import translation_unit
from weft.quantize import functions
from weft.quantize.formats import E4M3, FP4, Mx, MxBothWays, NvFp4, NvFp4BothWays, Per1x128, PerRow, PerTensor, Recipe
from weft.runtime.nvrtc import Compiled, compile_cubin
from weft.runtime.resources import disassemble, disassembler

sys.path.append(str(Path(__file__).resolve().parents[1] / "device"))

from test_narrow import unit  # noqa: E402

BF16, E8M0 = functions.DataType.BFloat16, functions.DataType.Float8_e8m0fnu
TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
CONSUMER = {"max_threads_per_sm": 1536, "max_blocks_per_sm": 24, "shared_per_sm_bytes": 100 * 1024, "shared_per_block_optin_bytes": 99 * 1024}
"""What a multiprocessor of 8.9 and of 12.0 has less than one of a data centre's chip. Source: CUDA C++ Programming Guide, technical specifications."""
L40 = replace(A100, compute_capability=(8, 9), **CONSUMER)
RTX = replace(B200, compute_capability=(12, 0), max_cluster_blocks=8, **CONSUMER)
CHIPS = dict(zip(TARGETS, (A100, L40, H200, B200, B200, RTX), strict=True))
HAS_FP8, HAS_FP4 = set(TARGETS[1:]), set(TARGETS[3:])
MATRIX, VECTOR = (BF16, 2, True), (BF16, 1, True)
SIZES = (16384, 4096)
KINDS: dict[str, tuple[Recipe, str, int]] = {
    "nvfp4 in tiles": (NvFp4("128x4"), "", 1), "mxfp8 in tiles": (Mx(E4M3, "128x4"), "", 1), "1x128": (Per1x128(E4M3, "columns"), "", 1),
    "per row": (PerRow(), "", 1), "rms norm nvfp4": (NvFp4("128x4"), "rms_norm", 1), "rms norm mxfp8": (Mx(E4M3, "128x4"), "rms_norm", 1),
    "nvfp4 hadamard stochastic": (NvFp4("128x4", is_stochastic=True, signs=(1, -1) * 8), "", 1), "add rms norm per row": (PerRow(), "add_rms_norm", 2), "silu mul mxfp8": (Mx(E4M3), "silu_mul", 2),
    "layer norm nvfp4": (NvFp4("128x4"), "layer_norm", 1), "silu mul nvfp4": (NvFp4("128x4"), "silu_mul", 2), "mxfp4": (Mx(FP4, "128x4"), "", 1),
    "rms norm per tensor": (PerTensor(is_by_rows=True), "rms_norm", 1),
}  # fmt: skip


PLAIN = {  # what is read as it is: source, sizes, target, and what is between
    "fp4 to bf16": (FP4, SIZES, BF16, lambda fd, x: x), "fp8 to bf16": (E4M3, SIZES, BF16, lambda fd, x: x),
    "e5m2 to half": (functions.DataType.Float8_e5m2, SIZES, functions.DataType.Half, lambda fd, x: x),
    "float to e5m2": (functions.FLOAT, SIZES, functions.DataType.Float8_e5m2, lambda fd, x: x), "e8m0 to bf16": (E8M0, SIZES, BF16, lambda fd, x: x),
    "float to e8m0": (functions.FLOAT, SIZES, E8M0, lambda fd, x: x),
    "row sums of fp4": (FP4, SIZES, functions.FLOAT, lambda fd, x: fd.ops.sum(x, [1])),
    "column sums of fp8": (E4M3, SIZES, functions.FLOAT, lambda fd, x: fd.ops.sum(x, [0])),
    "softmax of fp8": (E4M3, SIZES, E4M3, lambda fd, x: _softmax(fd, x)), "softmax of fp4": (FP4, SIZES, BF16, lambda fd, x: _softmax(fd, x)),
    "fp4 turned": (FP4, SIZES, FP4, lambda fd, x: fd.ops.permute(x, [1, 0])), "fp8 turned": (E4M3, SIZES, E4M3, lambda fd, x: fd.ops.permute(x, [1, 0])),
}  # fmt: skip
SOFTMAX_NVFP4 = "softmax nvfp4"
BOTH_WAYS = {"mxfp8 both ways": MxBothWays(), "nvfp4 both ways": NvFp4BothWays("128x4")}
GROUPS = "nvfp4 in groups"


def kernel_of(name: str, target: str):  # noqa: ANN201
    if name in KINDS:
        recipe, before, matrices = KINDS[name]
        weights = {"layer_norm": 2}.get(before, int(before.endswith("norm")))
        fd = functions._definition(recipe, before, (*[MATRIX] * matrices, *[VECTOR] * weights), 1e-5)
        shapes = [*[SIZES] * matrices, *[SIZES[1:]] * weights, *[()] * recipe.has_scale]
    elif name in BOTH_WAYS:
        fd, shapes = functions._definition(BOTH_WAYS[name], "", ((BF16, 3, True),), 1e-5), [(16384 // BOTH_WAYS[name].tile_rows, BOTH_WAYS[name].tile_rows, 4096)]
    elif name in PLAIN or name == SOFTMAX_NVFP4:
        source, (rows, columns), target_type, between = PLAIN.get(name, (BF16, SIZES, FP4, _softmax))
        with FusionDefinition() as fd:
            made = between(fd, fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=source), functions.FLOAT))
            for result in (fd.ops.cast(made, target_type),) if name in PLAIN else fd.ops.nv_block_quantize(made, None, True):
                fd.add_output(result)
        shapes = [(rows, columns // source.elems_per_unit)]
    elif name == GROUPS:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
            for result in fd.ops.nv_grouped_block_quantize(x, *(fd.define_tensor([-1], dtype=functions.DataType.Int32) for _ in range(2))):
                fd.add_output(result)
        shapes = [SIZES, (8,), (8,)]
    else:
        fd, shapes = suite()[name]
    made, *_ = programs(fd, shapes, CHIPS[target])
    return made.program


def compiled(text: str, blocks: object, name: str, target: str, registers: int | None = None) -> Compiled:
    return compile_cubin(translation_unit(text, blocks, shortened=True), name, target, max_registers=registers, keep_ptx=True)  # type: ignore[arg-type]


SPILLED = {("rms norm mxfp8", "sm_90a"): 4}
"""Bytes that a thread spills; the runtime compiles with more registers from 32 on. Not one with the place of a scale as (16 * thread) / 32, not thread / 2."""


KERNELS = (*KINDS, *PLAIN, *BOTH_WAYS, SOFTMAX_NVFP4, GROUPS, "softmax fp4 BFloat16 16384x4096", "fp8 BFloat16 16384x4096")
COMPILED = [(name, target) for n, name in enumerate(KERNELS) for m, target in enumerate(TARGETS) if target in ("sm_90a", "sm_100a") or (n + m) % 2]


@pytest.mark.parametrize(("name", "target"), COMPILED)
def test_a_kernel_of_each_kind_compiles_and_spills_nothing(name, target):
    """Conversions are chosen inside the device functions: the text names none."""
    program = kernel_of(name, target)
    made = compiled(program.text, program.blocks, "kernel", target, program.max_registers)
    assert made.resources.spill_store_bytes <= SPILLED.get((name, target), 0), made.resources
    if name != "1x128" and "mxfp8" not in name:
        return
    assert ("cvt.rn.satfinite.e4m3x2.f32" in made.ptx) == (target in HAS_FP8)


def test_an_odd_address_of_one_input_costs_the_others_no_vectors():
    """One of four inputs of a row of 262144 is at an odd address: it alone is read byte by byte. Random fusion 1850 of --narrow, which spilled 728 bytes."""
    kinds = (FP4, BF16, functions.DataType.Float8_e5m2, E4M3)
    with FusionDefinition() as fd:
        a, b, c, d = (fd.ops.cast(fd.define_tensor([-1], contiguity=True, dtype=kind), functions.FLOAT) for kind in kinds)
        x = fd.ops.sub(a, b)
        mean = fd.ops.mul(fd.ops.sum(fd.ops.mul(x, x), [0], True), 1 / 262144)
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean, 0.1))), c), d), E4M3))
    odd = torch.empty(262144 + 3, dtype=torch.float8_e5m2)[3:]
    (made,) = programs(fd, [(131072,), (262144,), odd, (262144,)])
    program = made.program
    assert re.search(r"single_reads=\(\d+,\)", made.params) and "vector_elems=1," not in made.params
    assert not compiled(program.text, program.blocks, "kernel", "sm_90a", program.max_registers).resources.has_spills
    (even,) = programs(fd, [(131072,), (262144,), (262144,), (262144,)])
    assert not re.search(r"single_reads=\(\d", even.params)


def test_bytes_that_are_loaded_one_by_one_stay_packed():
    """All inputs lie apart, so that no vector is left: each byte would take a register."""
    with FusionDefinition() as fd:
        rows = [fd.define_tensor([-1, -1], contiguity=[False, False], dtype=kind) for kind in (E4M3, functions.DataType.Float8_e5m2)]
        x, y = (fd.ops.cast(t, functions.FLOAT) for t in rows)
        fd.add_output(fd.ops.cast(fd.ops.mul(_softmax(fd, x), y), BF16))
    apart = [torch.empty(64, 8192, dtype=dtype)[:, ::2] for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)]
    (made,) = programs(fd, apart)
    program = made.program
    assert "weft::repack(" in program.text
    resources = compiled(program.text, program.blocks, "kernel", "sm_90a", program.max_registers).resources
    assert resources.spill_store_bytes is not None and resources.spill_store_bytes <= MOST_SPILL_BYTES


@pytest.mark.parametrize("target", TARGETS)
def test_every_routine_compiles_and_a_chips_own_conversions_are_used(target):
    """No more conversions, and no fewer, than the chip has; without them the routines' constants stand in the text."""
    made = compile_cubin(unit(), "encode_float_e4m3", target, keep_ptx=True)
    assert not made.resources.has_spills and not made.resources.stack_bytes
    for form, chips in [
        ("cvt.rn.satfinite.e4m3x2.f32", HAS_FP8), ("cvt.rn.satfinite.e5m2x2.f32", HAS_FP8), ("cvt.rn.f16x2.e4m3x2", HAS_FP8), ("cvt.rn.f16x2.e5m2x2", HAS_FP8),
        ("cvt.rn.satfinite.e2m1x2.f32", HAS_FP4), ("cvt.rn.f16x2.e2m1x2", HAS_FP4), ("cvt.rp.satfinite.ue8m0x2.f32", HAS_FP4),
    ]:  # fmt: skip
        assert (form in made.ptx) == (target in chips), form
    quick = re.search(r"\.entry encode_float_e2m1\b.*?\n\}", made.ptx, re.DOTALL)
    assert quick is not None


INSTRUCTIONS = [  # a kernel, and an instruction for two of its elements that these chips have and no other
    ("mxfp8 in tiles", r"F2FP\.SATFINITE\.E4M3\.F32\.PACK_AB", HAS_FP8), ("fp8 to bf16", r"F2FP\.F16\.E4M3\.UNPACK_B", HAS_FP8),
    ("float to e5m2", r"F2FP\.SATFINITE\.E5M2\.F32\.PACK_AB", HAS_FP8), ("e5m2 to half", r"F2FP\.F16\.E5M2\.UNPACK_B", HAS_FP8),
    ("nvfp4 in tiles", r"F2FP\.SATFINITE\.E2M1\.F32\.PACK_AB", HAS_FP4), ("fp4 to bf16", r"F2FP\.F16\.E2M1\.UNPACK_B", HAS_FP4),
    ("float to e8m0", r"F2FP\.SATFINITE\.\S*E8", HAS_FP4),
]  # fmt: skip


@pytest.mark.skipif(disassembler() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name, form, chips", INSTRUCTIONS)
def test_a_chips_conversions_reach_the_machine_code(name, form, chips, target):
    program = kernel_of(name, target)
    text = disassemble(compiled(program.text, program.blocks, "kernel", target, program.max_registers).cubin)
    assert text is not None and bool(re.search(form, text)) == (target in chips)
