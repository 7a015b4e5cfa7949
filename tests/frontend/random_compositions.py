"""Random compositions of torch functions that are views, lookups, windows, scans and folds: what a program does to one tensor, step by step.

    PYTHONPATH=. python tests/frontend/random_compositions.py --seed 7 --seconds 60     compiled in the emulator, each beside float64 torch; `--device cuda` on a GPU

A program is a list of steps, of this file or, in every second program, also of `further_steps.py`, and from 100,000 on of `network_steps.py`; each fits the
sizes that the steps before it leave.
Its argument can be of 16 bits, have gaps, or have sizes that are left open. A failing program is printed with its number, which repeats it.
Read first: `program_of`, `check`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from further_steps import FURTHER
from network_steps import NETWORK
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

Step = Callable[[Tensor], Tensor]
Make = Callable[[random.Random, Sequence[int]], Step]
SHAPES: tuple[Callable[[random.Random], tuple[int, ...]], ...] = (
    lambda r: (r.randint(1, 40), r.randint(1, 12)),
    lambda r: (r.randint(1, 6), r.randint(1, 9), r.randint(2, 20)),
    lambda r: (2, r.randint(1, 4), r.randint(3, 9), r.randint(3, 17)),
    lambda r: (r.randint(30, 300), r.choice([2, 3, 4, 6, 9])),
    lambda r: (3, r.choice([5, 8]), r.choice([3, 4]), r.choice([3, 4])),
)


def _axis(r: random.Random, shape: Sequence[int]) -> int:
    return r.randrange(len(shape))


def _rolled(r: random.Random, shape: Sequence[int]) -> Step:
    s, t, d, e = r.choice([1, -1, 2]), r.choice([1, -2]), _axis(r, shape), _axis(r, shape)
    return lambda x: x - 0.5 * torch.roll(x, s, d) + torch.roll(x, t, e) * 0.25


def _normalized(r: random.Random, shape: Sequence[int]) -> Step:
    d = _axis(r, shape)
    if r.random() < 0.5:
        return lambda x: F.normalize(x, dim=d)
    return lambda x: (x - x.mean(d, keepdim=True)) * torch.rsqrt(x.var(d, keepdim=True, correction=0) + 0.1)


def _crossed(r: random.Random, shape: Sequence[int]) -> Step:
    return lambda x: torch.cat([torch.linalg.cross(x[..., :3], x[..., :3].flip(-1) * 1.5 + 1), x[..., 3:]], -1)


def _scanned(r: random.Random, shape: Sequence[int]) -> Step:
    scan, d = r.choice([torch.cumsum, lambda t, n: torch.cummax(t, n).values, torch.logcumsumexp]), _axis(r, shape)
    return lambda x: scan(x * 0.5, d)


def _pooled(r: random.Random, shape: Sequence[int]) -> Step:
    pool, size, step = r.choice([F.avg_pool2d, F.max_pool2d]), r.choice([2, 3]), r.choice([1, 2])
    pad = min(r.choice([0, 1]), size // 2)

    def pooled(x: Tensor) -> Tensor:
        y = pool(x.reshape(1, -1, *x.shape[-2:]), size, step, padding=pad)
        return y.reshape(*x.shape[:-2], *y.shape[-2:])

    return pooled


def _padded(r: random.Random, shape: Sequence[int]) -> Step:
    mode, left, right = r.choice(["constant", "reflect", "replicate", "circular"]), r.choice([1, 2]), r.choice([0, 1])
    if mode == "constant" or shape[-1] < 3:
        return lambda x: F.pad(x, (left, right))
    return lambda x: F.pad(x.reshape(1, -1, x.shape[-1]), (1, 1), mode=mode).reshape(*x.shape[:-1], -1)


def _turned(r: random.Random, shape: Sequence[int]) -> Step:
    """By angles that only the first and the last axis have."""

    def turned(x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[0], device=x.device).to(x)[:, None] * (torch.arange(x.shape[-1], device=x.device).to(x) * 0.1 + 0.2)
        angles = angles.reshape(x.shape[0], *[1] * (x.dim() - 2), x.shape[-1])
        return x * angles.cos() + angles.sin()

    return turned


def _halved(r: random.Random, shape: Sequence[int]) -> Step:
    if r.random() < 0.5:
        return lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * 0.7 + x
    return lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]


def _folded(r: random.Random, shape: Sequence[int]) -> Step:
    d, kind = _axis(r, shape), r.choice(["cat", "sum", "amax", "softmax", "flip"])
    made: dict[str, Step] = {
        "cat": lambda x: torch.cat([x, x.mean(d, keepdim=True)], d), "sum": lambda x: x.sum(d) * 0.3 if x.dim() > 2 else x + x.sum(d, keepdim=True) * 0.1,
        "amax": lambda x: x - x.amax(d, keepdim=True) * 0.5, "softmax": lambda x: x.softmax(d) * x.shape[d], "flip": lambda x: x.flip(d) + x,
    }  # fmt: skip
    return made[kind]


def _mapped(r: random.Random, shape: Sequence[int]) -> Step:
    return r.choice([torch.tanh, F.gelu, torch.sigmoid, F.softplus, lambda x: x.abs() + x.square() * 0.1])


def _differences(r: random.Random, shape: Sequence[int]) -> Step:
    d = r.choice([n for n, size in enumerate(shape) if size > 2])
    return lambda x: torch.diff(x, dim=d)


def _taken(r: random.Random, shape: Sequence[int]) -> Step:
    d = _axis(r, shape)
    return lambda x: x.index_select(d, torch.arange(4, device=x.device) * 2 % x.shape[d])


def _scattered(r: random.Random, shape: Sequence[int]) -> Step:
    def scattered(x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0], device=x.device)
        return x.scatter_add(1, torch.stack([rows % x.shape[1], (rows + 2) % x.shape[1]], 1), x[:, :2] * 0.5)

    return scattered


def _stacked(r: random.Random, shape: Sequence[int]) -> Step:
    d = r.choice([0, -1])
    return lambda x: torch.stack([x, x * 0.5 + 1, -x], d)


STEPS: tuple[tuple[Make, Callable[[Sequence[int]], bool]], ...] = (
    (_rolled, lambda s: True), (_normalized, lambda s: True), (_crossed, lambda s: s[-1] >= 3), (_scanned, lambda s: True),
    (_pooled, lambda s: len(s) > 2 and min(s[-2:]) >= 3), (_padded, lambda s: True), (_turned, lambda s: True), (_halved, lambda s: s[-1] % 2 == 0),
    (_folded, lambda s: True), (_mapped, lambda s: True), (_differences, lambda s: max(s) > 2), (_taken, lambda s: True),
    (_scattered, lambda s: len(s) == 2 and s[1] >= 4), (_stacked, lambda s: len(s) < 4),
)  # fmt: skip
"""What a step can be, and the sizes that it needs."""

SLOW_S = 20
"""Programs that take longer are printed."""
OF_NETWORKS = 100_000
"""The first program that also has steps of `network_steps.py`."""


def steps_of(seed: int) -> tuple[tuple[Make, Callable[[Sequence[int]], bool]], ...]:
    """Return what the steps of a program can be."""
    if seed >= OF_NETWORKS:
        return STEPS + FURTHER + 2 * NETWORK
    return STEPS + FURTHER if seed % 2 else STEPS


def program_of(seed: int) -> tuple[tuple[int, ...], list[str], Step]:
    """Return the sizes of the argument, the names of the steps, and the program."""
    r = random.Random(seed)
    shape = r.choice(SHAPES)(r)
    x, names, steps = torch.randn(shape), list[str](), list[Step]()
    for _ in range(r.randint(2, 5)):
        make, fits = r.choice(steps_of(seed))
        if not x.numel() or not x.dim() or not fits(x.shape):
            continue
        step = make(r, x.shape)
        x = step(x)
        names.append(make.__name__.strip("_"))
        steps.append(step)

    def program(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return shape, names, program


def _argument(seed: int, shape: tuple[int, ...], how: str) -> Tensor:
    """Random numbers of these sizes; in memory as `how` says."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if how == "16 bits":
        return x.to(torch.bfloat16)
    if how == "gaps":
        return torch.stack([x, -x], -1)[..., 0]
    return x.transpose(0, -1).contiguous().transpose(0, -1) if how == "turned" else x


