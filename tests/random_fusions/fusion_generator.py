"""Random fusions: chains of pointwise ops, broadcasts, permutes, casts, reductions, normalizations, with inputs of any layout and size.

Values stay bounded and ops that are not continuous get exact operands only, so that a rounding error stays a rounding error.
Read first: `random_case`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

from fusion_case import ONE, Case, Extent, Node, Ref, ScalarInput, TensorInput, call
from everything_generator import everything_case
from mixed_generator import Mixed
from sized_generator import sized_case
from view_generator import view_case
from wide_generator import Wide
from wide_sized_generator import wide_sized_case

from weft import DataType, FusionDefinition

FLOATS = ("Float", "Float", "Float", "Half", "BFloat16", "BFloat16", "Double")
FP4 = "Float4_e2m1fn"
NARROW_FLOATS = ("Float8_e4m3fn", "Float8_e4m3fn", "Float8_e5m2", FP4, FP4, "Float", "BFloat16")
SIZES = (
    1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 200, 255, 256, 257, 384, 512, 513, 1000, 1023, 1024, 1025,
    2048, 3000, 4096, 10000, 16384, 40000, 65536, 100001, 262144, 1000000,
)  # fmt: skip
LARGEST_VALUE, LARGEST_NARROW, LARGEST_FP4 = 1e3, 448.0, 6.0


@dataclasses.dataclass(frozen=True)
class Value:
    """A value made so far. bound: of its absolute value; exact: no rounding on the way."""

    name: str
    labels: tuple[str, ...]
    dtype: DataType
    bound: float
    exact: bool

    @property
    def loops(self) -> frozenset[str]:
        return frozenset(self.labels) - {ONE}


class CannotMake(Exception):
    """The drawn op does not fit; another one is drawn."""


class Generator:
    """One random fusion in the making; `fd` is a definition that tells the types."""

    def __init__(self, rng: random.Random, fd: FusionDefinition, largest_elems: int, sizes: dict[str, int] | None = None, floats: Sequence[str] = FLOATS) -> None:
        self.rng, self.fd, self.floats = rng, fd, floats
        if sizes is None:
            rank = rng.choice((1, 2, 2, 2, 3, 3, 4))
            self.loops = "abcd"[:rank]
            self.sizes = self.draw_sizes(largest_elems)
        else:
            self.loops, self.sizes = "".join(sizes), sizes
        self.inputs: list[TensorInput | ScalarInput] = []
        self.nodes: list[Node] = []
        self.values: dict[str, Any] = {}
        self.made: list[Value] = []
        self.symbolic = rng.random() < 0.75

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def draw_sizes(self, largest_elems: int) -> dict[str, int]:
        budget = int(math.exp(self.rng.uniform(0, math.log(largest_elems))))
        sizes = {}
        for label in self.rng.sample(self.loops, len(self.loops)):
            fitting = [n for n in SIZES if n <= budget]
            wide = fitting[len(fitting) // 2 :] if self.chance(0.5) else fitting
            sizes[label] = self.rng.choice(wide)
            if self.chance(0.01):
                sizes[label] = 0
            budget = max(1, budget // max(1, sizes[label]))
        return {label: sizes[label] for label in self.loops}

    # -- inputs
    def tensor(self, labels: Sequence[str], dtype: str, *, plain: bool = False) -> Value:
        """Add a tensor input."""
        labels = tuple(labels)
        rank = len(labels)
        name = f"x{len(self.inputs)}"
        order: tuple[int, ...] = ()
        expanded: set[int] = set()
        gapped: set[int] = set()
        if not plain and rank:
            if rank > 1 and self.chance(0.15):
                order = tuple(self.rng.sample(range(rank), rank))
            if self.chance(0.12):
                gapped = {a for a in range(rank) if labels[a] != ONE and self.chance(0.5)}
            if self.chance(0.08):
                expanded = {a for a in range(rank) if labels[a] != ONE and self.sizes[labels[a]] and self.chance(0.4)}
        offset = self.rng.choice((1, 2, 3, 4)) if self.chance(0.12) and not plain else 0
        if dtype == FP4:  # bytes have two neighbours along what is innermost in memory
            packed = (order or tuple(range(rank)))[-1] if rank else -1
            if self.is_packable(labels, packed):
                gapped, expanded, offset = gapped - {packed}, expanded - {packed}, offset * 2
            else:
                dtype = "Float8_e4m3fn"
        static = not self.symbolic if self.chance(0.9) else self.symbolic
        made = TensorInput(name, labels, dtype, order, frozenset(expanded), frozenset(gapped), offset, static)
        self.inputs.append(made)
        self.values[name] = self.fd.define_tensor(**made.definition(self.sizes))
        value = Value(name, labels, self.values[name].dtype(), {"Int": 5, "Int32": 5, "Bool": 1}.get(dtype, 2.0), True)
        if value.dtype.is_narrow_float:  # which has casts and moves alone
            value = self.cast(value, DataType.Float)
        self.made.append(value)
        return value

    def is_packable(self, labels: Sequence[str], axis: int) -> bool:
        """True when two neighbours along an axis can share a byte."""
        return 0 <= axis < len(labels) and labels[axis] != ONE and self.sizes[labels[axis]] % 2 == 0 < self.sizes[labels[axis]]

    def is_spread(self, value: Value) -> bool:
        """True when the last axis repeats one element, which is no byte of two."""
        return self.values[value.name].get_logical_domain()[-1].is_broadcast()

    def scalar(self) -> Ref | float | int:
        """Return a number or a scalar input."""
        value = round(self.rng.uniform(-2, 2), 3) if self.chance(0.8) else self.rng.choice((-3, -1, 1, 2))
        if self.chance(0.7):
            return value
        name = f"s{len(self.inputs)}"
        self.inputs.append(ScalarInput(name, "Double" if isinstance(value, float) else "Int", value))
        self.values[name] = self.fd.define_scalar(DataType.Double if isinstance(value, float) else DataType.Int)
        return Ref(name)

    # -- ops
    def add(self, op: str, *args: Any, labels: Sequence[str], bound: float, exact: bool, targets: int = 1, keep: bool = True, **kwargs: Any) -> Value:
        """Add an op; return its first result."""
        names = tuple(f"v{len(self.nodes)}{'abc'[n] if targets > 1 else ''}" for n in range(targets))
        node = Node(names, op, args, tuple(kwargs.items()), tuple(labels))
        if not bound <= LARGEST_VALUE:
            raise CannotMake(op)
        call(self.fd, node, self.values, self.sizes)
        self.nodes.append(node)
        out = []
        for name in names:
            dtype = self.values[name].dtype()
            is_exact = exact and not dtype.is_reduced_float or op in _MOVES and exact
            out.append(Value(name, tuple(labels), dtype, bound, is_exact))
        if keep:
            self.made += out
        return out[0]

    def up(self, x: Value) -> Value:
        """Cast narrow floats to Float, as normalizations do."""
        return self.cast(x, DataType.Float) if x.dtype.is_reduced_float else x

    def cast(self, x: Value, dtype: DataType) -> Value:
        if x.dtype is dtype:
            return x
        if not dtype.is_float and x.dtype.is_float and not x.exact:
            raise CannotMake("the cast of a rounded number")
        exact = x.exact and (dtype.bits >= x.dtype.bits or not dtype.is_float)
        bound = 1.0 if dtype.is_bool else x.bound
        return self.add("cast", Ref(x.name), labels=x.labels, bound=bound, exact=exact, keep=False, dtype=dtype)

    def floating(self, x: Value) -> Value:
        return x if x.dtype.is_float else self.cast(x, DataType.Float)

    def extents(self, labels: Sequence[str]) -> list[Extent | int]:
        """Return a shape: sizes of values that have the axes, or numbers where the sizes are in the definition anyway."""
        out: list[Extent | int] = []
        for label in labels:
            if label == ONE:
                out.append(1)
                continue
            owners = [(v.name, v.labels.index(label)) for v in self.made if label in v.labels]
            if not self.symbolic and self.chance(0.5) or not owners:
                out.append(Extent(label))
            else:
                out.append(Extent(label, *self.rng.choice(owners)))
        return out

    def permuted(self, x: Value, labels: Sequence[str]) -> Value:
        """Return `x` with its axes ordered as in `labels`."""
        wanted = sorted(range(len(x.labels)), key=lambda n: labels.index(x.labels[n]))
        if wanted == list(range(len(x.labels))):
            return x
        return self.add("permute", Ref(x.name), wanted, labels=[x.labels[n] for n in wanted], bound=x.bound, exact=x.exact, keep=False)

    def squeezed(self, x: Value) -> Value:
        ones = [n for n, label in enumerate(x.labels) if label == ONE]
        if not ones:
            return x
        return self.add("squeeze", Ref(x.name), ones, labels=[a for a in x.labels if a != ONE], bound=x.bound, exact=x.exact, keep=False)

    def aligned(self, x: Value, labels: Sequence[str]) -> Value:
        """Return `x` so that it broadcasts to `labels`, which have its loops."""
        labels = tuple(labels)
        if all(a in (ONE, b) for a, b in zip(reversed(x.labels), reversed(labels))) and len(x.labels) <= len(labels):
            return x
        x = self.permuted(self.squeezed(x), labels)
        if all(a == b for a, b in zip(reversed(x.labels), reversed(labels))):
            return x
        dims = [labels.index(label) for label in x.labels]
        if self.chance(0.5):
            shape = [label if self.chance(0.5) or label in x.labels else ONE for label in labels]
            return self.add("broadcast_in_dim", Ref(x.name), self.extents(shape), dims, labels=shape, bound=x.bound, exact=x.exact, keep=False)
        flags = [n not in dims for n in range(len(labels))]
        return self.add("broadcast", Ref(x.name), flags, labels=[label if n in dims else ONE for n, label in enumerate(labels)], bound=x.bound, exact=x.exact, keep=False)

    def together(self, *values: Value) -> tuple[list[Value], tuple[str, ...]]:
        """Return the values so that they broadcast with each other, and the labels of the result."""
        widest = max(values, key=lambda v: len(v.loops))
        loops = frozenset().union(*(v.loops for v in values))
        labels = widest.labels if loops <= widest.loops else tuple(self.loops)
        if widest.loops < loops and not self.chance(0.3):
            raise CannotMake("two partial tensors")
        aligned = [self.aligned(v, labels) for v in values]
        rank = max(len(v.labels) for v in aligned)
        padded = [(ONE,) * (rank - len(v.labels)) + v.labels for v in aligned]
        return aligned, tuple(next((a for a in column if a != ONE), ONE) for column in zip(*padded))

    def pick(self, wanted: Any = lambda v: True, recent: bool = True) -> Value:
        found = [v for v in self.made if wanted(v)]
        if not found:
            raise CannotMake("no such value")
        return self.rng.choice(found[-4:] if recent and self.chance(0.6) else found)

    def unary(self, x: Value) -> Value:
        rng = self.rng
        if x.dtype.is_bool:
            return self.add(rng.choice(("logical_not", "bitwise_not")), Ref(x.name), labels=x.labels, bound=1, exact=True)
        if not x.dtype.is_float:
            op, bound = rng.choice((("neg", x.bound), ("abs", x.bound), ("relu", x.bound), ("sign", 1), ("bitwise_not", x.bound + 1)))
            return self.add(op, Ref(x.name), labels=x.labels, bound=bound, exact=True)
        if x.exact and self.chance(0.15):
            op, bound = rng.choice((("floor", x.bound + 1), ("ceil", x.bound + 1), ("round", x.bound + 1), ("trunc", x.bound), ("sign", 1), ("isfinite", 1)))
            return self.add(op, Ref(x.name), labels=x.labels, bound=bound, exact=True)
        op = rng.choice(("neg", "abs", "relu", "sin", "cos", "tanh", "sigmoid", "silu", "exp", "erf", "atan", "sqrt", "rsqrt", "log", "reciprocal", "set"))
        if op in ("sin", "cos") and x.bound > LARGEST_VALUE:
            raise CannotMake("a rounding error of the value is no small part of a period")
        exact = x.exact and op in ("neg", "abs", "relu", "set")
        if op in ("sqrt", "rsqrt", "log", "reciprocal"):
            x = self.add("add", Ref(self.add("abs", Ref(x.name), labels=x.labels, bound=x.bound, exact=False, keep=False).name), 0.5, labels=x.labels, bound=x.bound + 0.5, exact=False, keep=False)
            bound = 2.0 if op in ("rsqrt", "reciprocal") else max(1.0, x.bound)
        else:
            bound = {"exp": math.exp(min(x.bound, 20)), "sin": 1, "cos": 1, "tanh": 1, "sigmoid": 1, "erf": 1, "atan": 1.6}.get(op, x.bound)
        return self.add(op, Ref(x.name), labels=x.labels, bound=bound, exact=exact)

    def with_number(self, x: Value) -> Value:
        number = self.scalar()
        size = 3.0
        if x.dtype.is_bool:
            return self.add("mul", Ref(x.name), number, labels=x.labels, bound=size, exact=False)
        op = self.rng.choice(("add", "sub", "mul", "maximum", "minimum", "rsub"))
        bound = x.bound * size if op == "mul" else x.bound + size
        exact = x.exact and not x.dtype.is_float and isinstance(number, int)
        args = (number, Ref(x.name)) if op == "rsub" else (Ref(x.name), number)
        return self.add("sub" if op == "rsub" else op, *args, labels=x.labels, bound=bound, exact=exact)

    def binary(self, a: Value, b: Value) -> Value:
        (a, b), labels = self.together(a, b)
        if a.dtype.is_bool and b.dtype.is_bool:
            return self.add(self.rng.choice(("logical_and", "logical_or", "bitwise_xor", "eq", "ne")), Ref(a.name), Ref(b.name), labels=labels, bound=1, exact=True)
        exact = a.exact and b.exact
        if exact and self.chance(0.15) and not a.dtype.is_bool and not b.dtype.is_bool:
            return self.add(self.rng.choice(("lt", "le", "gt", "ge", "eq", "ne")), Ref(a.name), Ref(b.name), labels=labels, bound=1, exact=True)
        op = self.rng.choice(("add", "sub", "mul", "maximum", "minimum", "div"))
        integers = not a.dtype.is_float and not b.dtype.is_float
        if op == "div":
            if integers:
                raise CannotMake("integer division")
            b = self.add("abs", Ref(b.name), labels=b.labels, bound=b.bound, exact=False, keep=False)
            b = self.add("add", Ref(b.name), 0.5, labels=b.labels, bound=b.bound, exact=False, keep=False)
        bound = {"mul": a.bound * b.bound, "div": 2 * a.bound}.get(op, a.bound + b.bound)
        return self.add(op, Ref(a.name), Ref(b.name), labels=labels, bound=bound, exact=exact and (integers or op in ("maximum", "minimum")))

    def ternary(self) -> Value:
        a = self.pick()
        b = self.pick(lambda v: v.loops <= a.loops)
        if self.chance(0.5):
            c = self.pick(lambda v: v.exact and v.loops <= a.loops)
            if not c.dtype.is_bool:
                c = self.add("gt", Ref(c.name), 0, labels=c.labels, bound=1, exact=True, keep=False)
            (a, b, c), labels = self.together(a, b, c)
            other = Ref(b.name) if self.chance(0.7) else 0.25
            return self.add("where", Ref(c.name), Ref(a.name), other, labels=labels, bound=max(a.bound, b.bound), exact=a.exact and b.exact and a.dtype is b.dtype)
        a = self.floating(a)
        if self.chance(0.5):
            return self.add("clamp", Ref(a.name), -0.75, 1.25, labels=a.labels, bound=1.25, exact=False)
        b = self.floating(b)
        (a, b), labels = self.together(a, b)
        return self.add("addcmul", Ref(a.name), Ref(b.name), Ref(a.name), 0.5, labels=labels, bound=a.bound * (1 + b.bound), exact=False)

    def random_cast(self, x: Value) -> Value:
        dtype = getattr(DataType, self.rng.choice(("Float", "Half", "BFloat16", "Double", "Int", "Int32", "Bool", "Float", "BFloat16")))
        if x.dtype is dtype or x.bound > 200:
            raise CannotMake("no cast")
        out = self.cast(x, dtype)
        self.made.append(out)
        return out

    def random_permute(self, x: Value) -> Value:
        if len(x.labels) < 2:
            raise CannotMake("nothing to permute")
        dims = self.rng.sample(range(len(x.labels)), len(x.labels))
        return self.add("permute", Ref(x.name), dims, labels=[x.labels[d] for d in dims], bound=x.bound, exact=x.exact)

    def factory(self) -> Value:
        labels = [label for label in self.loops if self.chance(0.7)] or list(self.loops)
        shape = self.extents(labels)
        kind = self.rng.random()
        if kind < 0.4:
            return self.add("full", shape, 0.5, DataType.Float, labels=labels, bound=0.5, exact=True)
        if kind < 0.6:
            return self.add("iota", shape[-1], 1, 2, DataType.Int, labels=labels[-1:], bound=2.0 * self.sizes[labels[-1]], exact=True)
        return self.add("uniform", 0.0, 1.0, shape, labels=labels, bound=1, exact=False, rng_seed=7, rng_offset=4 * self.rng.randint(0, 3), dtype=DataType.Float)

    def step(self, permutes: float = 0.04) -> None:
        """Add one random pointwise op; nothing when what was drawn does not fit."""
        try:
            kind = self.rng.random()
            if kind < 0.3:
                self.unary(self.pick())
            elif kind < 0.42:
                self.with_number(self.pick())
            elif kind < 0.75:
                self.binary(self.pick(), self.pick(recent=False))
            elif kind < 0.85:
                self.ternary()
            elif kind < 0.85 + 0.09:
                self.random_cast(self.pick())
            elif kind < 0.94 + permutes:
                self.random_permute(self.pick())
            else:
                self.factory()
        except CannotMake:
            pass

    def reduce(self, x: Value, dims: Sequence[int], op: str | None = None, keepdim: bool | None = None) -> Value:
        """Add a reduction of axes `dims`."""
        count = math.prod(self.sizes[x.labels[d]] for d in dims if x.labels[d] != ONE)
        if op is None:
            op = self.rng.choice(("sum", "sum", "sum", "max", "min", "var", "var_mean", "prod"))
        if op in ("max", "min") and count == 0 or op in ("var", "var_mean") and count < 2 or op == "prod" and (count > 12 or x.bound > 2):
            op = "sum"
        if op in ("max", "min") and x.dtype.is_bool:
            op = "sum"
        if op in ("var", "var_mean"):
            x = self.up(self.floating(x)) if op == "var_mean" else self.floating(x)
        keepdim = self.chance(0.5) if keepdim is None else keepdim
        labels = [ONE if d in dims else label for d, label in enumerate(x.labels) if keepdim or d not in dims]
        exact = x.exact and (op in ("max", "min") or not x.dtype.is_float)
        bound = {"max": x.bound, "min": x.bound, "sum": x.bound, "prod": x.bound**12}.get(op, x.bound**2)
        bound = min(bound, LARGEST_VALUE)
        if op in ("var", "var_mean"):
            return self.add(op, Ref(x.name), list(dims), self.rng.choice((0, 1)), keepdim, labels=labels, bound=bound, exact=False, targets=1 + (op == "var_mean"))
        if op == "sum" and x.dtype.is_float:  # results of a sum of many are scaled back
            total = self.add(op, Ref(x.name), list(dims), keepdim, labels=labels, bound=bound, exact=exact, keep=False)
            if self.chance(0.5):
                self.made.append(dataclasses.replace(total, bound=x.bound * max(1, count)))
            return self.add("mul", Ref(total.name), 1.0 / max(1, count), labels=labels, bound=x.bound, exact=False)
        return self.add(op, Ref(x.name), list(dims), keepdim, labels=labels, bound=bound, exact=exact)

    # -- families
    def some_inputs(self, count: int) -> None:
        for n in range(count):
            kind = self.rng.random()
            dtype = self.rng.choice(self.floats) if kind < 0.85 else self.rng.choice(("Int", "Int32", "Bool"))
            if n == 0 or self.chance(0.55):
                labels: list[str] = list(self.loops)
            else:
                labels = [label if self.chance(0.6) else ONE for label in self.loops]
                while labels and (labels[0] == ONE and self.chance(0.6)):
                    labels.pop(0)
                if self.chance(0.05):
                    labels = []
            self.tensor(labels, dtype)

    def pointwise(self) -> None:
        self.some_inputs(self.rng.choice((1, 1, 2, 2, 3, 4)))
        for _ in range(self.rng.randint(1, 10)):
            self.step()

    def reduction(self) -> None:
        self.some_inputs(self.rng.choice((1, 1, 1, 2)))
        for _ in range(self.rng.randint(0, 3)):
            self.step(permutes=0.02)
        full = [v for v in self.made if v.loops == frozenset(self.loops)]
        x = self.rng.choice(full)
        reduced = set(self.rng.sample(self.loops, self.rng.randint(1, len(self.loops))))
        before = len(self.made)
        made = []
        for n in range(self.rng.choice((1, 1, 1, 2, 3))):
            x = x if n == 0 or self.chance(0.5) else self.rng.choice(full)
            try:
                made.append(self.reduce(x, [d for d, label in enumerate(x.labels) if label in reduced]))
            except CannotMake:
                continue
        spent, self.made = self.made[:before], self.made[before:]
        for _ in range(self.rng.randint(0, 4)):
            if self.made:
                self.step(permutes=0.02)
        self.made = spent + self.made

    def normalization(self, dims: list[int] | None = None) -> None:
        rng = self.rng
        self.some_inputs(1)
        rank = len(self.loops)
        if dims is None:
            inner = rng.randint(1, min(2, rank))
            dims = list(range(rank - inner, rank)) if self.chance(0.85) else sorted(rng.sample(range(rank), inner))
        x = self.floating(self.up(self.made[0]))
        if self.chance(0.3):
            residual = self.up(self.tensor(self.loops, rng.choice(self.floats)))
            x = self.binary(x, self.floating(residual))
        if self.chance(0.3):
            try:
                x = self.floating(self.unary(x))
            except CannotMake:
                pass
        kind = rng.choice(("softmax", "layer", "rms", "free", "free"))
        keep = True if self.chance(0.6) else None
        if kind == "softmax":
            top = self.spread(self.reduce(x, dims, "max", keep), x)
            e = self.add("exp", Ref(self.add("sub", Ref(x.name), Ref(top.name), labels=x.labels, bound=8, exact=False).name), labels=x.labels, bound=1, exact=False)
            total = self.add("sum", Ref(e.name), dims, True, labels=[ONE if d in dims else a for d, a in enumerate(x.labels)], bound=1, exact=False, keep=False)
            self.made.append(dataclasses.replace(total, bound=math.prod(self.sizes[x.labels[d]] for d in dims if x.labels[d] != ONE)))
            y = self.add("div", Ref(e.name), Ref(total.name), labels=x.labels, bound=1, exact=False)
        elif kind in ("layer", "rms"):
            if kind == "layer":
                variance = self.reduce(x, dims, "var_mean", keep)
                names = self.nodes[-1].targets
                mean = next((v for v in self.made if v.name == names[-1]), variance)
                centered = self.add("sub", Ref(x.name), Ref(self.spread(mean, x).name), labels=x.labels, bound=2 * x.bound, exact=False)
            else:
                square = self.add("mul", Ref(x.name), Ref(x.name), labels=x.labels, bound=x.bound**2, exact=False)
                variance, centered = self.reduce(square, dims, "sum", keep), x
            variance = self.spread(variance, x)
            scale = self.add("rsqrt", Ref(self.add("add", Ref(variance.name), 0.1, labels=variance.labels, bound=variance.bound + 1, exact=False).name), labels=variance.labels, bound=3.2, exact=False)
            y = self.add("mul", Ref(centered.name), Ref(scale.name), labels=x.labels, bound=centered.bound * 3.2, exact=False)
        else:
            y = x
            for _ in range(rng.randint(1, 3)):
                s = self.spread(self.reduce(y, dims, rng.choice(("sum", "max", "min", "var")), keep), x)
                y = self.binary(y, s)
                if self.chance(0.5):
                    y = self.floating(self.unary(y))
        for n in range(rng.choice((0, 0, 1, 2))):
            weight = self.tensor([self.loops[d] for d in dims], rng.choice(self.floats))
            (y, weight), labels = self.together(y, self.floating(self.up(weight)))
            y = self.add("mul" if n == 0 else "add", Ref(y.name), Ref(weight.name), labels=labels, bound=y.bound * 2 + 2, exact=False)
        for _ in range(rng.choice((0, 0, 1, 2))):
            self.step(permutes=0.0)
        if self.chance(0.5):
            self.made.append(self.cast(y, getattr(DataType, rng.choice(("Half", "BFloat16")))))

    def two_sides(self) -> None:
        """A normalization of rows, and reductions of its columns, with work on their results."""
        if len(self.loops) < 2:
            raise CannotMake
        rows = self.loops[: self.rng.randint(1, len(self.loops) - 1)]
        self.normalization(list(range(len(rows), len(self.loops))))
        full = [v for v in self.made if v.loops == frozenset(self.loops)]
        before = len(self.made)
        for _ in range(self.rng.choice((1, 1, 2, 2, 3, 4))):
            x = self.rng.choice(full)
            self.reduce(x, [d for d, label in enumerate(x.labels) if label in rows], self.rng.choice(("sum", "sum", "sum", "max", "min")))
        spent, self.made = self.made[:before], self.made[before:]
        for _ in range(self.rng.randint(0, 3)):
            self.step(permutes=0.0)
        self.made = spent + self.made

    def spread(self, row: Value, x: Value) -> Value:
        """Return a reduction's result so that it broadcasts to `x`."""
        return self.aligned(row, x.labels)

    def anything(self) -> None:
        self.some_inputs(self.rng.choice((1, 2, 3)))
        for _ in range(self.rng.randint(2, 9)):
            if self.chance(0.2):
                x = self.pick()
                if x.labels:
                    try:
                        self.reduce(x, self.rng.sample(range(len(x.labels)), self.rng.randint(1, len(x.labels))))
                    except CannotMake:
                        pass
            else:
                self.step()

    def outputs(self) -> list[str]:
        """Choose the outputs: what nothing reads, and some of the rest."""
        read = {a.name for node in self.nodes for a in node.args if isinstance(a, Ref)}
        computed = [v for v in self.made if any(v.name in node.targets for node in self.nodes)]
        chosen = [v for v in computed if v.name not in read or self.chance(0.1)]
        if len(chosen) > 1 and self.chance(0.5):
            chosen = chosen[-self.rng.randint(1, len(chosen)) :]
        out = []
        for v in chosen:
            if len(v.labels) > 1 and self.chance(0.06):
                ranks = self.rng.sample(range(len(v.labels)), len(v.labels))
                v = self.add("stride_order", Ref(v.name), ranks, labels=v.labels, bound=v.bound, exact=v.exact, keep=False)
            is_narrowed = self.floats is NARROW_FLOATS and v.dtype.is_float and v.dtype is not DataType.Double and v.bound <= LARGEST_NARROW
            if is_narrowed and not v.dtype.is_narrow_float and self.chance(0.6):
                kinds = [k for k in NARROW_FLOATS[:5] if k != FP4 or self.is_packable(v.labels, len(v.labels) - 1) and v.bound <= LARGEST_FP4 and not self.is_spread(v)]
                v = self.cast(v, getattr(DataType, self.rng.choice(kinds)))
            out.append(v.name)
        return out


