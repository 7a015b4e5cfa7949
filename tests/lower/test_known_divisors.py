"""Quotients and remainders of positions that the elements of a vector share."""

from __future__ import annotations

import pytest

from weft.expr import add, const, evaluate_int, floordiv, mod, mul, var
from weft.lower.lookups import with_known_divisors

A = var("blockIdx.x", extent=const(40))
N = var("T0.size[0]", lower=1)


@pytest.mark.parametrize("divisor", [8, 12, 20, 24, 56])
@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_values_are_the_same(lanes: int, divisor: int) -> None:
    lane = var("i4", extent=const(lanes))
    element = add(mul(A, lanes), lane)
    parts = [with_known_divisors(part(element, divisor), {}) for part in (floordiv, mod)]
    for a in range(40):
        for i in range(lanes):
            assert tuple(evaluate_int(part, {A: a, lane: i}) for part in parts) == divmod(lanes * a + i, divisor)


def test_elements_of_a_vector_share_row_and_column() -> None:
    lane, other = var("i4", extent=const(8)), var("i5", extent=const(9))
    element = add(mul(A, 8), lane)
    assert with_known_divisors(floordiv(element, 56), {}) is floordiv(A, 7)
    assert with_known_divisors(mod(floordiv(element, 56), 7), {}) is mod(floordiv(A, 7), 7)
    assert with_known_divisors(add(mod(element, 56), N), {}) is add(add(mul(mod(A, 7), 8), lane), N)
    for alone in (floordiv(element, 20), floordiv(add(mul(A, 8), other), 56), floordiv(element, N)):
        assert with_known_divisors(alone, {}) is alone
    assert with_known_divisors(mod(element, N), {N: 8}) is add(mod(mul(A, 8), N), lane)
