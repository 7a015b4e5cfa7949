"""Predicates of ops become Ifs: an op that serves one If only is in it, and nothing moves across what may define a name of the predicate."""

from __future__ import annotations

from typing import Any

import pytest

from weft.dtypes import DataType
from weft.expr import ONE, TRUE, Sym, conjunction, less, var
from weft.ir.enums import MemoryType
from weft.lower.kernel_ir import Access, Allocate, Buffer, If, Let, Op, Statement
from weft.lower.predicates import _group

COLUMN = less(var("threadIdx.x"), var("T0.size[1]"))
BOTH = conjunction([less(var("blockIdx.x"), var("T0.size[0]")), COLUMN])
EXPR: Any = None


def buffer(name: str) -> Buffer:
    return Buffer(name, DataType.Float, MemoryType.local, ONE, None)  # type: ignore[arg-type]


A, B, C = buffer("a"), buffer("b"), buffer("c")


def op(out: Buffer, source: Buffer, predicate: Sym) -> Op:
    return Op(EXPR, [Access(out, ONE)], [Access(source, ONE)], predicate)


def ifs(*body: Statement) -> list[Sym]:
    return [s.predicate for s in _group(list(body)) if isinstance(s, If)]


def test_an_op_is_in_the_if_of_its_only_readers() -> None:
    assert ifs(Allocate(B), op(B, A, COLUMN), op(C, B, BOTH)) == [BOTH]


def test_a_chain_follows_its_last_reader() -> None:
    own = buffer("d")
    assert ifs(Allocate(own), Allocate(B), op(own, A, COLUMN), op(B, own, COLUMN), op(C, B, BOTH)) == [BOTH]


@pytest.mark.parametrize(
    "body",
    [
        (op(B, A, COLUMN), op(C, B, BOTH)),  # declared outside of this body, where others may read it
        (Allocate(B), op(B, A, COLUMN), op(C, B, BOTH), op(A, B, COLUMN)),
        (Allocate(B), op(B, A, COLUMN), Let(var("row"), ONE), op(C, B, BOTH)),
    ],
)
def test_others_keep_their_own(body: tuple[Statement, ...]) -> None:
    assert ifs(*body)[:2] == [COLUMN, BOTH]


def test_a_load_without_a_predicate_stays_outside() -> None:
    """It begins early. Arithmetic that only the If needs is in it: between two Ifs it would keep them apart."""
    given = Buffer("g", DataType.Float, MemoryType.global_, ONE, None)  # type: ignore[arg-type]
    assert any(isinstance(s, Op) for s in _group([Allocate(B), op(B, given, TRUE), op(C, B, BOTH)]))
    assert not any(isinstance(s, Op) for s in _group([Allocate(B), op(B, A, TRUE), op(C, B, BOTH)]))
    assert ifs(Allocate(B), op(C, A, BOTH), op(B, A, TRUE), op(C, B, BOTH)) == [BOTH]
