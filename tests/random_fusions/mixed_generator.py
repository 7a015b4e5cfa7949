"""Random graphs of mixed arguments: what a user passes beside plain tensors. Scalar inputs of every type in front of misaligned tensors, CPU scalars,
sizes and scalars as shapes, bounds, widths and positions, empty tensors, integers of 8 bits, inputs that are outputs.

Read first: `Mixed.MIXED_STEPS`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from everything_generator import CannotMake, D, Everything, Shape, Value, need
from fusion_case import Extent, Ref, ScalarInput, TensorInput

OTHER_TYPES = ("Byte", "Char", "Bool", "Half", "ComplexFloat", "Int32", "Int")
LARGEST_OF_BYTES = 255.0


class Mixed(Everything):
    """One graph in the making. Ops of `Everything` get no empty tensors; those in TAKES_NOTHING do."""

    takes_nothing = False
    cpu: list[Value]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cpu = []
        self.empties = self.rng.random() < 0.12

    # -- inputs
    def input(self, shape: Shape, dtype: str, below: int = 0, keep: bool = True) -> Value:
        if keep and self.chance(0.12):
            dtype = self.rng.choice([t for t in OTHER_TYPES if not (self.specials and getattr(D, t).is_complex)])
        if keep and self.empties and shape and self.chance(0.3):
            at = self.rng.randrange(len(shape))
            shape = shape[:at] + (0,) + shape[at + 1 :]
        value = super().input(shape, dtype, below, keep)
        if dtype in ("Byte", "Char") and not below:
            value = replace(value, bound=LARGEST_OF_BYTES)
            self.made[-1] = value
        return value

    def scalar(self, dtype: str, value: Any) -> Ref:
        """Add an input of a Python number."""
        name = f"s{len(self.inputs)}"
        self.inputs.append(ScalarInput(name, dtype, value))
        self.values[name] = self.fd.define_scalar(getattr(D, dtype))
        return Ref(name)

    def number(self, n: int) -> Any:
        """Return a size or position in one of the ways that a user writes it: as a number, as a scalar input, or as the size of a tensor."""
        owners = [(v.name, d) for v in self.made for d, m in enumerate(v.shape) if m == n]
        way = self.rng.random()
        if way < 0.35 and owners:
            name, d = self.rng.choice(owners)
            return Extent(f"n{n}", name, d)
        return self.scalar(self.rng.choice(("Int", "Int", "Int32")), n) if way < 0.7 else n

    def cpu_scalar(self) -> Value:
        there = {given.name for given in self.inputs if isinstance(given, TensorInput) and given.is_cpu}
        self.cpu = [v for v in self.cpu if v.name in there]  # a step that was given up took its inputs back
        if self.cpu and self.chance(0.5):
            return self.rng.choice(self.cpu)
        name, dtype = f"x{len(self.inputs)}", self.rng.choice(("Float", "Float", "Double", "Int", "BFloat16", "Bool", "ComplexFloat"))
        made = TensorInput(name, (), dtype, is_cpu=True)
        self.inputs.append(made)
        self.values[name] = self.fd.define_tensor(**made.definition(self.sizes))
        self.cpu.append(Value(name, (), frozenset(), getattr(D, dtype), 5.0, True, True))
        return self.cpu[-1]

    def pick(self, wanted: Any = lambda v: True) -> Value:
        takes_nothing = self.takes_nothing
        return super().pick(lambda v: wanted(v) and (takes_nothing or 0 not in v.shape))

    def partner(self, x: Value) -> Value:
        fits = [v for v in self.made if v.rank == x.rank and all(v.shape[d] == x.shape[d] or d in v.ones or d in x.ones for d in range(x.rank)) and (self.takes_nothing or 0 not in v.shape)]
        need(fits)
        return self.rng.choice(fits)

    def joined(self, a: Value, b: Value) -> dict[str, Any]:
        return dict(shape=tuple(n if d in a.ones else m for d, (m, n) in enumerate(zip(a.shape, b.shape))), ones=a.ones & b.ones)

    # -- arithmetic
    def with_scalar(self) -> None:
        x = self.tamed(self.pick(lambda v: not v.dtype.is_bool))
        if x.dtype.is_complex:
            s = self.scalar(*self.rng.choice((("ComplexDouble", 0.5 - 1j), ("Double", -1.25), ("Int", 2))))
        elif x.dtype.is_integer:
            s = self.scalar("Int", self.rng.choice((2, 3, -1)))
        else:
            s = self.scalar(*self.rng.choice((("Double", 0.75), ("Double", -1.5), ("Int", 2), ("Bool", True), ("Float", 0.5))))
        args: list[Any] = [Ref(x.name), s]
        if self.chance(0.4):
            args.reverse()
        op = self.rng.choice(("add", "sub", "mul"))
        self.add(op, args, x, bound=3 * x.bound + 3, exact=x.exact and x.dtype.is_integer)

    def with_cpu_scalar(self) -> None:
        x = self.tamed(self.pick(lambda v: not v.dtype.is_bool))
        s = self.cpu_scalar()
        need(not s.dtype.is_bool)
        args = [Ref(x.name), Ref(s.name)]
        if self.chance(0.4):
            args.reverse()
        self.add(self.rng.choice(("add", "sub", "mul")), args, x, bound=8 * x.bound + 5, exact=x.exact and x.dtype.is_integer and s.dtype.is_integer)

    def scalars_of_scalars(self) -> None:
        """A number that the host computes from sizes and scalars."""
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.is_real_float))
        d = self.rng.randrange(x.rank)
        n = f"v{len(self.nodes)}"
        self.add("truediv", [1.0, Extent(f"n{x.shape[d]}", x.name, d)], Value(n, (), frozenset(), D.Double, 1.0, True), keep=False)
        self.add("mul", [Ref(x.name), Ref(n)], x, exact=False)

    def where_of_scalars(self) -> None:
        c = self.pick(lambda v: v.dtype.is_bool)
        a, b = self.scalar("Double", 1.5), self.rng.choice((2.5, 3, self.scalar("Int", -2), self.scalar("Double", 0.25)))
        args: list[Any] = [Ref(c.name), a, b]
        self.add("where", args, c, bound=4.0, exact=True)

    def three(self) -> None:
        x = self.tamed(self.pick(lambda v: v.dtype in (D.Float, D.Double)))
        op = self.rng.choice(("clamp", "threshold", "lerp", "addcmul"))
        low: Any = self.rng.choice((-1.0, self.scalar("Double", -0.5)))
        high: Any = self.rng.choice((1.0, 0.75))
        if op == "clamp":
            self.add(op, [Ref(x.name), low, high], x, bound=max(2.0, x.bound))
        elif op == "threshold":
            need(x.exact)
            self.add(op, [Ref(x.name), low, high], x, bound=max(2.0, x.bound))
        else:
            y = self.partner(x)
            need(y.dtype in (D.Float, D.Double))
            y = self.tamed(y)
            args: list[Any] = [Ref(x.name), Ref(y.name), low] if op == "lerp" else [Ref(x.name), Ref(y.name), Ref(y.name), high]
            self.add(op, args, x, bound=2 * x.bound + y.bound**2 + 2, exact=False, **self.joined(x, y))

    # -- views
    def slice_at(self) -> None:
        """Bounds at run time: negative ones and ones beyond the end as in Python."""
        x = self.pick(lambda v: v.rank > 0)
        starts, ends, shape = [], [], []
        for n in x.shape:
            start, end = (self.rng.choice((0, 1, n // 2, -1, -n - 3)), self.rng.choice((n, n - 1, n + 7, -1, n // 2))) if self.chance(0.6) else (0, n)
            begins, stops, _ = slice(start, end).indices(n)
            m = max(0, stops - begins)
            if not (m or self.empties):
                start, end, m = 0, n, n
            of_call = start < 0 or end < start
            starts.append(self.scalar("Int", start) if of_call or self.chance(0.3) else start)
            ends.append(self.scalar("Int", end) if of_call or end < 0 or self.chance(0.3) else self.number(end) if end == n else end)
            shape.append(m)
        self.add("slice", [Ref(x.name), starts, ends], x, shape=tuple(shape), ones=frozenset(d for d, n in enumerate(shape) if n == 1))

    def pad_far(self) -> None:
        """Widths below zero, beyond the extent, and at run time, with a value."""
        x = self.pick(lambda v: v.rank > 0 and not v.dtype.is_complex)
        widths: list[int] = []
        shape = list(x.shape)
        for k in range(self.rng.randint(1, x.rank)):
            n = x.shape[-1 - k]
            left = self.rng.choice((0, 0, 1, 3, 40, -1, -(n // 2), -n))
            right = self.rng.choice((0, 0, 2, 50, -1, n))
            shape[-1 - k] += left + right
            widths += [left, right]
        need(min(shape) >= (0 if self.empties else 1) and any(widths))
        value: Any = True if x.dtype.is_bool else 3 if x.dtype.is_integer else self.rng.choice((0.5, -1.25))
        given = [self.scalar("Int", w) if self.chance(0.25) else w for w in widths]
        changed = {x.rank - 1 - k for k in range(len(widths) // 2) if widths[2 * k] or widths[2 * k + 1] or not all(isinstance(w, int) for w in given[2 * k : 2 * k + 2])}
        ones = frozenset(d for d in range(x.rank) if shape[d] == 1 and (d in x.ones or d in changed))
        self.add("pad", [Ref(x.name), given, *([value] if self.chance(0.7) else [])], x, shape=tuple(shape), ones=ones, bound=max(3.0, x.bound))

    def reshape_to(self) -> None:
        """Sizes as scalars, as sizes of other tensors, and one to be found."""
        x = self.pick(lambda v: v.rank > 0 and not v.ones)
        shape = list(x.shape)
        at = self.rng.randrange(len(shape))
        factors = [f for f in (2, 3, 4, 5) if shape[at] % f == 0 and shape[at] > f]
        if factors and self.chance(0.6):
            shape[at : at + 1] = [factors[-1], shape[at] // factors[-1]]
        elif at + 1 < len(shape):
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        asked = [self.number(n) for n in shape]
        if self.chance(0.3):
            asked[self.rng.randrange(len(asked))] = -1
        need(1 not in shape)
        self.add("reshape", [Ref(x.name), asked], x, shape=tuple(shape), ones=frozenset())

    def expand_to(self) -> None:
        x = self.pick(lambda v: v.ones)
        d = self.rng.choice(sorted(x.ones))
        n = self.rng.choice((2, 3, 7))
        asked = [self.number(n) if a == d else -1 for a in range(x.rank)]
        self.add("expand", [Ref(x.name), asked], x, shape=tuple(n if a == d else m for a, m in enumerate(x.shape)), ones=x.ones - {d})

    def full_of(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and 1 not in v.shape)
        dtype, fill = self.rng.choice(((D.Float, self.scalar("Double", 0.75)), (D.Int, self.scalar("Int", 3)), (D.BFloat16, True), (D.Double, 2), (D.Int32, 1)))
        self.add("full", [[self.number(n) for n in x.shape], fill, dtype], x, bound=3.0, exact=True, ones=frozenset())

    def iota_at(self) -> None:
        x = self.pick(lambda v: v.rank == 1 and v.shape[0] > 1)
        start: Any = self.rng.choice((None, 2, self.scalar("Int", -4)))
        step: Any = self.rng.choice((None, -1, self.scalar("Int", 3)))
        self.add("iota", [self.number(x.shape[0]), start, step, D.Int], x, bound=600.0, exact=True, ones=frozenset())

    # -- positions
    def select_at(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        d = self.rng.randrange(x.rank)
        at = self.scalar(self.rng.choice(("Int", "Int32")), self.rng.randrange(x.shape[d]))
        self.add("select", [Ref(x.name), at, d - x.rank * self.chance(0.5)], x, shape=x.shape[:d] + x.shape[d + 1 :], ones=frozenset(o - (o > d) for o in x.ones if o != d))

    def index_select_of_one(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and not v.ones)
        d = self.rng.randrange(x.rank)
        index = self.input((), "Int", x.shape[d], keep=False)
        self.add("index_select", [Ref(x.name), Ref(index.name), d - x.rank], x, shape=x.shape[:d] + (1,) + x.shape[d + 1 :], ones=frozenset({d}))

    def topk_of(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.Double, D.Int) and not v.ones and v.shape[-1] > 2)
        k = self.rng.randint(2, min(12, x.shape[-1]))
        self.add("topk", [Ref(x.name), self.number(k), -1, self.chance(0.5), True], x, targets=2, shape=(*x.shape[:-1], k), ones=frozenset())

    def scan_from(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.Double, D.Int, D.Int32) and not v.ones))
        d = self.rng.randrange(x.rank)
        op = self.rng.choice(("cumsum", "cummax", "cummin"))
        init: Any = 2 if x.dtype.is_integer else 0.5
        self.add(op, [Ref(x.name), d - x.rank, init], x, bound=x.bound * x.shape[d] + 2, exact=x.exact and (x.dtype.is_integer or op != "cumsum"))

    # -- folds
    def fold_to(self) -> None:
        """Types of results, one number for an axis, all axes, axes from the end."""
        x = self.tamed(self.pick(lambda v: v.rank > 0 and not v.dtype.is_complex))
        way = self.rng.randrange(3)
        dims = list(range(x.rank)) if way == 0 else [self.rng.randrange(x.rank)]
        n = math.prod(x.shape[d] for d in dims)
        to = self.rng.choice((D.Double, D.Float)) if x.is_real_float else self.rng.choice((D.Int, D.Float, D.Double))
        args: list[Any] = [Ref(x.name)] if way == 0 else [Ref(x.name), dims[0] - x.rank] if way == 1 else [Ref(x.name), [dims[0]]]
        y = self.add("sum", args, x, kwargs={"dtype": to}, keep=False, bound=x.bound * n, exact=x.exact and not x.is_real_float and not to.is_float, **self.folded(x, dims, False))
        self.add("mul", [Ref(y.name), 1.0 / n], y, bound=x.bound, exact=False)

    def variances(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.Double) and v.shape[-1] > 2))
        self.add("var", [Ref(x.name), [-1], self.rng.choice((0, 1, 2)), True], x, bound=3 * x.bound**2, exact=False, **self.folded(x, [x.rank - 1], True))

    # -- nothing
    def nothing_folded(self) -> None:
        x = self.pick(lambda v: 0 in v.shape and not v.dtype.is_complex)
        dims = sorted(self.rng.sample(range(x.rank), self.rng.randint(1, x.rank)))
        self.add(self.rng.choice(("sum", "prod")), [Ref(x.name), dims, self.chance(0.5)], x, bound=1.0, exact=True, **self.folded(x, dims, False))
        y = self.made.pop()
        node = self.nodes[-1]
        keep = node.args[2]
        self.made.append(replace(y, **self.folded(x, dims, keep)))

    def nothing_joined(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and not v.ones)
        d = self.rng.randrange(x.rank)
        others = [v for v in self.made if v.rank == x.rank and v.dtype is x.dtype and not v.ones and v.shape[:d] + v.shape[d + 1 :] == x.shape[:d] + x.shape[d + 1 :] and 0 in (v.shape[d], x.shape[d])]
        need(others)
        y = self.rng.choice(others)
        shape = (*x.shape[:d], x.shape[d] + y.shape[d], *x.shape[d + 1 :])
        self.add("cat", [[Ref(x.name), Ref(y.name)], d], x, shape=shape, ones=frozenset(), bound=max(x.bound, y.bound), exact=x.exact and y.exact)

    TAKES_NOTHING = ("unary", "binary", "with_number", "with_scalar", "cast", "permute", "expand", "set", "where", "nothing_folded", "nothing_joined", "logic", "pad_far")

    MIXED_STEPS = (
        (with_scalar, 6), (with_cpu_scalar, 3), (scalars_of_scalars, 1.5), (where_of_scalars, 1), (three, 2), (slice_at, 4), (pad_far, 3), (reshape_to, 4), (expand_to, 2),
        (full_of, 1), (iota_at, 1), (select_at, 1.5), (index_select_of_one, 1), (topk_of, 1), (scan_from, 1), (fold_to, 3), (variances, 1), (nothing_folded, 2), (nothing_joined, 1),
    )  # fmt: skip
    STEPS = (*Everything.STEPS, *MIXED_STEPS)

    def draw(self, kind: Any) -> None:
        self.takes_nothing = kind.__name__ in self.TAKES_NOTHING
        kind(self)


__all__ = ["CannotMake", "Mixed"]
