"""Engines: the choice between GPU and emulator, and the GPU's engine against a driver that drives nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from calls_on_cpu import define, tensor

from weft import FusionDefinition
from weft.arch import arch_by_name
from weft.options import Options, current
from weft.runtime import engines, runtimes
from weft.runtime.engines import EmulatorEngine, GpuEngine, LaunchPlan, Memory, NoEngine

AUTO = Options()


def program_of(fd: FusionDefinition, values: list[Any]) -> tuple[Any, LaunchPlan]:
    """The program and the launch that the emulator gets for these values."""
    fd.execute(values)
    (prepared,) = fd.fec._caller._prepared.values()
    return prepared.runtimes[0].program, prepared.plans[0]


@pytest.fixture
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_engines", {})


def test_tensors_on_the_cpu_are_emulated(no_engines: None) -> None:
    engine = engines.choose(AUTO, device=None, has_cpu_tensors=True)
    assert isinstance(engine, EmulatorEngine) and engine.device is None and engine.arch.name == "H100"
    assert engines.choose(AUTO, device=None, has_cpu_tensors=True) is engine
    assert engines.choose(Options(check=("races",)), device=None, has_cpu_tensors=True) is not engine


def test_tensors_on_a_gpu_run_there(no_engines: None, fake_driver: Any) -> None:
    engine = engines.choose(AUTO, device=1, has_cpu_tensors=False)
    assert isinstance(engine, GpuEngine) and engine.key == ("gpu", 1) and engine.arch.name == "H200"


@pytest.mark.parametrize("asked", [0, "cuda:0", torch.device("cuda", 0)])
def test_a_device_that_the_inputs_are_not_on_is_refused(no_engines: None, fake_driver: Any, asked: Any) -> None:
    with pytest.raises(NoEngine, match="was asked for, and the inputs are on cuda:1"):
        engines.choose(AUTO, device=1, has_cpu_tensors=False, asked=asked)
    assert engines.choose(AUTO, device=1, has_cpu_tensors=False, asked="cuda").device == 1


@pytest.mark.parametrize("chip", ["A100", "b200"])
def test_the_emulator_has_the_limits_of_its_chip(no_engines: None, chip: str) -> None:
    assert engines.emulator(Options(chip=chip)).arch is arch_by_name(chip)


def test_the_gpus_engine_compiles_loads_and_launches(fake_driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not _has_nvrtc():
        pytest.skip("no NVRTC")
    fd = define(lambda fd: fd.add_output(fd.ops.mul(tensor(fd, 1), fd.define_scalar())))
    program, plan = program_of(fd, [torch.randn(300), 2.0])
    built = GpuEngine(0).build(program, current())
    assert built.report.compile_s > 0 and not built.report.from_disk and built.report.resources.registers > 0  # type: ignore[union-attr]
    slot = next(n for n, kind in enumerate(plan.slots) if kind[:2] == ("scalar", "float"))
    built.launcher(plan)((0x1000, 0x2000), 7, ((slot, 4.0),))
    launch = fake_driver.launch()
    assert tuple(launch.grid) == plan.grid and tuple(launch.block) == plan.block and launch.stream == 7
    assert fake_driver.launch_count == 1
    again = GpuEngine(0).build(program, current())
    assert again.report.from_disk
    with monkeypatch.context() as without:
        without.setattr(engines, "translation_unit", lambda *_, **__: pytest.fail("the text is put together again"))
        assert GpuEngine(0).build(program, current(), kept=built.kept).report.resources == built.report.resources
    for other in (built.kept.replace(built.kept[:8], "0" * 8), built.kept + "x", "x"):  # gone, of another compiler, none
        assert GpuEngine(0).build(program, current(), kept=other).kept == built.kept


def test_an_emulated_launch_of_an_empty_grid_does_nothing() -> None:
    class Kernel:
        def launch(self, *arguments: Any, **keywords: Any) -> None:
            raise AssertionError("launched")

    plan = LaunchPlan((0, 1, 1), (32, 1, 1), 0, (("pointer", 0),), (Memory("T0", 0, True, False),))
    engines._EmulatedLaunch(Kernel(), plan)((0,), 0)


def test_a_failed_emulated_launch_forgets_the_zeroed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr("weft.runtime.work_memory.forget", lambda: forgotten.append(True))

    class Kernel:
        def launch(self, *arguments: Any, **keywords: Any) -> None:
            raise KeyboardInterrupt

    plan = LaunchPlan((1, 1, 1), (32, 1, 1), 0, (), ())
    with pytest.raises(KeyboardInterrupt):
        engines._EmulatedLaunch(SimpleNamespace(kernel=Kernel()), plan)((), 0)  # type: ignore[arg-type]
    assert forgotten == [True]


def test_grid_reductions_share_memory_that_they_leave_zero() -> None:
    from weft.runtime import work_memory

    fd = define(lambda fd: fd.add_output(fd.ops.sum(tensor(fd, 1), [0])))
    runtimes.forget_kernels()
    x = torch.ones(2_000_000)
    for _ in range(2):
        (total,) = fd.execute([x])
        assert total.item() == 2_000_000
    (kernel,) = fd.fec.kernel_runtimes
    zeroed = [p for p in kernel.program.params if getattr(p, "zeroed", False)]
    piece, address = work_memory.zeroed(None, 0, 1)
    assert address == piece.data_ptr() + work_memory.SCRATCH_BYTES and (not zeroed or not piece[work_memory.SCRATCH_BYTES :].any())


def _has_nvrtc() -> bool:
    from weft.runtime import nvrtc

    return bool(nvrtc.candidates())


def test_kernels_run_in_a_child_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.emulator import launch as isolate
    from weft.options import options

    children: list[str] = []
    run = isolate.run_in_child
    monkeypatch.setattr(isolate, "run_in_child", lambda *arguments, **rest: (children.append("one"), run(*arguments, **rest))[1])
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
    value = torch.randn(5, 300)
    with options(isolate=True, check="races"):
        (given,) = fd.execute([value])
    assert children == ["one"]
    torch.testing.assert_close(given.double(), value.double().exp().sum(1), rtol=1e-6, atol=0)