_MOVES = ("permute", "broadcast", "broadcast_in_dim", "squeeze", "set", "stride_order", "neg", "abs", "relu", "maximum", "minimum", "max", "min", "where")
FAMILIES = (("pointwise", 0.4), ("reduction", 0.25), ("normalization", 0.27), ("anything", 0.08))
TWO_SIDES = "two_sides"
"""A family of its own: rows are normalized, and columns reduced."""
LONG_ROWS = "long rows"
"""A family of its own: normalizations of rows of thousands of elements, as many as leave no multiprocessor without one, or fewer."""
VIEWS = "views"
"""Graphs over reshapes, permutes, slices, pads and cats (`view_generator`)."""
GRAPHS = "graphs"
"""Graphs of everything: all types, views, lookups, scans, orders, reductions, products (`everything_generator`)."""
SIZED = "graphs of any size"
"""Graphs of several kernels whose definition has no sizes (`sized_generator`)."""
MIXED = "mixed graphs"
"""Graphs of everything, with arguments of every kind: scalar inputs, CPU scalars, sizes as shapes, empty tensors (`mixed_generator`)."""
WIDE = "wide graphs"
"""Graphs of what the others leave out: narrow floats, reshapes of any sizes, computed positions, batched products (`wide_generator`)."""
WIDE_SIZED = "wide graphs of any size"
"""Such graphs whose definition has no sizes (`wide_sized_generator`)."""
NARROW = "narrow types"
"""The usual fusions, with inputs and outputs of floats of 8 and 4 bits among them."""
ROWS, ROW_ELEMS = (1, 5, 66, 132, 133, 140, 270), (4096, 6000, 8192, 8200, 9999, 10000, 12288, 16384, 16388, 20000, 24576, 32768, 40001, 65536, 70000)


