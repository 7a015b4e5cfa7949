"""Weights that differ between groups of rows (a scale and a shift per sample): the rows of a group read them from L2, late, like weights of all rows."""

from __future__ import annotations

import pytest
from fusion_check import poisoned_outputs
from part_of_chip import part_of_the_chip
from row_fusions import layer_norm, numbers, rms_norm, wide

from weft import DataType, FusionDefinition
from weft.check.records import programs
from weft.device.library import translation_unit
from weft.options import options
from weft.runtime import nvrtc
from weft.schedulers.limits import STEP_BYTES

BF16, FLOAT = DataType.BFloat16, DataType.Float


def adaptive(norm, dtype: DataType) -> FusionDefinition:
    """norm(x) * (1 + scale) + shift: x [samples, rows, columns], scale and shift [samples, columns]."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=True, dtype=dtype)
        scale, shift = (fd.define_tensor([-1, -1], contiguity=True, dtype=dtype) for _ in range(2))
        spread = [fd.ops.broadcast_in_dim(wide(fd, t), x.shape(), [0, 2]) for t in (scale, shift)]
        value = wide(fd, x)
        if norm is layer_norm:
            var, mean = fd.ops.var_mean(value, [2], correction=0, keepdim=True)
            value = fd.ops.mul(fd.ops.sub(value, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))
        else:
            mean = fd.ops.mean(fd.ops.mul(value, value), [2], True)
            value = fd.ops.mul(value, fd.ops.rsqrt(fd.ops.add(mean, 1e-6)))
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(value, fd.ops.add(spread[0], 1.0)), spread[1]), dtype))
    return fd


def checked(fd: FusionDefinition, dtype: DataType, samples: int, rows: int, columns: int) -> tuple[str, object]:
    """Compare with the reference in float64; return the text of the kernel and its params."""
    inputs = [numbers(dtype, samples, rows, columns), numbers(dtype, samples, columns), numbers(dtype, samples, columns) * 0.5]
    with poisoned_outputs():
        fd.validate(inputs)
    (runtime,) = fd.fec.kernel_runtimes[-1:]
    return runtime.program.text, runtime.proposal.params


@pytest.mark.parametrize(
    ("samples", "rows", "columns", "dtype"),
    [
        (3, 5, 1152, BF16), (1, 7, 1152, BF16), (7, 1, 640, FLOAT), (3, 5, 1, BF16), (3, 5, 1, FLOAT), (2, 3, 33, BF16), (3, 4, 1001, FLOAT), (3, 4, 1001, BF16),
        (2, 5, 4096, FLOAT), (3, 3, 20000, BF16), (2, 2, 40008, FLOAT),
    ],
)  # fmt: skip
@pytest.mark.parametrize("norm", [layer_norm, rms_norm], ids=["layer", "rms"])
def test_scale_and_shift_of_samples(norm, dtype: DataType, samples: int, rows: int, columns: int) -> None:
    checked(adaptive(norm, dtype), dtype, samples, rows, columns)


@pytest.mark.parametrize("way", ["register", "tma", "specialized"])
@pytest.mark.parametrize("columns", [1152, 4096, 16384])
def test_every_way_to_keep_rows(way: str, columns: int) -> None:
    with part_of_the_chip(), options(rows=way, check="races"):
        checked(adaptive(layer_norm, BF16), BF16, 3, 9, columns)


def test_samples_without_rows() -> None:
    fd = adaptive(layer_norm, BF16)
    for samples, rows in ((0, 3), (2, 0)):
        (out,) = fd.execute([numbers(BF16, samples, rows, 64), numbers(BF16, samples, 64), numbers(BF16, samples, 64)])
        assert out.shape == (samples, rows, 64)


@pytest.mark.parametrize("columns", [1152, 24576, 65536])
def test_the_last_pass_loads_them(columns: int) -> None:
    """Vector by vector behind the sums of the row: a thread needs no registers for its part of two more rows."""
    (made,) = programs(adaptive(layer_norm, BF16), [(32, 1024, columns), (32, columns), (32, columns)])
    text = made.program.text
    last_pass = text[text.rindex("weft::reduce_") :]
    for name in ("T1", "T2"):
        assert text.count(f", {name} + ") == last_pass.count(f", {name} + ") == 1


@pytest.mark.skipif(not nvrtc.candidates(), reason="NVRTC is not installed")
@pytest.mark.parametrize("columns", [896, 1152])
def test_a_row_in_one_warp_has_registers_for_converted_elements(columns: int) -> None:
    """Nothing separates its passes, so that the compiler keeps what it converted: with nine vectors per thread 264 bytes were spilled."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([32768, columns], contiguity=True, dtype=BF16)
        y = layer_norm(fd, wide(fd, x), x)
        for op in (fd.ops.mul, fd.ops.add):
            w = fd.define_tensor([columns], contiguity=True, dtype=BF16)
            y = op(y, fd.ops.broadcast_in_dim(wide(fd, w), [32768, columns], [1]))
        fd.add_output(fd.ops.cast(y, BF16))
    (made,) = programs(fd, [(32768, columns), (columns,), (columns,)])
    unit = translation_unit(made.program.text, made.program.blocks, shortened=True)
    compiled = nvrtc.compile_or_load(unit, made.program.name, "sm_90a", max_registers=made.program.max_registers)
    assert "reduce_lanes" in made.program.text
    assert (compiled.resources.spill_store_bytes or 0) <= STEP_BYTES
