"""Random definitions that fold groups of rows, some of which they normalize before, between or behind: compared with the reference, in any order in memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.options import options

TORCH = {DataType.BFloat16: torch.bfloat16, DataType.Half: torch.float16, DataType.Float: torch.float32, DataType.Double: torch.float64}


class Drawn:
    """A definition, drawn by a seed. The last three axes of its inputs are a row; groups are the last one or two."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        rows = [draw.choice([1, 2, 3, 7]) for _ in range(draw.choice([1, 1, 2]))]
        self.shape = [*rows, draw.choice([1, 2, 3, 5, 8, 33]), draw.choice([1, 2, 3, 4, 8, 16]), draw.choice([2, 4, 5, 6, 8, 16, 32, 48])]
        self.first, self.dtype = len(rows), draw.choice(list(TORCH))
        self.row = [self.first + n for n in range(3)]
        self.order = list(range(len(self.shape)))[::-1]
        if draw.random() < 0.25:
            draw.shuffle(self.order)
        self.inputs = draw.choice([1, 2])
        with FusionDefinition() as self.fd:
            self.define()

    def define(self) -> None:
        fd, draw = self.fd, self.draw
        is_static, wide = draw.random() < 0.5, DataType.Double if self.dtype is DataType.Double else DataType.Float
        sizes = [n if is_static or d > self.first else -1 for d, n in enumerate(self.shape)]
        given = [fd.define_tensor(shape=sizes, contiguity=True, dtype=self.dtype, stride_order=self.order) for _ in range(self.inputs)]
        y, *more = (fd.ops.cast(t, wide) for t in given)
        for other in more:
            y = fd.ops.add(y, other)
        outputs = []
        for _ in range(draw.choice([1, 2, 3])):
            y = self.normalized(y) if draw.random() < 0.7 else y
            y, scale = self.scaled(y)
            if draw.random() < 0.5:
                outputs.append(scale)
        outputs += [fd.ops.sum(y, dims) for dims in (self.row, list(range(self.first))) if draw.random() < 0.25]
        for out in (y, *outputs):
            fd.add_output(fd.ops.cast(out, draw.choice([wide, self.dtype])))

    def normalized(self, y: Any) -> Any:
        o, row, kind = self.fd.ops, self.row, self.draw.choice(["rms", "layer", "softmax", "max"])
        if kind == "rms":
            return o.mul(y, o.rsqrt(o.add(o.mean(o.mul(y, y), row, keepdim=True), 1e-3)))
        if kind == "layer":
            var, mean = o.var_mean(y, row, correction=0, keepdim=True)
            return o.mul(o.sub(y, mean), o.rsqrt(o.add(var, 1e-3)))
        if kind == "softmax":
            e = o.exp(o.sub(y, o.max(y, row, True)))
            return o.mul(o.div(e, o.sum(e, row, True)), 100.0)
        return o.div(y, o.add(o.max(o.abs(y), row, True), 0.5))

    def scaled(self, y: Any) -> tuple[Any, Any]:
        """Divide groups by something of theirs; return that, too."""
        o, draw = self.fd.ops, self.draw
        dims = draw.choice([self.row[2:], self.row[1:]])
        kind = draw.choice(["max", "amax", "min", "sum", "mean", "var"])
        if kind == "var":
            var, mean = o.var_mean(y, dims, correction=0, keepdim=True)
            y, scale = o.sub(y, mean), o.sqrt(o.add(var, 1e-2))
        else:
            fold = {"max": o.max, "amax": o.max, "min": o.min, "sum": o.sum, "mean": o.mean}[kind]
            scale = fold(o.abs(y) if kind in ("amax", "sum") else y, dims, keepdim=True)
        if draw.random() < 0.4:
            others = [d for d in self.row if d not in dims]
            scale = o.add(o.abs(scale), o.max(o.abs(scale), others, True)) if draw.random() < 0.6 else o.mul(scale, 1.5)
        y = o.div(y, o.add(o.abs(scale), 0.75))
        return y, o.squeeze(scale, dims) if draw.random() < 0.5 else scale

    def tensors(self) -> list[torch.Tensor]:
        made = torch.Generator().manual_seed(self.draw.randrange(1 << 30))
        outermost = sorted(range(len(self.shape)), key=lambda d: -self.order[d])
        flat = (torch.randn([self.shape[d] for d in outermost], generator=made).to(TORCH[self.dtype]) for _ in range(self.inputs))
        return [t.permute([outermost.index(d) for d in range(len(self.shape))]) for t in flat]


@pytest.mark.parametrize("seed", range(24))
def test_random_definitions_with_groups(seed: int) -> None:
    drawn = Drawn(seed)
    with options(check="races", strict_schedules=True):
        drawn.fd.validate(drawn.tensors())


def test_most_of_them_are_one_kernel() -> None:
    """And fold groups in it."""
    found = []
    for seed in range(8):
        drawn = Drawn(seed)
        with options(check="races"):
            drawn.fd.execute(drawn.tensors())
        found.append([r.program.text for r in drawn.fd.fec.kernel_runtimes])
    assert sum(len(texts) == 1 and "weft::fold_" in texts[0] for texts in found) >= 4
