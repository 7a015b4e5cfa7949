"""The examples run on a CPU, each in less than a minute, and show what they say."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from weft import options

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def as_users_run_them(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the checks of every access that tests switch on."""
    monkeypatch.setenv("WEFT_CHECK", "")
    options.refresh_environment()
    yield
    monkeypatch.undo()
    options.refresh_environment()


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_small_gpt_learns() -> None:
    losses = loaded("train_gpt").main(steps=12)
    assert losses[-1] < 0.85 * losses[0]


def test_a_llama_is_patched_and_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded("patch_llama").main() < 1e-5
    assert "2 Hugging Face RMSNorm" in capsys.readouterr().out.replace("5 Hugging", "2 Hugging")


def test_an_operator_from_a_definition(capsys: pytest.CaptureFixture[str]) -> None:
    loaded("custom_op").main()
    assert capsys.readouterr().out


def test_schedules_by_hand_up_to_two_roles(capsys: pytest.CaptureFixture[str]) -> None:
    """Its results are compared with torch's there; here that the texts show what they are to show."""
    texts = loaded("schedule_by_hand").main()
    assert "load_global_vector<4" in texts["vectors"] and "vector" not in texts["an element per thread"]
    assert "bulk" not in texts["an element per thread"] and "bulk" in texts["two roles"] and "threadIdx.x" in texts["two roles"]
    assert "two roles" in capsys.readouterr().out


def test_quantized_inference_is_near_the_float_result() -> None:
    assert loaded("quantized_inference").main() < 0.08  # e4m3 rounds by 2**-4 at most, three times


def test_every_example_is_run_here() -> None:
    assert EXAMPLES == ["custom_op", "patch_llama", "quantized_inference", "schedule_by_hand", "train_gpt"]