def check(seed: int, device: str = "cpu") -> None:
    """Compile a program and compare values and gradients with float64; eager torch tells what rounding does. On a CPU, kernels are emulated. Errors: AssertionError."""
    shape, names, program = program_of(seed)
    if not names:
        return
    torch._dynamo.reset()
    GRAPHS.clear()
    how = random.Random(-seed).choice(["", "", "16 bits", "gaps", "turned", "open"]) if seed % 2 else ""
    x = _argument(seed, shape, "" if how == "16 bits" and "sorted" in names else how).to(device)  # of equal numbers, either may be the largest
    compiled = torch.compile(program, backend=backend, options={"emulate": device == "cpu", "strict": True}, dynamic=True if how == "open" else None)
    ways = {"weft": compiled, "eager": program, "wide": program}
    found = {}
    for name, way in ways.items():
        own = (x.double() if name == "wide" else x).detach().requires_grad_()
        out = way(own)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype).to(out)
        found[name] = (out.detach(), *torch.autograd.grad(out, own, grad))
    for got, eager, want in zip(*found.values(), strict=True):
        if want.isfinite().all() and want.numel():
            error, rounding = ((t.double() - want).abs().max().item() for t in (got, eager))
            step = 2e-5 if x.dtype is torch.float32 else 0.02
            assert error <= 8 * rounding + step * (1 + want.abs().max().item()), f"{seed}: {shape} {how} {names}: off by {error:.3g}, eager torch by {rounding:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    end, seed, failed = time.monotonic() + given.seconds, given.seed, 0
    while (start := time.monotonic()) < end:
        try:
            check(seed, given.device)
        except Exception as error:  # noqa: BLE001  (each program stands for itself)
            failed += 1
            text = " | ".join(line for line in str(error).splitlines() if line.strip())
            print(f"program {seed}: {type(error).__name__}: {text[:400]}", flush=True)
            if isinstance(error, torch.AcceleratorError):
                break  # the GPU does nothing more in this process
        if (seconds := time.monotonic() - start) > SLOW_S:
            print(f"program {seed}: {seconds:.0f} s", flush=True)
        seed += 1
    print(f"{seed - given.seed} programs from {given.seed} on, {failed} failed")


if __name__ == "__main__":
    main()
