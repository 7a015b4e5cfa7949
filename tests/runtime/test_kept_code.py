"""Python code that another process need not compile: found by its text, the same functions, and none of another Python."""

from __future__ import annotations

import importlib.util

import pytest

from weft.runtime import kept_code


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_code, "_known", {})


def test_code_that_was_packed_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_code.noting() as codes:
        kept_code.code_of("def f(x): return x + 1\n", "here")
    kept_code.code_of("def g(): pass\n", "here")
    assert len(codes) == 1
    data = kept_code.packed(codes)
    monkeypatch.setattr(kept_code, "_known", {})
    kept_code.unpack(data)
    monkeypatch.setattr("builtins.compile", None)
    namespace: dict[str, object] = {}
    exec(kept_code.code_of("def f(x): return x + 1\n", "here"), namespace)
    assert namespace["f"](2) == 3  # type: ignore[operator]
    with pytest.raises(TypeError):
        kept_code.code_of("def f(x): return x + 1\n", "there")  # errors would name another place


def test_code_of_another_python_is_left_alone() -> None:
    with kept_code.noting() as codes:
        kept_code.code_of("x = 1\n", "here")
    data = kept_code.packed(codes)
    kept_code._known.clear()
    kept_code.unpack(bytes(len(importlib.util.MAGIC_NUMBER)) + data[len(importlib.util.MAGIC_NUMBER) :])
    kept_code.unpack(b"")
    assert not kept_code._known


def test_what_is_known_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_code, "MOST_KNOWN", 3)
    for number in range(10):
        kept_code.code_of(f"x = {number}\n", "here")
    assert len(kept_code._known) <= 3
