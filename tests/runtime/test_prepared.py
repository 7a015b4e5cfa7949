"""Prepared forms of fusions: a process keeps those used last, and makes others again with the same result."""

from __future__ import annotations

import gc
import weakref

import pytest

from weft import DataType, FusionDefinition, compiler
from weft.arch import arch_by_name
from weft.ir.fusion import Fusion

H100 = arch_by_name("H100")


def chain(ops: int) -> Fusion:
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 96], dtype=DataType.Float)
        for _ in range(ops):
            x = fd.ops.sin(x)
        fd.add_output(x)
    return fd.fusion


def test_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_recent", compiler._Recent())
    monkeypatch.setattr(compiler, "MOST_PREPARED_EXPRS", 30)
    first, second, third = fusions = [chain(10) for _ in range(3)]
    dropped = weakref.ref(compiler.prepare(second))
    kept = compiler.prepare(first)
    compiler.prepare(third)
    assert all("prepared" in f.findings for f in fusions)
    assert compiler.prepare(first) is kept
    fourth = chain(10)
    compiler.prepare(fourth)
    gc.collect()
    assert dropped() is None
    assert ["prepared" in f.findings for f in (first, second, third, fourth)] == [True, False, True, True]


def test_a_large_one_is_kept_until_another_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_recent", compiler._Recent())
    monkeypatch.setattr(compiler, "MOST_PREPARED_EXPRS", 5)
    large, small = chain(10), chain(2)
    assert compiler.prepare(large) is compiler.prepare(large)
    compiler.prepare(small)
    assert "prepared" not in large.findings


def test_what_is_made_again_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_recent", compiler._Recent())
    fusion = chain(4)
    before, prepared = compiler.propose(fusion, {}, {}, H100), compiler.prepare(fusion)
    monkeypatch.setattr(compiler, "MOST_PREPARED_EXPRS", 1)
    compiler.prepare(chain(3))
    assert compiler.propose(fusion, {}, {}, H100) == before
    assert compiler.prepare(fusion) is not prepared


def test_a_fusion_that_nobody_uses_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_recent", compiler._Recent())
    fusion = chain(3)
    compiler.prepare(fusion)
    gone = weakref.ref(fusion)
    del fusion
    gc.collect()
    assert gone() is None
