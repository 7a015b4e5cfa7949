"""Kernels that turn out to be unusable - they spill too much, or their blocks do not all run at once: other params are chosen, or another scheduler."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import weft.schedulers.inner_outer as two_sides
from weft import DataType, FusionDefinition, compiler
from weft.arch import MOST_SPILL_BYTES, arch_by_name
from weft.check.records import programs
from weft.compiler import MOST_SLOW
from weft.device.library import translation_unit
from weft.expr import const
from weft.ir.enums import SchedulerType
from weft.lower.program import KernelProgram, Need
from weft.options import options
from weft.runtime import engines, nvrtc
from weft.runtime.engines import EmulatorEngine
from weft.runtime.runtimes import forget_kernels
from weft.runtime.resources import Resources, TooManySpills
from weft.runtime.spills import compile_without_spills, more_registers

H100 = arch_by_name("H100")


@pytest.fixture(autouse=True)
def no_known_kernels() -> Iterator[None]:
    """What one test rejects is chosen again in the next."""
    forget_kernels()
    yield
    forget_kernels()


def rows_and_columns() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        y = fd.ops.mul(x, fd.ops.sum(x, [1], True))
        fd.add_output(y)
        fd.add_output(fd.ops.sum(y, [0]))
    return fd


def check(fd: FusionDefinition) -> None:
    x = torch.randn(40, 104, generator=torch.Generator().manual_seed(1))
    wanted = x.double() * x.double().sum(1, keepdim=True)
    for got, want in zip(fd.execute([x]), [wanted, wanted.sum(0)]):
        assert float((got.double() - want).abs().max() / want.abs().max()) < 64 * 2.0**-23


def test_a_grid_that_does_not_run_at_once_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = two_sides.choose_inner_outer

    def too_many_blocks(facts, arch, loadable=True, rejected=MappingProxyType({}), **more):  # noqa: ANN001, ANN003, ANN202
        params, trace = choose(facts, arch, loadable, rejected, **more)
        many = dataclasses.replace(params, blocks=50 * arch.sm_count)
        return (params, trace) if many in rejected else (many, trace)

    monkeypatch.setattr(two_sides, "choose_inner_outer", too_many_blocks)
    fd = rows_and_columns()
    check(fd)
    assert fd.fec.kernel_runtimes[-1].proposal.params.blocks < 50 * H100.sm_count


def test_params_may_be_rejected_twice() -> None:
    """Two calls at once find the same kernel unusable; the second has nothing to add."""
    fd = rows_and_columns()
    check(fd)
    (use,) = (runtime for runtime in fd.fec.kernel_runtimes if runtime.proposal.scheduler is SchedulerType.inner_outer_persistent)
    error = TooManySpills(kernel="kernel", bytes=4000, registers=64, limit=MOST_SPILL_BYTES)
    other = TooManySpills(kernel="kernel", bytes=5000, registers=64, limit=MOST_SPILL_BYTES)
    fusion = use.part.fusion
    for found in (error, other):
        compiler.reject(compiler.Rejected(fusion, use.proposal, found))
    rejected = compiler.prepare(fusion).rejected[use.proposal.scheduler]
    assert rejected == {use.proposal.params: error}


def test_a_kernel_that_spills_gives_way_to_the_next_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    build, refused = EmulatorEngine.build, []

    def refusing(self, program, options, **more):  # noqa: ANN001, ANN003, ANN202
        if program.cooperative and len(refused) < 3:
            refused.append((program.name, program.max_registers))
            raise TooManySpills(kernel=program.name, bytes=4000, registers=64, limit=MOST_SPILL_BYTES)
        return build(self, program, options, **more)

    monkeypatch.setattr(EmulatorEngine, "build", refusing)
    fd = rows_and_columns()
    check(fd)
    used = fd.fec.kernel_runtimes[-1].program
    assert len(set(refused)) == 3 and (used.name, used.max_registers) not in refused
    assert fd.fec.kernel_runtimes[-1].proposal.scheduler is SchedulerType.inner_outer_persistent


def test_rows_that_spill_are_kept_by_more_threads_or_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    build, refused = EmulatorEngine.build, []

    def refusing(self, program, options, **more):  # noqa: ANN001, ANN003, ANN202
        if len(refused) < 2:
            refused.append(program.text)
            raise TooManySpills(kernel=program.name, bytes=4000, registers=64, limit=MOST_SPILL_BYTES)
        return build(self, program, options, **more)

    monkeypatch.setattr(EmulatorEngine, "build", refusing)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
        fd.add_output(fd.ops.div(e, fd.ops.sum(e, [1], True)))
    x = torch.randn(20, 9000)
    with options(strict_schedules=True):
        (made,) = fd.execute([x])
    assert float((made.double() - x.double().softmax(1)).abs().max()) < 1e-6
    (used,) = fd.fec.kernel_runtimes
    assert used.proposal.scheduler is SchedulerType.inner_persistent and len({*refused, used.program.text}) == 3


def test_a_scheduler_without_other_params_leaves_the_fusion_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cut into rows and columns, each in a kernel of its own, needs no grid that waits."""
    build = EmulatorEngine.build

    def refusing(self, program, options, **more):  # noqa: ANN001, ANN003, ANN202
        if program.cooperative:
            raise TooManySpills(kernel=program.name, bytes=4000, registers=64, limit=MOST_SPILL_BYTES)
        return build(self, program, options, **more)

    monkeypatch.setattr(EmulatorEngine, "build", refusing)
    monkeypatch.setattr(two_sides.InnerOuterPersistent, "choose_other", lambda *_: None)
    with options(strict_schedules=False):
        check(rows_and_columns())


