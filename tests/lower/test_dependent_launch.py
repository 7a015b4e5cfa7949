"""Programmatic dependent launch: where a kernel waits, what it touches before, which kernels start as usual, and what the emulator says of a read too early."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.device.library import translation_unit
from weft.emulator import Buffer, EmulatedKernel
from weft.lower.program import KernelProgram, Need
from weft.options import options
from weft.runtime.nvrtc import compile_cubin
from weft.runtime.runtimes import MOST_OVERLAPPED_BYTES

WAIT, LAUNCH = "weft::griddep_wait();", "weft::griddep_launch();"
GLOBAL_ACCESS = re.compile(r"weft::(load_global|store_global|bulk_load|bulk_store|tensor_load|tensor_store|cp_async|atomic_|fold_partials|arrive_grid|meet_grid)")


def softmax(fd: FusionDefinition, dtype: DataType = DataType.Float) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
    e = fd.ops.exp(fd.ops.sub(fd.ops.cast(x, DataType.Float), fd.ops.max(fd.ops.cast(x, DataType.Float), dims=[1], keepdim=True)))
    fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True)), dtype))


def half_softmax(fd: FusionDefinition) -> None:
    softmax(fd, DataType.BFloat16)


def column_sums(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.sum(fd.define_tensor(shape=[-1, -1], contiguity=True), [0]))


def bias(fd: FusionDefinition) -> None:
    x, b = fd.define_tensor(shape=[-1, -1], contiguity=True), fd.define_tensor(shape=[-1], contiguity=True)
    fd.add_output(fd.ops.tanh(fd.ops.add(x, fd.ops.broadcast(b, [True, False]))))


def transpose(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.stride_order(fd.ops.permute(fd.define_tensor(shape=[-1, -1], contiguity=True), [1, 0]), [1, 0]))


def running_sums(fd: FusionDefinition) -> None:
    fd.add_output(fd.ops.cumsum(fd.define_tensor(shape=[-1, -1], contiguity=True), 1))


def lookup(fd: FusionDefinition) -> None:
    x, index = fd.define_tensor(shape=[-1, -1], contiguity=True), fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Int)
    fd.add_output(fd.ops.index_select(x, index, 0))


def dropout(fd: FusionDefinition) -> None:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    fd.add_output(fd.ops.mul(x, fd.ops.rand_like(x)))


CASES: list[tuple[Callable[[FusionDefinition], None], tuple[int, int], dict[str, str]]] = [
    (softmax, (7, 1000), {}), (softmax, (7, 1001), {}), (half_softmax, (150, 2000), {"rows": "tma"}), (half_softmax, (300, 2000), {"rows": "specialized"}),
    (half_softmax, (2, 70000), {}), (column_sums, (1500, 70), {}), (column_sums, (9, 333), {}), (bias, (33, 501), {}), (transpose, (70, 131), {}),
    (running_sums, (5, 3000), {}), (lookup, (40, 65), {}),
]  # fmt: skip


def defined(build: Callable[[FusionDefinition], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        build(fd)
    return fd


def inputs_of(build: Callable[[FusionDefinition], None], shape: tuple[int, int]) -> list[Any]:
    x = torch.randn(shape, dtype=torch.bfloat16 if build is half_softmax else torch.float32)
    return [x, torch.randn(shape[1])] if build is bias else [x, torch.randint(0, shape[0], (13,))] if build is lookup else [x]


def program_of(fd: FusionDefinition) -> KernelProgram:
    return fd.fec.kernel_runtimes[-1].program


@pytest.mark.parametrize("build, shape, settings", CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_nothing_in_memory_is_touched_before_the_wait(build: Callable[[FusionDefinition], None], shape: tuple[int, int], settings: dict[str, str]) -> None:
    """Checked by the emulator on the way, whose launch overlaps; results are those of the kernel that starts as usual."""
    inputs = inputs_of(build, shape)
    results = []
    for setting in ("on", "off"):
        fd = defined(build)
        with options(dependent_launch=setting, check="bounds,races", **settings):
            results.append(fd.execute(inputs)[0])
        program = program_of(fd)
        assert (Need.dependent_launch in program.needs) == (setting == "on") == (WAIT in program.text)
        if setting == "on":
            before, _, after = program.text.partition(WAIT)
            assert not GLOBAL_ACCESS.search(before) and program.text.count(WAIT) == program.text.count(LAUNCH) == 1 and LAUNCH in after
            assert not re.search(r"const \w[\w:]*\* __restrict__", program.text), "the compiler may move loads through such a pointer in front of the wait"
    assert torch.equal(*results)


@pytest.mark.parametrize("build", [softmax, bias, transpose, lookup])
def test_the_compiler_moves_no_load_in_front_of_the_wait(build: Callable[[FusionDefinition], None]) -> None:
    with options(dependent_launch="on"):
        fd = defined(build)
        fd.execute(inputs_of(build, (40, 512)))
    program = program_of(fd)
    compiled = compile_cubin(translation_unit(program.text, program.blocks), program.name, "sm_90a", keep_ptx=True)
    before, found, after = (compiled.ptx or "").partition("griddepcontrol.wait")
    in_memory = re.compile(r"(ld|st|red|atom)\.global|cp\.async")
    assert found and not in_memory.search(before) and in_memory.search(after)


def test_kernels_whose_blocks_meet_or_that_draw_random_numbers_start_as_usual() -> None:
    with options(dependent_launch="on"):
        fd = defined(dropout)
        fd.execute([torch.randn(5, 70)])
        assert WAIT not in program_of(fd).text and Need.dependent_launch not in program_of(fd).needs


def test_by_itself_it_is_on_for_small_kernels_and_both_are_kept() -> None:
    fd = defined(bias)
    rows = MOST_OVERLAPPED_BYTES // (2 * 4 * 500)
    for count, wanted in ((10, True), (rows + 1, False), (rows - 10, True), (10, True)):
        fd.execute([torch.randn(count, 500), torch.randn(500)])
        last = fd.fec._caller.last.kernels[0].program
        assert (Need.dependent_launch in last.needs) == wanted
    assert len({r.program.name for r in fd.fec.kernel_runtimes}) == len(fd.fec.kernel_runtimes)


def test_older_chips_know_nothing_of_it() -> None:
    with options(dependent_launch="on", chip="A100"):
        fd = defined(bias)
        fd.execute([torch.randn(4, 64), torch.randn(64)])
        assert WAIT not in program_of(fd).text


COPY = """
extern "C" __global__ void copy(const float* T0, float* T1) {
  WAIT
  weft::store_global(T1 + threadIdx.x, weft::load_global(T0 + threadIdx.x));
}
"""


@pytest.mark.parametrize("text, overlaps, kinds", [("", False, set()), ("", True, {"access-before-griddep-wait"}), (WAIT, True, set()), (WAIT, False, set())])
def test_a_launch_that_overlaps_needs_a_wait(text: str, overlaps: bool, kinds: set[str]) -> None:
    source, target = torch.randn(32), torch.empty(32)
    kernel = EmulatedKernel.of_text(COPY.replace("WAIT", text), [], "copy", check="races")
    memory = [Buffer(t.data_ptr(), 128, f"T{n}", n == 1, n == 0) for n, t in enumerate((source, target))]
    assert kernel.launch((1, 1, 1), (32, 1, 1), 0, memory, raise_findings=False, overlaps_previous=overlaps).kinds() == kinds
