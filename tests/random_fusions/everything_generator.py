"""Random graphs of everything: all types, views, lookups, scans, sorting, reductions over different axes, products, factories; up to 30 ops and 4 outputs.

Values stay bounded, and what is not continuous (comparisons, indices, orders) reads exact values only, so that a rounding error stays a rounding error.
Read first: `everything_case`, then `Everything.STEPS`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fusion_case import Case, Node, Ref, ScalarInput, TensorInput, call, references

from weft import DataType, FusionDefinition

D = DataType
Shape = tuple[int, ...]
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31, 33, 64, 65)
TYPES = ("Float", "Float", "Float", "Float", "BFloat16", "Half", "Double", "Int", "Int32", "Bool", "ComplexFloat", "ComplexDouble")
LARGEST_INT, LARGEST_FLOAT = 1000.0, 50.0


@dataclass(frozen=True)
class Value:
    """A value made so far. shape: extents; ones: axes that the definition knows to be 1; bound: of its absolute value; exact: no rounding on the way;
    is_input: an input of the definition or a view of one."""

    name: str
    shape: Shape
    ones: frozenset[int]
    dtype: DataType
    bound: float
    exact: bool
    is_input: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_real_float(self) -> bool:
        return self.dtype.is_float


class CannotMake(Exception):
    """The drawn op does not fit; another one is drawn."""


def need(condition: object) -> None:
    if not condition:
        raise CannotMake


class Everything:
    """One graph in the making; `fd` is a definition that tells the types. TRIES: draws for each op that is wanted, since many do not fit.

    SIZES: what the axes of the first inputs are drawn from.
    """

    TRIES = 4
    SIZES = EXTENTS

    def __init__(self, rng: random.Random, fd: FusionDefinition, largest_elems: int) -> None:
        self.rng, self.fd, self.largest = rng, fd, largest_elems
        self.inputs: list[TensorInput | ScalarInput] = []
        self.nodes: list[Node] = []
        self.values: dict[str, Any] = {}
        self.made: list[Value] = []
        self.sizes: dict[str, int] = {}
        self.static = rng.random() < 0.5
        self.specials = 0

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    # -- inputs and nodes
    def input(self, shape: Shape, dtype: str, below: int = 0, keep: bool = True) -> Value:
        """Add an input; of an index `below` is the extent that it looks into."""
        rng, rank = self.rng, len(shape)
        order = tuple(rng.sample(range(rank), rank)) if rank > 1 and rng.random() < 0.12 else ()
        gapped = frozenset(d for d in range(rank) if shape[d] > 1 and rng.random() < 0.4) if rng.random() < 0.12 else frozenset()
        expanded = frozenset(d for d in range(rank) if shape[d] > 1 and rng.random() < 0.4) if rng.random() < 0.06 else frozenset()
        for n in shape:
            self.sizes.setdefault(f"n{n}", n)
        name = f"x{len(self.inputs)}"
        labels = tuple("1" if n == 1 else f"n{n}" for n in shape)
        specials = self.specials if getattr(D, dtype).is_float and 1 not in shape and not expanded else 0
        made = TensorInput(name, labels, dtype, order, expanded, gapped, rng.choice((0, 0, 0, 0, 1, 3)), self.static, below, specials=specials)
        self.inputs.append(made)
        self.values[name] = self.fd.define_tensor(**made.definition(self.sizes))
        bound = below if below else {"Int": 5.0, "Int32": 5.0, "Bool": 1.0}.get(dtype, 3.0)
        value = Value(name, shape, frozenset(d for d, n in enumerate(shape) if n == 1), getattr(D, dtype), bound, True, True)
        if keep:
            self.made.append(value)
        return value

    def add(self, op: str, args: list[Any], like: Value | None, *, keep: bool = True, targets: int = 1, **changes: Any) -> Value:
        """Add an op; its (first) result is `like` with `changes`, rounded unless exact says otherwise."""
        kwargs = changes.pop("kwargs", {})
        changes.setdefault("is_input", False)
        base = like or Value("", (), frozenset(), D.Float, 1.0, False)
        value = replace(base, **changes)
        need(math.prod(value.shape) <= self.largest and value.rank <= 5)
        names = tuple(f"v{len(self.nodes)}{'abcd'[n] if targets > 1 else ''}" for n in range(targets))
        node = Node(names, op, tuple(args), tuple(kwargs.items()), tuple(map(str, value.shape)))
        call(self.fd, node, self.values, self.sizes)
        self.nodes.append(node)
        value = replace(value, name=names[0], dtype=self.values[names[0]].dtype())
        if keep:
            self.made.append(value)
        return value

    def pick(self, wanted: Callable[[Value], bool] = lambda v: True) -> Value:
        fitting = [v for v in self.made if wanted(v)]
        need(fitting)
        return self.rng.choice(fitting[-6:] if self.chance(0.7) else fitting)

    def tamed(self, v: Value) -> Value:
        """Return the value with a bound that products can take."""
        if v.dtype.is_integer and v.bound > LARGEST_INT:
            return self.add("bitwise_and", [Ref(v.name), 15], v, bound=15.0, keep=False)
        if v.dtype.is_float and v.bound > LARGEST_FLOAT:
            return self.add("tanh", [Ref(v.name)], v, bound=1.0, exact=False, keep=False)
        if v.dtype.is_complex and v.bound > LARGEST_FLOAT:
            return self.add("mul", [Ref(v.name), 1.0 / v.bound], v, bound=1.0, exact=False, keep=False)
        return v

    # -- pointwise
    def unary(self) -> None:
        x = self.pick()
        r = Ref(x.name)
        if x.dtype.is_bool:
            self.add("logical_not", [r], x)
        elif x.dtype.is_integer:
            self.add(self.rng.choice(("neg", "abs", "bitwise_not", "sign", "relu")), [r], x, bound=x.bound + 1)
        elif x.dtype.is_complex:
            op = self.rng.choice(("neg", "abs", "real", "imag", "sin", "sigmoid"))
            x = self.tamed(x)
            if op in ("sin", "sigmoid"):
                x = self.add("mul", [Ref(x.name), 0.5 / max(1.0, x.bound)], x, bound=0.5, exact=False, keep=False)
            self.add(op, [Ref(x.name)], x, bound=2 * x.bound + 2, exact=op in ("neg", "real", "imag") and x.exact)
        else:
            op = self.rng.choice(("neg", "abs", "relu", "sin", "tanh", "sigmoid", "exp", "rsqrt", "silu", "erf", "cos", "log1p", "sqrt"))
            exact = x.exact and op in ("neg", "abs", "relu")
            if op in ("rsqrt", "log1p", "sqrt"):
                x = self.add("add", [Ref(self.add("abs", [r], x, keep=False).name), 1.0], x, bound=x.bound + 1, exact=False, keep=False)
            if op == "exp":
                x = self.add("tanh", [Ref(x.name)], x, bound=1.0, exact=False, keep=False)
            bound = x.bound if op in ("neg", "abs", "relu", "silu", "sqrt", "log1p") else 3.0
            self.add(op, [Ref(x.name)], x, bound=bound, exact=exact)

    def partner(self, x: Value) -> Value:
        fits = [v for v in self.made if v.rank == x.rank and all(v.shape[d] == x.shape[d] or d in v.ones or d in x.ones for d in range(x.rank))]
        return self.rng.choice(fits)

    def joined(self, a: Value, b: Value) -> dict[str, Any]:
        return dict(shape=tuple(map(max, a.shape, b.shape)), ones=a.ones & b.ones)

    def binary(self) -> None:
        x = self.tamed(self.pick(lambda v: not v.dtype.is_bool))
        y = self.partner(x)
        need(not y.dtype.is_bool)
        y = self.tamed(y)
        is_complex = x.dtype.is_complex or y.dtype.is_complex
        op = self.rng.choice(("add", "sub", "mul") if is_complex else ("add", "sub", "mul", "maximum", "minimum"))
        bound = {"add": x.bound + y.bound, "sub": x.bound + y.bound, "mul": 2 * x.bound * y.bound}.get(op, max(x.bound, y.bound))
        exact = x.exact and y.exact and (op in ("maximum", "minimum") and x.dtype == y.dtype or x.dtype.is_integer and y.dtype.is_integer)
        self.add(op, [Ref(x.name), Ref(y.name)], x, bound=bound, exact=exact, **self.joined(x, y))

    def with_number(self) -> None:
        x = self.tamed(self.pick(lambda v: not v.dtype.is_bool))
        number = self.rng.choice((2, 3, -1)) if x.dtype.is_integer else round(self.rng.uniform(-2, 2), 3)
        args = [Ref(x.name), number]
        if self.chance(0.3):
            args.reverse()
        self.add(self.rng.choice(("add", "sub", "mul")), args, x, bound=3 * x.bound + 3, exact=x.exact and x.dtype.is_integer)

    def integers(self) -> None:
        x = self.tamed(self.pick(lambda v: v.dtype.is_integer))
        op = self.rng.choice(("remainder", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "bitwise_left_shift", "bitwise_right_shift", "gcd"))
        self.add(op, [Ref(x.name), self.rng.choice((2, 3, 5))], x, bound=8 * x.bound + 8)

    def compare(self) -> None:
        x = self.pick(lambda v: v.exact and not v.dtype.is_complex and not v.dtype.is_bool)
        y = self.partner(x)
        number_or_tensor: Any = Ref(y.name) if y.exact and not y.dtype.is_complex and not y.dtype.is_bool else 0 if x.dtype.is_integer else 0.25
        more = self.joined(x, y) if isinstance(number_or_tensor, Ref) else {}
        self.add(self.rng.choice(("lt", "le", "gt", "ge", "eq", "ne")), [Ref(x.name), number_or_tensor], x, bound=1.0, **more)

    def where(self) -> None:
        c = self.pick(lambda v: v.dtype.is_bool)
        a = self.partner(c)
        need(not a.dtype.is_bool)
        fill: Any = 1 if a.dtype.is_integer else 0.5
        self.add("where", [Ref(c.name), Ref(a.name), fill], a, bound=a.bound + 1, **self.joined(a, c))

    def logic(self) -> None:
        a = self.pick(lambda v: v.dtype.is_bool)
        b = self.partner(a)
        need(b.dtype.is_bool)
        self.add(self.rng.choice(("logical_and", "logical_or", "bitwise_xor", "bitwise_and")), [Ref(a.name), Ref(b.name)], a, **self.joined(a, b))

    def cast(self) -> None:
        x = self.pick()
        choices = [D.Float, D.Double, D.BFloat16, D.Half, D.ComplexFloat]
        if x.dtype.is_complex:
            choices = [D.Float, D.ComplexDouble, D.ComplexFloat]
        elif x.exact:
            choices += [D.Bool] if self.specials else [D.Int, D.Int32, D.Bool]
        to = self.rng.choice(choices)
        exact = x.exact and (to is x.dtype or not to.is_float or to.bits >= 32) and not (x.dtype is D.Double and to.is_float)
        self.add("cast", [Ref(x.name), to], x, exact=exact and x.dtype is not D.Double)

    # -- views
    def permute(self) -> None:
        x = self.pick(lambda v: v.rank > 1)
        order = self.rng.sample(range(x.rank), x.rank)
        ones = frozenset(n for n, d in enumerate(order) if d in x.ones)
        self.add("permute", [Ref(x.name), order], x, shape=tuple(x.shape[d] for d in order), ones=ones, is_input=x.is_input)

    def reshape(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        shape, ones = list(x.shape), [d in x.ones for d in range(x.rank)]
        for _ in range(self.rng.choice((1, 1, 2))):
            if not shape:
                break
            at = self.rng.randrange(len(shape))
            factors = [f for f in (2, 3, 4, 5) if shape[at] % f == 0 and shape[at] > f]
            if self.chance(0.5) and factors:
                f = self.rng.choice(factors)
                shape[at : at + 1], ones[at : at + 1] = [shape[at] // f, f], [False, False]
            elif at + 1 < len(shape):
                shape[at : at + 2], ones[at : at + 2] = [shape[at] * shape[at + 1]], [ones[at] and ones[at + 1]]
            elif self.chance(0.3):
                shape.insert(at, 1)
                ones.insert(at, True)
        asked = list(shape)
        if self.chance(0.2) and asked:
            asked[self.rng.randrange(len(asked))] = -1
        self.add("reshape", [Ref(x.name), asked], x, shape=tuple(shape), ones=frozenset(d for d, n in enumerate(shape) if n == 1 and (ones[d] or asked[d] == 1)), is_input=x.is_input)

    def slice(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        starts = [self.rng.randint(0, n - 1) if n > 1 and self.chance(0.4) else 0 for n in x.shape]
        ends = [self.rng.randint(s + 1, n) if self.chance(0.4) else n for s, n in zip(starts, x.shape)]
        shape = tuple(e - s for s, e in zip(starts, ends))
        self.add("slice", [Ref(x.name), starts, ends], x, shape=shape, ones=frozenset(d for d, n in enumerate(shape) if n == 1), is_input=x.is_input)

    def pad(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and not v.dtype.is_complex)
        widths = [self.rng.choice((0, 1, 2, -1)) for _ in range(2 * self.rng.randint(1, min(2, x.rank)))]
        shape = list(x.shape)
        for k in range(len(widths) // 2):
            shape[-1 - k] += widths[2 * k] + widths[2 * k + 1]
        need(min(shape) > 0 and any(widths))
        changed = {x.rank - 1 - k for k in range(len(widths) // 2) if widths[2 * k] or widths[2 * k + 1]}
        ones = frozenset(d for d in range(x.rank) if shape[d] == 1 and (d in x.ones or d in changed))
        self.add("pad", [Ref(x.name), widths], x, shape=tuple(shape), ones=ones)

    def cat(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        dim = self.rng.randrange(x.rank)
        others = [v for v in self.made if v.rank == x.rank and v.dtype is x.dtype and all(v.shape[d] == n and (d in v.ones) == (d in x.ones) for d, n in enumerate(x.shape) if d != dim)]
        parts = [x, *(self.rng.choice(others) for _ in range(self.rng.choice((1, 1, 2))))]
        shape = tuple(sum(v.shape[dim] for v in parts) if d == dim else n for d, n in enumerate(x.shape))
        self.add("cat", [[Ref(v.name) for v in parts], dim], x, shape=shape, ones=x.ones - {dim}, bound=max(v.bound for v in parts), exact=all(v.exact for v in parts))

    def expand(self) -> None:
        x = self.pick(lambda v: v.rank < 4)
        at, n = self.rng.randint(0, x.rank), self.rng.choice((1, 2, 3, 5))
        shape = [*x.shape[:at], n, *x.shape[at:]]
        dims = [d for d in range(len(shape)) if d != at]
        ones = frozenset(d if d < at else d + 1 for d in x.ones) | ({at} if n == 1 else frozenset())
        self.add("broadcast_in_dim", [Ref(x.name), shape, dims], x, shape=tuple(shape), ones=ones, is_input=x.is_input)

    def squeeze(self) -> None:
        x = self.pick(lambda v: v.ones)
        d = self.rng.choice(sorted(x.ones))
        self.add("squeeze", [Ref(x.name), [d]], x, shape=x.shape[:d] + x.shape[d + 1 :], ones=frozenset(o - (o > d) for o in x.ones if o != d), is_input=x.is_input)

    def triu(self) -> None:
        x = self.pick(lambda v: v.rank > 1 and not v.dtype.is_complex)
        self.add("triu", [Ref(x.name), self.rng.choice((0, 1, -1))], x)

    # -- indices
    def index(self, shape: Shape, below: int) -> Value:
        return self.input(shape, self.rng.choice(("Int", "Int", "Int32")), below, keep=False)

    def index_select(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        d, n = self.rng.randrange(x.rank), self.rng.choice((2, 3, 5, 8))
        shape = x.shape[:d] + (n,) + x.shape[d + 1 :]
        self.add("index_select", [Ref(x.name), Ref(self.index((n,), x.shape[d]).name), d], x, shape=shape, ones=x.ones - {d})

    def select(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        d = self.rng.randrange(x.rank)
        self.add("select", [Ref(x.name), self.rng.randrange(x.shape[d]), d], x, shape=x.shape[:d] + x.shape[d + 1 :], ones=frozenset(o - (o > d) for o in x.ones if o != d))

    def gather(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and not v.ones)
        d = self.rng.randrange(x.rank)
        shape = tuple(self.rng.choice((2, 3, 4)) if a == d else self.rng.randint(max(1, n - 1), n) for a, n in enumerate(x.shape))
        need(1 not in shape)
        self.add("gather", [Ref(x.name), Ref(self.index(shape, x.shape[d]).name), d], x, shape=shape, ones=frozenset())

    def take_along_axis(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and not v.ones)
        d = self.rng.randrange(x.rank)
        shape = tuple(self.rng.choice((2, 3, 4)) if a == d else n for a, n in enumerate(x.shape))
        self.add("take_along_axis", [Ref(x.name), Ref(self.index(shape, x.shape[d]).name), d], x, shape=shape, ones=frozenset())

    def scatter(self) -> None:
        """Positions are an order of fresh numbers, so that none occurs twice."""
        x = self.pick(lambda v: v.rank > 0 and not v.ones and not v.dtype.is_bool)
        d = self.rng.randrange(x.rank)
        order = self.add("argsort", [Ref(self.input(x.shape, "Double", keep=False).name), d, False, True], x, keep=False)
        source = self.partner(x)
        is_fit = source.dtype is x.dtype and source.shape == x.shape and not source.ones
        given: Any = Ref(source.name) if is_fit else 2 if x.dtype.is_integer else 0.5
        self.add("scatter", [Ref(x.name), Ref(order.name), given, d], x, bound=max(2.0, x.bound, source.bound), exact=x.exact and (source.exact or not is_fit))

    def embedding(self) -> None:
        entries, width = self.rng.choice((3, 7, 20)), self.rng.choice((2, 5, 8, 16))
        weight = self.input((entries, width), self.rng.choice(("Float", "BFloat16", "Half")), keep=False)
        shape = tuple(self.rng.choice((2, 3, 5)) for _ in range(self.rng.choice((1, 2))))
        index = self.input(shape, "Int", entries, keep=False)
        self.add("embedding_fwd", [Ref(index.name), Ref(weight.name)], weight, shape=(*shape, width), ones=frozenset())

    # -- scans and orders
    def scan(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and not v.dtype.is_bool and not v.dtype.is_complex and not v.ones)
        d = self.rng.randrange(x.rank)
        op = self.rng.choice(("cumsum", "cumsum", "cumprod", "cummax", "cummin"))
        if op == "cumprod" or x.dtype in (D.Half, D.BFloat16):
            x = self.add("tanh", [Ref(x.name)], x, bound=1.0, exact=False, keep=False)
        x = self.tamed(x)
        bound = x.bound * x.shape[d] if op == "cumsum" else x.bound
        self.add(op, [Ref(x.name), d], x, bound=bound, exact=x.exact and (x.dtype.is_integer and op == "cumsum" or op in ("cummax", "cummin")))

    def topk(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and not v.dtype.is_bool and not v.dtype.is_complex and not v.ones)
        d = self.rng.randrange(x.rank)
        k = self.rng.randint(1, min(4, x.shape[d]))
        shape = tuple(k if a == d else n for a, n in enumerate(x.shape))
        self.add("topk", [Ref(x.name), k, d, self.chance(0.5), True], x, targets=2, shape=shape, ones=frozenset({d}) if k == 1 else frozenset())

    def argsort(self) -> None:
        x = self.pick(lambda v: v.is_input and v.rank > 0 and v.dtype in (D.Float, D.Double) and not v.ones)
        self.add("argsort", [Ref(x.name), self.rng.randrange(x.rank), self.chance(0.5), True], x, bound=100.0, exact=True)

    def arg_extremum(self) -> None:
        x = self.pick(lambda v: v.exact and v.rank > 0 and v.dtype in (D.Float, D.Double) and not v.ones)
        d, keep = self.rng.randrange(x.rank), self.chance(0.5)
        self.add(self.rng.choice(("argmax", "argmin")), [Ref(x.name), d, keep], x, bound=100.0, **self.folded(x, [d], keep))

    # -- folds
    def folded(self, x: Value, dims: list[int], keep: bool) -> dict[str, Any]:
        left = [d for d in range(x.rank) if keep or d not in dims]
        ones = frozenset(n for n, d in enumerate(left) if d in dims or d in x.ones)
        return dict(shape=tuple(1 if d in dims else x.shape[d] for d in left), ones=ones)

    def fold(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank > 0))
        dims = sorted(self.rng.sample(range(x.rank), self.rng.randint(1, min(3, x.rank))))
        keep, n = self.chance(0.6), math.prod(x.shape[d] for d in dims)
        ops = ("sum",) if x.dtype.is_bool or x.dtype.is_complex else ("sum", "sum", "max", "min", "prod")
        op = self.rng.choice(ops)
        if op == "prod":
            x = self.add("remainder", [Ref(x.name), 2], x, bound=1.0, keep=False) if x.dtype.is_integer else self.add("tanh", [Ref(x.name)], x, bound=1.0, exact=False, keep=False)
        y = self.add(op, [Ref(x.name), dims, keep], x, bound=x.bound * n if op == "sum" else x.bound, exact=x.exact and (not x.dtype.is_float or op in ("max", "min")) and not x.dtype.is_complex, **self.folded(x, dims, keep))
        if op == "sum" and not (y.dtype.is_integer or y.dtype.is_bool):
            self.add("mul", [Ref(y.name), 1.0 / n], y, bound=x.bound, exact=False)

    def variance(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.Double)))
        dims = sorted(self.rng.sample(range(x.rank), self.rng.randint(1, min(2, x.rank))))
        keep = self.chance(0.6)
        self.add("var_mean", [Ref(x.name), dims, 0, keep], x, targets=2, bound=x.bound**2, exact=False, **self.folded(x, dims, keep))

    def softmax(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.Double)))
        dims = [self.rng.randrange(x.rank)]
        top = self.add("max", [Ref(x.name), dims, True], x, keep=False, **self.folded(x, dims, True))
        e = self.add("exp", [Ref(self.add("sub", [Ref(x.name), Ref(top.name)], x, keep=False).name)], x, keep=False)
        total = self.add("sum", [Ref(e.name), dims, True], x, keep=False, **self.folded(x, dims, True))
        self.add("truediv", [Ref(e.name), Ref(total.name)], x, bound=1.0, exact=False)

    # -- others
    def product(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank in (2, 3) and v.dtype in (D.Float, D.Double) and not v.ones))
        weight = self.input((x.shape[-1], self.rng.choice((2, 5, 8))), x.dtype.name, keep=False)
        need(x.shape[-1] > 1)
        y = self.add("matmul", [Ref(x.name), Ref(weight.name)], x, shape=(*x.shape[:-1], weight.shape[1]), ones=frozenset(), bound=3 * x.bound * x.shape[-1], exact=False)
        self.add("tanh", [Ref(y.name)], y, bound=1.0, exact=False)

    def set(self) -> None:
        x = self.pick()
        self.add(self.rng.choice(("set", "segment_set")), [Ref(x.name)], x)

    def full(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        dtype = self.rng.choice((D.Float, D.Int, D.BFloat16))
        self.add("full", [list(x.shape), 1 if dtype is D.Int else 0.75, dtype], x, bound=1.0, exact=True, ones=frozenset(d for d, n in enumerate(x.shape) if n == 1))

    def iota(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        n = x.shape[-1]
        flat = self.add("iota", [n, self.rng.choice((0, -3)), self.rng.choice((1, 2)), self.rng.choice((D.Int, D.Int32))], x, shape=(n,), ones=frozenset({0} if n == 1 else ()), keep=False)
        if x.rank == 1:
            self.made.append(replace(flat, bound=200.0, exact=True))
            return
        self.add("broadcast", [Ref(flat.name), [d < x.rank - 1 for d in range(x.rank)]], flat, shape=(1,) * (x.rank - 1) + (n,), ones=frozenset(range(x.rank - (n > 1))), bound=200.0, exact=True)

    def random(self) -> None:
        """Numbers of a seed and an offset that the definition says, so that the reference has the same ones."""
        x = self.pick(lambda v: v.rank > 0 and not any(n == 1 and d not in v.ones for d, n in enumerate(v.shape)))
        kwargs = {"rng_seed": self.rng.randrange(1000), "rng_offset": self.rng.randrange(50), "dtype": self.rng.choice((D.Float, D.Float, D.Double))}
        op, low, high = self.rng.choice((("uniform", -1.0, 1.0), ("normal", 0.0, 1.0)))
        y = self.add(op, [low, high, list(x.shape)], x, bound=1.0, exact=False, ones=frozenset(d for d, n in enumerate(x.shape) if n == 1), kwargs=kwargs, keep=op == "uniform")
        if op == "normal":
            self.add("tanh", [Ref(y.name)], y, bound=1.0, exact=False)

    def linear(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank in (1, 2, 3) and v.dtype in (D.Float, D.Double) and not v.ones))
        width = self.rng.choice((2, 5, 8))
        weight, bias = self.input((width, x.shape[-1]), x.dtype.name, keep=False), self.input((width,), x.dtype.name, keep=False)
        y = self.add("linear", [Ref(x.name), Ref(weight.name), Ref(bias.name)], x, shape=(*x.shape[:-1], width), ones=frozenset(), bound=99.0, exact=False)
        self.add("tanh", [Ref(y.name)], y, bound=1.0, exact=False)

    def chosen_outputs(self, ends: list[str]) -> tuple[str, ...]:
        """Return the outputs: some of what nothing reads."""
        return tuple(dict.fromkeys(ends[-self.rng.randint(1, 4) :]))

    def aliases(self) -> tuple[tuple[str, str], ...]:
        """Return values that are written into inputs of their shape and type: each input at most once, and nothing into memory that repeats elements."""
        found: list[tuple[str, str]] = []
        for given in self.inputs:
            if isinstance(given, ScalarInput) or given.is_cpu or given.below or given.expanded or not self.chance(0.35):
                continue
            shape = tuple(given.extents(self.sizes))
            fitting = [v.name for v in self.made if v.name.startswith("v") and v.shape == shape and v.dtype is getattr(D, given.dtype)]
            fitting = [name for name in fitting if name not in {taken for taken, _ in found}]
            if fitting:
                found.append((self.rng.choice(fitting[-4:]), given.name))
        return tuple(found)

    STEPS = (
        (unary, 7), (binary, 10), (with_number, 2), (integers, 2), (compare, 2), (where, 3), (logic, 1), (cast, 3), (permute, 3), (reshape, 4), (slice, 3),
        (pad, 2), (cat, 2), (expand, 2), (squeeze, 2), (triu, 0.7), (index_select, 1), (select, 1), (gather, 1), (take_along_axis, 1), (scatter, 0.7),
        (embedding, 0.6), (scan, 1.5), (topk, 0.7), (argsort, 0.5), (arg_extremum, 1), (fold, 6), (variance, 1), (softmax, 1.5), (product, 1), (set, 0.7),
        (full, 0.7), (iota, 1), (random, 0.7), (linear, 0.5),
    )  # fmt: skip

    def draw(self, kind: Any) -> None:
        kind(self)

    def step(self) -> None:
        """Add what one draw makes, or nothing where that does not fit."""
        kinds, weights = zip(*self.STEPS)
        made, nodes, inputs = len(self.made), len(self.nodes), len(self.inputs)
        try:
            self.draw(self.rng.choices(kinds, weights)[0])
        except CannotMake:
            del self.made[made:], self.nodes[nodes:], self.inputs[inputs:]


def everything_case(seed: int, largest_elems: int, family: str, most_ops: int = 30, kind: type[Everything] = Everything, is_mixed: bool = False) -> Case:
    """Return the graph of a seed; `largest_elems` bounds every value. kind: of the graph; is_mixed: inputs in any order, and as outputs."""
    rng = random.Random(f"weft {family}{seed}")
    while True:
        with FusionDefinition() as fd:
            graph = kind(rng, fd, largest_elems)
            shape = tuple(rng.choice(kind.SIZES) for _ in range(rng.choice((1, 2, 2, 3, 3, 4))))
            if math.prod(shape) > largest_elems:
                continue
            graph.input(shape, rng.choice(TYPES))
            for _ in range(rng.choice((0, 1, 1, 2))):
                graph.input(shape if rng.random() < 0.6 else tuple(n if rng.random() < 0.6 else 1 for n in shape), rng.choice(TYPES))
            count = rng.randint(3, most_ops)
            for _ in range(graph.TRIES * count):
                if len(graph.nodes) >= count:
                    break
                graph.step()
        read = {name for node in graph.nodes for argument in node.args for name in references(argument)}
        ends = [v.name for v in graph.made if v.name.startswith("v") and (v.name not in read or rng.random() < 0.05)]
        if ends:
            aliases = graph.aliases() if rng.random() < 0.3 else ()
            outputs = graph.chosen_outputs(ends)
            inputs = list(graph.inputs)
            if is_mixed:
                rng.shuffle(inputs)
                tensors = [i.name for i in inputs if isinstance(i, TensorInput) and i.name not in {target for _, target in aliases}]
                outputs += (rng.choice(tensors),) if tensors and rng.random() < 0.1 else ()
            return Case(tuple(inputs), tuple(graph.nodes), outputs, graph.sizes, seed, family, aliases).without_unused()


__all__ = ["everything_case"]
