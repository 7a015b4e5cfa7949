"""Random graphs of what the other generators leave out: floats of 8 and 4 bits, reshapes without a common factor, axes cut up and put together in another
order, repeated and turned axes, computed positions, sums into positions, masks of positions, windows, batched products and attention, orders of axes in
memory, outputs given twice.

Read first: `Wide.WIDE_STEPS`. The pointwise ops and folds are in `wide_pointwise`, the other steps over positions and axes in `wide_positions`.
"""

from __future__ import annotations

import math
from typing import Any

from everything_generator import EXTENTS, D, Everything, Shape, Value, need
from fusion_case import Extent, Ref, TensorInput, references
from mixed_generator import Mixed
from wide_positions import WidePositions

NARROW_TYPES = ("Float8_e4m3fn", "Float8_e4m3fn", "Float8_e5m2")
MOVES = ("with_ones", "named_view", "permute", "reshape", "slice", "expand", "squeeze", "index_select", "select", "gather", "take_along_axis", "set", "cat", "widened", "reshape_anew", "shuffled", "turned", "ordered", "flat")
"""Steps that take floats of 8 bits as they are."""
TAKES_NOTHING = ("permute", "reshape_anew", "shuffled", "turned", "ordered", "flat", "stepped", "smooth", "smooth_binary", "integer_pair", "truth", "like", "masked_fill", "positions_mask", "product_of_two")
"""Steps that take empty tensors, beside those of `Mixed`."""

SPECIALS = 0.1
"""The part of the graphs in whose inputs some floats are no number or infinite. These have no complex numbers, for which torch multiplies 0 and infinity on the
way, and no such number in tensors that are broadcast: an infinite factor of all terms of a sum is multiplied with the sum."""


