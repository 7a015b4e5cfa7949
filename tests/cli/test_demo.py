"""`weft demo`: every case is right in the emulator and says what it did; a wrong result ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.cli import demo
from weft.cli.main import main
from weft.errors import WeftError


def test_every_case_is_right_and_shows_its_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for case in demo.CASES:
        text = (tmp_path / f"{case.name}.cu").read_text()
        assert "__global__ void weft_inner_persistent_" in text and str(tmp_path / f"{case.name}.cu") in shown
    for said in ("scheduler", "parameters", "declined", "launch", "machine code", "error", "registers", "spills"):
        assert shown.count(said) >= len(demo.CASES), said
    assert "All results agree" in shown


@pytest.mark.gpu
def test_on_a_gpu_time_and_fraction_of_a_copy_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "softmax", "--out", str(tmp_path)]) == 0
    assert "a copy of the same bytes takes" in capsys.readouterr().out


def test_a_wrong_result_is_an_error_that_names_the_text(tmp_path: Path) -> None:
    wrong = demo.Case("softmax", demo.softmax, lambda x: x.softmax(-1) * 1.002, 0)  # off by half of what rounding to bfloat16 may change
    with pytest.raises(demo.TooInaccurate, match="softmax: the output differs from float64 by .*e-03") as raised:
        demo.run_case(wrong, "cpu", tmp_path, (4, 100))
    assert str(tmp_path / "softmax.cu") in str(raised.value)


def test_an_unknown_case_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "softmacs"]) == 1
    assert "the demo has no case 'softmacs'" in (said := capsys.readouterr().err) and "did you mean softmax?" in said


@pytest.mark.parametrize("case", demo.CASES, ids=lambda case: case.name)
def test_one_definition_serves_every_shape(case: demo.Case, tmp_path: Path) -> None:
    for shape in ((1, 8), (3, 77), (2, 5000)):
        outcome = demo.run_case(case, "cpu", tmp_path, shape)
        assert outcome.error <= outcome.rounding + demo.ARITHMETIC_ERROR


def test_an_error_of_the_package_is_printed_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*arguments: object) -> int:
        raise WeftError("nothing works")

    monkeypatch.setattr(demo, "main", fail)
    assert main(["demo"]) == 1
    assert "W000: nothing works" in capsys.readouterr().err
