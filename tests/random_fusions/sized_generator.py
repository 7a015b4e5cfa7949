"""Random graphs whose definition has no sizes: every axis is that of an input, or follows from one by ops of sizes. One definition runs at many shapes.

An axis is known by its factors: a label of an input, or what a slice, pad or cat made of another axis. Axes with equal factors have equal sizes in every
call. Read first: `Sized.STEPS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everything_generator import CannotMake, need
from fusion_case import Case, Extent, Node, Ref, TensorInput, references

from weft import DataType

_FLOAT = DataType.Float
Axis = tuple[Any, ...]
"""Factors of an axis; none for a broadcast axis of extent 1."""
UNARY = ("neg", "abs", "relu", "sin", "tanh", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
LARGEST = 50.0


@dataclass(frozen=True)
class Value:
    """A value of floats. bound: of its absolute value."""

    name: str
    axes: tuple[Axis, ...]
    bound: float


class Sized:
    """One graph in the making."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.labels = tuple("abcd"[: rng.choice((1, 2, 2, 3, 3))])
        self.inputs: list[TensorInput] = []
        self.nodes: list[Node] = []
        self.made: list[Value] = []

    def input(self, labels: tuple[str, ...], keep: bool = True) -> Value:
        rng, name = self.rng, f"x{len(self.inputs)}"
        order = tuple(rng.sample(range(len(labels)), len(labels))) if len(labels) > 1 and rng.random() < 0.15 else ()
        gapped = frozenset(d for d in range(len(labels)) if rng.random() < 0.08)
        self.inputs.append(TensorInput(name, labels, rng.choice(("Float", "Float", "BFloat16", "Half", "Double")), order, gapped=gapped, offset=rng.choice((0, 0, 0, 1))))
        value = Value(name, tuple((label,) for label in labels), 2.0)
        if keep:
            self.made.append(value)
        return value

    def add(self, op: str, *args: Any, axes: tuple[Axis, ...], bound: float, keep: bool = True, kwargs: tuple[tuple[str, Any], ...] = ()) -> Value:
        need(len(axes) <= 5)
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node((name,), op, args, kwargs, axes))
        value = Value(name, axes, bound)
        if bound > LARGEST and keep:
            return self.add("tanh", Ref(name), axes=axes, bound=1.0)
        if keep:
            self.made.append(value)
        return value

    def number(self, op: str, *args: Any) -> Ref:
        """Add an op of sizes."""
        self.nodes.append(Node((f"v{len(self.nodes)}",), op, args))
        return Ref(self.nodes[-1].targets[0])

    def size(self, axis: Axis) -> Extent:
        """Return the size of an axis as that of a value that has it."""
        owners = [(v.name, d) for v in self.made for d, other in enumerate(v.axes) if other == axis]
        need(owners)
        return Extent("", *self.rng.choice(owners))

    def pick(self, wanted: Callable[[Value], bool] = lambda v: True) -> Value:
        fitting = [v for v in self.made if wanted(v)]
        need(fitting)
        return self.rng.choice(fitting[-6:])

    def axis_of(self, x: Value) -> int:
        """Draw an axis that is no broadcast."""
        found = [d for d, axis in enumerate(x.axes) if axis]
        need(found)
        return self.rng.choice(found)

    # -- arithmetic
    def unary(self) -> None:
        x = self.pick()
        self.add(self.rng.choice(UNARY), Ref(x.name), axes=x.axes, bound=max(1.0, x.bound))

    def binary(self) -> None:
        x = self.pick()
        y = self.pick(lambda v: len(v.axes) == len(x.axes) and all(a == b or not a or not b for a, b in zip(v.axes, x.axes)))
        op = self.rng.choice(BINARY)
        bound = x.bound * y.bound if op == "mul" else x.bound + y.bound
        self.add(op, Ref(x.name), Ref(y.name), axes=tuple(a or b for a, b in zip(x.axes, y.axes)), bound=bound)

    def mask(self) -> None:
        """What lies above a diagonal."""
        x = self.pick(lambda v: len(v.axes) > 1 and bool(v.axes[-1]) and bool(v.axes[-2]))
        if self.rng.random() < 0.5:
            self.add("triu", Ref(x.name), self.rng.choice((0, 1, -1)), axes=x.axes, bound=x.bound)
            return
        places = []
        for d in (-2, -1):
            flat = self.number("iota", self.size(x.axes[d]))
            places.append(self.number("broadcast", flat, [n != len(x.axes) + d for n in range(len(x.axes))]))
        below = self.number(self.rng.choice(("ge", "lt")), *places)
        self.add("where", below, Ref(x.name), 0.5, axes=x.axes, bound=max(1.0, x.bound))

    # -- views
    def permute(self) -> None:
        x = self.pick(lambda v: len(v.axes) > 1)
        order = self.rng.sample(range(len(x.axes)), len(x.axes))
        self.add("permute", Ref(x.name), order, axes=tuple(x.axes[d] for d in order), bound=x.bound)

    def reshape(self) -> None:
        """Group the factors of all axes anew; each group has a size that some value has, and one may be -1."""
        x = self.pick(lambda v: bool(v.axes) and all(v.axes))
        factors = [factor for axis in x.axes for factor in axis]
        cuts = sorted(self.rng.sample(range(1, len(factors)), self.rng.randint(0, min(3, len(factors) - 1))))
        axes = tuple(tuple(factors[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)]))
        asked: list[Any] = []
        free = self.rng.randrange(len(axes)) if self.rng.random() < 0.5 else -1
        for n, axis in enumerate(axes):
            sizes: list[Any] = [self.size((factor,)) for factor in axis] if n != free else []
            while len(sizes) > 1:
                sizes[:2] = [self.number("mul", *sizes[:2])]
            asked.append(sizes[0] if sizes else -1)
        self.add("reshape", Ref(x.name), asked, axes=axes, bound=x.bound)

    def half(self) -> None:
        x = self.pick()
        at, part = self.axis_of(x), self.rng.choice(("low", "high"))
        sizes: list[Any] = [Extent("", x.name, d) for d in range(len(x.axes))]
        middle = self.number("div", sizes[at], 2)
        starts: list[Any] = [0] * len(x.axes)
        if part == "high":
            starts[at] = middle
        else:
            sizes[at] = self.number("sub", sizes[at], middle)
        axes = tuple(((part, axis),) if d == at else axis for d, axis in enumerate(x.axes))
        self.add("slice", Ref(x.name), starts, sizes, axes=axes, bound=x.bound)

    def pad(self) -> None:
        x = self.pick(lambda v: bool(v.axes) and bool(v.axes[-1]))
        left, right = self.rng.choice(((1, 0), (0, 2), (3, 1), (2, -1), (17, 40)))
        self.add("pad", Ref(x.name), [left, right], 0.5, axes=(*x.axes[:-1], (("pad", x.axes[-1], left + right),)), bound=max(1.0, x.bound))

    def cat(self) -> None:
        x = self.pick()
        at = self.axis_of(x)
        y = self.pick(lambda v: len(v.axes) == len(x.axes) and bool(v.axes[at]) and all(d == at or a == b for d, (a, b) in enumerate(zip(v.axes, x.axes))))
        one, other = (self.add("cast", Ref(v.name), _FLOAT, axes=v.axes, bound=v.bound, keep=False) for v in (x, y))
        axes = tuple((("cat", axis, y.axes[at]),) if d == at else axis for d, axis in enumerate(x.axes))
        self.add("cat", [Ref(one.name), Ref(other.name)], at, axes=axes, bound=max(x.bound, y.bound))

    def expand(self) -> None:
        x = self.pick(lambda v: len(v.axes) < 4)
        at, label = self.rng.randint(0, len(x.axes)), self.rng.choice(self.labels)
        axes = (*x.axes[:at], (label,), *x.axes[at:])
        shape = [self.size((label,)) if d == at else Extent("", x.name, d - (d > at)) for d in range(len(axes))]
        self.add("broadcast_in_dim", Ref(x.name), shape, [d for d in range(len(axes)) if d != at], axes=axes, bound=x.bound)

    def select(self) -> None:
        x = self.pick()
        at = self.axis_of(x)
        last = self.number("sub", Extent("", x.name, at), 1)
        self.add("select", Ref(x.name), self.rng.choice((0, last)), at, axes=x.axes[:at] + x.axes[at + 1 :], bound=x.bound)

    # -- folds and scans
    def scaled(self, x: Value, like: Value, at: int, bound: float) -> None:
        """Divide what was summed along an axis by its size."""
        inverse = self.number("truediv", 1.0, Extent("", like.name, at))
        self.add("mul", Ref(x.name), inverse, axes=x.axes, bound=bound)

    def fold(self) -> None:
        x = self.pick()
        at, keep = self.axis_of(x), self.rng.random() < 0.6
        axes = tuple(() if d == at else axis for d, axis in enumerate(x.axes) if keep or d != at)
        op = self.rng.choice(("sum", "sum", "max", "min"))
        y = self.add(op, Ref(x.name), [at], keep, axes=axes, bound=x.bound, keep=op != "sum")
        if op == "sum":
            self.scaled(y, x, at, x.bound)

    def softmax(self) -> None:
        x = self.pick()
        at = self.axis_of(x)
        kept = tuple(() if d == at else axis for d, axis in enumerate(x.axes))
        top = self.add("max", Ref(x.name), [at], True, axes=kept, bound=1.0, keep=False)
        e = self.add("exp", Ref(self.add("sub", Ref(x.name), Ref(top.name), axes=x.axes, bound=1.0, keep=False).name), axes=x.axes, bound=1.0, keep=False)
        total = self.add("sum", Ref(e.name), [at], True, axes=kept, bound=1.0, keep=False)
        self.add("truediv", Ref(e.name), Ref(total.name), axes=x.axes, bound=1.0)

    def scan(self) -> None:
        x = self.pick()
        at = self.axis_of(x)
        wide = self.add("cast", Ref(x.name), _FLOAT, axes=x.axes, bound=1.0, keep=False)
        y = self.add("cumsum", Ref(wide.name), at, axes=x.axes, bound=1.0, keep=False)
        self.scaled(y, x, at, x.bound)

    def product(self) -> None:
        x = self.pick(lambda v: len(v.axes) == 2 and len(v.axes[1]) == 1 and v.axes[1][0] in self.labels and bool(v.axes[0]))
        wide = self.add("cast", Ref(x.name), _FLOAT, axes=x.axes, bound=1.0, keep=False)
        label = self.rng.choice(self.labels)
        weight = self.input((x.axes[1][0], label), keep=False)
        other = self.add("cast", Ref(weight.name), _FLOAT, axes=weight.axes, bound=1.0, keep=False)
        y = self.add("matmul", Ref(wide.name), Ref(other.name), axes=(x.axes[0], (label,)), bound=1.0, keep=False)
        self.scaled(y, x, 1, x.bound)

    STEPS: tuple[tuple[Callable[["Sized"], None], float], ...] = (
        (unary, 6), (binary, 9), (mask, 1), (permute, 3), (reshape, 4), (half, 3), (pad, 1.5), (cat, 2), (expand, 2), (select, 1), (fold, 5), (softmax, 2), (scan, 0.7), (product, 0.7),
    )  # fmt: skip

    def step(self) -> None:
        """Add what one draw makes, or nothing where that does not fit."""
        kinds, weights = zip(*self.STEPS)
        made, nodes, inputs = len(self.made), len(self.nodes), len(self.inputs)
        try:
            self.rng.choices(kinds, weights)[0](self)
        except CannotMake:
            del self.made[made:], self.nodes[nodes:], self.inputs[inputs:]


def sized_case(seed: int, family: str, most_ops: int = 20, kind: type[Sized] = Sized) -> Case:
    """Return the graph of a seed; its sizes are those of the first call. kind: of the graph."""
    rng = random.Random(f"weft {family}{seed}")
    while True:
        graph = kind(rng)
        graph.input(graph.labels)
        for _ in range(rng.choice((0, 1, 2))):
            graph.input(graph.labels if rng.random() < 0.5 else tuple(rng.choice(graph.labels) for _ in range(rng.randint(1, 3))))
        count = rng.randint(3, most_ops)
        for _ in range(3 * count):
            if len(graph.nodes) < count:
                graph.step()
        read = {name for node in graph.nodes for argument in node.args for name in references(argument)}
        ends = [v.name for v in graph.made if v.name.startswith("v") and v.name not in read]
        if ends:
            return Case(tuple(graph.inputs), tuple(graph.nodes), tuple(ends[-rng.randint(1, 4) :]), dict.fromkeys(graph.labels, 6), seed, family).without_unused()


__all__ = ["sized_case"]
