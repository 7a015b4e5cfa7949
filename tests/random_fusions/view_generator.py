"""Random graphs over views: reshapes, permutes, slices, pads, cats, expands between pointwise ops, reductions and normalizations, with up to four outputs.

Shapes are numbers; a definition has them as constants or leaves them to the call. Values stay bounded. Read first: `view_case`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from fusion_case import ONE, Case, Node, Ref, TensorInput

from weft import DataType

Shape = tuple[int, ...]
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 30, 32)
UNARY = ("neg", "abs", "relu", "sigmoid", "tanh", "sin")
FLOATS = ("Float", "Float", "Float", "BFloat16", "Double")


class CannotMake(Exception):
    """The drawn op does not fit; another one is drawn."""


def factors(n: int) -> list[int]:
    """Return the divisors of n between 2 and n - 1."""
    return [d for d in range(2, n) if n % d == 0]


class ViewGraph:
    """A graph in the making: names and shapes of values."""

    def __init__(self, rng: random.Random, largest_elems: int) -> None:
        self.rng, self.largest = rng, largest_elems
        self.inputs: list[TensorInput] = []
        self.nodes: list[Node] = []
        self.shapes: dict[str, Shape] = {}
        self.static = rng.random() < 0.6

    def input(self, shape: Shape) -> str:
        """Add a tensor input, now and then with gaps, in another order, or expanded."""
        rng, name, rank = self.rng, f"x{len(self.inputs)}", len(shape)
        order = tuple(rng.sample(range(rank), rank)) if rank > 1 and rng.random() < 0.15 else ()
        gapped = frozenset(a for a in range(rank) if shape[a] > 1 and rng.random() < 0.5) if rng.random() < 0.15 else frozenset()
        expanded = frozenset(a for a in range(rank) if shape[a] > 1 and rng.random() < 0.3) if rng.random() < 0.07 else frozenset()
        self.inputs.append(TensorInput(name, self.labels(shape), rng.choice(FLOATS), order, expanded, gapped, rng.choice((0, 0, 0, 1, 4)), self.static))
        self.shapes[name] = shape
        return name

    @staticmethod
    def labels(shape: Shape) -> tuple[str, ...]:
        return tuple(ONE if n == 1 else f"n{n}" for n in shape)

    def add(self, op: str, *args: Any, shape: Shape) -> str:
        """Add an op; return its result. Errors: CannotMake for a result that is too large."""
        if math.prod(shape) > self.largest or 0 in shape or len(shape) > 6:
            raise CannotMake(op)
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node((name,), op, args, labels=self.labels(shape)))
        self.shapes[name] = shape
        return name

    def pick(self, wanted: Callable[[Shape], bool] = lambda shape: True) -> str:
        names = [n for n, s in self.shapes.items() if wanted(s)]
        if not names:
            raise CannotMake("no value fits")
        return self.rng.choice(names[-5:] if self.rng.random() < 0.7 else names)

    # -- views
    def reshape(self) -> str:
        name = self.pick(lambda s: len(s) > 0)
        shape = list(self.shapes[name])
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            at = self.rng.randrange(len(shape))
            kind = self.rng.random()
            if kind < 0.45 and factors(shape[at]):
                inner = self.rng.choice(factors(shape[at]))
                shape[at : at + 1] = [shape[at] // inner, inner]
            elif kind < 0.85 and at + 1 < len(shape):
                shape[at : at + 2] = [shape[at] * shape[at + 1]]
            elif kind < 0.93:
                shape.insert(at, 1)
            else:
                shape = [math.prod(shape)]
        asked: list[int] = list(shape)
        if self.rng.random() < 0.3:
            asked[self.rng.randrange(len(asked))] = -1
        return self.add("reshape", Ref(name), asked, shape=tuple(shape))

    def permute(self) -> str:
        name = self.pick(lambda s: len(s) > 1)
        shape = self.shapes[name]
        dims = self.rng.sample(range(len(shape)), len(shape))
        return self.add("permute", Ref(name), dims, shape=tuple(shape[d] for d in dims))

    def slice(self) -> str:
        name = self.pick(lambda s: any(n > 1 for n in s))
        shape = self.shapes[name]
        starts, stops = [0] * len(shape), list(shape)
        for d in self.rng.sample(range(len(shape)), self.rng.choice((1, 1, 2)) if len(shape) > 1 else 1):
            starts[d] = self.rng.randrange(shape[d])
            stops[d] = self.rng.randint(starts[d] + 1, shape[d])
            if shape[d] % 2 == 0 and self.rng.random() < 0.5:
                starts[d] = self.rng.choice((0, shape[d] // 2))
                stops[d] = starts[d] + shape[d] // 2
        return self.add("slice", Ref(name), starts, stops, shape=tuple(b - a for a, b in zip(starts, stops)))

    def pad(self) -> str:
        name = self.pick(lambda s: len(s) > 0)
        shape = list(self.shapes[name])
        widths = [0] * (2 * self.rng.randint(1, min(2, len(shape))))
        for k in range(len(widths)):
            widths[k] = self.rng.choice((0, 1, 2, 4, -1))
        for k in range(len(widths) // 2):
            shape[-1 - k] += widths[2 * k] + widths[2 * k + 1]
        if min(shape) < 1:
            raise CannotMake("cropped away")
        return self.add("pad", Ref(name), widths, shape=tuple(shape))

    def cat(self) -> str:
        first = self.pick(lambda s: len(s) > 0)
        shape = self.shapes[first]
        dim = self.rng.randrange(len(shape))
        others = [n for n, s in self.shapes.items() if len(s) == len(shape) and all(a == b for d, (a, b) in enumerate(zip(s, shape)) if d != dim)]
        chosen = [first] + [self.rng.choice(others) for _ in range(self.rng.choice((1, 1, 2)))]
        self.rng.shuffle(chosen)
        parts = [self.float(n) for n in chosen]
        total = sum(self.shapes[n][dim] for n in parts)
        return self.add("cat", [Ref(n) for n in parts], dim, shape=shape[:dim] + (total,) + shape[dim + 1 :])

    def float(self, name: str) -> str:
        """Return a value as Float."""
        return self.add("cast", Ref(name), DataType.Float, shape=self.shapes[name])

    def expand(self) -> str:
        name = self.pick(lambda s: len(s) < 4)
        shape = list(self.shapes[name])
        at = self.rng.randint(0, len(shape))
        wide = self.add("broadcast", Ref(name), [d == at for d in range(len(shape) + 1)], shape=tuple(shape[:at] + [1] + shape[at:]))
        size = self.rng.choice((2, 3, 4))
        out = shape[:at] + [size] + shape[at:]
        return self.add("expand", Ref(wide), [size if d == at else -1 for d in range(len(out))], shape=tuple(out))

    # -- arithmetic
    def unary(self) -> str:
        name = self.pick()
        return self.add(self.rng.choice(UNARY), Ref(name), shape=self.shapes[name])

    def binary(self) -> str:
        a = self.pick()
        b = self.pick(lambda s: s == self.shapes[a])
        return self.add(self.rng.choice(("add", "sub", "maximum", "minimum")), Ref(a), Ref(self.add("sin", Ref(b), shape=self.shapes[b])), shape=self.shapes[a])

    def reduce(self) -> str:
        name = self.pick(lambda s: any(n > 1 for n in s))
        return self.folded(name, self.rng.choice(("sum", "max", "min")), self.dims(name), self.rng.random() < 0.5)

    def dims(self, name: str) -> list[int]:
        rank = len(self.shapes[name])
        return sorted(self.rng.sample(range(rank), self.rng.randint(1, min(2, rank))))

    def folded(self, name: str, op: str, dims: Sequence[int], keepdim: bool) -> str:
        shape = self.shapes[name]
        out = tuple(1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims)
        folded = self.add(op, Ref(name), list(dims), keepdim, shape=out)
        return self.add("mul", Ref(folded), 1.0 / math.prod(shape[d] for d in dims), shape=out) if op == "sum" else folded

    def normalize(self) -> str:
        name = self.float(self.pick(lambda s: any(n > 1 for n in s)))
        shape, dims = self.shapes[name], self.dims(name)
        if self.rng.random() < 0.5:
            top = self.folded(name, "max", dims, True)
            e = self.add("exp", Ref(self.add("sub", Ref(name), Ref(top), shape=shape)), shape=shape)
            total = self.add("sum", Ref(e), dims, True, shape=tuple(1 if d in dims else n for d, n in enumerate(shape)))
            return self.add("div", Ref(e), Ref(total), shape=shape)
        mean = self.folded(name, "sum", dims, True)
        return self.add("sub", Ref(name), Ref(mean), shape=shape)

    def step(self) -> None:
        """Add one op, or nothing where what was drawn does not fit."""
        kinds = (self.reshape, self.permute, self.slice, self.pad, self.cat, self.expand, self.unary, self.binary, self.reduce, self.normalize)
        kind = self.rng.choices(kinds, (6, 2.5, 2, 1.5, 1.5, 0.7, 3, 4, 1.5, 1.5))[0]
        kept = len(self.nodes)
        try:
            kind()
        except CannotMake:
            for node in self.nodes[kept:]:
                del self.shapes[node.targets[0]]
            del self.nodes[kept:]


def view_case(seed: int, largest_elems: int, family: str, most_ops: int = 12) -> Case:
    """Return the graph of a seed; `largest_elems` bounds every value."""
    rng = random.Random(f"weft {family}{seed}")
    while True:
        graph = ViewGraph(rng, largest_elems)
        for _ in range(rng.choice((1, 1, 2, 3))):
            shape = tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 2, 3, 3, 4))))
            if math.prod(shape) <= largest_elems:
                graph.input(shape)
        if not graph.inputs:
            continue
        for _ in range(rng.randint(2, most_ops)):
            graph.step()
        read = {a.name for node in graph.nodes for arg in node.args for a in (arg if isinstance(arg, list) else [arg]) if isinstance(a, Ref)}
        ends = [node.targets[0] for node in graph.nodes if node.targets[0] not in read or rng.random() < 0.08]
        outputs = [graph.add(rng.choice(UNARY), Ref(n), shape=graph.shapes[n]) if rng.random() < 0.7 else n for n in ends[-4:]]
        if outputs:
            sizes = {label: int(label[1:]) for i in graph.inputs for label in i.labels if label != ONE}
            return Case(tuple(graph.inputs), tuple(graph.nodes), tuple(dict.fromkeys(outputs)), sizes, seed, family).without_unused()

