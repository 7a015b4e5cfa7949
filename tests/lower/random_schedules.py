"""Random fusions under random schedules by hand: any splits, merges, orders, bindings, inlining positions. `run` lowers one and compares it with the reference.

A schedule that cannot be lowered must say so (a UserError); one that can must be right.
Read first: `run`.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from weft import FusionDefinition
from weft.emulator.report import KernelFault
from weft.errors import UserError
from weft.ir.enums import MemoryType, ParallelType
from weft.ir.fusion import Fusion
from weft.ir.values import ReductionOp, TensorView
from weft.options import options
from weft.reference.interpreter import evaluate
from weft.runtime.kernel_executor import KernelExecutor
from weft.schedule.caching import cache_and_fork_outputs, cache_inputs
from weft.schedule.inline import inline_at, inline_most
from weft.schedule.primitives import merge, reorder, rfactor, set_memory_type, split
from weft.schedule.propagate import parallelize_like, transform_like

P = ParallelType
BINDINGS = (P.grid_x, P.grid_y, P.block_x, P.block_y)


def split_somehow(rng: random.Random, tensor: TensorView, position: int) -> None:
    """By a small factor, most often inside; outside also into parts of a multiple."""
    factor, is_inner = rng.choice((1, 2, 3, 4)), rng.random() < 0.8
    split(tensor, position, factor, is_inner, multiple=1 if is_inner else rng.choice((1, 4)))


def define(fd: FusionDefinition, rng: random.Random) -> list[torch.Tensor]:
    """Add ops over tensors of two or three axes; return inputs."""
    sizes = [rng.choice((1, 2, 3, 4, 5, 6, 7, 9)) for _ in range(rng.choice((1, 2, 2, 3)))]
    inputs = []

    def tensor(*shape: int) -> TensorView:
        inputs.append(torch.randn(shape, generator=torch.Generator().manual_seed(len(inputs))))
        return fd.define_tensor(shape=list(shape), contiguity=[None if n == 1 else True for n in shape])

    pool = [tensor(*sizes)]
    if rng.random() < 0.5:
        pool.append(tensor(*sizes))
    if rng.random() < 0.5:
        pool.append(tensor(sizes[-1]))
    if rng.random() < 0.4:
        pool.append(tensor(*(n if rng.random() < 0.5 else 1 for n in sizes)))
    rank = len(sizes)
    made = []
    for _ in range(rng.randint(1, 5)):
        kind = rng.random()
        x = rng.choice(pool)
        if kind < 0.3:
            made.append(getattr(fd.ops, rng.choice(("neg", "sin", "abs")))(x))
        elif kind < 0.65:
            made.append(fd.ops.add(x, rng.choice([t for t in pool if t.ndim == rank] or pool)))
        elif x.ndim == rank:
            dims = sorted(rng.sample(range(rank), rng.randint(1, rank)))
            made.append(getattr(fd.ops, rng.choice(("sum", "max")))(x, dims, rng.random() < 0.7))
        else:
            continue
        if made[-1].ndim == rank:
            pool.append(made[-1])
    read = {v for t in pool for u in t.uses() for v in u.inputs}
    for t in made:
        if t not in read or rng.random() < 0.1:
            fd.add_output(t)
    return inputs


def schedule(fusion: Fusion, rng: random.Random, *, caches: bool = True) -> None:
    """Schedule the fusion in place."""
    if caches:
        cache_inputs(fusion)
        cache_and_fork_outputs(fusion)
    computed = [t for t in fusion.tensors() if t.definition() is not None]
    rank = max(len(t.get_loop_domain()) for t in computed)
    reference = rng.choice([t for t in computed if len(t.get_loop_domain()) == rank])
    for _ in range(rng.randint(0, 4)):
        loop = reference.get_loop_domain()
        if not loop:
            break
        position = rng.randrange(len(loop))
        kind = rng.random()
        if kind < 0.45:
            split_somehow(rng, reference, position)
        elif kind < 0.7 and len(loop) > 1:
            other = rng.randrange(len(loop))
            if other != position and loop[other].is_reduction() == loop[position].is_reduction():
                merge(reference, min(position, other), max(position, other))
        else:
            reorder(reference, {position: rng.randrange(len(loop))})
    transform_like(reference)
    if isinstance(reference.definition(), ReductionOp) and rng.random() < 0.5:
        leaves = [n for n, a in enumerate(reference.get_loop_domain()) if a.is_reduction()]
        if len(leaves) > 1:
            reference = rfactor(reference, rng.sample(leaves, rng.randint(1, len(leaves) - 1)))
            transform_like(reference)
    for kind in rng.sample(BINDINGS, rng.randint(0, len(BINDINGS))):
        free = [a for a in reference.get_loop_domain() if a.parallel is P.serial]
        if free:
            rng.choice(free).parallelize(kind)
    switches = random.Random(str(reference))
    free = [a for a in reference.get_loop_domain() if a.parallel is P.serial]
    if free and switches.random() < 0.4:
        switches.choice(free).parallelize(P.unswitch)
    if rng.random() < 0.85:
        parallelize_like(reference)
    for t in computed:
        if not t.is_fusion_output and not isinstance(t.definition(), ReductionOp) and rng.random() < 0.15:
            set_memory_type(t, MemoryType.shared)
    if rng.random() < 0.4:
        inline_at(reference, rng.randint(0, len(reference.get_loop_domain())), best_effort=True)
    if rng.random() < 0.7:
        inline_most(fusion=fusion)


def define_rows(fd: FusionDefinition, rng: random.Random) -> list[torch.Tensor]:
    """Add reductions that are broadcast back and added to what they reduced, or to another of these sums; return inputs."""
    sizes = [rng.choice((2, 3, 4, 5, 9)) for _ in range(rng.choice((2, 2, 3)))]
    inputs = []

    def tensor(*shape: int) -> TensorView:
        inputs.append(torch.randn(shape, generator=torch.Generator().manual_seed(len(inputs))))
        return fd.define_tensor(shape=list(shape), contiguity=[None if n == 1 else True for n in shape])

    pool = [tensor(*sizes)]
    if rng.random() < 0.3:
        pool.append(tensor(*(n if rng.random() < 0.5 else 1 for n in sizes)))
    made = []
    for _ in range(rng.randint(1, 3)):
        dims = sorted(rng.sample(range(len(sizes)), rng.randint(1, len(sizes) - 1)))
        reduced = getattr(fd.ops, rng.choice(("sum", "max")))(rng.choice(pool), dims, True)
        if rng.random() < 0.4:
            reduced = fd.ops.sin(reduced)
        pool.append(fd.ops.add(rng.choice(pool), reduced))
        made += [reduced, pool[-1]]
    for t in made:
        if not t.uses() or rng.random() < 0.25:
            fd.add_output(t)
    return inputs


def schedule_merged(fusion: Fusion, rng: random.Random) -> None:
    """Schedule the fusion in place: mostly merges of what has all axes, of which some are bound, and many tensors in shared memory."""
    if rng.random() < 0.7:
        cache_inputs(fusion)
    cache_and_fork_outputs(fusion)
    computed = [t for t in fusion.tensors() if t.definition() is not None]
    rank = max(len(t.get_loop_domain()) for t in computed)
    reference = rng.choice([t for t in computed if len(t.get_loop_domain()) == rank and not isinstance(t.definition(), ReductionOp)])
    for _ in range(rng.randint(1, 4)):
        loop = reference.get_loop_domain()
        position, kind = rng.randrange(len(loop)), rng.random()
        if kind < 0.25:
            split_somehow(rng, reference, position)
        elif kind < 0.75 and len(loop) > 1:
            other = rng.randrange(len(loop))
            if other != position:
                merge(reference, min(position, other), max(position, other))
        else:
            reorder(reference, {position: rng.randrange(len(loop))})
    transform_like(reference)
    for binding in rng.sample(BINDINGS, rng.randint(1, 3)):
        free = [a for a in reference.get_loop_domain() if a.parallel is P.serial]
        if free:
            rng.choice(free).parallelize(binding)
    parallelize_like(reference)
    for t in computed:
        if not t.is_fusion_output and rng.random() < 0.3:
            set_memory_type(t, MemoryType.shared)
    if rng.random() < 0.3:
        inline_at(reference, rng.randint(0, len(reference.get_loop_domain())), best_effort=True)
    if rng.random() < 0.6:
        inline_most(fusion=fusion)


def run(seed: int, *, caches: bool = True, rows: bool = False) -> str:
    """Return "right", or the code of the error that says why the schedule cannot be lowered; raise AssertionError for a wrong result.

    rows: reductions that are broadcast back, under schedules that merge what they reduce with what they keep.
    """
    rng = random.Random(f"schedule {seed}")
    with FusionDefinition() as fd:
        inputs = define_rows(fd, rng) if rows else define(fd, rng)
    fusion: Any = fd.fusion
    if not fusion.outputs():
        return "nothing to compute"
    wanted = evaluate(fusion, inputs)
    try:
        if rows:
            schedule_merged(fusion, rng)
        else:
            schedule(fusion, rng, caches=caches)
    except UserError as error:
        return f"not scheduled: {error.code}"
    executor = KernelExecutor()
    try:
        with options(check="races"):
            executor.compile(fusion, inputs)
            outputs = executor.run(inputs)
    except KernelFault:
        raise
    except UserError as error:
        return f"{error.code} {type(error).__name__}"
    for output, reference in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(output.double(), reference, atol=1e-4, rtol=1e-4)
    return "right"


__all__ = ["define", "run", "schedule"]
