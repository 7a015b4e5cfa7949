"""Random graphs without any size, as `sized_generator` makes them, of what that leaves out: turned, repeated and sorted axes, computed positions, scatters, scans
of other kinds, composites, complex numbers, comparisons, random numbers, products with batches, outputs that are written into inputs.

Read first: `WideSized.WIDE_STEPS`.
"""

from __future__ import annotations

from typing import Any

from everything_generator import need
from fusion_case import Case, Extent, Node, Ref, TensorInput
from sized_generator import Axis, Sized, Value, sized_case

from weft import DataType

_FLOAT = DataType.Float


class WideSized(Sized):
    """One graph in the making."""

    def like(self, op: str, *args: Any, x: Value, bound: float, keep: bool = True, **kwargs: Any) -> Value:
        """Add an op whose result has the axes of `x`."""
        return self.add(op, *args, axes=x.axes, bound=bound, keep=keep, kwargs=tuple(kwargs.items()))

    def wide(self, x: Value) -> Value:
        return self.like("cast", Ref(x.name), _FLOAT, x=x, bound=x.bound, keep=False)

    def sizes_of(self, x: Value) -> list[Any]:
        return [Extent("", x.name, d) for d in range(len(x.axes))]

    # -- axes
    def first(self) -> None:
        """A slice to an end that may lie beyond the axis."""
        x = self.pick()
        at, n = self.axis_of(x), self.rng.choice((3, 5, 20))
        ends = [n if d == at else size for d, size in enumerate(self.sizes_of(x))]
        axes = tuple((("first", axis, n),) if d == at else axis for d, axis in enumerate(x.axes))
        self.add("slice", Ref(x.name), [0] * len(x.axes), ends, axes=axes, bound=x.bound)

    def turned(self) -> None:
        """An axis from its end to its begin, by positions."""
        x = self.pick()
        at = self.axis_of(x)
        last = self.number("sub", Extent("", x.name, at), 1)
        places = self.number("iota", Extent("", x.name, at), last, -1, DataType.Int)
        self.like("index_select", Ref(x.name), places, at, x=x, bound=x.bound)

    def rolled(self) -> None:
        """The second half of an axis in front of the first, negated."""
        x = self.wide(self.pick())
        at = self.axis_of(x)
        sizes = self.sizes_of(x)
        middle = self.number("div", sizes[at], 2)
        starts: list[Any] = [middle if d == at else 0 for d in range(len(x.axes))]
        halves = [tuple(((part, axis),) if d == at else axis for d, axis in enumerate(x.axes)) for part in ("high", "low half")]
        high = self.add("slice", Ref(x.name), starts, sizes, axes=halves[0], bound=x.bound, keep=False)
        low = self.add("slice", Ref(x.name), [0] * len(starts), [middle if d == at else n for d, n in enumerate(sizes)], axes=halves[1], bound=x.bound, keep=False)
        high = self.add("neg", Ref(high.name), axes=high.axes, bound=x.bound, keep=False)
        self.like("cat", [Ref(high.name), Ref(low.name)], at - len(x.axes), x=x, bound=x.bound)

    def repeated(self) -> None:
        """A new axis that is expanded and merged with a neighbour."""
        x = self.pick(lambda v: bool(v.axes) and all(v.axes) and len(v.axes) < 4)
        at, label = self.rng.randint(0, len(x.axes)), self.rng.choice(self.labels)
        axes: list[Axis] = [*x.axes[:at], (label,), *x.axes[at:]]
        shape: list[Any] = [self.size((label,)) if d == at else Extent("", x.name, d - (d > at)) for d in range(len(axes))]
        wide = self.add("broadcast_in_dim", Ref(x.name), [*shape], [d for d in range(len(axes)) if d != at], axes=tuple(axes), bound=x.bound, keep=False)
        first = at - 1 if at == len(x.axes) or at and self.rng.random() < 0.5 else at
        merged = self.number("mul", shape[first], shape[first + 1])
        axes[first : first + 2] = [axes[first] + axes[first + 1]]
        shape[first : first + 2] = [merged if self.rng.random() < 0.5 else -1]
        self.add("reshape", Ref(wide.name), shape, axes=tuple(axes), bound=x.bound)

    def reshaped_without_factors(self) -> None:
        """(a, b) as (b, a): the same memory under sizes that have nothing in common."""
        x = self.pick(lambda v: len(v.axes) > 1 and all(v.axes))
        order = self.rng.sample(range(len(x.axes)), len(x.axes))
        self.add("reshape", Ref(x.name), [Extent("", x.name, d) for d in order], axes=tuple(x.axes[d] for d in order), bound=x.bound)

    def spread(self) -> None:
        """Expand an axis of extent 1."""
        x = self.pick(lambda v: () in v.axes)
        at, label = x.axes.index(()), self.rng.choice(self.labels)
        size = self.size((label,))
        axes = tuple((label,) if d == at else axis for d, axis in enumerate(x.axes))
        self.add("expand", Ref(x.name), [size if d == at else -1 for d in range(len(axes))], axes=axes, bound=x.bound)

    def ordered(self) -> None:
        x = self.pick(lambda v: len(v.axes) > 1)
        self.like("stride_order", Ref(x.name), self.rng.sample(range(len(x.axes)), len(x.axes)), x=x, bound=x.bound)

    # -- positions
    def positions(self, label: str, below: Any) -> Ref:
        """Return positions along a new axis, below a size of the call."""
        flat = self.number("iota", self.size((label,)), 3, 7, self.rng.choice((DataType.Int, DataType.Int32)))
        return self.number("remainder", flat, below)

    def looked_up(self) -> None:
        x = self.pick()
        at, label = self.axis_of(x), self.rng.choice(self.labels)
        places = self.positions(label, Extent("", x.name, at))
        axes = tuple((label,) if d == at else axis for d, axis in enumerate(x.axes))
        self.add("index_select", Ref(x.name), places, at, axes=axes, bound=x.bound)

    def summed_into(self) -> None:
        """Sums at computed positions along an axis: some positions several times, some never."""
        x = self.wide(self.pick(lambda v: bool(v.axes) and all(v.axes) and any(len(a) == 1 and a[0] in self.labels for a in v.axes)))
        at = self.rng.choice([d for d, a in enumerate(x.axes) if len(a) == 1 and a[0] in self.labels])
        flat = self.number("iota", Extent("", x.name, at), 1, 5, DataType.Int)
        places = self.number("remainder", self.number("div", flat, 2), Extent("", x.name, at))
        index = self.number("broadcast_in_dim", places, self.sizes_of(x), [at])
        source = self.like("sin", Ref(x.name), x=x, bound=1.0, keep=False)
        y = self.like("scatter_add", Ref(x.name), index, Ref(source.name), at, x=x, bound=1.0, keep=False)
        self.like("tanh", Ref(y.name), x=x, bound=1.0)

    def sorted(self) -> None:
        """Values in their order: the order may differ by a rounding error, the values do not."""
        x = self.wide(self.pick())
        at = self.axis_of(x)
        order = self.number("argsort", Ref(x.name), at, self.rng.random() < 0.5, True)
        self.like("take_along_axis", Ref(x.name), order, at, x=x, bound=x.bound)

    def shuffled_in(self) -> None:
        """A scatter by an order of fresh numbers: each position once."""
        x = self.wide(self.pick(lambda v: bool(v.axes) and all(len(a) == 1 and a[0] in self.labels for a in v.axes)))
        at = self.axis_of(x)
        keys = self.input(tuple(a[0] for a in x.axes), keep=False)
        wide = self.wide(Value(keys.name, x.axes, 2.0))
        order = self.number("argsort", Ref(wide.name), at, False, True)
        source = self.like("cos", Ref(x.name), x=x, bound=1.0, keep=False)
        need(len(x.axes) < 2)  # of equal keys (16 bits) the order is that of a stable sort
        self.like("scatter", Ref(x.name), order, Ref(source.name), at, x=x, bound=max(1.0, x.bound))

    # -- folds, scans and composites
    def extreme_scan(self) -> None:
        x = self.pick()
        self.like(self.rng.choice(("cummax", "cummin")), Ref(x.name), self.axis_of(x), x=x, bound=x.bound)

    def product_scan(self) -> None:
        y = self.wide(self.pick())
        x = self.like("tanh", Ref(y.name), x=y, bound=1.0, keep=False)
        self.like("cumprod", Ref(x.name), self.axis_of(x), x=x, bound=1.0)

    def composite(self) -> None:
        x = self.wide(self.pick())
        at = self.axis_of(x)
        op = self.rng.choice(("softmax", "log_softmax", "normalize", "logsumexp", "mean", "norm"))
        if op in ("softmax", "log_softmax"):
            y = self.like(op, Ref(x.name), at, x=x, bound=1.0, keep=op == "softmax")
            if op == "log_softmax":
                self.like("tanh", Ref(y.name), x=y, bound=1.0)
            return
        if op in ("normalize", "norm"):  # of zeros it has no derivative
            x = self.like("add", Ref(self.like("abs", Ref(x.name), x=x, bound=x.bound, keep=False).name), 0.5, x=x, bound=x.bound + 0.5, keep=False)
        if op == "normalize":
            self.like(op, Ref(x.name), 2.0, at, x=x, bound=1.0)
            return
        keep = self.rng.random() < 0.5
        axes = tuple(() if d == at else axis for d, axis in enumerate(x.axes) if keep or d != at)
        args: list[Any] = [2.0, [at], keep] if op == "norm" else [[at], keep]
        y = self.add(op, Ref(x.name), *args, axes=axes, bound=x.bound, keep=op == "mean")
        if op != "mean":
            self.add("tanh", Ref(y.name), axes=axes, bound=1.0)

    def layer_norm(self) -> None:
        """A norm whose epsilon keeps rows of one element from being 0 / 0."""
        x = self.wide(self.pick(lambda v: bool(v.axes) and bool(v.axes[-1])))
        self.like(self.rng.choice(("layer_norm", "rms_norm")), Ref(x.name), [Extent("", x.name, len(x.axes) - 1)], x=x, bound=8.0, eps=0.1)

    def two_axes(self) -> None:
        """A fold of two axes at once."""
        x = self.pick(lambda v: sum(map(bool, v.axes)) > 1)
        dims = sorted(self.rng.sample([d for d, axis in enumerate(x.axes) if axis], 2))
        keep = self.rng.random() < 0.5
        axes = tuple(() if d in dims else axis for d, axis in enumerate(x.axes) if keep or d not in dims)
        self.add(self.rng.choice(("amax", "amin")), Ref(x.name), dims, keep, axes=axes, bound=x.bound)

    # -- types
    def rounded(self) -> None:
        x = self.pick()
        self.like("cast", Ref(x.name), self.rng.choice((DataType.BFloat16, DataType.Half, DataType.Double)), x=x, bound=x.bound)

    def compared(self) -> None:
        """A choice by an input, which no rounding has moved."""
        x = self.pick(lambda v: v.name.startswith("x"))
        y = self.pick(lambda v: v.axes == x.axes)
        mask = self.number(self.rng.choice(("gt", "le")), Ref(x.name), 0.25)
        if self.rng.random() < 0.3:
            mask = self.number("logical_not", mask)
        self.like("where", mask, Ref(y.name), 0.5, x=y, bound=max(1.0, y.bound))

    def by_complex(self) -> None:
        x = self.wide(self.pick())
        z = self.number("complex", Ref(x.name), Ref(self.like("cos", Ref(x.name), x=x, bound=1.0, keep=False).name))
        z = self.number("mul", z, z)
        if self.rng.random() < 0.5:
            z = self.number("permute", z, list(range(len(x.axes))))
        self.like(self.rng.choice(("real", "imag")), z, x=x, bound=2 * x.bound**2 + 1)

    def drawn(self) -> None:
        x = self.pick(lambda v: bool(v.axes) and all(v.axes))
        noise = self.like("uniform", -1.0, 1.0, self.sizes_of(x), x=x, bound=1.0, keep=False, rng_seed=self.rng.randrange(99), rng_offset=self.rng.randrange(9), dtype=_FLOAT)
        self.like("add", Ref(x.name), Ref(noise.name), x=x, bound=x.bound + 1)

    def batched(self) -> None:
        """A product with batches and a bias, of 16 bits or 32."""
        x = self.pick(lambda v: len(v.axes) == 3 and all(v.axes) and len(v.axes[2]) == 1 and v.axes[2][0] in self.labels)
        to = self.rng.choice((_FLOAT, DataType.BFloat16))
        label = self.rng.choice(self.labels)
        given = [self.input(labels, keep=False) for labels in ((label, x.axes[2][0]), (label,))]
        a, w, b = (self.add("cast", Ref(v.name), to, axes=v.axes, bound=2.0, keep=False) for v in (x, *given))
        y = self.add("linear", Ref(a.name), Ref(w.name), Ref(b.name), axes=(*x.axes[:2], (label,)), bound=1.0, keep=False)
        self.scaled(y, x, 2, x.bound + 2)

    WIDE_STEPS = (
        (first, 1.5), (turned, 1.5), (rolled, 2), (repeated, 2.5), (reshaped_without_factors, 2), (spread, 2), (ordered, 1), (looked_up, 2), (summed_into, 1), (sorted, 0.7),
        (shuffled_in, 0.5), (extreme_scan, 1), (product_scan, 0.5), (composite, 3), (layer_norm, 1), (two_axes, 1), (rounded, 2), (compared, 1.5), (by_complex, 1), (drawn, 0.7), (batched, 0.7),
    )  # fmt: skip
    STEPS = (*((kind, weight / 2) for kind, weight in Sized.STEPS), *WIDE_STEPS)


def wide_sized_case(seed: int, family: str) -> Case:
    """Return the graph of a seed; in some, a result is written into an input of its axes."""
    case = sized_case(seed, family, 24, WideSized)
    fitting = [(n, i) for n in case.nodes for i in case.inputs if isinstance(i, TensorInput) and i.labels and n.labels == tuple((label,) for label in i.labels)]
    if seed % 3 or not fitting:
        return case
    node, target = fitting[-1]
    written = Node((f"{node.targets[0]}w",), "cast", (Ref(node.targets[0]), getattr(DataType, target.dtype)), (), node.labels)
    return case.replaced(nodes=(*case.nodes, written), aliases=((written.targets[0], target.name),))


__all__ = ["wide_sized_case"]
