"""NVFUSER_DUMP, NVFUSER_ENABLE, NVFUSER_DISABLE and NVFUSER_PROF: what each option does here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from weft import FusionDefinition
from weft.api import profile
from weft.api.nvfuser_variables import DUMPS, NO_DUMPS, UnknownVariableOption, take
from weft.options import DUMP_KINDS, current, is_disabled, refresh_environment
from weft.runtime.runtimes import forget_kernels

X = torch.arange(12.0).reshape(3, 4)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _leaves_no_trace() -> Iterator[None]:
    yield
    refresh_environment()
    while profile.recording_all:
        profile.recording_all.pop().__exit__(None, None, None)
    profile._report = None


def execute() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.exp(fd.ops.add(x, 1.0)))
    torch.testing.assert_close(fd.execute([X])[0], (X + 1).exp())


WRITTEN = {
    "cuda_kernel": "__global__ void", "python_definition": "def nvfuser_fusion", "fusion_ir": "%kernel", "kernel_ir": "exp(", "launch_param": "LaunchPlan",
    "scheduler_params": "chosen: ", "segmented_fusion": "1 kernel",
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_a_dump_writes_what_it_names(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_DUMP_DIR", raising=False)
    monkeypatch.delenv("WEFT_DUMP", raising=False)
    refresh_environment()
    take({"NVFUSER_DUMP": name})
    assert current().dump == (DUMPS[name],)
    forget_kernels()  # what is not made again is not written
    execute()
    assert WRITTEN[name] in capsys.readouterr().out


def test_every_dump_is_one_of_ours_or_of_nothing_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(DUMPS.values()) <= set(DUMP_KINDS) and not set(DUMPS) & set(NO_DUMPS)
    take({"NVFUSER_DUMP": ",".join(NO_DUMPS)})
    execute()
    assert capsys.readouterr().out == ""


def test_options_for_every_call() -> None:
    take({"NVFUSER_ENABLE": "id_model_extra_validation, fast_math, static_fusion_count(3)", "NVFUSER_DISABLE": "matmul_expr_eval,nvrtc_caching,fma"})
    assert current().fast_math and not current().cache and is_disabled("fma") and not is_disabled("magic_zero")
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.matmul(x, fd.ops.permute(x, [1, 0])))
    with pytest.raises(RuntimeError, match="Can not find a scheduler to schedule fusion segment"):
        fd.execute([X])
    refresh_environment()
    assert not current().fast_math and not is_disabled("fma")


@pytest.mark.parametrize("variable", ["NVFUSER_DUMP", "NVFUSER_ENABLE", "NVFUSER_DISABLE", "NVFUSER_PROF"])
def test_unknown_options_are_named(variable: str) -> None:
    with pytest.raises(UnknownVariableOption, match=f"W194: {variable}: there is no option 'cuda_kernal'"):
        take({variable: "cuda_kernal"})


def test_profiles_of_every_execution(capsys: pytest.CaptureFixture[str]) -> None:
    take({"NVFUSER_PROF": "enable"})
    execute()
    assert capsys.readouterr().out == "" and profile.get_fusion_profile().segments == 1
    take({"NVFUSER_PROF": "print.verbose"})
    execute()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("fusion 0: 1 segments, host ") and second.startswith("  0: pointwise ")
    take({"NVFUSER_PROF": "print.nocupti"})
    execute()
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_alias_takes_them_and_weft_does_not() -> None:
    program = "import torch\nfrom {} import FusionDefinition\nfrom weft.options import current\nprint(current().dump)"
    for module, wanted in (("nvfuser_direct", "('cuda',)"), ("weft", "()")):
        environ = {"PYTHONPATH": f"{ROOT}:{ROOT}/compat", "NVFUSER_DUMP": "cuda_kernel", "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-c", program.format(module)], env=environ, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == wanted
