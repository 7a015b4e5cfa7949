"""Scalar expressions: hash-consed, simplified on construction, with provable bounds and divisibility.

Extents, indices, predicates and every other scalar of a fusion or a kernel is a `Sym`. Equal expressions are the same object, so equality is
identity and a `Sym` is a dictionary key. Integer division and remainder are for non-negative values (extents and indices), where
truncation and floor agree. Ops other than the integer ones below are named by the op registry, which brings their evaluation.
Read first: `Sym`, `add`, `floordiv`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Union

from . import forking
from .dtypes import DataType
from .errors import InternalError
from .integers import whole_number, whole_quotient
from .remembered import remembered

Number = Union[int, float, bool, complex]
_TABLE: "weakref.WeakValueDictionary[tuple, Sym]" = weakref.WeakValueDictionary()

LARGEST_KEPT = 4096
"""Integer constants up to this one are kept: they are most results of index arithmetic."""
_KEPT: "dict[int, Sym]" = {}
_LOCK = forking.recursive_lock()  # recursive: the garbage collector may run anything within it

# Evaluation of ops that are not the integer ones of this file: name -> function of Python numbers. Filled by `weft.ops`.
EVALUATORS: dict[str, Callable[..., Number]] = {}


class Sym:
    """One scalar expression node; make it with `const`, `var`, `op` and the functions below.

    op: "const" (payload: the value), "var" (payload: the name), or an operation over `args`.
    dtype: DataType.Int for index arithmetic. extent: for an index variable i, the Sym e with 0 <= i < e, else None.
    lower: a proved lower bound of an integer variable. depth: how many operations are nested.
    """

    __slots__ = ("op", "args", "payload", "dtype", "extent", "lower", "depth", "_text", "_terms", "_variables", "__weakref__")

    def __init__(self, op: str, args: tuple["Sym", ...], payload: object, dtype: DataType, extent: "Sym | None", lower: int) -> None:
        self.op, self.args, self.payload, self.dtype, self.extent, self.lower = op, args, payload, dtype, extent, lower
        self.depth = 0
        for arg in args:
            if arg.depth >= self.depth:
                self.depth = arg.depth + 1
        self._variables: frozenset[Sym] | None = None
        self._text: str | None = None
        self._terms: dict[tuple[Sym, ...], int] | None = None

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    @property
    def is_var(self) -> bool:
        return self.op == "var"

    @property
    def value(self) -> Number:
        """The Python value of a constant."""
        if self.op != "const":
            raise InternalError(f"{self} is no constant")
        return self.payload  # type: ignore[return-value]

    def __repr__(self) -> str:
        return to_text(self)

    def __add__(self, other: "Sym | int") -> "Sym":
        return add(self, other)

    def __mul__(self, other: "Sym | int") -> "Sym":
        return mul(self, other)

    def __sub__(self, other: "Sym | int") -> "Sym":
        return add(self, mul(other, -1))

    __radd__, __rmul__ = __add__, __mul__


def _intern(op: str, args: tuple[Sym, ...], payload: object, dtype: DataType, extent: Sym | None = None, lower: int = 0) -> Sym:
    if isinstance(payload, float):
        key: tuple[object, ...] = (op, (), repr(payload), float, dtype, 0, 0)
    else:
        key = (op, tuple(map(id, args)), payload, type(payload), dtype, id(extent), lower)
    found = _TABLE.get(key)
    if found is None:
        with _LOCK:  # equal expressions are the same object in all threads
            found = _TABLE.get(key)
            if found is None:
                found = _TABLE[key] = Sym(op, args, payload, dtype, extent, lower)
    return found


def const(value: Number, dtype: DataType | None = None) -> Sym:
    """Return the constant `value`; the dtype follows from its Python type unless given."""
    if type(value) is int and (dtype is None or dtype is DataType.Int) and abs(value) <= LARGEST_KEPT:
        found = _KEPT.get(value)
        if found is None:
            found = _KEPT[value] = _intern("const", (), value, DataType.Int)
        return found
    if dtype is None:
        if isinstance(value, bool):
            dtype = DataType.Bool
        elif isinstance(value, int):
            dtype = DataType.Int
        else:
            dtype = DataType.ComplexDouble if isinstance(value, complex) else DataType.Double
    return _intern("const", (), value, dtype)


def var(name: str, dtype: DataType = DataType.Int, *, extent: "Sym | int | None" = None, lower: int = 0) -> Sym:
    """Return the variable `name`. An index variable has an `extent`; a size has `lower` (1 when it cannot be 0)."""
    return _intern("var", (), name, dtype, None if extent is None else as_sym(extent), lower)


def op(name: str, args: Iterable[Sym], dtype: DataType) -> Sym:
    """Return the operation `name` of the registry over `args`, folded when all are constant."""
    args = tuple(args)
    if all(a.is_const for a in args) and name in EVALUATORS:
        return const(coerced(EVALUATORS[name](*(a.value for a in args)), dtype), dtype)
    return _intern(name, args, None, dtype)


def as_sym(value: Sym | Number) -> Sym:
    return value if isinstance(value, Sym) else const(value)


ZERO, ONE = const(0), const(1)


def is_int(sym: Sym, value: int) -> bool:
    return sym.op == "const" and sym.payload == value


# ---------------------------------------------------------------- sums and products
def _order(sym: Sym) -> tuple[str, int]:
    """Sort key of operands: their text, so that a kernel's text, which is the key of the disk cache, is the same in every process; the identity breaks ties."""
    return to_text(sym), id(sym)


