"""The time before the C++ compiler is linear in the size of a definition: no function does four times the work for twice the ops.

Work is lines of Python that run, which are the same on every machine; `bench/compile_time.py` shows the times.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from quick import lines_by_function

from weft import FusionDefinition

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from compile_time import DEFINITIONS, scalars, stages  # noqa: E402

SIZES = {"chain": 40, "skips": 20, "scalars": 24, "inputs": 12, "outputs": 12, "fan": 12, "norms": 5, "sums": 16, "parts": 16}
"""Of the smaller definition, at which the schedule is that of the larger one: a chain of 20 has a vector per thread, one of 40 several."""
MOST_GROWTH = 2.3
"""For twice the size, of all lines: 2 is linear."""
MOST_GROWTH_OF_A_FUNCTION, FEW_LINES = 2.8, 150
"""Logarithms and thresholds move a function above 2; one that looks at every pair is at 4. A function that runs few lines may do as it likes."""
BOUNDED = {("persistent.py", "_project")}
"""Tells how often ops would be computed again, and gives up at 8 times: quadratic below that."""
PER_PART = {("masks.py", "<genexpr>")}
"""A part of a cat carries a bound for each part before it, a few lines of Python each."""
INTERNED = {("expr.py", "__init__")}
"""Runs for expressions that are not alive already, which other tests decide. `_intern` runs for all of them and is looked at."""


def lines_run(kind: str, size: int) -> Counter[tuple[str, str, int]]:
    """Return how many lines each function of the package runs to compile a definition."""
    out: Counter[tuple[str, str, int]] = Counter()
    for code, lines in lines_by_function(lambda: stages(DEFINITIONS[kind][0], size)).items():
        out[Path(code.co_filename).name, code.co_name, code.co_firstlineno] += lines
    return out


@pytest.mark.parametrize("kind", SIZES)
def test_twice_the_ops_are_twice_the_work(kind: str) -> None:
    size = SIZES[kind]
    stages(DEFINITIONS[kind][0], 2 * size)  # imports, and what is made once
    small, large = lines_run(kind, size), lines_run(kind, 2 * size)
    assert large.total() <= MOST_GROWTH * small.total()
    worse = {key: (small[key], lines) for key, lines in large.items() if lines > MOST_GROWTH_OF_A_FUNCTION * small[key] + FEW_LINES}
    assert not {key: lines for key, lines in worse.items() if key[:2] not in BOUNDED | PER_PART | INTERNED}


@pytest.mark.parametrize("kind", ["chain", "scalars", "skips"])
def test_recursion_is_not_as_deep_as_a_definition(kind: str) -> None:
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 160)
    try:
        stages(DEFINITIONS[kind][0], 240)
    finally:
        sys.setrecursionlimit(limit)


def test_a_long_chain_of_scalars_is_computed_at_every_call() -> None:
    """Each scalar is a parameter of the kernel, computed from the one before it: a text that nested them would be too deep for Python's parser."""
    with FusionDefinition() as fd:
        scalars(fd, 160)
    x = torch.randn(2, 8, dtype=torch.float32)
    for start in (0.5, -1.25):
        wanted, s = x.double(), start
        for n in range(80):
            s = s * 1.5 if n % 2 else s + 0.5
            wanted = (wanted * s).clamp(-1e30, 1e30)
        (y,) = fd.execute([x, start])
        finite = wanted.abs() < 1e29
        torch.testing.assert_close(y.double()[finite], wanted[finite], rtol=1e-4, atol=0.0)