class Wide(WidePositions):
    """One graph in the making."""

    TRIES = 12
    SIZES = (*EXTENTS, 100, 128, 257)
    takes_narrow = False
    """Whether the step that is drawn takes floats of 8 bits."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.specials = self.rng.choice((1, 3, 9)) if self.chance(SPECIALS) else 0

    def input(self, shape: Shape, dtype: str, below: int = 0, keep: bool = True) -> Value:
        """Add an input; floats of 8 bits come with a wide copy."""
        if self.specials and getattr(D, dtype).is_complex:
            dtype = "Float"
        is_narrow = keep and not below and self.chance(0.12)
        if not is_narrow:
            return super().input(shape, dtype, below, keep)
        value = Everything.input(self, shape, self.rng.choice(NARROW_TYPES), keep=False)
        wide = self.add("cast", [Ref(value.name), self.rng.choice((D.Float, D.Float, D.BFloat16))], value, exact=True, is_input=False)
        self.made.append(value)
        return wide

    def add(self, op: str, args: list[Any], like: Value | None, **how: Any) -> Value:
        value = super().add(op, args, like, **how)
        need(not (self.specials and value.dtype.is_complex))
        return value

    def pick(self, wanted: Any = lambda v: True) -> Value:
        """Pick one of the last values more often than not, so that ops follow each other."""
        takes_narrow = self.takes_narrow
        last = {v.name for v in self.made[-3:]} if self.chance(0.5) else set()
        if any(v.name in last and wanted(v) for v in self.made):
            return super().pick(lambda v: v.name in last and wanted(v) and (takes_narrow or not v.dtype.is_narrow_float))
        return super().pick(lambda v: wanted(v) and (takes_narrow or not v.dtype.is_narrow_float))

    def partner(self, x: Value) -> Value:
        y = super().partner(x)
        need(self.takes_narrow or not y.dtype.is_narrow_float)
        return y

    def draw(self, kind: Any) -> None:
        self.takes_narrow = kind.__name__ in MOVES
        self.takes_nothing = kind.__name__ in (*self.TAKES_NOTHING, *TAKES_NOTHING)
        kind(self)

    # -- types
    def of_four_bits(self) -> None:
        """An input of floats of 4 bits, whose rows have an even length, and its wide copy."""
        x = self.pick(lambda v: v.rank > 0 and v.shape[-1] % 2 == 0 and 0 not in v.shape)
        name = f"x{len(self.inputs)}"
        made = TensorInput(name, tuple("1" if n == 1 else f"n{n}" for n in x.shape), "Float4_e2m1fn", offset=self.rng.choice((0, 0, 2)), static=self.static)
        self.sizes.update({f"n{n}": n for n in x.shape})
        self.inputs.append(made)
        self.values[name] = self.fd.define_tensor(**made.definition(self.sizes))
        ones = frozenset(d for d, n in enumerate(x.shape) if n == 1)
        self.add("cast", [Ref(name), self.rng.choice((D.Float, D.BFloat16))], x, bound=6.0, exact=True, ones=ones)

    def narrowed(self) -> None:
        """A round trip through 8 bits, of exact values: a rounding error in front of it could move the result by an eighth."""
        x = self.pick(lambda v: v.exact and v.dtype in (D.Float, D.BFloat16, D.Half) and v.bound < 400)
        narrow = self.add("cast", [Ref(x.name), self.rng.choice((D.Float8_e4m3fn, D.Float8_e5m2))], x)
        self.add("cast", [Ref(narrow.name), D.Float], narrow, exact=True)

    def widened(self) -> None:
        x = self.pick(lambda v: v.dtype.is_narrow_float)
        to = self.rng.choice((D.Float, D.Double, D.BFloat16, D.Half))
        self.add("cast", [Ref(x.name), to], x, exact=to is D.Float, is_input=False)

    # -- views
    def reshape_anew(self) -> None:
        """Sizes that need have no common factorization with the old ones, such as (4, 6) to (6, 4)."""
        x = self.pick(lambda v: v.rank > 0 and not v.ones)
        total = math.prod(x.shape)
        shape = self.factors(total) if total else [0, *self.rng.sample((2, 3, 5), self.rng.randint(0, 2))]
        need(1 not in shape)
        asked = [self.number(n) if self.chance(0.3) and n else n for n in shape]
        if total and self.chance(0.25):
            asked[self.rng.randrange(len(asked))] = -1
        self.add("reshape", [Ref(x.name), asked], x, shape=tuple(shape), ones=frozenset(), is_input=x.is_input)

    def flat(self) -> None:
        x = self.pick(lambda v: v.rank > 1 and not v.ones)
        first = self.rng.randrange(x.rank - 1)
        last = self.rng.randint(first + 1, x.rank - 1)
        shape = (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
        self.add("flatten", [Ref(x.name), first, last - x.rank * self.chance(0.5)], x, shape=shape, ones=frozenset(), is_input=x.is_input)

    def repeated(self) -> None:
        """Expand a new axis and merge it with a neighbour: repeat and repeat_interleave."""
        x = self.pick(lambda v: 0 < v.rank < 5 and not v.ones)
        at, n = self.rng.randint(0, x.rank), self.rng.choice((2, 3, 4))
        shape = [*x.shape[:at], n, *x.shape[at:]]
        wide = self.add("broadcast_in_dim", [Ref(x.name), shape, [d for d in range(x.rank + 1) if d != at]], x, shape=tuple(shape), keep=self.chance(0.2))
        first = max(0, at - 1) if at == x.rank or self.chance(0.5) else at
        merged = (*shape[:first], shape[first] * shape[first + 1], *shape[first + 2 :])
        self.add("reshape", [Ref(wide.name), list(merged)], wide, shape=merged)

    def shuffled(self) -> None:
        """Cut an axis into unequal parts and put them together in another order, some twice or not at all."""
        x = self.pick(lambda v: v.rank > 0 and max(v.shape) > 2)
        d = self.rng.choice([d for d, n in enumerate(x.shape) if n > 2])
        n = x.shape[d]
        cuts = [0, *sorted(self.rng.sample(range(1, n), self.rng.randint(1, min(4, n - 1)))), n]
        parts = []
        for a, b in zip(cuts, cuts[1:]):
            starts, ends = [a if e == d else 0 for e in range(x.rank)], [b if e == d else m for e, m in enumerate(x.shape)]
            shape = tuple(b - a if e == d else m for e, m in enumerate(x.shape))
            ones = frozenset(e for e, m in enumerate(shape) if m == 1)
            part = self.add("slice", [Ref(x.name), starts, ends], x, shape=shape, ones=ones, keep=False)
            if x.dtype in (D.Float, D.Double, D.Int) and self.chance(0.3):  # of 16 bits it would be wider
                part = self.add("neg", [Ref(part.name)], part, keep=False)
            parts.append(part)
        self.rng.shuffle(parts)
        parts = parts[: max(2, self.rng.randint(1, len(parts)))]
        shape = tuple(sum(p.shape[d] for p in parts) if e == d else m for e, m in enumerate(x.shape))
        ones = frozenset(e for e, m in enumerate(shape) if m == 1)
        self.add("cat", [[Ref(p.name) for p in parts], d - x.rank * self.chance(0.3)], x, shape=shape, ones=ones, is_input=False)

    def half_by_size(self) -> None:
        """A slice whose bounds are computed from a size."""
        x = self.pick(lambda v: v.rank > 0 and max(v.shape) > 3)
        d = self.rng.choice([d for d, n in enumerate(x.shape) if n > 3])
        half = Value(f"v{len(self.nodes)}", (), frozenset(), D.Int, 1.0, True)
        self.add("div", [Extent(f"n{x.shape[d]}", x.name, d), 2], half, keep=False)
        is_low = self.chance(0.5)
        starts: list[Any] = [0 if is_low or e != d else Ref(half.name) for e in range(x.rank)]
        ends: list[Any] = [Ref(half.name) if is_low and e == d else Extent(f"n{n}", x.name, e) for e, n in enumerate(x.shape)]
        shape = tuple((n // 2 if is_low else n - n // 2) if e == d else n for e, n in enumerate(x.shape))
        self.add("slice", [Ref(x.name), starts, ends], x, shape=shape, ones=frozenset(e for e, n in enumerate(shape) if n == 1))

    def turned(self) -> None:
        x = self.pick(lambda v: v.rank > 1)
        a, b = self.rng.sample(range(x.rank), 2)
        order = list(range(x.rank))
        order[a], order[b] = b, a
        ones = frozenset(n for n, d in enumerate(order) if d in x.ones)
        self.add("transpose", [Ref(x.name), a, b - x.rank * self.chance(0.5)], x, shape=tuple(x.shape[d] for d in order), ones=ones, is_input=x.is_input)

    def ordered(self) -> None:
        """The same values, with axes in another order in memory."""
        x = self.pick(lambda v: v.rank > 1)
        self.add("stride_order", [Ref(x.name), self.rng.sample(range(x.rank), x.rank)], x, is_input=False)

    def windows(self) -> None:
        """Tiles: split two axes, put their inner halves beside each other, and merge again or fold."""
        x = self.pick(lambda v: v.rank == 2 and not v.ones and all(n % 2 == 0 and n > 2 for n in v.shape))
        (m, n), f = x.shape, 2
        y = self.add("reshape", [Ref(x.name), [m // f, f, n // f, f]], x, shape=(m // f, f, n // f, f), keep=False)
        y = self.add("permute", [Ref(y.name), [0, 2, 1, 3]], y, shape=(m // f, n // f, f, f), keep=self.chance(0.5))
        if self.chance(0.5):
            self.add("reshape", [Ref(y.name), [m // f * (n // f), f * f]], y, shape=(m // f * (n // f), f * f))
        elif x.is_real_float:
            self.add("max", [Ref(y.name), [2, 3], False], y, shape=(m // f, n // f), ones=frozenset())

    # -- positions
    def computed_index(self) -> None:
        """Positions that the graph computes: remainders of integers, in one dimension or along an axis."""
        i = self.tamed(self.pick(lambda v: v.dtype in (D.Int, D.Int32) and v.exact and v.rank > 0 and not v.ones and 1 not in v.shape))
        x = self.pick(lambda v: v.rank > 0 and not v.dtype.is_narrow_float and not v.ones)
        d = self.rng.randrange(x.rank)
        at = self.add("remainder", [Ref(i.name), x.shape[d]], i, bound=x.shape[d], keep=self.chance(0.2))
        if i.rank == 1:
            self.add("index_select", [Ref(x.name), Ref(at.name), d], x, shape=(*x.shape[:d], i.shape[0], *x.shape[d + 1 :]), is_input=False)
            return
        need(i.rank == x.rank and all(a == b for e, (a, b) in enumerate(zip(i.shape, x.shape)) if e != d))
        self.add("take_along_axis", [Ref(x.name), Ref(at.name), d], x, shape=i.shape, is_input=False)

    def scatter_add(self) -> None:
        """Sums into positions, which may occur twice."""
        x = self.tamed(self.pick(lambda v: v.rank > 0 and not v.ones and v.dtype in (D.Float, D.Double, D.Int, D.Int32)))
        d = self.rng.randrange(x.rank)
        shape = tuple(self.rng.choice((2, 3, 5)) if e == d else self.rng.randint(max(1, n - 1), n) for e, n in enumerate(x.shape))
        need(1 not in shape)
        source = self.input(shape, x.dtype.name, keep=False)
        self.add("scatter_add", [Ref(x.name), Ref(self.index(shape, x.shape[d]).name), Ref(source.name), d], x, bound=x.bound + 15, exact=x.exact and x.dtype.is_integer)

    def positions_mask(self) -> None:
        """Compare the positions of two axes, or of one with a number, and choose by that."""
        x = self.pick(lambda v: v.rank > 1 and not v.ones)
        places = []
        for d in self.rng.sample(range(x.rank), 2):
            flat = Value(f"v{len(self.nodes)}", (x.shape[d],), frozenset(), D.Int, 100.0, True)
            self.add("iota", [Extent(f"n{x.shape[d]}", x.name, d), 0, 1, D.Int], flat, keep=False)
            shape = tuple(n if e == d else 1 for e, n in enumerate(x.shape))
            places.append(self.add("broadcast", [Ref(flat.name), [e != d for e in range(x.rank)]], flat, shape=shape, ones=frozenset(range(x.rank)) - {d}, keep=False))
        a, b = places
        shift = self.rng.choice((0, 2))
        if shift:
            b = self.add("sub", [Ref(b.name), shift], b, keep=False)
        mask = self.add(self.rng.choice(("ge", "lt", "eq")), [Ref(a.name), Ref(b.name)], a, keep=self.chance(0.6), bound=1.0, **self.joined(a, b))
        fill: Any = False if x.dtype.is_bool else 1 if x.dtype.is_integer else 0.5
        self.add("where", [Ref(mask.name), Ref(x.name), fill], x, bound=max(1.0, x.bound), is_input=False)

    def scan_of_any(self) -> None:
        """Scans of complex numbers, of axes of one element, and of integers of 8 bits."""
        x = self.tamed(self.pick(lambda v: v.rank > 0 and not v.dtype.is_bool and v.dtype not in (D.Half, D.BFloat16)))
        d = self.rng.randrange(x.rank)
        op = "cumsum" if x.dtype.is_complex else self.rng.choice(("cumsum", "cummax", "cummin"))
        self.add(op, [Ref(x.name), d], x, bound=x.bound * max(1, x.shape[d]), exact=x.exact and (x.dtype.is_integer or op != "cumsum"), is_input=False)

    def entries_of(self) -> None:
        """Gradient of an embedding: sums of rows by position."""
        entries = self.rng.choice((3, 7))
        x = self.pick(lambda v: v.rank in (2, 3) and v.dtype in (D.Float, D.BFloat16) and not v.ones)
        index = self.input(x.shape[:-1], "Int", entries, keep=False)
        need(1 not in x.shape)
        y = self.add("embedding_bwd", [Ref(x.name), Ref(index.name), entries], x, shape=(entries, x.shape[-1]), bound=x.bound * math.prod(x.shape[:-1]), exact=False)
        self.made.remove(y)
        self.add("tanh", [Ref(y.name)], y, bound=1.0)

    # -- products
    def product_of_two(self) -> None:
        """A product of two computed tensors, with batches, of 16 bits too."""
        x = self.tamed(self.pick(lambda v: v.rank > 1 and not v.ones and v.dtype in (D.Float, D.Double, D.BFloat16, D.Half)))
        batch = x.shape[:-2] if self.chance(0.7) else ()
        n = self.rng.choice((2, 5, 8))
        fitting = [v for v in self.made if v.rank > 1 and v.dtype is x.dtype and not v.ones and v.shape[-2] == x.shape[-1] and v.shape[:-2] in ((), x.shape[:-2]) and (self.takes_nothing or 0 not in v.shape)]
        y = self.tamed(self.rng.choice(fitting)) if fitting and self.chance(0.6) else self.input((*batch, x.shape[-1], n), x.dtype.name, keep=False)
        need(1 not in y.shape and 1 not in x.shape)
        z = self.add("matmul", [Ref(x.name), Ref(y.name)], x, shape=(*x.shape[:-1], y.shape[-1]), bound=1.0, exact=False, keep=False)
        self.add("tanh", [Ref(z.name)], z)

    def attention(self) -> None:
        """Scaled dot product attention of three computed or given tensors."""
        b, h, m, n, w = (self.rng.choice(c) for c in ((2, 3), (2, 4), (3, 8), (5, 8), (8, 16)))
        dtype = self.rng.choice(("BFloat16", "Half"))
        q, k, v = (self.input((b, h, rows, w), dtype, keep=False) for rows in (m, n, n))
        if self.chance(0.5):
            q = self.add("where", [self.scalar("Bool", True), Ref(q.name), Ref(q.name)], q, keep=False)
        self.add("sdpfa_fwd", [Ref(q.name), Ref(k.name), Ref(v.name)], q, targets=4, bound=3.0, exact=False, is_input=False)

    def chosen_outputs(self, ends: list[str]) -> tuple[str, ...]:
        """Return the ends that most ops lead to, one of them perhaps twice."""
        behind: dict[str, set[str]] = {}
        for node in self.nodes:
            read = {name for argument in node.args for name in references(argument)}
            behind.update(dict.fromkeys(node.targets, set().union(node.targets, *(behind.get(name, set()) for name in read))))
        outputs = tuple(sorted(dict.fromkeys(ends), key=lambda name: -len(behind[name]))[: self.rng.randint(1, 4)])
        return (*outputs, self.rng.choice(outputs)) if self.chance(0.06) else outputs

    WIDE_STEPS = (
        (of_four_bits, 0.7), (narrowed, 1), (widened, 1), (reshape_anew, 4), (flat, 1), (repeated, 2), (shuffled, 2.5), (half_by_size, 1.5), (turned, 2), (ordered, 1), (windows, 1.5), (computed_index, 2),
        (scatter_add, 1), (positions_mask, 1.5), (scan_of_any, 1), (entries_of, 0.5), (product_of_two, 1), (attention, 0.3),
    )  # fmt: skip
    STEPS = (*((kind, weight / 2) for kind, weight in Mixed.STEPS), *WidePositions.SMALL_STEPS, *WidePositions.POSITION_STEPS, *WIDE_STEPS)


__all__ = ["Wide"]
