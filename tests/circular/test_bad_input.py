"""What the hardware, or a pipeline, refuses is said before NVRTC sees it, with the limit."""

from __future__ import annotations

import pytest
import torch
from scheduled import L, P, Rows, flat, program, run

from weft import DataType, FusionDefinition, MemoryType
from weft.lower.copies import BadAsyncCopy, BadBulkCopy, BadRing, BulkMisaligned
from weft.lower.roles import BadBlock, DynamicBlock, MixedSpecialization, RegistersNotConserved, TooManyBarriers
from weft.options import options
from weft.runtime.limits import ChipTooOld, Misaligned, NotDivisible, TooMuchShared
from weft.schedule.circular import BadRegisters, BadSpecialization, BadStages, NotACopy, WarpSpecialized, circular_buffer, split_registers, warp_specialize
from weft.schedule.inline import inline_to


def copy_of(kind=L.tma, memory: MemoryType = MemoryType.shared, dtype: DataType = DataType.Float):  # noqa: ANN001, ANN201
    """(definition, input, copy, output) of y = x + 1 through a copy."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=dtype)
        y = fd.ops.add(x, x)
        fd.add_output(y)
        copy = x.cache_after(kind)
        copy.set_memory_type(memory)
    return fd, x, copy, y


@pytest.mark.parametrize("stages, prefetch, why", [(1, 0, "there are 1 stages"), (65, 1, "there are 65 stages"), (3, 3, "1 to 2 iterations"), (3, 0, "1 to 2")])
def test_stages_and_distances(stages: int, prefetch: int, why: str) -> None:
    with pytest.raises(BadStages, match=why):
        circular_buffer(copy_of()[2], stages, prefetch)


def test_a_distance_below_zero_counts_from_the_stages_and_zero_does_not() -> None:
    copy = copy_of()[2]
    circular_buffer(copy, 4, -1)
    assert copy.circular.prefetch == 3
    with pytest.raises(BadStages, match="with 4 stages and a prefetch distance of 0:"):
        circular_buffer(copy_of()[2], 4, 0)


def test_only_copies_in_shared_memory_go_round() -> None:
    _, x, copy, y = copy_of(memory=MemoryType.local)
    with pytest.raises(NotACopy, match="local memory; a ring of stages is in shared memory"):
        circular_buffer(copy, 2)
    with pytest.raises(NotACopy, match="an input of the fusion"):
        circular_buffer(x, 2)
    with pytest.raises(NotACopy, match="computed by add"):
        circular_buffer(y, 2)


@pytest.mark.parametrize("registers, why", [((20, 232), "20 is outside of 24 to 256"), ((40, 236), "236 is not a multiple of 8"), ((40, 264), "264 is outside"), ((48, 40), "48 is more than 40")])
def test_registers_that_setmaxnreg_does_not_take(registers: tuple[int, int], why: str) -> None:
    with pytest.raises(BadRegisters, match=why):
        warp_specialize(copy_of()[2], 2, 1, P.block_y, registers)


def test_specialization_needs_a_thread_axis_one_of_four_warps_and_tma() -> None:
    with pytest.raises(BadSpecialization, match="grid_x is not a thread axis"):
        warp_specialize(copy_of()[2], 2, 1, P.grid_x)
    with pytest.raises(BadSpecialization, match="there is no async warp 4"):
        warp_specialize(copy_of()[2], 2, 1, P.block_y, async_warp=4)
    with pytest.raises(BadSpecialization, match="copied with set"):
        warp_specialize(copy_of(kind=L.set)[2], 2, 1, P.block_y)


def test_registers_are_conserved() -> None:
    with pytest.raises(RegistersNotConserved, match=r"together they need 65536, but the block starts with 64512 \(168 per thread\)(.|\n)*returns \(40, 232\)"):
        program(Rows(registers=(32, 240)).define(), (128,))
    with pytest.raises(RegistersNotConserved, match="168, which is not between"):
        program(Rows(registers=(24, 160)).define(), (128,))
    assert split_registers(168, 256, 128) == (40, 232)
    assert split_registers(128, 384, 128) == (32, 160)


def test_the_compute_block_is_known_and_fits_the_async_warps() -> None:
    with pytest.raises(DynamicBlock, match="threadIdx.x is ceildiv"):
        program(Rows().define())
    with pytest.raises(BadBlock, match="96 threads across that axis, which neither divides the 128"):
        program(Rows().define(), (96,))
    with pytest.raises(BadBlock, match="1152 threads with the async ones; 1024 are allowed"):
        program(Rows(groups=8).define(), (128,))
    with pytest.raises(BadBlock, match=r"into one warpgroup \(the unit of setmaxnreg\)"):
        program(Rows(groups=3, registers=(40, 232)).define(), (32,))
    with pytest.raises(BadBlock, match="groups, each smaller than a warp"):
        program(Rows(groups=8, own=True).define(), (16,))


def test_named_barriers_are_counted() -> None:
    with pytest.raises(TooManyBarriers, match=r"the kernel needs 17 named barriers \(from 1: one for each threadIdx.y; from 17: one for all\)|needs 16 named"):
        program(Rows(groups=16, store=True, axis=P.block_y).define(), (32,))


def test_all_specialized_tensors_agree() -> None:
    case = Rows()
    fd = case.define()
    t = case.loaded[1]
    t.circular = type(t.circular)(3, 2, WarpSpecialized(P.block_z), 1)  # type: ignore[call-arg]
    with pytest.raises(MixedSpecialization, match="block_y.*block_z"):
        program(fd, (128,))


def test_bytes_of_bulk_copies() -> None:
    with pytest.raises(BulkMisaligned, match="its tile is 6, in bytes a multiple of 8 only; a bulk copy needs multiples of 16"):
        program(flat(tile=6, threads=6))
    with pytest.raises(NotDivisible, match=r"size of bulk copies \(16 bytes and multiples\) T0.size\[0\] is 130, which 4 does not divide"):
        run(flat(), [torch.randn(130)])
    with pytest.raises(Misaligned, match="T0|16 bytes"):
        run(flat(), [torch.randn(129)[1:]])


def test_what_a_bulk_copy_is() -> None:
    fd, x, copy, y = copy_of()
    for t in (copy, y):
        t.split(0, 64)
        t.axis(0).parallelize(P.tma if t is copy else P.block_x)  # neighbours of axis 0 are 64 elements apart
    inline_to(fd.fusion, {copy: 0})  # type: ignore[arg-type]
    with pytest.raises(BadBulkCopy, match="does not run over neighbours in shared memory"):
        program(fd)
    fd, x, copy, y = copy_of()
    for t in (copy, y):
        t.split(0, 64)
        t.axis(0).parallelize(P.block_y)
    copy.axis(1).parallelize(P.tma)
    program(fd)  # one thread issues the copies that those of the axis would
    fd, x, copy, y = copy_of(memory=MemoryType.local)
    with pytest.raises(BadBulkCopy, match="from global to local memory"):
        program(fd)


def test_what_cp_async_copies() -> None:
    fd, *_ = copy_of(kind=L.cp_async, dtype=DataType.Half)
    with pytest.raises(BadAsyncCopy, match="a thread copies 1 elements of .*, 2 bytes; cp.async can copy 4, 8, 16"):
        program(fd)
    fd, *_ = copy_of(kind=L.cp_async, memory=MemoryType.local)
    with pytest.raises(BadAsyncCopy, match="from global to local memory"):
        program(fd)


def test_rings_are_in_loops() -> None:
    fd, x, copy, y = copy_of()
    copy.axis(0).parallelize(P.tma)
    circular_buffer(copy, 2, 1)
    with pytest.raises(BadRing, match="not inlined into any loop"):
        program(fd)


def test_older_chips_have_no_bulk_copies() -> None:
    with options(chip="A100"), pytest.raises(ChipTooOld, match="which need compute capability 9.0; A100 has 8.0"):
        run(flat(), [torch.randn(128)])
    with options(chip="A100"):
        run(flat(L.cp_async, stages=3, prefetch=2), [torch.randn(1280)])


def test_shared_memory_is_limited() -> None:
    with pytest.raises(TooMuchShared, match="bytes of shared memory"):
        run(flat(stages=10, prefetch=9, tile=8192, threads=128), [torch.randn(8192)])
