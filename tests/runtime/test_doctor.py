"""doctor: names what is missing with the remedy, and never raises."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from weft import arch as chips
from weft.cli import doctor as doctor_module
from weft.cli.doctor import Finding, Status, can_run, doctor, main, print_report
from weft.options import refresh_environment
from weft.runtime import nvrtc


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise chips.DriverMissing(library="libcuda.so.1", reason="not found")

    monkeypatch.setattr(chips, "driver_library", missing)
    monkeypatch.setattr(nvrtc, "driver_cuda_version", lambda: None)


def test_every_part_is_looked_at_and_what_lacks_has_a_remedy(no_driver: None) -> None:
    findings = doctor()
    found = by_subject(findings)
    assert {"Python", "settings", "torch", "driver", "NVRTC", "cuda-bindings", "host compiler", "nvdisasm", "disk cache"} <= set(found)
    for finding in findings:
        assert finding.status is Status.OK or finding.remedy or finding.subject.startswith("cuda-"), finding
    assert found["Python"].status is Status.OK
    assert "compiled a small kernel for sm_90a" in found["NVRTC"].detail
    assert found["driver"].status is Status.OPTIONAL and "install NVIDIA's driver" in found["driver"].remedy


def test_gpus_are_listed(fake_driver: Any) -> None:
    found = by_subject(doctor())
    assert found["driver"].detail.startswith("CUDA 13.0")
    assert found["GPU 1"].detail == "H200, sm_90a, 132 multiprocessors, 60 MiB L2, 4.81 TB/s"


def test_an_nvrtc_newer_than_the_driver(fake_driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "driver_cuda_version", lambda: (12, 8))
    found = by_subject(doctor())["NVRTC"]
    assert found.status is Status.MISSING and "the driver is CUDA 12.8" in found.remedy
    monkeypatch.setattr(nvrtc, "driver_cuda_version", lambda: (nvrtc.load().version[0], -1))
    found = by_subject(doctor())["NVRTC"]
    assert found.status is Status.OK and "of the same major version: its machine code loads" in found.detail


def test_a_probe_that_fails_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        yield Finding("first", Status.OK, "")
        raise OSError("the disk is on fire")

    monkeypatch.setattr(doctor_module, "_PROBES", {"part": fails})
    assert [(finding.subject, finding.detail) for finding in doctor()] == [("first", ""), ("part", "OSError: the disk is on fire")]


def test_a_wrong_setting_is_reported(monkeypatch: pytest.MonkeyPatch, no_driver: None) -> None:
    monkeypatch.setenv("WEFT_EMULATE", "perhaps")
    refresh_environment()
    findings = doctor()
    wrong = [finding for finding in findings if finding.subject == "settings" and finding.status is Status.MISSING]
    assert len(wrong) == 1 and "allowed: auto, on, off" in wrong[0].detail


def test_a_cache_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_driver: None) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    refresh_environment()
    found = by_subject(doctor())["disk cache"]
    assert found.status is Status.MISSING and "WEFT_CACHE_DIR" in found.remedy


def test_looking_leaves_no_trace(tmp_path: Path, no_driver: None) -> None:
    doctor()
    assert list(tmp_path.iterdir()) == []


def test_the_report_is_text() -> None:
    out = io.StringIO()
    print_report([Finding("torch", Status.OK, "2.11"), Finding("host compiler", Status.OPTIONAL, "none\nlooked twice", "install one")], out)
    assert out.getvalue() == (
        "ok        torch          2.11\n"
        "optional  host compiler  none\n"
        "                         looked twice\n"
        "                         -> install one\n"
    )


def test_where_kernels_can_run() -> None:
    def ok(*subjects: str) -> list[Finding]:
        return [Finding(subject, Status.OK, "") for subject in subjects]

    assert can_run(ok("torch", "NVRTC", "driver", "GPU 0", "host compiler")) == ["on the GPU", "in the emulator"]
    assert can_run(ok("torch", "NVRTC", "driver")) == []
    assert can_run(ok("host compiler")) == ["in the emulator"]


def test_main_prints_and_returns_a_status(capsys: pytest.CaptureFixture[str], no_driver: None) -> None:
    status = main()
    out = capsys.readouterr().out
    assert ("kernels can run: in the emulator" in out) == (status == 0)
