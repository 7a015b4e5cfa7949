"""Narrow types for every chip, without one: NVRTC compiles each routine and a kernel of each kind, nothing spills, and a chip's own conversions are used."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from weft import FusionDefinition
from weft.arch import A100, B200, H200
from weft.check.record_corpus import suite
from weft.check.records import programs
from weft.device.library import translation_unit
from weft.quantize import functions
from weft.quantize.formats import E4M3, Mx, MxBothWays, NvFp4, NvFp4BothWays, Per1x128, PerRow, Recipe
from weft.runtime.nvrtc import Compiled, compile_cubin

sys.path.append(str(Path(__file__).resolve().parents[1] / "device"))

from test_narrow import unit  # noqa: E402

BF16 = functions.DataType.BFloat16
TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
CHIPS = {target: chip for target, chip in zip(TARGETS, (A100, replace(A100, compute_capability=(8, 9)), H200, B200, B200, B200), strict=True)}
HAS_FP8, HAS_FP4 = set(TARGETS[1:]), set(TARGETS[3:])
MATRIX, VECTOR = (BF16, 2, True), (BF16, 1, True)
SIZES = (16384, 4096)
KINDS: dict[str, tuple[Recipe, str, int]] = {
    "nvfp4 in tiles": (NvFp4("128x4"), "", 1), "mxfp8 in tiles": (Mx(E4M3, "128x4"), "", 1), "1x128": (Per1x128(E4M3, "columns"), "", 1),
    "per row": (PerRow(), "", 1), "rms norm nvfp4": (NvFp4("128x4"), "rms_norm", 1), "rms norm mxfp8": (Mx(E4M3, "128x4"), "rms_norm", 1),
    "nvfp4 hadamard stochastic": (NvFp4("128x4", is_stochastic=True, signs=(1, -1) * 8), "", 1), "add rms norm per row": (PerRow(), "add_rms_norm", 2), "silu mul mxfp8": (Mx(E4M3), "silu_mul", 2),
}  # fmt: skip


BOTH_WAYS = {"mxfp8 both ways": MxBothWays(), "nvfp4 both ways": NvFp4BothWays("128x4")}
GROUPS = "nvfp4 in groups"


def kernel_of(name: str, target: str):  # noqa: ANN201
    if name in KINDS:
        recipe, before, matrices = KINDS[name]
        weights = before.endswith("norm")
        fd = functions._definition(recipe, before, (*[MATRIX] * matrices, *[VECTOR] * weights), 1e-5)
        shapes = [*[SIZES] * matrices, *[SIZES[1:]] * weights]
    elif name in BOTH_WAYS:
        fd, shapes = functions._definition(BOTH_WAYS[name], "", ((BF16, 3, True),), 1e-5), [(16384 // BOTH_WAYS[name].tile_rows, BOTH_WAYS[name].tile_rows, 4096)]
    elif name == GROUPS:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], contiguity=True, dtype=BF16)
            for result in fd.ops.nv_grouped_block_quantize(x, *(fd.define_tensor([-1], dtype=functions.DataType.Int32) for _ in range(2))):
                fd.add_output(result)
        shapes = [SIZES, (8,), (8,)]
    else:
        fd, shapes = suite()[name]
    (made,) = programs(fd, shapes, CHIPS[target])
    return made.program


def compiled(text: str, blocks: object, name: str, target: str, registers: int | None = None) -> Compiled:
    return compile_cubin(translation_unit(text, blocks, shortened=True), name, target, max_registers=registers, keep_ptx=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*KINDS, *BOTH_WAYS, GROUPS, "softmax fp4 BFloat16 16384x4096", "fp8 BFloat16 16384x4096"])
def test_a_kernel_of_each_kind_compiles_and_spills_nothing(name, target):
    """Conversions are chosen inside the device functions: the text names none. Consumer chips have the sizes of these here."""
    program = kernel_of(name, target)
    made = compiled(program.text, program.blocks, "kernel", target, program.max_registers)
    assert not made.resources.has_spills and not made.resources.stack_bytes, made.resources
    if name != "1x128" and "mxfp8" not in name:
        return
    assert ("cvt.rn.satfinite.e4m3x2.f32" in made.ptx) == (target in HAS_FP8)


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


def test_hardware_forms_reach_the_machine_code():
    """The PTX forms become F2FP instructions, one for two elements, where nvdisasm is there to show it."""
    import shutil
    import subprocess
    import tempfile

    if shutil.which("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    for target, form in (("sm_90a", r"F2FP\.SATFINITE\.E4M3"), ("sm_100a", r"F2FP\.\S*E2M1")):
        program = kernel_of("nvfp4 in tiles", target)
        cubin = compiled(program.text, program.blocks, "kernel", target, program.max_registers).cubin
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            text = subprocess.run(["nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
        assert re.search(form, text), target
