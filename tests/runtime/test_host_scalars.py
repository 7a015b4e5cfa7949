"""Scalars that the host computes: the Python text of an expression, and what it comes to."""

from __future__ import annotations

from typing import Any

import pytest

from weft.expr import Sym, add, ceildiv, const, floordiv, mod, mul, var
from weft.runtime.host_scalars import DEEPEST_TEXT, expression

A, B = var("a", lower=1), var("b", lower=1)


def value(sym: Sym, **numbers: int) -> tuple[Any, str]:
    constants: dict[str, Any] = {}
    text = expression(sym, {A: "a", B: "b"}, constants)
    return eval(text, constants, dict(numbers)), text


@pytest.mark.parametrize(
    ("sym", "expected"),
    [(const(7), 7), (A, 5), (add(mul(A, 3), B), 18), (ceildiv(A, 2), 3), (mod(mul(A, B), 4), 3), (floordiv(add(A, 7), 4), 3), (mod(A, 2), 1)],
)
def test_a_shallow_expression_is_one_text(sym: Sym, expected: int) -> None:
    found, text = value(sym, a=5, b=3)
    assert found == expected and ":=" not in text


def test_a_deep_expression_is_assignments_in_a_row() -> None:
    sym, expected = A, 5
    for _ in range(10 * DEEPEST_TEXT):
        sym, expected = floordiv(add(mul(sym, B), 11), 2), (expected * 3 + 11) // 2
    found, text = value(sym, a=5, b=3)
    assert found == expected and text.count(":=") > DEEPEST_TEXT
