"""Questions of graph passes about the sizes of a call, and the record of their answers.

Owns the rule of which calls share a graph: a pass is a function of the definition and of the answers, so that equal answers give equal graphs, whatever the
sizes are. Read first: `Questions`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from ..expr import Number, Sym, evaluate_int


class Questions:
    """Questions about sizes, recorded with their answers unless constants decide. env: values of the variables of sizes and scalars; None if there is no call
    yet: then every question that needs one is answered with no. ones: sizes that are 1 in the call, whose axes become broadcast axes.
    """

    def __init__(self, env: Mapping[Sym, Number] | None = None, ones: frozenset[Sym] = frozenset()) -> None:
        self.env, self.ones, self.memo = env, ones, dict[Sym, Number]()
        self._answers: list[Hashable] = [ones] if ones else []

    @property
    def answers(self) -> tuple[Hashable, ...]:
        """The answers so far, as a key."""
        return tuple(self._answers)

    def number(self, sym: Sym) -> int | None:
        """Return the value of `sym` in this call. Not recorded: ask a question about it, or `record` what you derive from it."""
        if sym.is_const:
            return int(sym.value)  # type: ignore[arg-type]
        return None if self.env is None else evaluate_int(sym, self.env, self.memo)

    def record(self, answer: Hashable) -> None:
        """Record something that was derived from values."""
        self._answers.append(answer)

    def is_one(self, sym: Sym) -> bool:
        """Is the extent 1?"""
        return self._ask(self.number(sym) == 1, sym)

    def is_same(self, a: Sym, b: Sym) -> bool:
        """Have two extents the same value?"""
        return a is b or self._ask((first := self.number(a)) is not None and first == self.number(b), a, b)

    def is_less(self, a: Sym, b: Sym) -> bool:
        """Is the first extent less than the second?"""
        first, second = self.number(a), self.number(b)
        return self._ask(first is not None and second is not None and first < second, a, b)

    def divides(self, divisor: Sym, sym: Sym) -> bool:
        """Does the divisor divide the extent?"""
        first, second = self.number(divisor), self.number(sym)
        return self._ask(bool(first) and second is not None and second % first == 0, divisor, sym)  # type: ignore[operator]

    def _ask(self, answer: bool, *about: Sym) -> bool:
        if not all(sym.is_const for sym in about):
            self._answers.append(answer)
        return answer
