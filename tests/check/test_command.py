"""`weft check` as a user runs it, and `check=` of a call."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.check import planted
from weft.cli.main import main
from weft.emulator import EmulatedKernel, KernelFault
from weft.options import options
from weft.runtime import engines, runtimes

EXAMPLES = planted.EXAMPLES

SCRIPT = """
import torch
from weft import FusionDefinition

with FusionDefinition() as fd:
    x = fd.define_tensor([-1, -1], contiguity=True)
    fd.add_output(fd.ops.sum(x, [1]))
for _ in range(2):
    (y,) = fd.execute([torch.ones(5, 700)])
assert y.tolist() == [700.0] * 5
"""


def row_sum() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(x, [1]))
    return fd


@pytest.fixture
def planted_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are built for the emulator without the barrier of a block reduction."""
    of_text = EmulatedKernel.of_text

    def without_barrier(text: str, blocks, entry: str, **keywords) -> EmulatedKernel:
        kernel = of_text(text, blocks, entry, **keywords)
        unit = re.sub(r"block_sync\(\);(\n#pragma unroll\n[^\n]*\n    T value = lane < warps \?)", r";\1", "\n".join(kernel.source.split("\n")))
        return EmulatedKernel(unit, entry, check=keywords["check"], source_map=kernel.source_map)

    monkeypatch.setattr(EmulatedKernel, "of_text", staticmethod(without_barrier))
    runtimes.forget_kernels()
    yield
    runtimes.forget_kernels()


@pytest.mark.usefixtures("planted_barrier")
def test_check_of_a_call_finds_what_is_wrong_and_says_where() -> None:
    fd, x = row_sum(), torch.randn(2, 60_000)
    with options(check=""):
        fd.execute([x])
    with pytest.raises(KernelFault) as error:
        fd.execute([x], check="races", seed=3)
    text = str(error.value)
    assert re.search(r"line \d+: weft::reduce_rows<weft::Sum, 1, \w+, \w+>\(.*<- T\d+ = sum\(T\d+\)", text), text
    assert "of the device library" in text and "hint: " in text and "WEFT_SEED=3 replays this order" in text


@pytest.mark.usefixtures("planted_barrier")
def test_the_same_seed_gives_the_same_findings() -> None:
    fd, x = row_sum(), torch.randn(2, 60_000)

    def findings(seed: int) -> str:
        with pytest.raises(KernelFault) as error:
            fd.execute([x], check="races", seed=seed)
        return str(error.value).partition("\n  at ")[0]

    assert findings(5) == findings(5)


def test_the_seed_of_the_settings_reaches_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int | None] = []
    launch = EmulatedKernel.launch
    monkeypatch.setattr(EmulatedKernel, "launch", lambda self, *a, **k: (seeds.append(k["seed"]), launch(self, *a, **k))[1])
    fd, x = row_sum(), torch.randn(3, 40)
    with options(seed=11):
        fd.execute([x])
    fd.execute([x], seed=12)
    fd.fec.execute([x], check="races", seed=13)
    assert seeds == [11, 12, 13]


def test_which_calls_with_tensors_on_a_gpu_are_emulated() -> None:
    from weft.options import Options
    from weft.runtime.calls import _is_emulated

    cases = {("auto", ""): False, ("auto", "races"): True, ("off", "races"): False, ("on", ""): True}
    for (emulate, check), expected in cases.items():
        assert _is_emulated(Options().with_values({"emulate": emulate, "check": check})) is expected


@pytest.mark.gpu
def test_tensors_on_a_gpu_are_copied_and_checked() -> None:
    from weft.runtime.calls import CheckedOnCpu

    fd, x = row_sum(), torch.randn(3, 400, device="cuda")
    with pytest.warns(CheckedOnCpu, match=r"checks \(races\) are on: the tensors of cuda:0 are copied to the CPU"):
        (y,) = fd.execute([x], check="races")
    assert y.is_cuda
    torch.testing.assert_close(y, x.sum(1))
    assert [r.engine.key[0] for r in fd.fec.kernel_runtimes] == ["emulator"]
    (y,) = fd.execute([x])
    assert fd.fec.kernel_runtimes[-1].engine.device == 0


def test_a_script_is_checked_in_many_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["check", "--seeds", "3", str(script)]) == 0
    printed = capsys.readouterr().out
    assert "launched 2 time(s): clean in 3 orders" in printed and "1 kernel(s): clean\n" in printed
    assert printed.endswith("1 pair(s) of kernels, the second before the first has ended: clean\n")
    assert not engines.watchers


@pytest.mark.usefixtures("planted_barrier")
def test_a_script_with_a_wrong_kernel_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from weft.check import script as script_module

    script_module.checked_kernel.cache_clear()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.partition("assert")[0].replace("700", "60_000"))
    try:
        assert main(["check", "--seeds", "2", "--blocks", "2", str(script)]) == 1
    finally:
        script_module.checked_kernel.cache_clear()
    printed = capsys.readouterr().out
    assert "data-race" in printed and "WEFT_SEED=0 replays it" in printed and "1 kernel(s): 1 with findings" in printed


