"""Equal scalar expressions are one object, whichever threads make them, and whenever the collector runs."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from weft.expr import Sym, add, const, floordiv, mod, mul, var

THREADS, ROUNDS, EXPRESSIONS = 8, 12, 60


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def made(round_: int) -> list[Sym]:
    """Expressions that no earlier round has made."""
    x, y = (var(f"{name}{round_}", lower=1) for name in "xy")
    out = []
    for n in range(EXPRESSIONS):
        out.append(add(mul(x, 5000 + n), mod(floordiv(y, const(7001 + n)), add(x, n))))
        out.append(mul(const(0.5 + n), x))
    return out


def test_threads_make_one_object_of_equal_expressions(frequent_switches: None) -> None:
    for round_ in range(ROUNDS):
        barrier, results = threading.Barrier(THREADS), [None] * THREADS

        def work(place: int, round_: int = round_, barrier: threading.Barrier = barrier, results: list = results) -> None:
            barrier.wait()
            if place == 0:
                gc.collect()
            results[place] = made(round_)

        threads = [threading.Thread(target=work, args=(place,)) for place in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first, *others = results
        assert first and all(a is b for other in others for a, b in zip(first, other, strict=True))
        del first, others, results  # the next round may get their addresses


def test_a_table_that_forgets_fails_this(frequent_switches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: expressions that forget what the table holds are several objects."""
    import weft.expr

    class Forgetful(dict):
        def get(self, key: object, default: object = None) -> None:
            return None

    monkeypatch.setattr(weft.expr, "_TABLE", Forgetful())
    with pytest.raises(AssertionError):
        test_threads_make_one_object_of_equal_expressions(None)
