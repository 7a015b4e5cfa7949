"""Random definitions of lookups, views, running folds, reductions and pointwise ops, against torch in float64.

The size here is for every run of the tests; `python tests/index/test_random_lookups.py 0 2000` runs more of them (seeds from, to).
"""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
import torch

if __name__ == "__main__":
    sys.path[:0] = ["tests/index", "tests/random_fusions"]

from fusion_check import poisoned_outputs
from lookup_cases import TYPES, numbers, places

from weft import DataType, FusionDefinition

CASES = 16
STEPS = 7


class Definition:
    """One random definition: steps are chosen for torch tensors and repeated for the front end's. values: (torch value, program that makes it)."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.inputs: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.programs: list[Any] = []
        for _ in range(self.random.randint(1, 2)):
            shape = [self.random.choice([1, 2, 3, 5, 8, 16, 24, 33]) for _ in range(self.random.randint(1, 3))]
            self.add_input(numbers(*shape, dtype=self.random.choice([torch.float32, torch.bfloat16])))
        for _ in range(self.random.randint(2, STEPS)):
            self.step()
        if len(self.values) == len(self.inputs_made):
            self.values.append(-self.values[0].double())
            self.programs.append(("neg", [0]))
        count = self.random.randint(1, 2)
        self.outputs = sorted(self.random.sample(range(len(self.inputs_made), len(self.values)), min(count, len(self.values) - len(self.inputs_made))))

    @property
    def inputs_made(self) -> list[int]:
        return [n for n, p in enumerate(self.programs) if p[0] == "input"]

    def add_input(self, x: torch.Tensor) -> int:
        self.inputs.append(x)
        self.values.insert(len(self.inputs_made), x.double() if x.is_floating_point() else x)
        self.programs.insert(len(self.inputs_made), ("input", len(self.inputs) - 1))
        self.programs = [self._moved(p, len(self.inputs_made) - 1) if p[0] != "input" else p for p in self.programs]
        return len(self.inputs_made) - 1

    @staticmethod
    def _moved(program: Any, at: int) -> Any:
        """Operands behind a new input have one number more."""
        return (program[0], [n + (n >= at) for n in program[1]], *program[2:])

    def put(self, value: torch.Tensor, op: str, operands: list[int], *arguments: Any) -> None:
        if value.numel() <= 4000:
            self.values.append(value)
            self.programs.append((op, operands, *arguments))

    def step(self) -> None:
        r = self.random
        floats = [n for n, v in enumerate(self.values) if v.is_floating_point() and v.dim()]
        n = r.choice(floats)
        x = self.values[n]
        dim = r.randrange(x.dim())
        size = x.shape[dim]
        kind = r.choice(["neg", "exp", "add", "slice", "pad", "cat", "index_select", "gather", "select", "reshape", "permute", "sum", "cumsum", "cummax", "scale"])
        if kind == "neg":
            self.put(-x, kind, [n])
        elif kind == "exp":
            self.put((x * 0.1).exp(), kind, [n])
        elif kind == "scale":
            self.put(x * 0.5 + 1, kind, [n])
        elif kind == "add":
            same = [m for m in floats if self.values[m].shape == x.shape]
            m = r.choice(same)
            self.put(x + self.values[m], kind, [n, m])
        elif kind == "slice":
            low = r.randint(0, size)
            high = r.randint(low, size)
            self.put(x.narrow(dim, low, high - low), kind, [n], dim, low, high)
        elif kind == "pad":
            left, right = r.randint(-2, 8), r.randint(-2, 8)
            if size + left + right >= 0 and -left <= size and -right <= size:
                widths = [0, 0] * (x.dim() - 1 - dim) + [left, right]
                self.put(torch.nn.functional.pad(x, widths, value=1.5), kind, [n], widths)
        elif kind == "cat":
            others = [m for m in floats if self.values[m].dim() == x.dim() and all(a == b for d, (a, b) in enumerate(zip(x.shape, self.values[m].shape)) if d != dim)]
            m = r.choice(others)
            self.put(torch.cat([x, self.values[m]], dim), kind, [n, m], dim)
        elif kind == "index_select" and size:
            index = places(size, r.randint(1, 9))
            at = self.add_input(index)
            n += n >= at
            self.put(self.values[n].index_select(dim, index), kind, [n, at], dim)
        elif kind == "gather" and x.numel():
            index = places(size, *[r.randint(1, s) if d != dim else r.randint(1, 6) for d, s in enumerate(x.shape)])
            at = self.add_input(index)
            n += n >= at
            self.put(self.values[n].gather(dim, index), kind, [n, at], dim)
        elif kind == "select" and size and x.dim() > 1:
            place = r.randrange(-size, size)
            self.put(x.select(dim, place), kind, [n], place, dim)
        elif kind == "reshape" and x.numel():
            shape = r.choice([[-1], [x.shape[0], -1], [-1, x.shape[-1]], [*x.shape[:-1], 1, x.shape[-1]]])
            self.put(x.reshape(shape), kind, [n], list(x.reshape(shape).shape))
        elif kind == "permute":
            order = r.sample(range(x.dim()), x.dim())
            self.put(x.permute(order), kind, [n], order)
        elif kind == "sum":
            self.put(x.sum(dim, keepdim=True).expand(x.shape) * 0.1, kind, [n], dim)
        elif kind == "cumsum" and self.is_own(n):
            self.put(x.cumsum(dim) * 0.2, kind, [n], dim)
        elif kind == "cummax" and size and self.is_own(n):
            self.put(x.cummax(dim).values, kind, [n], dim)

    def is_own(self, n: int) -> bool:
        """False for what may be expanded: no running fold is made along such an axis."""
        op, operands = self.programs[n][:2]
        return op != "sum" and (op == "input" or op in ("slice", "pad", "cat", "gather", "index_select") or all(map(self.is_own, operands)))

    # -- for the front end
    def define(self, fd: FusionDefinition) -> None:
        made: list[Any] = []
        for program in self.programs:
            made.append(self.make(fd, made, *program))
        for n in self.outputs:
            fd.add_output(made[n])

    def make(self, fd: FusionDefinition, made: list[Any], op: str, operands: Any, *a: Any) -> Any:
        ops = fd.ops
        if op == "input":
            data = self.inputs[operands]
            t = fd.define_tensor(list(data.shape) if data.shape.numel() == 0 or 1 in data.shape else [-1] * data.dim(), contiguity=[None if s == 1 else True for s in data.shape], dtype=TYPES[data.dtype])
            return ops.cast(t, DataType.Float) if data.is_floating_point() else t
        x, *more = (made[n] for n in operands)
        value = self.values[operands[0]]
        shape = list(value.shape)
        if op == "slice":
            dim, low, high = a
            return ops.slice(x, [low if d == dim else 0 for d in range(len(shape))], [high if d == dim else s for d, s in enumerate(shape)])
        simple = {
            "neg": lambda: ops.neg(x), "exp": lambda: ops.exp(ops.mul(x, 0.1)), "scale": lambda: ops.add(ops.mul(x, 0.5), 1.0), "add": lambda: ops.add(x, more[0]),
            "pad": lambda: ops.pad(x, a[0], 1.5), "cat": lambda: ops.cat([x, more[0]], a[0]), "index_select": lambda: ops.index_select(x, more[0], a[0]),
            "gather": lambda: ops.gather(x, more[0], a[0]), "select": lambda: ops.select(x, a[0], a[1]), "reshape": lambda: ops.reshape(x, a[0]),
            "permute": lambda: ops.permute(x, a[0]),
            "sum": lambda: ops.mul(ops.broadcast_in_dim(ops.sum(x, [a[0]]), shape=shape, broadcast_dims=[d for d in range(len(shape)) if d != a[0]]), 0.1),
            "cumsum": lambda: ops.mul(ops.cumsum(x, a[0]), 0.2), "cummax": lambda: ops.cummax(x, a[0]),
        }  # fmt: skip
        return simple[op]()


def run_case(seed: int) -> None:
    case = Definition(seed)
    with FusionDefinition() as fd:
        case.define(fd)
    with poisoned_outputs():
        results = fd.execute(case.inputs)
    for n, result in zip(case.outputs, results, strict=True):
        want = case.values[n]
        assert result.shape == want.shape, (seed, n)
        torch.testing.assert_close(result.double(), want, rtol=1e-4, atol=1e-4, msg=lambda text: f"seed {seed}: {text}")  # noqa: B023


@pytest.mark.parametrize("block", range(4))
def test_random_definitions(block: int) -> None:
    for seed in range(block * CASES // 4, (block + 1) * CASES // 4):
        run_case(seed)


if __name__ == "__main__":
    failed = 0
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            run_case(number)
        except Exception as error:  # noqa: BLE001  (all are told)
            failed += 1
            print(number, type(error).__name__, str(error)[:300].replace("\n", " "), flush=True)
    print("failed:", failed)