def test_a_hand_written_kernel_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    kernel, launch = str(EXAMPLES / "rmsnorm.cu"), str(EXAMPLES / "rmsnorm.toml")
    assert main(["check", kernel, "--launch", launch, "--seeds", "2", "--trace", str(trace)]) == 0
    assert "rmsnorm: grid (2, 1, 1), block (128, 3, 1), 2 orders: clean" in capsys.readouterr().out
    names = {event["args"]["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "thread_name"}
    assert any("load T0" in name for name in names) and any("compute 1" in name for name in names)


def test_a_hand_written_kernel_that_crashes_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tmp_path / "kernel.cu"
    kernel.write_text((EXAMPLES / "rmsnorm.cu").read_text().replace("  const int tiles =", "  *(volatile int*)64 = 1; const int tiles ="))
    assert main(["check", str(kernel), "--launch", str(EXAMPLES / "rmsnorm.toml"), "--seeds", "1"]) == 1
    assert "memory-fault: thread (" in capsys.readouterr().out


def test_a_deadlock_shows_who_waits_for_whom_by_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tmp_path / "kernel.cu"
    kernel.write_text((EXAMPLES / "rmsnorm.cu").read_text().replace("mbarrier_init(empty_0 + s, 8)", "mbarrier_init(empty_0 + s, 9)"))
    assert main(["check", str(kernel), "--launch", str(EXAMPLES / "rmsnorm.toml"), "--seeds", "1"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"\[load T0\] waits for phase 0 of shared 'empty_0' \+ \d+ <- needs \[compute \d\], \[compute \d\] \(1 of 9 arrivals missing\)", printed), printed
    assert re.search(r"\[compute 0\] waits for phase 1 of shared 'full_0' \+ \d+ <- needs \[load T0\]", printed), printed


@pytest.mark.parametrize(("change", "problem"), [
    (("entry =", "entri ="), "the launch has no key 'entri'; there are entry, blocks"),
    (('grid = [2]', ""), "the launch has no `grid`"),
    (('block = [128, 3]', "block = [1, 2, 3, 4]"), r"block is \[1, 2, 3, 4\], not one to three whole numbers"),
    (('values = "uniform"', 'values = "odd"'), "argument T2 has values 'odd'; there are normal"),
    (('values = "uniform"', ""), "argument T2 is neither written nor has it values"),
    (('dtype = "bfloat16"', 'dtype = "bf16"'), "argument T0 needs a shape, and a dtype of bfloat16"),
    (("value = 23", "value = "), "Invalid value"),
])  # fmt: skip
def test_a_launch_that_makes_no_sense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], problem: str) -> None:
    launch = tmp_path / "launch.toml"
    launch.write_text((EXAMPLES / "rmsnorm.toml").read_text().replace(*change))
    assert main(["check", str(EXAMPLES / "rmsnorm.cu"), "--launch", str(launch), "--seeds", "1"]) == 1
    assert re.search(problem, capsys.readouterr().err)


@pytest.mark.parametrize(("arguments", "problem"), [
    ([], "no file was named"),
    (["nothing.cu"], "there is no file nothing.cu"),
    ([str(EXAMPLES / "rmsnorm.cu")], "needs --launch"),
])  # fmt: skip
def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str) -> None:
    assert main(["check", *arguments]) == 1
    assert problem in capsys.readouterr().err


def test_memory_that_is_not_left_zero_is_a_finding() -> None:
    verdict = planted.run(next(m for m in planted.MISTAKES if m.claim == "semaphore not reset"), range(1))
    assert [f.finding.kind for f in verdict.exploration.found] == ["work-memory-not-zero"]
    assert "'semaphores_T3' is not zero after the launch" in verdict.exploration.found[0].text()


def test_a_picture_shows_roles_and_stages(tmp_path: Path) -> None:
    trace = tmp_path / "trace.svg"
    kernel, launch = str(EXAMPLES / "rmsnorm.cu"), str(EXAMPLES / "rmsnorm.toml")
    assert main(["check", kernel, "--launch", launch, "--seeds", "1", "--trace", str(trace)]) == 0
    text = trace.read_text()
    for row in ("load T0", "load T1", "compute 0", "compute 1", "stage 0[2]", "stage 1[0]", "bulk stores"):
        assert f">{row}</text>" in text
    uses = [t for t in text.split("<title>") if t.startswith("full_0[1], use ")]
    assert [t.partition("<")[0] for t in uses] == [f"full_0[1], use {use}: {what}" for use in (0, 1) for what in ("loading", "being read")]


def test_a_generated_pipeline_has_a_timeline(tmp_path: Path) -> None:
    from weft.check.explore import explore
    from weft.check.captured_launches import captured

    found, trace = captured("pipeline_rows"), tmp_path / "trace.json"
    assert explore(found.call.kernel, found.geometry, found.arguments, [0], trace=trace).is_clean
    names = {e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "thread_name"}
    assert {"warp 08 load T11", "warp 09 load T12", "warp 00 compute", "full_0[0]", "empty_1[2]"} <= names
