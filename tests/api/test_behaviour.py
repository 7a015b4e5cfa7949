"""What a definition does beside computing: refusals by name, copies and pickles, what is logged, and what is printed (nothing)."""

from __future__ import annotations

import copy
import io
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft import DataType, FusionDefinition, UserError
from weft.api.pytorch_utils import torch_dtype_to_nvfuser_dtype
from weft.cli.main import main
from weft.runtime.calls import Caller


def doubled() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(x * 2.0)
    return fd


def test_tensors_that_kernels_cannot_read_are_refused_by_name() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 2)
    for tensor, kind in (
        (torch.eye(2).to_sparse(), "a sparse tensor"), (torch.empty(2, 2, device="meta"), "a meta tensor"), (fake, "a fake tensor"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
        (torch._to_functional_tensor(torch.ones(2, 2)), "a functional tensor"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"W147: input 0 is {kind}"):
            doubled().execute([tensor])


def test_one_tensor_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(UserError, match=r"W148(.|\n)*execute\(\[tensor\]\)"):
        doubled().execute(torch.ones(1, 2, 2))  # type: ignore[arg-type]


def test_execute_does_not_schedule_a_schedule() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = x * 2.0
        fd.add_output(y)
        y.split(1, 4)
    with pytest.raises(UserError, match="W146(.|\n)*manual_execute"):
        fd.execute([torch.ones(2, 8)])
    torch.testing.assert_close(fd.manual_execute([torch.ones(2, 8)])[0], torch.full((2, 8), 2.0))


def test_a_definition_is_copied_pickled_and_saved_by_its_text() -> None:
    fd = doubled()
    x = torch.randn(3, 4)
    (want,) = fd.execute([x])
    saved = io.BytesIO()
    torch.save(fd, saved)
    saved.seek(0)
    for other in (copy.deepcopy(fd), copy.copy(fd), pickle.loads(pickle.dumps(fd)), torch.load(saved, weights_only=False)):
        assert other is not fd and repr(other) == repr(fd) and torch.equal(other.execute([x])[0], want)
    f = pickle.loads(pickle.dumps(fd.autograd()))
    x.requires_grad_()
    assert torch.equal(torch.autograd.grad(f(x).sum(), x)[0], torch.full((3, 4), 2.0))
    assert pickle.loads(pickle.dumps(fd)).execute([x])[0].requires_grad
    assert pickle.loads(pickle.dumps(FusionDefinition())).fusion is None


def test_a_compile_and_a_recompile_are_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(x.sum(1) * 3.25)
    with caplog.at_level(logging.INFO, logger="weft"):
        fd.execute([torch.ones(3, 4)])
        fd.execute([torch.ones(3, 4)])
        fd.execute([torch.ones(3, 9000)])
    first, second = (record.getMessage() for record in caplog.records if record.name == "weft")
    assert first.startswith("compiled ") and first.endswith("first call of this definition")
    assert second.startswith("recompiled ") and "sizes of input 0 from [3, 4] to [3, 9000]" in second


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_compile_says_on_a_terminal_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runtime.compile_log.LONG_S", 0.02)
    monkeypatch.setattr("weft.runtime.calls.Caller._planned", slowly(Caller._planned))
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        fd = doubled()
        fd.execute([torch.ones(2, 2)])
        said = stream.getvalue()
        fd.execute([torch.ones(2, 2)])
        assert stream.getvalue() == said
        if stream.isatty():
            first, second = said.splitlines()
            assert first.startswith("weft: compiling what ") and "test_behaviour.py" in first
            assert second.startswith("weft: compiled in 0.")
        else:
            assert not said


def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
    def after_a_while(*given: Any) -> Any:
        time.sleep(0.1)
        return function(*given)

    return after_a_while


def test_torch_logs_tells_compiles_and_their_reasons() -> None:
    text = """if True:
        import torch, weft
        with weft.FusionDefinition() as fd:
            fd.add_output(fd.define_tensor([-1, -1], contiguity=True).sum(1) * 3.5)
        fd.execute([torch.ones(3, 4)])
        fd.execute([torch.ones(3, 9000)])
    """
    done = subprocess.run([sys.executable, "-c", text], env={**os.environ, "TORCH_LOGS": "weft"}, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "compiled weft_" in done.stderr and "recompiled weft_" in done.stderr and "[3, 4] to [3, 9000]" in done.stderr


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    doubled().execute([torch.ones(2, 2)])
    assert capsys.readouterr() == ("", "")


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0 and capsys.readouterr().out.strip() == f"weft {weft.__version__}"


def test_a_repro_script_runs_without_the_other_name() -> None:
    fd = doubled()
    script = fd.repro_script_for([torch.ones(2, 3)])
    assert f"# weft version: {weft.__version__}" in script and "\nfd.execute(inputs)\n" in script
    names: dict[str, object] = {}
    exec(script, names)
    assert isinstance(names["fd"], FusionDefinition)


def refused(build: Any, inputs: list[Any]) -> str:
    with FusionDefinition() as fd:
        fd.add_output(build(fd))
    with pytest.raises(UserError) as caught:
        fd.execute(inputs)
    return str(caught.value)


def test_what_torch_refuses_at_run_time_has_a_code_a_line_and_the_sizes() -> None:
    def product(fd: FusionDefinition) -> Any:
        return fd.ops.matmul(fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True))

    def largest(fd: FusionDefinition) -> Any:
        return fd.ops.topk(fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(DataType.Int), 1)[0]

    text = refused(product, [torch.ones(3, 5), torch.ones(4, 2)])
    assert text.startswith("W759: torch, which runs matmul here") and "[3, 5], [4, 2]" in text and "test_behaviour.py" in text
    assert "k=7" in refused(largest, [torch.ones(3, 5), 7])


def test_a_size_below_zero_at_run_time_is_named() -> None:
    assert refused(lambda fd: fd.ops.iota(fd.define_scalar(DataType.Int)), [-3]).startswith("W325: iota: extent -3 of axis 0 is negative")


def test_shapes_are_read_as_in_nvfuser_and_as_in_torch() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4], [True, True])
        rows, columns = x.shape
        assert rows is x.shape[0] is x.size(0) is x.shape()[0] is x.size()[0] and len(x.shape) == x.ndim and x.shape[-1] is columns
        with pytest.raises(TypeError, match=r"W198.*\n(.*\n)*.*x.size\(0\)"):
            len(x)
        fd.add_output(fd.ops.reshape(x, [columns, rows]))
        fd.add_output(fd.ops.full(x.shape, 2.0, DataType.Float))
    given = torch.randn(3, 4)
    reshaped, filled = fd.execute([given])
    assert torch.equal(reshaped, given.reshape(4, 3)) and filled.shape == given.shape


@pytest.mark.parametrize("name, remedy", [("stream", "torch.cuda.stream"), ("profile", "PythonProfiler"), ("override_user_schedule", "save_repro_inputs")])
def test_execute_says_what_to_write_in_place_of_a_keyword_that_it_lacks(name: str, remedy: str) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1])))
    with pytest.raises(TypeError, match=rf"W199: execute has no argument {name}\n(.*\n)*.*{remedy}"):
        fd.execute([torch.randn(3)], **{name: None})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool], ids=str)
def test_a_sign_has_the_type_of_its_operand(dtype: torch.dtype) -> None:
    """As in nvFuser, on which Thunder relies: other ops give float for floats of 16 bits."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=torch_dtype_to_nvfuser_dtype(dtype))
        fd.add_output(fd.ops.sign(x))
    given = (torch.tensor([-2.5, -0.0, 0.0, 3.0, 1e-3, -1e3])).to(dtype)
    (out,) = fd.execute([given])
    assert out.dtype is dtype and torch.equal(out, torch.sign(given))
