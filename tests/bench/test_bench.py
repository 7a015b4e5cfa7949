"""The scripts of bench/ work without a GPU, their cases compute what they say, and the page of benchmarks is the one made from the results."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from processes import forks

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))  # its scripts import each other
TOLERANCE = {torch.bfloat16: 2e-3, torch.float32: 5e-7}
"""Rounding to bfloat16 has a relative error (L2 norm) of 1.7e-3, twice in a tensor that is rounded and used again; float32: a row of some hundred sums."""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CASES = script("cases").CASES
RUN = "import os, runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, os.path.dirname(sys.argv[0])); runpy.run_path(sys.argv[0], run_name='__main__')"
"""As `python SCRIPT ARGUMENTS`."""


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_computes_what_torch_does(case, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = case.inputs(13, 200, dtype, "cpu")
    outputs = case.definition(dtype).execute(inputs)
    assert case.error(inputs, outputs) < TOLERANCE[dtype]
    assert len(outputs) == len(case.math(*inputs))


@pytest.mark.parametrize("name", ["channels", "channels_backward", "first_call", "widths", "profile_warm", "ways", "emulator", "index_ops"])
def test_a_script_runs_without_a_gpu(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    forks().run(RUN, [str(BENCH / f"{name}.py"), "--cpu-smoke", str(out)], {**os.environ, "TMPDIR": str(tmp_path)}, tmp_path)
    data = json.loads(out.read_text(encoding="utf-8"))
    assert data["rows"] and data["chip"].startswith("emulator")


def test_what_there_is_no_time_to_renew_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "renew.py"), str(tmp_path), "--cases", "fusion_cases.py", "--seconds", "0", "--only", "ways", "fusion_cases 1", "widths"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "not renewed: ways, fusion_cases 1, widths\n"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (BENCH / "results").glob("*.json")}


def test_the_page_is_made_from_the_results() -> None:
    made = script("make_benchmarks_page")
    assert made.TARGET.read_text(encoding="utf-8") == made.page(), "run: python bench/make_benchmarks_page.py"


def test_every_result_says_where_and_when_it_was_measured() -> None:
    for path in sorted((BENCH / "results").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        records = data["checks"].values() if "checks" in data else [data]
        assert all(record.get("chip") and record.get("date") for record in records), path.name


def test_kernel_times_are_medians_over_calls_of_all_kernels_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = script("measure")
    calls: list[list[tuple[str, int, float]]] = [[("a", 2, 10.0), ("host", 1, 0.0), ("b", 1, 7.0)], [("a", 2, 14.0), ("b", 1, 30.0)], [("a", 2, 11.0), ("b", 1, 9.0)]]

    class Profile:
        def __init__(self, **_: object) -> None:
            self.events = calls.pop(0)

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def key_averages(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(key=key, count=count, self_device_time_total=us) for key, count, us in self.events]

    empty = torch.empty
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    found = measure.kernel_times(lambda: None, 3)
    assert [(k.name, k.count, k.us) for k in found] == [("a", 2, 11.0), ("b", 1, 9.0)]
