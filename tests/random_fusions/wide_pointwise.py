"""The pointwise ops, composites and folds that `Everything` does not draw, each with operands that keep its result bounded and continuous.

Read first: `SMOOTH`, then `WidePointwise.SMALL_STEPS`.
"""

from __future__ import annotations

import math
from typing import Any

from everything_generator import D, Value, need
from fusion_case import Ref
from mixed_generator import Mixed

UNIT, ABOVE_HALF, ABOVE_ONE, SMALL, BETWEEN, ANY = "unit", "above half", "above one", "small", "between", "any"
"""Where an op's operand lies: in (-0.9, 0.9), from 0.5, from 1.1, in (-3, 3), in (0.1, 1.9), or anywhere."""
SMOOTH: dict[str, tuple[str, float]] = {
    "acos": (UNIT, 3.0), "asin": (UNIT, 1.6), "atanh": (UNIT, 1.5), "erfinv": (UNIT, 1.2), "tan": (UNIT, 1.3), "acosh": (ABOVE_ONE, 0.0), "erfcinv": (BETWEEN, 1.2),
    "log": (ABOVE_HALF, 0.0), "log2": (ABOVE_HALF, 0.0), "log10": (ABOVE_HALF, 0.0), "lgamma": (ABOVE_HALF, 200.0), "reciprocal": (ABOVE_HALF, 2.0), "exp2": (SMALL, 8.0),
    "expm1": (SMALL, 20.0), "sinh": (SMALL, 11.0), "cosh": (SMALL, 11.0), "asinh": (ANY, 0.0), "atan": (ANY, 1.6), "erfc": (ANY, 2.0), "celu": (ANY, 0.0), "elu": (ANY, 0.0),
    "gelu": (ANY, 0.0), "hardsigmoid": (ANY, 1.0), "hardswish": (ANY, 0.0), "hardtanh": (ANY, 1.0), "leaky_relu": (ANY, 0.0), "logsigmoid": (ANY, 0.0), "mish": (ANY, 0.0),
    "relu6": (ANY, 6.0), "selu": (ANY, 0.0), "softplus": (ANY, 0.0), "softshrink": (ANY, 0.0), "softsign": (ANY, 1.0), "tanhshrink": (ANY, 0.0), "square": (ANY, -1.0),
}  # fmt: skip
"""Op: (where its operand lies, a bound of its result; 0: about that of the operand, -1: the operand's square)."""
STEPPED = ("floor", "ceil", "round", "trunc", "sign", "frac", "hardshrink")
"""Ops that jump: of exact operands only."""
TESTS = ("isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "signbit")


class WidePointwise(Mixed):
    """Steps that change values and fold them."""

    def floating(self, rounded: bool = True) -> Value:
        """Pick a real float that products can take, of 16 bits or more."""
        return self.tamed(self.pick(lambda v: v.is_real_float and (rounded or v.exact)))

    def moved_into(self, x: Value, where: str) -> Value:
        """Return what has x's sizes and lies where an op wants it."""
        if where == ANY:
            return x
        if where in (ABOVE_HALF, ABOVE_ONE):
            positive = self.add("abs", [Ref(x.name)], x, keep=False)
            return self.add("add", [Ref(positive.name), 0.5 if where == ABOVE_HALF else 1.1], x, bound=x.bound + 1.1, exact=False, keep=False)
        small = self.add("tanh", [Ref(x.name)], x, bound=1.0, exact=False, keep=False)
        small = self.add("mul", [Ref(small.name), 3.0 if where == SMALL else 0.9], x, bound=3.0, exact=False, keep=False)
        return self.add("add", [Ref(small.name), 1.0], x, bound=2.0, exact=False, keep=False) if where == BETWEEN else small

    # -- one operand
    def smooth(self) -> None:
        x = self.floating()
        op = self.rng.choice(list(SMOOTH))
        where, bound = SMOOTH[op]
        x = self.moved_into(x, where)
        args: list[Any] = [Ref(x.name), *((self.rng.choice(("tanh", "none")),) if op == "gelu" else ())]
        self.add(op, args, x, bound=bound if bound > 0 else x.bound**2 if bound else x.bound + 2, exact=False)

    def stepped(self) -> None:
        x = self.floating(rounded=False)
        need(x.dtype is not D.Double)  # an exact double is one only in float64
        self.add(self.rng.choice(STEPPED), [Ref(x.name)], x, bound=x.bound + 1, exact=True)

    def test(self) -> None:
        x = self.pick(lambda v: v.exact and not v.dtype.is_bool and not v.dtype.is_complex)
        self.add(self.rng.choice(TESTS), [Ref(x.name)], x, bound=1.0, exact=True)

    def like(self) -> None:
        x = self.pick(lambda v: 1 not in v.shape)
        op = self.rng.choice(("zeros_like", "ones_like", "full_like"))
        self.add(op, [Ref(x.name), *((1,) if op == "full_like" else ())], x, bound=1.0, exact=True)

    # -- two operands
    def smooth_binary(self) -> None:
        x = self.floating()
        y = self.partner(x)
        need(y.is_real_float)
        y = self.tamed(y)
        op = self.rng.choice(("atan2", "pow", "truediv", "div", "swiglu", "geglu", "reglu"))
        both = self.joined(x, y)
        if op in ("atan2", "truediv", "div"):
            y = self.moved_into(y, ABOVE_HALF)
        elif op == "pow":
            x, y = self.moved_into(x, ABOVE_HALF), self.moved_into(y, UNIT)
        bound = {"atan2": 1.6, "pow": x.bound + 2, "truediv": 2 * x.bound, "div": 2 * x.bound}.get(op, x.bound * y.bound)
        self.add(op, [Ref(x.name), Ref(y.name)], x, bound=bound, exact=False, **both)

    def integer_pair(self) -> None:
        """Quotients, remainders and shifts by tensors; no divisor is 0."""
        x = self.tamed(self.pick(lambda v: v.dtype.is_integer))
        y = self.partner(x)
        need(y.dtype.is_integer)
        op = self.rng.choice(("div", "remainder", "fmod", "mod", "gcd", "bitwise_left_shift", "bitwise_right_shift", "logical_right_shift", "bitwise_and", "bitwise_or", "bitwise_xor"))
        need(not (op == "logical_right_shift" and x.bound < 256 and x.dtype.bits == 8))
        y = self.add("bitwise_and" if "shift" in op else "bitwise_or", [Ref(y.name), 3 if "shift" in op else 1], y, bound=max(3.0, y.bound + 1), keep=False)
        bound = {"bitwise_left_shift": 8 * x.bound, "logical_right_shift": 2.0**62}.get(op, 2 * (x.bound + y.bound))
        z = self.add(op, [Ref(x.name), Ref(y.name)], x, bound=bound, keep=op != "logical_right_shift", **self.joined(x, y))
        if op == "logical_right_shift":
            self.add("bitwise_and", [Ref(z.name), 63], z, bound=63.0)

    def complex_of(self) -> None:
        x = self.tamed(self.pick(lambda v: v.dtype in (D.Float, D.Double)))
        y = self.partner(x)
        need(y.dtype is x.dtype)
        self.add("complex", [Ref(x.name), Ref(y.name)], x, bound=x.bound + y.bound, exact=x.exact and y.exact, **self.joined(x, y))

    def masked_fill(self) -> None:
        x = self.pick(lambda v: not v.dtype.is_bool)
        m = self.partner(x)
        need(m.dtype.is_bool)
        self.add("masked_fill", [Ref(x.name), Ref(m.name), 2], x, bound=max(2.0, x.bound), **self.joined(x, m))

    # -- composites over axes
    def normalized(self) -> None:
        x = self.floating()
        need(x.rank)
        op = self.rng.choice(("softmax", "log_softmax", "softmin", "logsumexp", "layer_norm", "rms_norm", "normalize"))
        if op in ("layer_norm", "rms_norm"):
            need(x.shape[-1] > 3 and x.dtype is D.Float)
            self.add(op, [Ref(x.name), [x.shape[-1]]], x, kwargs={"eps": 0.1}, bound=math.sqrt(x.shape[-1]), exact=False)
            return
        d = self.rng.randrange(x.rank)
        if op == "normalize":
            x = self.moved_into(x, ABOVE_HALF)
            self.add(op, [Ref(x.name), 2.0, d], x, bound=1.0, exact=False)
        elif op == "logsumexp":
            keep = self.chance(0.5)
            self.add(op, [Ref(x.name), [d], keep], x, bound=x.bound + 12, exact=False, **self.folded(x, [d], keep))
        else:
            self.add(op, [Ref(x.name), d - x.rank * self.chance(0.5)], x, bound=2 * x.bound + 12, exact=False)

    def fold_by_name(self) -> None:
        x = self.floating()
        need(x.rank)
        dims = sorted(self.rng.sample(range(x.rank), self.rng.randint(1, x.rank)))
        keep = self.chance(0.5)
        op = self.rng.choice(("mean", "amax", "amin", "norm", "std"))
        args: list[Any] = [Ref(x.name), dims, keep]
        if op in ("norm", "std"):
            x = self.moved_into(x, ABOVE_HALF)
            need(op == "norm" or x.dtype in (D.Float, D.Double) and all(x.shape[d] > 3 for d in dims))
            args = [Ref(x.name), 2.0, dims, keep] if op == "norm" else [Ref(x.name), dims, 1, keep]
        n = math.prod(x.shape[d] for d in dims)
        y = self.add(op, args, x, bound=x.bound * (math.sqrt(n) if op == "norm" else 1), exact=x.exact and op in ("amax", "amin"), **self.folded(x, dims, keep))
        if op == "std":  # of equal values it has no derivative
            self.made.remove(y)
            self.add("square", [Ref(y.name)], y, bound=x.bound**2)

    def truth(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.exact and not v.dtype.is_complex)
        dims = sorted(self.rng.sample(range(x.rank), self.rng.randint(1, x.rank)))
        keep = self.chance(0.5)
        self.add(self.rng.choice(("any", "all")), [Ref(x.name), dims, keep], x, bound=1.0, exact=True, **self.folded(x, dims, keep))

    def complex_fold(self) -> None:
        x = self.tamed(self.pick(lambda v: v.rank > 0 and v.dtype.is_complex))
        d = self.rng.randrange(x.rank)
        y = self.add("sum", [Ref(x.name), [d], True], x, keep=False, **self.folded(x, [d], True))
        y = self.add("mul", [Ref(y.name), 1.0 / max(1, x.shape[d])], y, bound=x.bound, exact=False)
        self.add("sub", [Ref(x.name), Ref(y.name)], x, bound=2 * x.bound, exact=False)

    def loss(self) -> None:
        x = self.floating()
        y = self.pick(lambda v: v.shape == x.shape and v.dtype is x.dtype and v.ones == x.ones)
        y = self.tamed(y)
        op = self.rng.choice(("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"))
        need(x.rank and 0 not in x.shape)
        reduction = self.rng.choice(("mean", "none"))
        folded = self.folded(x, list(range(x.rank)), False) if reduction == "mean" else {}
        self.add(op, [Ref(x.name), Ref(y.name), reduction], x, bound=(x.bound + y.bound) ** 2, exact=False, **folded)

    SMALL_STEPS = (
        (smooth, 7), (stepped, 1.5), (test, 1.5), (like, 0.5), (smooth_binary, 3), (integer_pair, 2), (complex_of, 0.7), (masked_fill, 2), (normalized, 3), (fold_by_name, 3),
        (truth, 1), (complex_fold, 0.7), (loss, 0.7),
    )  # fmt: skip


__all__ = ["WidePointwise"]
