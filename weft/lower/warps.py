"""Whether the threads of a warp have the same answer to a condition on the kernel's own positions. Read first: `divided_warps`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..arch import WARP_THREADS
from ..expr import Number, Sym, evaluate, variables
from ..ir.enums import BLOCK_TYPES

WARPS_ASKED = 64


def divided_warps(test: Sym, block: Sequence[Sym]) -> float | None:
    """Return the fraction of warps, of some drawn at random, whose threads have different answers; None if that depends on sizes that are not known. block: the
    threads along x, y and z."""
    threads = {v for v in variables(test) if str(v.payload) in {p.value for p in BLOCK_TYPES}}
    others = sorted(variables(test) - threads, key=lambda v: str(v.payload))
    if not all(n.is_const for n in block) or any(v.extent is None or not v.extent.is_const for v in others):
        return None
    counts = [int(n.value) for n in block]  # type: ignore[arg-type]
    all_threads = counts[0] * counts[1] * counts[2]
    draw, divided = random.Random(0), 0
    for _ in range(WARPS_ASKED):
        env: dict[Sym, Number] = {v: draw.randrange(int(v.extent.value)) for v in others}  # type: ignore[union-attr, arg-type]
        first = WARP_THREADS * draw.randrange(max(1, all_threads // WARP_THREADS))
        answers = set()
        for number in range(first, min(first + WARP_THREADS, all_threads)):
            place = {"threadIdx.x": number % counts[0], "threadIdx.y": number // counts[0] % counts[1], "threadIdx.z": number // counts[0] // counts[1]}
            answers.add(bool(evaluate(test, {**env, **{v: place[str(v.payload)] for v in threads}})))
        divided += len(answers) > 1
    return divided / WARPS_ASKED
