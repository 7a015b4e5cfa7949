"""An internal error leaves a script that shows it, and says where."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft
from weft import DataType, FusionDefinition, InternalError
from weft.options import options
from weft.runtime.runtimes import forget_kernels
from weft.schedulers.pointwise import PointWise


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    forget_kernels()
    yield
    forget_kernels()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(self: PointWise, *arguments: object) -> None:
        raise InternalError("a planted defect")

    monkeypatch.setattr(PointWise, "apply", apply)


def definition() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[True, True], dtype=DataType.BFloat16)
        s = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.mul(fd.ops.relu(x), s))
    return fd


def script_named_by(text: str) -> Path:
    found = re.search(r"^  repro: (.*)$", text, re.MULTILINE)
    assert found, text
    return Path(found[1])


def test_an_internal_error_writes_a_script_that_raises_it_again(broken: None, tmp_path: Path) -> None:
    with options(dump_dir=str(tmp_path), check="races"), pytest.raises(InternalError) as caught:
        definition().execute([torch.randn(3, 41, dtype=torch.bfloat16), 2.5])
    path = script_named_by(str(caught.value))
    text = path.read_text()
    assert tmp_path in path.parents and f"# weft version: {weft.__version__}" in text and "# W900: a planted defect" in text
    assert "check=('races',)" in text and "torch.testing.make_tensor((3, 41), dtype=torch.bfloat16" in text
    forget_kernels()
    with options(dump_dir=str(tmp_path)), pytest.raises(InternalError, match="a planted defect"):
        exec(compile(text, str(path), "exec"), {})


def test_the_script_runs_where_the_defect_is_not(tmp_path: Path, broken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with options(dump_dir=str(tmp_path)), pytest.raises(InternalError) as caught:
        definition().execute([torch.randn(3, 82, dtype=torch.bfloat16), 2.5])
    monkeypatch.undo()
    forget_kernels()
    exec(compile(script_named_by(str(caught.value)).read_text(), "repro.py", "exec"), {})


def test_a_defect_that_another_scheduler_goes_around_leaves_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from weft.schedulers.transpose import Transpose

    def apply(self: Transpose, *arguments: object) -> None:
        raise InternalError("a planted defect")

    monkeypatch.setattr(Transpose, "apply", apply)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.stride_order(fd.ops.permute(x, [1, 0]), [1, 0]))
    x = torch.randn(72, 40)
    with options(dump_dir=str(tmp_path)), caplog.at_level(logging.WARNING, "weft"):
        (y,) = fd.execute([x])
    assert torch.equal(y, x.t())
    assert script_named_by(caplog.text).exists()


def test_a_script_that_cannot_be_written_does_not_hide_the_error(broken: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> str:
        raise OSError("no room")

    monkeypatch.setattr("weft.runtime.internal_errors._writers", [fails])
    with pytest.raises(InternalError, match="a planted defect") as caught:
        definition().execute([torch.randn(3, 41, dtype=torch.bfloat16), 2.5])
    assert "no repro was written: OSError: no room" in str(caught.value)