def test_where_all_kernels_spill_a_little_the_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    build, refused = EmulatorEngine.build, []

    def refusing(self, program, options, **more):  # noqa: ANN001, ANN003, ANN202
        if program.cooperative and program.most_spill_bytes is not None:
            refused.append((program.name, program.max_registers))
            error = TooManySpills(kernel=program.name, bytes=100, registers=64, limit=program.most_spill_bytes)
            error.is_usable = True
            raise error
        return build(self, program, options, **more)

    monkeypatch.setattr(EmulatorEngine, "build", refusing)
    fd = rows_and_columns()
    with options(strict_schedules=True):
        check(fd)
    used = fd.fec.kernel_runtimes[-1]
    assert used.proposal.is_last and len(set(refused)) == MOST_SLOW
    assert (used.program.name, used.program.max_registers) == refused[0]


@pytest.mark.parametrize("limit, error", [(64, True), (None, False), (128, False)])
def test_how_much_may_spill_while_there_are_other_params(monkeypatch: pytest.MonkeyPatch, limit: int | None, error: bool) -> None:
    compiled = SimpleNamespace(cubin=b"", resources=Resources(64, 0, 0, 0, 100, 100), log="", ptx=None, from_cache=False, kept="")
    monkeypatch.setattr(nvrtc, "compile_or_load", lambda *_, **__: compiled)
    monkeypatch.setattr("weft.runtime.driver.load_kernel", lambda *_: object())
    engine, given = SimpleNamespace(arch=H100, device=0), program(64, 256, cooperative=True, most_spill_bytes=limit)
    if not error:
        engines._GpuKernel(engine, given, None, True)  # type: ignore[arg-type]
        return
    with pytest.raises(TooManySpills, match="spills 100 bytes per thread .* at most 64 bytes") as found:
        engines._GpuKernel(engine, given, None, True)  # type: ignore[arg-type]
    assert found.value.is_usable


def program(
    max_registers: int | None, threads: int, *, cooperative: bool = False, needs: frozenset[Need] = frozenset(), most_spill_bytes: int | None = None,
    fewest_warps: int | None = 20, most_threads: int | None = None,
) -> KernelProgram:
    block = (const(threads), const(1), const(1))
    return SimpleNamespace(  # type: ignore[return-value]
        name="k", text="", blocks=(), max_registers=max_registers, block=block, cooperative=cooperative, needs=needs, most_spill_bytes=most_spill_bytes,
        fewest_warps=fewest_warps, most_threads=most_threads,
    )


