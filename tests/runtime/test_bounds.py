"""Positions out of range on a GPU: reported under the setting `bounds`, element 0 without it, an error of the call in the emulator."""

from __future__ import annotations

import ctypes

import pytest
import torch

import weft
from weft import DataType, FusionDefinition
from weft.device.library import translation_unit
from weft.options import options
from weft.runtime import bounds
from weft.runtime.nvrtc import compile_cubin


def rows_of(device: str, positions: list[int]) -> tuple[FusionDefinition, list[torch.Tensor]]:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True], DataType.Float)
        i = fd.define_tensor([-1], [True], DataType.Int)
        fd.add_output(fd.ops.mul(fd.ops.index_select(x, i, 0), 2.0))
    return fd, [torch.randn(7, 33, device=device), torch.tensor(positions, device=device)]


@pytest.mark.gpu
def test_the_next_synchronization_raises_once_and_names_kernel_and_position() -> None:
    with options(bounds=True):
        fd, inputs = rows_of("cuda", [0, 6, 7])
        out = fd.execute(inputs)[0]
        with pytest.raises(weft.PositionOutOfRange, match=r"position 7 of an axis of 7 elements, and took element 0 instead: .*index_select"):
            weft.synchronize()
        weft.synchronize()
        torch.testing.assert_close(out, inputs[0][[0, 6, 0]] * 2)


@pytest.mark.gpu
def test_the_next_call_raises_and_the_one_after_it_is_right() -> None:
    with options(bounds=True):
        fd, inputs = rows_of("cuda", [0, -1, 3])
        fd.execute(inputs)
        torch.cuda.synchronize()
        right = [inputs[0], torch.tensor([3, 2, 1], device="cuda")]
        with pytest.raises(IndexError, match="position -1 of an axis of 7"):
            fd.execute(right)
        torch.testing.assert_close(fd.execute(right)[0], inputs[0][[3, 2, 1]] * 2)
        weft.synchronize()


@pytest.mark.gpu
def test_without_the_setting_nothing_is_reported_and_no_access_is_wild() -> None:
    fd, inputs = rows_of("cuda", [0, 1 << 40, -(1 << 40)])
    out = fd.execute(inputs)[0]
    weft.synchronize()
    torch.testing.assert_close(out, inputs[0][[0, 0, 0]] * 2)


@pytest.mark.gpu
def test_kernels_with_the_setting_and_without_are_two() -> None:
    fd, inputs = rows_of("cuda", [9])
    fd.execute(inputs)
    with options(bounds=True):
        fd.execute(inputs)
        with pytest.raises(weft.PositionOutOfRange):
            weft.synchronize()
    fd.execute(inputs)
    weft.synchronize()


def test_the_emulator_raises_in_the_call_itself() -> None:
    with options(bounds=True):
        fd, inputs = rows_of("cpu", [0, 7])
        with pytest.raises(weft.WeftError, match="position 7 of an axis of 7 elements"):
            fd.execute(inputs)


def test_a_kernel_that_reports_compiles_for_a_gpu_and_has_the_variable() -> None:
    fd, inputs = rows_of("cpu", [0, 6])
    fd.execute(inputs)
    program = fd.fec._compiled(inputs, 0)[0].program
    assert bounds.BLOCK in program.blocks
    unit = "#define WEFT_BOUNDS\n" + translation_unit(program.text, program.blocks, shortened=True)
    assert bounds.GLOBAL.encode() in compile_cubin(unit, program.name, "sm_90a").cubin
    plain = translation_unit(program.text, program.blocks, shortened=True)
    assert bounds.GLOBAL.encode() not in compile_cubin(plain, program.name, "sm_90a").cubin


def test_a_report_is_read_once_and_names_the_op() -> None:
    fd, inputs = rows_of("cpu", [0, 6])
    fd.execute(inputs)
    program = fd.fec._compiled(inputs, 0)[0].program
    memory = ctypes.create_string_buffer(32)
    report = bounds.Report(program, ctypes.addressof(memory))
    assert report.take() is None
    (ctypes.c_uint32 * 2).from_buffer(memory)[:] = [1, 1]
    (ctypes.c_int64 * 2).from_buffer(memory, 8)[:] = [-3, 7]
    found = report.take()
    assert found is not None and "position -3 of an axis of 7 elements" in str(found) and "index_select" in str(found)
    assert report.take() is None and not any(memory.raw[:8])