def _constants_last(sym: Sym) -> tuple[bool, str, int]:
    return sym.op == "const", to_text(sym), id(sym)


def terms(sym: Sym) -> dict[tuple[Sym, ...], int]:
    """Return `sym` as a polynomial: product of factors (in normal order, () for the constant) -> integer coefficient.

    The result is cached for sums and products: do not change it.
    """
    if sym.op == "const":
        return {(): sym.payload} if sym.payload else {}  # type: ignore[dict-item]
    if sym.op not in ("add", "mul"):
        return {(sym,): 1}
    if sym._terms is None:
        sym._terms = _terms_of(sym)
    return sym._terms


def _terms_of(sym: Sym) -> dict[tuple[Sym, ...], int]:
    """Return `terms` of a sum or a product."""
    if sym.op == "add":
        out: dict[tuple[Sym, ...], int] = {}
        for arg in sym.args:
            for key, coefficient in terms(arg).items():
                out[key] = out.get(key, 0) + coefficient
        return {k: c for k, c in out.items() if c}
    coefficient, factors = 1, []
    for arg in sym.args:
        if arg.op == "const":
            coefficient *= arg.payload  # type: ignore[operator]
        else:
            factors.append(arg)
    return {_sorted(factors): coefficient} if coefficient else {}


def _sorted(factors: Iterable[Sym]) -> tuple[Sym, ...]:
    """Put factors into normal order."""
    factors = tuple(factors)
    return factors if len(factors) < 2 else tuple(sorted(factors, key=_order))


def from_terms(poly: Mapping[tuple[Sym, ...], int]) -> Sym:
    """Return the sum of a polynomial of `terms`."""
    parts = [_product(factors, c) for factors, c in poly.items() if c]
    if not parts:
        return ZERO
    if len(parts) == 1:
        return parts[0]
    parts.sort(key=_constants_last)
    return _intern("add", tuple(parts), None, DataType.Int)


def _product(factors: tuple[Sym, ...], coefficient: int) -> Sym:
    if not factors:
        return const(coefficient)
    if coefficient == 1 and len(factors) == 1:
        return factors[0]
    args = _sorted(factors)
    return _intern("mul", args if coefficient == 1 else (*args, const(coefficient)), None, DataType.Int)


def add(a: Sym | int, b: Sym | int) -> Sym:
    """Integer sum, in normal form."""
    a, b = as_sym(a), as_sym(b)
    if is_int(a, 0):
        return b
    if is_int(b, 0):
        return a
    return _sum(a, b)


@remembered
def _sum(a: Sym, b: Sym) -> Sym:
    poly = dict(terms(a))
    for key, coefficient in terms(b).items():
        poly[key] = poly.get(key, 0) + coefficient
    return from_terms(poly)


def sub(a: Sym | int, b: Sym | int) -> Sym:
    return from_terms(_difference(as_sym(a), as_sym(b)))


def _difference(a: Sym, b: Sym) -> dict[tuple[Sym, ...], int]:
    """Return a - b as a polynomial."""
    poly = dict(terms(a))
    for key, coefficient in terms(b).items():
        poly[key] = poly.get(key, 0) - coefficient
    return {key: coefficient for key, coefficient in poly.items() if coefficient}