def long_rows(rng: random.Random, largest_elems: int) -> dict[str, int]:
    """Draw rows and columns; `largest_elems` bounds the product where there is more than one row."""
    columns = rng.choice(ROW_ELEMS)
    return {"a": rng.choice([n for n in ROWS if n == 1 or n * columns <= largest_elems]), "b": columns}


def random_case(seed: int, largest_elems: int = 4000, family: str = "") -> Case:
    """Return the fusion of a seed; `largest_elems` bounds the product of its loops. family: LONG_ROWS, TWO_SIDES, VIEWS, GRAPHS, SIZED, MIXED, WIDE, WIDE_SIZED, NARROW, or any of FAMILIES."""
    if family == GRAPHS:
        return everything_case(seed, largest_elems, family)
    if family == MIXED:
        return everything_case(seed, largest_elems, family, kind=Mixed, is_mixed=True)
    if family == WIDE:
        return everything_case(seed, largest_elems, family, kind=Wide, is_mixed=True)
    if family == WIDE_SIZED:
        return wide_sized_case(seed, family)
    if family == SIZED:
        return sized_case(seed, family)
    if family == VIEWS:
        return view_case(seed, largest_elems, family)
    rng = random.Random(f"weft {family}{seed}")
    while True:
        chosen = family if family and family != NARROW else rng.choices([f for f, _ in FAMILIES], [w for _, w in FAMILIES])[0]
        with FusionDefinition() as fd:
            made = Generator(rng, fd, largest_elems, long_rows(rng, largest_elems) if chosen == LONG_ROWS else None, NARROW_FLOATS if family == NARROW else FLOATS)
            try:
                getattr(made, "normalization" if chosen == LONG_ROWS else chosen)()
                outputs = made.outputs()
            except CannotMake:
                continue
        case = Case(tuple(made.inputs), tuple(made.nodes), tuple(dict.fromkeys(outputs)), made.sizes, seed, chosen).without_unused()
        if outputs and any(isinstance(i, TensorInput) for i in case.inputs):
            return case
