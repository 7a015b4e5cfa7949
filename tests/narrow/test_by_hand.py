"""FP4 scheduled by hand: vectors of 2 to 32 elements, what cuts a byte, and what the emulator sees of nibbles."""

from __future__ import annotations

import pytest
import torch
from narrow_tensors import BESIDE, FP4, random_codes, random_values, same_bytes

from weft import DataType, FusionDefinition, ParallelType
from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel
from weft.reference import narrow
from weft.reference.torch_types import torch_dtype
from weft.runtime.kernel_executor import KernelExecutor

VECTORS = [2, 4, 8, 16, 32]


def scheduled_cast(source: DataType, target: DataType, vector: int, extent: int = -1) -> FusionDefinition:
    """input -> registers -> cast -> registers -> output, with vector accesses and a vector conversion."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([extent], contiguity=True, dtype=source)
        y = fd.ops.set(x) if source is target else fd.ops.cast(x, target)
        fd.add_output(y)
        loaded, computed = x.cache_after(), y.cache_before()
        for tensor in (y, computed, loaded):
            tensor.split(0, vector)
            tensor.split(0, 32)
            tensor.axis(0).parallelize(ParallelType.grid_x)
            tensor.axis(1).parallelize(ParallelType.block_x)
        for tensor in (y, loaded, computed):
            tensor.axis(2).parallelize(ParallelType.vectorize)
    return fd


def run(fd: FusionDefinition, x: torch.Tensor) -> torch.Tensor:
    executor = KernelExecutor()
    executor.compile(fd.fusion, [x])
    return executor.run([x])[0]


@pytest.mark.parametrize("extent", [-1, 2048], ids=["symbolic", "static"])
def test_a_copy_takes_any_vector(extent):
    x = random_codes((2048,), FP4)
    for vector in VECTORS:
        assert same_bytes(run(scheduled_cast(FP4, FP4, vector, extent), x), x)


@pytest.mark.parametrize("wide", BESIDE, ids=lambda d: d.name)
def test_casts_take_any_vector(wide):
    codes, numbers = random_codes((1024,), FP4), random_values((1024,), wide)
    for vector in VECTORS:
        up = run(scheduled_cast(FP4, wide, vector), codes)
        torch.testing.assert_close(up, narrow.values_of(codes, FP4).to(torch_dtype(wide)), atol=0, rtol=0)
        assert same_bytes(run(scheduled_cast(wide, FP4, vector), numbers), narrow.packed(numbers, FP4))


def test_an_access_of_one_nibble_is_refused():
    with pytest.raises(RuntimeError, match="Tried to vectorize a dim resulting in a word size of 4 bits"):
        run(scheduled_cast(FP4, FP4, 1), random_codes((64,), FP4))


HALF_WRITTEN = """
extern "C" __global__ void half_written(weft::e2m1_pair* T0) {
  weft::Array<weft::e2m1, 4> a;
  for (int i = 0; i < 3; i++) a[i] = weft::convert_narrow<weft::e2m1>(1.0f);
  weft::store_global_vector<4>(T0 + threadIdx.x * 2, a, 0);
}"""
SHARED_BYTE = """
extern "C" __global__ void shared_byte(weft::e2m1_pair* T0) {
  weft::Array<weft::e2m1, 2> a;
  a.fill(weft::convert_narrow<weft::e2m1>(1.0f));
  weft::store_global_vector<2>(T0 + threadIdx.x / 2, a, 0);
}"""


@pytest.mark.parametrize("text, threads, finding", [(HALF_WRITTEN, 1, "never written|uninitialised"), (SHARED_BYTE, 2, "race")])
def test_the_emulator_finds_half_written_bytes_and_bytes_of_two_threads(text, threads, finding):
    unit = translation_unit(text, ["narrow"])
    name = "half_written" if threads == 1 else "shared_byte"
    out = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=f"(?i){finding}"):
        EmulatedKernel(unit, name, check="races").launch((1, 1, 1), (threads, 1, 1), 0, [Buffer.of(out, "T0", written=True, initialised=False)])


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("wide", BESIDE, ids=lambda d: d.name)
def test_rows_that_hold_every_code_take_any_vector(wide, vector):
    """As nvFuser's first test of 4 bits, scheduled by hand: 2^20 rows of 16 elements, each with all sixteen codes, to a wide type and back."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    codes = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8, device=device).repeat(1 << 20).view(torch_dtype(FP4))
    up = run(scheduled_cast(FP4, wide, vector), codes)
    row = narrow.values_of_codes(torch.arange(16), FP4).to(torch_dtype(wide)).to(device)
    assert torch.equal(up.view(1 << 20, 16), row.expand(1 << 20, 16)) and torch.equal(torch.signbit(up[-16:]), torch.signbit(row))
    assert torch.equal(run(scheduled_cast(wide, FP4, vector), up).view(torch.uint8), codes.view(torch.uint8))