def mul(a: Sym | int, b: Sym | int) -> Sym:
    """Integer product, distributed over sums."""
    a, b = as_sym(a), as_sym(b)
    if is_int(a, 1):
        return b
    if is_int(b, 1):
        return a
    return _product_of(a, b)


@remembered
def _product_of(a: Sym, b: Sym) -> Sym:
    poly: dict[tuple[Sym, ...], int] = {}
    for ka, ca in terms(a).items():
        for kb, cb in terms(b).items():
            key = _sorted((*ka, *kb))
            poly[key] = poly.get(key, 0) + ca * cb
    return from_terms(poly)


def product(values: Iterable[Sym | int]) -> Sym:
    """Return the product of the values, 1 when there are none."""
    out: Sym = ONE
    for value in values:
        out = mul(out, value)
    return out


# ---------------------------------------------------------------- division
def _split_multiple(a: Sym, d: Sym) -> tuple[dict, dict]:
    """Split `a` into terms that `d` divides (already divided) and the rest."""
    whole: dict[tuple[Sym, ...], int] = {}
    rest: dict[tuple[Sym, ...], int] = {}
    d_terms = terms(d)
    d_key, d_coefficient = next(iter(d_terms.items())) if len(d_terms) == 1 else ((d,), 1)
    for key, coefficient in terms(a).items():
        left = list(key)
        ok = coefficient % d_coefficient == 0
        for factor in d_key:
            if ok and factor in left:
                left.remove(factor)
            else:
                ok = False
        if ok:
            whole[tuple(left)] = whole.get(tuple(left), 0) + coefficient // d_coefficient
        else:
            rest[key] = coefficient
    return whole, rest


