"""Steps over what the other steps reach seldom: axes of one element put in and taken out anywhere, scans over merged axes, positions of extremes and of the
largest values used as indices, scatters whose positions repeat, cats of parts of every kind, integers of 8 bits, and patterns that passes over graphs replace.

Read first: `WidePositions.POSITION_STEPS`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from everything_generator import D, Value, need
from fusion_case import Extent, Ref
from wide_pointwise import ABOVE_HALF, WidePointwise

SIGNS = (1, -1, -1, 1, 1, 1, -1, 1, -1, -1, -1, 1, 1, -1, 1, -1)


class WidePositions(WidePointwise):
    """Steps over positions and axes."""

    def factors(self, n: int) -> list[int]:
        """Cut a size into one to four axes, in any order."""
        out, rest = [], n
        for _ in range(self.rng.randint(0, 3)):
            fitting = [f for f in range(2, 14) if rest % f == 0 and rest > f]
            if fitting:
                out.append(self.rng.choice(fitting))
                rest //= out[-1]
        out.append(rest)
        self.rng.shuffle(out)
        return out

    def other_result(self, of: Value, letter: str, **changes: Any) -> Value:
        """Return another result of the op that made `of`, and keep it."""
        name = of.name[:-1] + letter
        value = replace(of, name=name, dtype=self.values[name].dtype(), **changes)
        self.made.append(value)
        return value

    # -- views
    def with_ones(self) -> None:
        """Sizes with ones among them that the old ones may lack, and the other way round; some are known in the call only."""
        x = self.pick(lambda v: v.rank > 0)
        total = math.prod(x.shape)
        shape = self.factors(total) if self.chance(0.4) else [n for n in x.shape if n != 1]
        for _ in range(self.rng.randint(0, 2)):
            shape.insert(self.rng.randint(0, len(shape)), 1)
        asked: list[Any] = [self.scalar("Int", n) if self.chance(0.15) else n for n in shape]
        ones = frozenset(d for d, n in enumerate(asked) if isinstance(n, int) and n == 1)
        if asked and self.chance(0.2):
            at = self.rng.randrange(len(asked))
            asked[at], ones = -1, ones - {at}
        self.add("reshape", [Ref(x.name), asked], x, shape=tuple(shape), ones=ones, is_input=x.is_input)

    def named_view(self) -> None:
        x = self.pick(lambda v: v.rank < 4)
        kind = self.rng.choice(("unsqueeze", "view", "broadcast_to", "detach"))
        if kind == "unsqueeze":
            d = self.rng.randint(0, x.rank)
            shape = (*x.shape[:d], 1, *x.shape[d:])
            ones = frozenset({d, *(o + (o >= d) for o in x.ones)})
            self.add(kind, [Ref(x.name), d - (x.rank + 1) * self.chance(0.5)], x, shape=shape, ones=ones, is_input=x.is_input)
        elif kind == "view":
            need(x.rank and not x.ones and 1 not in x.shape)
            shape = tuple(self.factors(math.prod(x.shape)))
            need(1 not in shape)
            self.add(kind, [Ref(x.name), list(shape)], x, shape=shape, ones=frozenset(), is_input=x.is_input)
        elif kind == "broadcast_to":
            leading = tuple(self.rng.choice((1, 2, 3)) for _ in range(self.rng.randint(0, 2)))
            wide = tuple(self.rng.choice((1, 2, 5)) if d in x.ones else n for d, n in enumerate(x.shape))
            ones = frozenset(d for d, n in enumerate(leading) if n == 1) | frozenset(len(leading) + d for d in x.ones if wide[d] == 1)
            self.add(kind, [Ref(x.name), [*leading, *wide]], x, shape=(*leading, *wide), ones=ones, is_input=x.is_input)
        else:
            self.add(kind, [Ref(x.name)], x, is_input=x.is_input)

    def merged_scan(self) -> None:
        """Scan an axis that a reshape merges, perhaps of turned axes, and cut the result up again."""
        x = self.tamed(self.pick(lambda v: v.rank > 1 and not v.ones and 1 not in v.shape and v.dtype in (D.Float, D.Double, D.Int, D.Int32)))
        if self.chance(0.5):
            order = self.rng.sample(range(x.rank), x.rank)
            x = self.add("permute", [Ref(x.name), order], x, shape=tuple(x.shape[d] for d in order), keep=False)
        at = self.rng.randrange(x.rank - 1)
        merged = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
        y = self.add("reshape", [Ref(x.name), list(merged)], x, shape=merged, keep=False)
        d = self.rng.choice((at, self.rng.randrange(y.rank)))
        op = self.rng.choice(("cumsum", "cumsum", "cummax", "cummin"))
        y = self.add(op, [Ref(y.name), d], y, bound=x.bound * (y.shape[d] if op == "cumsum" else 1), exact=x.exact and (x.dtype.is_integer or op != "cumsum"))
        if self.chance(0.6):
            shape = x.shape if self.chance(0.5) else tuple(self.factors(math.prod(x.shape)))
            need(1 not in shape)
            self.add("reshape", [Ref(y.name), list(shape)], y, shape=shape)

    def joined_parts(self) -> None:
        """A cat of parts of every kind along one axis: slices, padded and cropped ones, repeated elements, maxima, what a gather took."""
        x = self.pick(lambda v: 0 < v.rank < 5 and not v.dtype.is_complex and max(v.shape) > 1)
        d = self.rng.choice([d for d, n in enumerate(x.shape) if n > 1])
        n, parts = x.shape[d], [x] if self.chance(0.3) else []
        for _ in range(self.rng.randint(2 - len(parts), 4)):
            parts.append(self.part(x, d, n))
        need(all(p.dtype is x.dtype and (p.ones | {d}) == (x.ones | {d}) for p in parts))
        self.rng.shuffle(parts)
        total = sum(p.shape[d] for p in parts)
        shape = (*x.shape[:d], total, *x.shape[d + 1 :])
        self.add("cat", [[Ref(p.name) for p in parts], d], x, shape=shape, ones=x.ones - {d}, bound=max(p.bound for p in parts), exact=all(p.exact for p in parts))

    def part(self, x: Value, d: int, n: int) -> Value:
        """Return what has the sizes of x but along axis d."""

        def sized(m: int) -> dict[str, Any]:
            return dict(shape=(*x.shape[:d], m, *x.shape[d + 1 :]), ones=x.ones - {d} | ({d} if m == 1 else set()), keep=False)

        kind = self.rng.choice(("slice", "slice", "pad", "crop", "repeat", "fold", "gather", "same"))
        if kind == "slice":
            a = self.rng.randrange(n)
            b = self.rng.randint(a + 1, n)
            starts, ends = [a if e == d else 0 for e in range(x.rank)], [b if e == d else m for e, m in enumerate(x.shape)]
            return self.add("slice", [Ref(x.name), starts, ends], x, **sized(b - a))
        if kind in ("pad", "crop"):
            left, right = (self.rng.choice((0, 1, 3)), self.rng.choice((1, 2))) if kind == "pad" else (-self.rng.randint(0, n // 2), self.rng.choice((-(n - 1) // 2, 2)))
            need(left + right + n > 0 and (left or right))
            return self.add("pad", [Ref(x.name), [0] * (2 * (x.rank - 1 - d)) + [left, right]], x, **sized(n + left + right))
        if kind == "repeat":
            m = self.rng.choice((2, 3))
            one = self.add("select", [Ref(x.name), self.rng.randrange(n), d], x, shape=x.shape[:d] + x.shape[d + 1 :], ones=frozenset(o - (o > d) for o in x.ones if o != d), keep=False)
            wide = sized(m)
            return self.add("broadcast_in_dim", [Ref(one.name), list(wide["shape"]), [e for e in range(x.rank) if e != d]], x, **wide)
        if kind == "fold":
            need(x.is_real_float)
            return self.add("max", [Ref(x.name), [d], True], x, keep=False, **self.folded(x, [d], True))
        if kind == "gather":
            need(not x.ones)
            m = self.rng.choice((2, 4))
            return self.add("index_select", [Ref(x.name), Ref(self.index((m,), n).name), d], x, **sized(m))
        return self.add("neg", [Ref(x.name)], x, keep=False) if x.dtype in (D.Float, D.Double, D.Int, D.Int32) else x

    # -- positions
    def place_of_extreme(self) -> None:
        """argmax and argmin of any real type, of all elements too; the position is used as an index, or in arithmetic."""
        x = self.pick(lambda v: v.exact and v.rank > 0 and not v.dtype.is_bool and not v.dtype.is_complex and not v.dtype.is_narrow_float and 0 not in v.shape)
        op, keep = self.rng.choice(("argmax", "argmin")), self.chance(0.5)
        if self.chance(0.2):
            need(not x.ones and 1 not in x.shape)
            self.add(op, [Ref(x.name), None, keep], x, bound=5000.0, exact=True, **self.folded(x, list(range(x.rank)), keep))
            return
        d = self.rng.randrange(x.rank)
        at = self.add(op, [Ref(x.name), d - x.rank * self.chance(0.3), keep], x, bound=100.0, exact=True, **self.folded(x, [d], keep))
        if keep and not x.ones:
            self.add("take_along_axis", [Ref(x.name), Ref(at.name), d], x, **self.folded(x, [d], True))

    def places_of_largest(self) -> None:
        """The positions of topk, along any axis and of any type; what a gather finds there are its values, whichever of equal elements it took."""
        x = self.pick(lambda v: v.exact and v.rank > 0 and not v.ones and v.dtype in (D.Float, D.Double, D.Half, D.BFloat16, D.Int, D.Int32) and 0 not in v.shape)
        d = self.rng.randrange(x.rank)
        need(x.shape[d] > 1)
        k = self.rng.randint(2, min(10, x.shape[d]))
        shape = tuple(k if e == d else n for e, n in enumerate(x.shape))
        values = self.add("topk", [Ref(x.name), k, d, self.chance(0.5), True], x, targets=2, shape=shape, ones=frozenset())
        at = values.name[:-1] + "b"
        self.add("gather", [Ref(x.name), Ref(at), d], x, shape=shape, ones=frozenset())

    def running_places(self) -> None:
        """Running extrema with their positions, along any axis and of any real type; both may be used, and a gather finds the values again."""
        x = self.pick(lambda v: v.exact and v.rank > 0 and not v.dtype.is_complex and not v.dtype.is_narrow_float and v.dtype is not D.UInt64 and 0 not in v.shape)
        d = self.rng.randrange(x.rank)
        values = self.add(self.rng.choice(("cummax_with_indices", "cummin_with_indices")), [Ref(x.name), d], x, targets=2, keep=self.chance(0.7))
        at = Ref(values.name[:-1] + "b")
        if self.chance(0.5) and not x.ones:
            self.add("gather", [Ref(x.name), at, d], x)
        else:
            self.add("mul", [at, 2], x, bound=200.0, exact=True)

    def running_logs(self) -> None:
        """Logarithms of running sums of exponentials, of numbers near and far apart."""
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.Double, D.BFloat16) and not v.ones))
        if self.chance(0.4) and x.dtype is not D.BFloat16:
            x = self.add("mul", [Ref(x.name), 20.0], x, bound=20 * x.bound, exact=False, keep=False)
        self.add("logcumsumexp", [Ref(x.name), self.rng.randrange(x.rank)], x, bound=x.bound + 12, exact=False)

    def scan_from_the_end(self) -> None:
        """A scan between two reversals of its axis, or of another one; ops between."""
        x = self.tamed(self.pick(lambda v: v.rank > 0 and not v.ones and v.dtype in (D.Float, D.Double, D.Int, D.Int32) and 0 not in v.shape and 1 not in v.shape))
        d = self.rng.randrange(x.rank)
        op = self.rng.choice(("cumsum", "cumsum", "cummax", "cummin"))
        n = x.shape[d]
        last = self.add("sub", [Extent(f"n{n}", x.name, d), 1], x, shape=(), keep=False)
        order = self.add("iota", [Extent(f"n{n}", x.name, d), Ref(last.name), -1, D.Int], x, shape=(n,), keep=False)
        y = self.add("index_select", [Ref(x.name), Ref(order.name), d], x, keep=False)
        if self.chance(0.4) and x.dtype is D.Float:
            y = self.add("mul", [Ref(y.name), 0.5], y, exact=False, keep=False)
        at = d if self.chance(0.9) else self.rng.randrange(x.rank)
        y = self.add(op, [Ref(y.name), at], y, bound=x.bound * (x.shape[at] if op == "cumsum" else 1), exact=y.exact and (x.dtype.is_integer or op != "cumsum"), keep=self.chance(0.2))
        if self.chance(0.3):
            y = self.add("neg", [Ref(y.name)], y, keep=self.chance(0.2))
        self.add("index_select", [Ref(y.name), Ref(order.name), d], y)

    def one_number_scattered(self) -> None:
        """One number written to positions that may occur twice, over a part of the other axes."""
        x = self.pick(lambda v: v.rank > 0 and not v.ones and not v.dtype.is_complex and not v.dtype.is_narrow_float and 0 not in v.shape)
        d = self.rng.randrange(x.rank)
        shape = tuple(self.rng.choice((2, 3, 5)) if e == d else self.rng.randint(max(1, n // 2), n) for e, n in enumerate(x.shape))
        need(1 not in shape)
        number: Any = True if x.dtype.is_bool else 3 if x.dtype.is_integer else 0.5
        self.add("scatter", [Ref(x.name), Ref(self.index(shape, x.shape[d]).name), number, d], x, bound=max(3.0, x.bound), exact=x.exact)

    def causal(self) -> None:
        x = self.pick(lambda v: v.rank > 1 and not v.ones and 1 not in v.shape)
        sizes = [Extent(f"n{x.shape[d]}", x.name, d) if self.chance(0.5) else x.shape[d] for d in (-2 % x.rank, -1 % x.rank)]
        mask = self.add("causal_mask", sizes, x, shape=x.shape[-2:], keep=False, bound=1.0, exact=True)
        if x.rank > 2:
            ones = frozenset(range(x.rank - 2))
            mask = self.add("broadcast", [Ref(mask.name), [d in ones for d in range(x.rank)]], mask, shape=(1,) * (x.rank - 2) + x.shape[-2:], ones=ones, keep=False)
        fill: Any = False if x.dtype.is_bool else 2 if x.dtype.is_integer else 0.25
        self.add("where", [Ref(mask.name), Ref(x.name), fill], x, bound=max(2.0, x.bound))

    # -- types
    def bytes_of(self) -> None:
        """Integers as integers of 8 bits, which keep their last byte, and arithmetic on them."""
        x = self.pick(lambda v: v.dtype.is_integer and v.exact)
        y = self.add("cast", [Ref(x.name), self.rng.choice((D.Byte, D.Char))], x, bound=255.0)
        if self.chance(0.5):
            self.add("cast", [Ref(y.name), self.rng.choice((D.Int32, D.Float, D.Bool, D.Half))], y)

    def down_and_up(self) -> None:
        """Small whole numbers through floats of 16 and of 8 bits, and back."""
        x = self.pick(lambda v: v.dtype.is_integer and v.exact and v.bound <= 128)
        y = self.add("cast", [Ref(x.name), self.rng.choice((D.BFloat16, D.Half))], x, keep=self.chance(0.3))
        z = self.add("cast", [Ref(y.name), self.rng.choice((D.Float8_e4m3fn, D.Float8_e5m2))], y, bound=160.0)
        self.add("cast", [Ref(z.name), self.rng.choice((D.Float, D.Half, D.BFloat16))], z, exact=True)

    # -- patterns that passes over graphs replace
    def picked_sum(self) -> None:
        """A sum of which each row keeps one element, or none."""
        x = self.tamed(self.pick(lambda v: v.rank > 1 and not v.ones and v.dtype in (D.Float, D.Double) and 1 not in v.shape and 0 not in v.shape))
        d = self.rng.randrange(x.rank)
        n, others = x.shape[d], frozenset(range(x.rank)) - {d}
        line = self.add("iota", [Extent(f"n{n}", x.name, d), 0, 1, D.Int], x, shape=(n,), keep=False)
        place = self.add("broadcast", [Ref(line.name), [e != d for e in range(x.rank)]], line, shape=tuple(n if e == d else 1 for e in range(x.rank)), ones=others, keep=False)
        wanted = self.index(tuple(m for e, m in enumerate(x.shape) if e != d), n + 2)
        wide = self.add("broadcast", [Ref(wanted.name), [e == d for e in range(x.rank)]], wanted, shape=tuple(1 if e == d else m for e, m in enumerate(x.shape)), ones=frozenset({d}), keep=False)
        test = self.add("eq", [Ref(place.name), Ref(wide.name)], x, keep=False)
        chosen = self.add("where", [Ref(test.name), Ref(x.name), 0.0], x, keep=False)
        if self.chance(0.4):
            row = self.add("max", [Ref(x.name), [d], True], x, keep=False, **self.folded(x, [d], True))
            chosen = self.add("add", [Ref(chosen.name), Ref(row.name)], x, exact=False, keep=False)
        keep = self.chance(0.5)
        total = self.add("sum", [Ref(chosen.name), [d], keep], x, exact=False, keep=False, **self.folded(x, [d], keep))
        self.add("mul", [Ref(total.name), 1.0 / n], total, bound=2 * x.bound)

    def factored_sums(self) -> None:
        """Two or three sums over outer axes whose terms differ in factors of the inner ones."""
        x = self.tamed(self.pick(lambda v: v.rank > 1 and not v.ones and v.dtype in (D.Float, D.Double, D.BFloat16) and 1 not in v.shape and 0 not in v.shape))
        dims = sorted(self.rng.sample(range(x.rank - 1), self.rng.randint(1, x.rank - 1)))
        factor = self.input((1,) * (x.rank - 1) + x.shape[-1:], "Float", keep=False)
        n, keep = math.prod(x.shape[d] for d in dims), self.chance(0.5)
        for product in ([x], [x, factor], [factor, x, factor])[: self.rng.randint(2, 3)]:
            term = product[0]
            for more in product[1:]:
                term = self.add("mul", [Ref(term.name), Ref(more.name)], x, bound=term.bound * more.bound, exact=False, keep=False)
            total = self.add("sum", [Ref(term.name), dims, keep], x, bound=term.bound * n, exact=False, keep=False, **self.folded(x, dims, keep))
            self.add("mul", [Ref(total.name), 1.0 / n], total, bound=term.bound)

    def padded_fold(self) -> None:
        """A fold of a padded or cropped tensor, perhaps with a cast between."""
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.Double, D.BFloat16, D.Int, D.Int32) and 0 not in v.shape))
        op = self.rng.choice(("sum", "max", "min", "prod"))
        if op == "prod":
            x = self.add("remainder", [Ref(x.name), 2], x, bound=1.0, keep=False) if x.dtype.is_integer else self.add("tanh", [Ref(x.name)], x, bound=1.0, exact=False, keep=False)
        left, right = self.rng.choice((0, 1, 2, 33)), self.rng.choice((0, 1, 5, -1))
        need((left or right) and x.shape[-1] + left + right > 0)
        of_fold: Any = {"sum": 0, "prod": 1, "max": -10, "min": 10}[op]
        if not x.dtype.is_integer:
            of_fold = float(of_fold) if op in ("sum", "prod") else float("-inf") if op == "max" else float("inf")
        shape = (*x.shape[:-1], x.shape[-1] + left + right)
        need(x.shape[-1] > 1 or right >= 0)  # nothing of x is left
        padded = self.add("pad", [Ref(x.name), [left, right], of_fold], x, shape=shape, ones=x.ones - {x.rank - 1} | ({x.rank - 1} if shape[-1] == 1 else set()), bound=max(x.bound, 10.0), keep=False)
        if x.dtype in (D.BFloat16, D.Int32):
            padded = self.add("cast", [Ref(padded.name), D.Float if x.dtype is D.BFloat16 else D.Int], padded, keep=False)
        dims = sorted({x.rank - 1, *self.rng.sample(range(x.rank), self.rng.randint(0, x.rank))})
        keep, n = self.chance(0.5), math.prod(shape[d] for d in dims)
        y = self.add(op, [Ref(padded.name), dims, keep], padded, bound=x.bound * n if op == "sum" else max(x.bound, 10.0), exact=x.exact and (x.dtype.is_integer or op in ("max", "min")), **self.folded(padded, dims, keep))
        if op == "sum" and not y.dtype.is_integer:
            self.add("mul", [Ref(y.name), 1.0 / n], y, bound=x.bound, exact=False)

    # -- folds
    def welford_of(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.Double) and 0 not in v.shape))
        dims = sorted(self.rng.sample(range(x.rank), self.rng.randint(1, min(2, x.rank))))
        n = math.prod(x.shape[d] for d in dims)
        mean = self.add("welford", [Ref(x.name), dims], x, targets=3, exact=False, **self.folded(x, dims, False))
        squares = self.other_result(mean, "b", bound=4 * n * x.bound**2)
        self.made.remove(squares)
        self.add("mul", [Ref(squares.name), 1.0 / n], squares, bound=4 * x.bound**2)

    def channel_norm(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank in (3, 4) and v.dtype in (D.Float, D.BFloat16) and not v.ones and 1 not in v.shape and 0 not in v.shape))
        weight, bias = (self.input(x.shape[1:2], "Float", keep=False) for _ in range(2))
        op = self.rng.choice(("batch_norm", "instance_norm"))
        training: dict[str, Any] = {"training": True} if op == "batch_norm" else {}
        kwargs = {"weight": Ref(weight.name), "bias": Ref(bias.name), **training, "eps": 0.1}
        self.add(op, [Ref(x.name)], x, kwargs=kwargs, bound=3 * math.sqrt(math.prod(x.shape)) + 3, exact=False)

    def loss_of_logits(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank == 2 and v.is_real_float and not v.ones and 1 not in v.shape and 0 not in v.shape))
        op = self.rng.choice(("cross_entropy", "binary_cross_entropy_with_logits", "kl_div"))
        reduction = self.rng.choice(("mean", "none"))
        if op == "cross_entropy":
            target = self.index(x.shape[:1], x.shape[1])
            done = dict(shape=() if reduction == "mean" else x.shape[:1], ones=frozenset())
            kwargs = {"reduction": reduction, "label_smoothing": self.rng.choice((0.0, 0.1))}
            self.add(op, [Ref(x.name), Ref(target.name)], x, kwargs=kwargs, bound=2 * x.bound + 5, exact=False, **done)
            return
        target = self.moved_into(self.input(x.shape, x.dtype.name, keep=False), ABOVE_HALF)
        done = dict(shape=(), ones=frozenset()) if reduction == "mean" else {}
        self.add(op, [Ref(x.name), Ref(target.name), reduction], x, bound=5 * x.bound + 10, exact=False, **done)

    def blocks(self) -> None:
        """Largest magnitudes of blocks of neighbours, and their mixtures."""
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype in (D.Float, D.BFloat16, D.Half) and v.shape[-1] % 16 == 0 and 0 not in v.shape))
        if self.chance(0.5):
            self.add("block_amax", [Ref(x.name), self.rng.choice((4, 8, 16))], x)
        else:
            self.add("block_hadamard", [Ref(x.name), list(SIGNS)], x, bound=4 * x.bound, exact=False)

    POSITION_STEPS = (
        (with_ones, 4), (named_view, 2), (merged_scan, 2), (joined_parts, 3), (place_of_extreme, 1.5), (places_of_largest, 1), (running_places, 2), (running_logs, 1), (scan_from_the_end, 1.5), (one_number_scattered, 1), (causal, 1), (bytes_of, 1), (down_and_up, 1),
        (picked_sum, 1.5), (factored_sums, 1.5), (padded_fold, 2), (welford_of, 1), (channel_norm, 1), (loss_of_logits, 1), (blocks, 1),
    )  # fmt: skip


__all__ = ["WidePositions"]