@pytest.mark.parametrize(
    "given, spilled, wanted",
    [
        (program(40, 256), 32, None), (program(40, 256), 36, 48), (program(40, 256), 104, 56), (program(40, 1024), 104, 56), (program(56, 1024), 104, 64),
        (program(64, 1024), 104, None), (program(72, 256), 104, 80), (program(80, 256), 104, None), (program(48, 512), 104, 64), (program(40, 1024, most_threads=512), 4000, 64), (program(96, 256), 4000, 255), (program(96, 512), 4000, 128),
        (program(None, 256), 104, None), (program(40, 256, cooperative=True), 104, None), (program(40, 256, fewest_warps=None), 104, None),
        (program(64, 256, fewest_warps=None), 4000, 255), (program(96, 256, most_spill_bytes=64), 100, 255),
    ],
)  # fmt: skip
def test_registers_to_try_next(given, spilled, wanted) -> None:  # noqa: ANN001
    """A step or two for what was spilled, while 20 warps stay resident; all that the block can have where so much may not be spilled."""
    assert more_registers(given, H100, given.max_registers, spilled) == wanted


def test_a_kernel_that_spills_gets_registers() -> None:
    """Residual add + layer norm of float32: 40 registers were its limit, and a thread stored 104 bytes."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
        w, b = (fd.ops.broadcast_in_dim(fd.define_tensor([-1], contiguity=True, dtype=DataType.Float), x.shape(), [1]) for _ in range(2))
        x = fd.ops.add(x, y)
        variance, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
        fd.add_output(x)
        fd.add_output(fd.ops.add(fd.ops.mul(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5))), w), b))
    made = programs(fd, [(4096, 4099)] * 2 + [(4099,)] * 2, H100)[0].program
    unit, limits = translation_unit(made.text, made.blocks), []

    def compile_with(limit: int | None) -> nvrtc.Compiled:
        limits.append(limit)
        return nvrtc.compile_cubin(unit, made.name, "sm_90a", max_registers=limit)

    compiled = compile_without_spills(made, H100, compile_with)
    assert compiled.resources.spill_store_bytes <= 32 and limits == [made.max_registers, limits[-1]]


@pytest.mark.parametrize("needs, is_usable", [(frozenset(), True), (frozenset([Need.bulk_copies]), False)])
def test_blocks_that_stay_and_copy_in_bulk_may_not_spill(monkeypatch: pytest.MonkeyPatch, needs: frozenset[Need], is_usable: bool) -> None:
    compiled = SimpleNamespace(cubin=b"", resources=Resources(64, 0, 0, 0, 4, 4), log="", ptx=None, from_cache=False, kept="")
    monkeypatch.setattr(nvrtc, "compile_or_load", lambda *_, **__: compiled)
    monkeypatch.setattr("weft.runtime.driver.load_kernel", lambda *_: object())
    engine = SimpleNamespace(arch=H100, device=0)
    given = program(64, 256, cooperative=True, needs=needs)
    if is_usable:
        engines._GpuKernel(engine, given, None, True)  # type: ignore[arg-type]
    else:
        with pytest.raises(TooManySpills, match="W784: kernel k spills 4 bytes per thread to local memory"):
            engines._GpuKernel(engine, given, None, True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spilled, right", [({64: 30}, 64), ({64: 60, 72: 0}, 72), ({64: 300, 80: 200}, 80), ({64: 4000, 80: 4000, 255: 40}, 255), ({64: 4000, 80: 4000, 255: 3000}, None)]
)
def test_machine_code_that_spills_much_is_compiled_again_with_more_registers(monkeypatch: pytest.MonkeyPatch, spilled: dict, right: int | None) -> None:
    compiled_with: list[int] = []

    def compile_or_load(unit, entry, target, *, max_registers, **more):  # noqa: ANN001, ANN003, ANN202
        compiled_with.append(max_registers)
        return SimpleNamespace(cubin=b"", resources=Resources(max_registers, 0, 0, 0, spilled[max_registers], 0), log="", ptx=None, from_cache=False, kept="")

    monkeypatch.setattr(nvrtc, "compile_or_load", compile_or_load)
    monkeypatch.setattr("weft.runtime.driver.load_kernel", lambda *_: object())
    engine = SimpleNamespace(arch=H100, device=0)
    if right is None:
        with pytest.raises(TooManySpills, match="W784: kernel k spills 3000 bytes per thread to local memory"):
            engines._GpuKernel(engine, program(64, 256), None, True)  # type: ignore[arg-type]
    else:
        engines._GpuKernel(engine, program(64, 256), None, True)  # type: ignore[arg-type]
        assert compiled_with[-1] == right