def floordiv(a: Sym | int, b: Sym | int) -> Sym:
    """a / b of non-negative integers, rounded down."""
    a, b = as_sym(a), as_sym(b)
    if is_int(b, 1) or is_int(a, 0):
        return a
    if a is b and lower_bound(a) >= 1:
        return ONE
    if a.is_const and b.is_const and b.value:
        return const(a.value // b.value)  # type: ignore[operator]
    return _quotient(a, b)


@remembered
def _quotient(a: Sym, b: Sym) -> Sym:
    whole, rest = _split_multiple(a, b)
    remainder = from_terms(rest)
    if is_int(remainder, 0) or (whole and _in_range(remainder, b)):
        return from_terms(whole)
    if not whole and _in_range(remainder, b):
        return ZERO
    if a.op == "floordiv":
        return floordiv(a.args[0], mul(a.args[1], b))
    if whole and lower_bound(remainder) >= 0 and b.is_const:
        return add(from_terms(whole), floordiv(remainder, b))
    shorter = None if whole or not b.is_const or not b.value else _without_elements(rest, b.value)  # type: ignore[arg-type]
    return _intern("floordiv", (a, b), None, DataType.Int) if shorter is None else shorter


def _without_elements(a: dict[tuple[Sym, ...], int], size: int) -> Sym | None:
    """Return (4 n + i) / 8 with i < 4 as n / 2: elements of a vector that does not cross a multiple of the divisor. None for other quotients."""
    common = math.gcd(size, *(c for c in a.values() if math.gcd(c, size) > 1))
    inside = from_terms({key: c for key, c in a.items() if c % common})
    is_vector = 1 < common < size and not is_int(inside, 0) and _in_range(inside, const(common))
    return floordiv(from_terms({key: c // common for key, c in a.items() if c % common == 0}), size // common) if is_vector else None


def mod(a: Sym | int, b: Sym | int) -> Sym:
    """Remainder of non-negative integers."""
    a, b = as_sym(a), as_sym(b)
    if is_int(b, 1) or is_int(a, 0) or a is b:
        return ZERO
    if a.is_const and b.is_const and b.value:
        return const(a.value % b.value)  # type: ignore[operator]
    return _remainder(a, b)


@remembered
def _remainder(a: Sym, b: Sym) -> Sym:
    whole, rest = _split_multiple(a, b)
    remainder = from_terms(rest)
    if is_int(remainder, 0) or _in_range(remainder, b):
        return remainder
    if whole and lower_bound(remainder) >= 0:
        return mod(remainder, b)
    return _intern("mod", (a, b), None, DataType.Int)


def ceildiv(a: Sym | int, b: Sym | int) -> Sym:
    """a / b of non-negative integers, rounded up."""
    a, b = as_sym(a), as_sym(b)
    if is_int(b, 1) or is_int(a, 0):
        return a
    if a is b and lower_bound(a) >= 1:
        return ONE
    if a.is_const and b.is_const and b.value:
        return const(-(-a.value // b.value))  # type: ignore[operator]
    return _quotient_up(a, b)


@remembered
def _quotient_up(a: Sym, b: Sym) -> Sym:
    whole, rest = _split_multiple(a, b)
    if not rest:
        return from_terms(whole)
    return _intern("ceildiv", (a, b), None, DataType.Int)


@remembered
def recombine(sym: Sym) -> Sym:
    """Return `sym` with (a / b) * b * s + (a % b) * s written as a * s: the linear index of axes that were merged and are contiguous."""
    poly = dict(terms(sym))
    changed = True
    while changed:
        changed = False
        for key, coefficient in poly.items():
            for position, factor in enumerate(key):
                if factor.op != "mod":
                    continue
                a, b = factor.args
                rest = key[:position] + key[position + 1 :]
                partner = mul(mul(floordiv(a, b), b), _product(rest, coefficient))
                partner_terms = terms(partner)
                if all(poly.get(k) == c for k, c in partner_terms.items()):
                    for k in (*partner_terms, key):
                        poly.pop(k)
                    for k, c in terms(mul(a, _product(rest, coefficient))).items():
                        poly[k] = poly.get(k, 0) + c
                    changed = True
                    break
            if changed:
                break
    return from_terms(poly)


# ---------------------------------------------------------------- minimum, maximum, logic
def minimum(a: Sym | int, b: Sym | int) -> Sym:
    return _extremum("min", as_sym(a), as_sym(b))


def maximum(a: Sym | int, b: Sym | int) -> Sym:
    return _extremum("max", as_sym(a), as_sym(b))


def _extremum(name: str, a: Sym, b: Sym) -> Sym:
    if a is b or a.op == name and b in a.args:
        return a
    if b.op == name and a in b.args:
        return b
    small, large = (a, b) if proves_le(a, b) else (b, a) if proves_le(b, a) else (None, None)
    if small is not None:
        return small if name == "min" else large  # type: ignore[return-value]
    return _intern(name, (a, b) if _order(a) < _order(b) else (b, a), None, DataType.Int)


TRUE, FALSE = const(True), const(False)


def less(a: Sym | int, b: Sym | int) -> Sym:
    """The predicate a < b; TRUE when proved."""
    return _less(as_sym(a), as_sym(b))


@remembered
def _less(a: Sym, b: Sym) -> Sym:
    if proves_lt(a, b):
        return TRUE
    if proves_le(b, a):
        return FALSE
    return _intern("lt", (a, b), None, DataType.Bool)


def equal(a: Sym | int, b: Sym | int) -> Sym:
    """The predicate a == b; TRUE or FALSE if known."""
    a, b = as_sym(a), as_sym(b)
    if a is b:
        return TRUE
    if a.is_const and b.is_const:
        return const(a.value == b.value)
    return _intern("eq", (a, b), None, DataType.Bool)


def conjuncts(predicate: Sym) -> tuple[Sym, ...]:
    """The parts of a logical and; the predicate itself if it is not one."""
    return predicate.args if predicate.op == "and" else (predicate,)


def conjunction(parts: Iterable[Sym]) -> Sym:
    """Logical and of the parts, without TRUE and without repetition, in the order given."""
    seen: dict[Sym, None] = {}
    for part in parts:
        for atom in conjuncts(part):
            if atom is FALSE:
                return FALSE
            if atom is not TRUE:
                seen[atom] = None
    if not seen:
        return TRUE
    return next(iter(seen)) if len(seen) == 1 else _intern("and", tuple(seen), None, DataType.Bool)


# ---------------------------------------------------------------- proofs
def lower_bound(sym: Sym) -> int:
    """A proved lower bound of an integer expression (extents and indices are never negative)."""
    if sym.op == "const":
        return sym.payload  # type: ignore[return-value]
    if sym.op == "var":
        return sym.lower
    if sym.op == "add":
        return sum(lower_bound(a) for a in sym.args)
    if sym.op == "mul":
        out = 1
        for a in sym.args:
            bound = lower_bound(a)
            if bound < 0:
                return -(1 << 62)
            out *= bound
        return out
    if sym.op in ("ceildiv", "floordiv"):  # an offset may be negative
        least = lower_bound(sym.args[0])
        return least if least < 0 else 1 if sym.op == "ceildiv" and least >= 1 else 0
    if sym.op == "max":
        return max(map(lower_bound, sym.args))
    if sym.op == "min":
        return min(map(lower_bound, sym.args))
    if sym.op == "where":
        return min(map(lower_bound, sym.args[1:]))
    if sym.op in ("bitwise_xor", "bitwise_and", "bitwise_or"):
        return 0 if all(lower_bound(a) >= 0 for a in sym.args) else -(1 << 62)
    return -(1 << 62) if sym.op in EVALUATORS else 0


@remembered
def largest(sym: Sym) -> Sym | None:
    """A Sym that is >= `sym` (each index variable replaced by its last value), or None if not known."""
    out: Sym = ZERO
    for factors, coefficient in terms(sym).items():
        if any(factor.op == "floordiv" and lower_bound(factor) < 0 for factor in factors):
            return None
        part: Sym = const(coefficient)
        for factor in factors:
            if factor.extent is not None or factor.op in ("mod", "floordiv"):
                if coefficient < 0:
                    part = ZERO  # an index is at least 0
                    break
                last = _last_value(factor)
                part = mul(part, last)
            else:
                part = mul(part, factor)
        out = add(out, part)
    return out


def _last_value(factor: Sym) -> Sym:
    if factor.op == "var":
        return sub(factor.extent, 1)  # type: ignore[arg-type]
    if factor.op == "mod":
        return sub(factor.args[1], 1)
    numerator, divisor = largest(factor.args[0]) or factor.args[0], factor.args[1]
    whole, rest = _split_multiple(numerator, divisor)
    left = from_terms(rest)
    if left.is_const and 0 < -left.value <= lower_bound(divisor):  # type: ignore[operator]
        return sub(from_terms(whole), 1)  # (w * d - c) / d is w - 1 for 0 < c <= d
    return floordiv(numerator, divisor) if numerator.is_const else factor


def proves_le(a: Sym, b: Sym) -> bool:
    """True if bounds prove a <= b for all values of the variables."""
    if a is b:
        return True
    if _least(_difference(b, a)) >= 0:
        return True
    most = largest(a)
    return most is not None and _least(_difference(b, most)) >= 0


def proves_lt(a: Sym, b: Sym) -> bool:
    return proves_le(add(a, 1), b)


def _least(difference: Mapping[tuple[Sym, ...], int]) -> int:
    """Lower bound of a polynomial whose negative terms are constants only (else a very small number)."""
    total = 0
    for factors, coefficient in difference.items():
        if not factors:
            total += coefficient
        elif coefficient < 0:
            return -(1 << 62)
        else:
            bound = coefficient
            for factor in factors:
                least = lower_bound(factor)
                if least < 0:
                    return -(1 << 62)
                bound *= least
            total += bound
    return total


def _in_range(a: Sym, b: Sym) -> bool:
    return lower_bound(a) >= 0 and proves_lt(a, b)


def is_divisible(a: Sym, d: Sym | int) -> bool:
    """True when `d` provably divides `a`."""
    return not _split_multiple(as_sym(a), as_sym(d))[1]


# ---------------------------------------------------------------- evaluation, substitution, text
_PYTHON: dict[str, Callable[..., Number]] = {
    "add": lambda *a: sum(a), "floordiv": whole_quotient, "mod": lambda a, b: a % b, "ceildiv": lambda a, b: -(-a // b),
    "min": min, "max": max, "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "and": lambda *a: all(a),
}  # fmt: skip


def _multiply(*args: Number) -> Number:
    out: Number = 1
    for a in args:
        out = out * a
    return out


_PYTHON["mul"] = _multiply


def coerced(value: Number, dtype: DataType) -> Number:
    """Return `value` as a number of `dtype`, as a kernel converts it."""
    if dtype.is_bool:
        return bool(value)
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        value = value.real
    return whole_number(value, dtype) if dtype.is_integer else float(value)


class UnboundVariable(InternalError):
    code = "W901"
    what = "{name} has no value when {sym} is evaluated; bound: {bound}"


DEEP = 100
"""Expressions nested deeper than this are processed bottom-up, because recursion fails at a few hundred levels."""


def inner_first(sym: Sym, is_known: Callable[[Sym], bool]) -> Iterator[Sym]:
    """Yield `sym` and its subexpressions, each once, operands before operations; does not descend into those that `is_known`."""
    stack, seen = [(sym, False)], set()
    while stack:
        current, is_ready = stack.pop()
        if is_ready:
            yield current
        elif current not in seen and not is_known(current):
            seen.add(current)
            stack.append((current, True))
            stack += [(arg, False) for arg in reversed(current.args)]


def evaluate(sym: Sym, env: Mapping[Sym, Number], memo: dict[Sym, Number] | None = None) -> Number:
    """Return the value of `sym` with variables (or whole subexpressions) given by `env`."""
    memo = {} if memo is None else memo
    if sym.depth > DEEP:
        for inner in inner_first(sym, lambda s: s in env or s in memo):
            _evaluate(inner, env, memo)
    return _evaluate(sym, env, memo)


def _evaluate(sym: Sym, env: Mapping[Sym, Number], memo: dict[Sym, Number]) -> Number:
    if sym in env:
        return env[sym]
    if sym.op == "const":
        return sym.payload  # type: ignore[return-value]
    if sym in memo:
        return memo[sym]
    if sym.op == "var":
        raise UnboundVariable(name=sym.payload, sym=sym, bound=[v.payload for v in env if v.is_var])
    function = _PYTHON.get(sym.op) or EVALUATORS[sym.op]
    value = coerced(function(*(_evaluate(a, env, memo) for a in sym.args)), sym.dtype)
    memo[sym] = value
    return value


def evaluate_int(sym: Sym, env: Mapping[Sym, Number], memo: dict[Sym, Number] | None = None) -> int:
    """Return the value of `sym`, an extent, a stride or another count, as an int."""
    return int(evaluate(sym, env, memo).real)


def substitute(sym: Sym, mapping: Mapping[Sym, Sym]) -> Sym:
    """Return `sym` with the keys of `mapping` replaced, simplified again."""
    done = dict(mapping)
    if sym.depth > DEEP:
        for inner in inner_first(sym, done.__contains__):
            _substitute(inner, done)
    return _substitute(sym, done)


def _substitute(sym: Sym, done: dict[Sym, Sym]) -> Sym:
    found = done.get(sym)
    if found is None:
        found = done[sym] = rebuild(sym, [_substitute(a, done) for a in sym.args]) if sym.args else sym
    return found


def rebuild(sym: Sym, args: list[Sym]) -> Sym:
    """Return the operation of `sym` over other arguments."""
    if all(x is y for x, y in zip(args, sym.args)):
        return sym
    if sym.op == "add":
        out = args[0]
        for a in args[1:]:
            out = add(out, a)
        return out
    if sym.op == "mul":
        return product(args)
    two = {"floordiv": floordiv, "mod": mod, "ceildiv": ceildiv, "min": minimum, "max": maximum, "lt": less, "eq": equal}
    if sym.op in two:
        return two[sym.op](*args)
    if sym.op == "and":
        return conjunction(args)
    return op(sym.op, args, sym.dtype)


def variables(sym: Sym) -> frozenset[Sym]:
    """Return the variables that `sym` depends on."""
    if sym.is_var:
        return frozenset([sym])  # a cached reference to itself would never be freed
    if sym._variables is None:
        for inner in inner_first(sym, lambda s: s.is_var or s._variables is not None):
            inner._variables = frozenset().union(*map(variables, inner.args))
    return sym._variables  # type: ignore[return-value]


_INFIX = {"add": " + ", "mul": " * ", "floordiv": " / ", "mod": " % ", "lt": " < ", "eq": " == ", "and": " && "}


def to_text(sym: Sym) -> str:
    """Readable text, for dumps and messages (the CUDA printer is in `weft.codegen`)."""
    if sym._text is None:
        if not sym.args:
            sym._text = str(sym.payload) if sym.op in ("const", "var") else f"{sym.op}()"
        elif sym.op in _INFIX:
            sym._text = "(" + _INFIX[sym.op].join(map(to_text, sym.args)) + ")"
        else:
            sym._text = f"{sym.op}({', '.join(map(to_text, sym.args))})"
    return sym._text
