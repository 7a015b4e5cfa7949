"""Random graphs: up to 30 ops over views, reductions of any axes, lookups, scans and matrix products, with 1 to 4 outputs. No kernel takes them whole.

The shapes are small, so that the emulator compiles more than it runs. Read first: `random_graph`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from fusion_case import Case, Node, Ref, TensorInput, references

EXTENTS = (1, 2, 3, 4, 5, 8, 12, 16, 33)
MOST_ELEMS = 3000
UNARY = ("neg", "abs", "relu", "sin", "tanh", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


@dataclass(frozen=True)
class Value:
    """A value with its extents. ones: axes that are broadcast in the definition, not only of extent 1."""

    name: str
    shape: tuple[int, ...]
    ones: frozenset[int] = frozenset()


class Graph:
    """A graph in the making."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.inputs: list[TensorInput] = []
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.sizes: dict[str, int] = {}
        self.static = rng.random() < 0.5

    def label(self, extent: int) -> str:
        self.sizes.setdefault(f"n{extent}", extent)
        return f"n{extent}"

    def input(self, shape: tuple[int, ...], dtype: str = "Float") -> Value:
        name = f"x{len(self.inputs)}"
        gapped = frozenset(d for d in range(len(shape)) if shape[d] > 1 and self.rng.random() < 0.1)
        order = tuple(self.rng.sample(range(len(shape)), len(shape))) if len(shape) > 1 and self.rng.random() < 0.15 else ()
        # an axis of extent 1 is written as a number, else it would be no broadcast axis
        static = self.static or 1 in shape
        self.inputs.append(TensorInput(name, tuple(map(self.label, shape)), dtype, order, gapped=gapped, static=static))
        return Value(name, shape, frozenset(d for d, n in enumerate(shape) if n == 1))

    def node(self, op: str, args: list, shape: tuple[int, ...], ones: frozenset[int] = frozenset(), **kwargs: object) -> Value:
        name = f"t{len(self.nodes)}"
        self.nodes.append(Node((name,), op, tuple(args), tuple(kwargs.items()), tuple(map(str, shape))))
        value = Value(name, shape, ones)
        self.values.append(value)
        return value

    # -- steps: each adds a value, or none where it does not fit
    def unary(self, x: Value) -> None:
        self.node(self.rng.choice(UNARY), [Ref(x.name)], x.shape, x.ones)

    def binary(self, x: Value) -> None:
        fitting = [v for v in self.values if len(v.shape) == len(x.shape) and all(_agree(v, x, d) for d in range(len(x.shape)))]
        y = self.rng.choice(fitting)
        shape = tuple(map(max, x.shape, y.shape))
        self.node(self.rng.choice(BINARY), [Ref(x.name), Ref(y.name)], shape, x.ones & y.ones)

    def fold(self, x: Value) -> None:
        dims = [d for d in range(len(x.shape)) if d not in x.ones]
        if not dims:
            return
        chosen = sorted(self.rng.sample(dims, self.rng.randint(1, min(2, len(dims)))))
        keep = self.rng.random() < 0.7
        shape = tuple(1 if d in chosen else n for d, n in enumerate(x.shape) if keep or d not in chosen)
        ones = frozenset(d for d in range(len(shape)) if keep and (d in chosen or d in x.ones))
        if not keep:
            left = [d for d in range(len(x.shape)) if d not in chosen]
            ones = frozenset(n for n, d in enumerate(left) if d in x.ones)
        kind = self.rng.choice(("sum", "max", "min"))
        y = self.node(kind, [Ref(x.name), chosen, keep], shape, ones)
        if kind == "sum":
            self.node("mul", [Ref(y.name), 1.0 / math.prod(x.shape[d] for d in chosen)], shape, ones)

    def permute(self, x: Value) -> None:
        order = self.rng.sample(range(len(x.shape)), len(x.shape))
        self.node("permute", [Ref(x.name), order], tuple(x.shape[d] for d in order), frozenset(n for n, d in enumerate(order) if d in x.ones))

    def reshape(self, x: Value) -> None:
        if x.ones or not x.shape:
            return
        shape = list(x.shape)
        if len(shape) > 1 and self.rng.random() < 0.5:
            at = self.rng.randrange(len(shape) - 1)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        else:
            at = self.rng.randrange(len(shape))
            factors = [f for f in (2, 3, 4) if shape[at] % f == 0 and shape[at] > f]
            if not factors or len(shape) > 3:
                return
            factor = self.rng.choice(factors)
            shape[at : at + 1] = [shape[at] // factor, factor]
        if 1 not in shape:
            self.node("reshape", [Ref(x.name), shape], tuple(shape))

    def slice(self, x: Value) -> None:
        if x.ones or any(n < 2 for n in x.shape):
            return
        starts = [self.rng.randint(0, n // 2 - 1) if self.rng.random() < 0.5 else 0 for n in x.shape]
        ends = [self.rng.randint(s + 2, n) if self.rng.random() < 0.5 else n for s, n in zip(starts, x.shape)]
        self.node("slice", [Ref(x.name), starts, ends], tuple(e - s for s, e in zip(starts, ends)))

    def pad(self, x: Value) -> None:
        if x.ones or not x.shape:
            return
        left, right = self.rng.randint(0, 3), self.rng.randint(0, 3)
        if left + right:
            self.node("pad", [Ref(x.name), [left, right], 0.5], (*x.shape[:-1], x.shape[-1] + left + right))

    def cat(self, x: Value) -> None:
        if x.ones or not x.shape:
            return
        dim = self.rng.randrange(len(x.shape))
        others = [v for v in self.values if not v.ones and len(v.shape) == len(x.shape) and all(a == b for d, (a, b) in enumerate(zip(v.shape, x.shape)) if d != dim)]
        y = self.rng.choice(others)
        self.node("cat", [[Ref(x.name), Ref(y.name)], dim], tuple(a + y.shape[d] if d == dim else a for d, a in enumerate(x.shape)))

    def cut(self, x: Value) -> None:
        self.node("segment_set", [Ref(x.name)], x.shape, x.ones)

    def scan(self, x: Value) -> None:
        if x.ones or not x.shape:
            return
        dim = self.rng.randrange(len(x.shape))
        y = self.node("cumsum", [Ref(x.name), dim], x.shape)
        self.node("mul", [Ref(y.name), 1.0 / x.shape[dim]], x.shape)

    def product(self, x: Value) -> None:
        if x.ones or len(x.shape) != 2:
            return
        columns = self.rng.choice((2, 5, 8))
        weight = self.input((x.shape[1], columns))
        y = self.node("matmul", [Ref(x.name), Ref(weight.name)], (x.shape[0], columns))
        self.node("tanh", [Ref(y.name)], y.shape)

    STEPS = (
        (unary, 6), (binary, 8), (fold, 5), (permute, 2), (reshape, 2), (slice, 2), (pad, 1), (cat, 1), (cut, 1), (scan, 1), (product, 1),
    )  # fmt: skip


def _agree(a: Value, b: Value, d: int) -> bool:
    """Tell whether axis d of two values can meet in a pointwise op."""
    return a.shape[d] == b.shape[d] and (d in a.ones) == (d in b.ones) or d in a.ones or d in b.ones


def random_graph(seed: int, most_ops: int = 30) -> Case:
    """Return the graph of a seed."""
    rng = random.Random(f"weft graph {seed}")
    graph = Graph(rng)
    rank = rng.randint(1, 3)
    while True:
        shape = tuple(rng.choice(EXTENTS) for _ in range(rank))
        if math.prod(shape) <= MOST_ELEMS:
            break
    graph.values.append(graph.input(shape))
    if rng.random() < 0.6:
        graph.values.append(graph.input(shape))
    steps, weights = zip(*Graph.STEPS)
    count = rng.randint(4, most_ops)
    for _ in range(4 * count):
        if len(graph.nodes) >= count:
            break
        recent = graph.values[-6:]
        x = rng.choice(recent)
        if math.prod(x.shape) > MOST_ELEMS:
            continue
        rng.choices(steps, weights)[0](graph, x)
    computed = [v.name for v in graph.values if v.name.startswith("t")]
    if not computed:
        graph.unary(graph.values[0])
        computed = [graph.values[-1].name]
    read = {name for node in graph.nodes for argument in node.args for name in references(argument)}
    ends = [name for name in computed if name not in read]
    outputs = tuple(dict.fromkeys([*ends[-3:], *rng.sample(computed, min(len(computed), rng.randint(0, 1)))]))
    return Case(tuple(graph.inputs), tuple(graph.nodes), outputs, graph.sizes, seed, "graph").without_unused()


__all__ = ["random_graph"]
