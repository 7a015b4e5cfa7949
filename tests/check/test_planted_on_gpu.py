"""The comparison with a GPU, with a stub for the GPU and for compute-sanitizer: every way a run can end leaves a row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
import planted_on_gpu as gpu

STUB = """
import json, sys, time
case = json.loads(open(sys.argv[sys.argv.index("--worker") + 1] + "/case.json").read())
is_correct = "correct.cu" in sys.argv
if is_correct or case["claim"] == "benign":
    print(json.dumps({"wrong": 0, "total": 10, "not_zero": False}))
elif case["claim"] == "wrong":
    print(json.dumps({"wrong": 3, "total": 10, "not_zero": False}))
elif case["claim"] == "hang":
    time.sleep(60)
else:
    print("RuntimeError: an illegal memory access was encountered")
    sys.exit(1)
"""

SANITIZER = """#!/bin/sh
case "$2" in
  memcheck) echo "========= Invalid __global__ read of size 16 bytes"; echo "========= Invalid __global__ read of size 16 bytes" ;;
  racecheck) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
  synccheck) sleep 60 ;;
  initcheck) echo "something else"; exit 3 ;;
esac
"""


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    for claim in ("benign", "wrong", "hang", "error"):
        (tmp_path / "cases" / claim).mkdir(parents=True)
        (tmp_path / "cases" / claim / "case.json").write_text(json.dumps({"kernel": "k", "claim": claim, "emulator": "data-race | line 3"}))
    return tmp_path / "cases"


def test_every_end_of_a_run_has_words(cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PLAIN_S", 2.0)
    monkeypatch.setattr(gpu, "TOOL_S", 0.5)
    stub, sanitizer = tmp_path / "stub.py", tmp_path / "compute-sanitizer"
    stub.write_text(STUB)
    sanitizer.write_text(SANITIZER)
    sanitizer.chmod(0o755)
    rows = {r["mistake"]: r for r in gpu.compare(cases, [sys.executable, str(stub)], str(sanitizer), 60)}
    assert [rows[c]["GPU"] for c in ("benign", "wrong", "error")] == [
        "right result", "wrong: 3 of 10 elements", "error: RuntimeError: an illegal memory access was encountered",
    ]  # fmt: skip
    assert rows["hang"]["GPU"] == "hangs (stopped after 2 s)"
    assert all(r["correct text"] == "right result" for r in rows.values())
    said = {tool: rows["benign"][tool] for tool in gpu.TOOLS}
    assert said == {
        "memcheck": "Invalid __global__ read of size 16 bytes (and 1 more) — of the correct text too", "racecheck": "nothing", "synccheck": "nothing; hangs",
        "initcheck": "no verdict (status 3): something else",
    }  # fmt: skip
    table = gpu.markdown(list(rows.values()))
    assert table.count("\n") == 5 and "data-race \\| line 3" in table


def test_time_that_is_up_is_said(cases: Path, tmp_path: Path) -> None:
    stub = tmp_path / "stub.py"
    stub.write_text(STUB.replace("60", "0.1"))
    rows = gpu.compare(cases, [sys.executable, str(stub)], "unused", 0.5)
    assert len(rows) == 4 and rows[-1]["GPU"] == rows[-1]["memcheck"] == "not run: time is up"


def test_cases_are_written_with_what_is_right(tmp_path: Path) -> None:
    gpu.prepare(tmp_path, (*gpu.MAIN, *gpu.MORE))
    cases = [json.loads((folder / "case.json").read_text()) for folder in sorted(tmp_path.iterdir())]
    assert [(c["kernel"], c["claim"]) for c in cases] == [*gpu.MAIN, *gpu.MORE]
    for folder, case in zip(sorted(tmp_path.iterdir()), cases):
        assert "8 of 8 orders" in case["emulator"], case
        assert (folder / "unit.cu").read_text() != (folder / "correct.cu").read_text()
        outputs = [n for n, a in enumerate(case["arguments"]) if a.get("is_output")]
        assert outputs
        for n in outputs:
            assert (folder / f"{n}.before").read_bytes() != (folder / f"{n}.right").read_bytes()
            different, elements = gpu._differences(
                (folder / f"{n}.right").read_bytes(), (folder / f"{n}.right").read_bytes(), case["arguments"][n]["name"], {**case, "folder": str(folder)}
            )
            assert different == 0 and elements > 0
