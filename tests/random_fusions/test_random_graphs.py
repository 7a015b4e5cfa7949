"""Random graphs of several kernels, cut as is best, at random, and into a kernel per op: the same results each way.

For more of them: python -m pytest tests/random_fusions/test_random_graphs.py with GRAPHS=2000 in the environment (an hour on one core).
"""

from __future__ import annotations

import os

import pytest
from fusion_check import check
from fusion_shrink import shrink
from graph_generator import random_graph

GRAPHS = int(os.environ.get("GRAPHS", "12"))


def run(seed: int, most_ops: int, partition: str) -> None:
    case = random_graph(seed, most_ops)
    outcome = check(case, partition=partition)
    if outcome.is_failure or outcome.kind == "declined":
        small = shrink(case, lambda c: check(c, partition=partition).kind == outcome.kind, 60.0)
        pytest.fail(f"{outcome.kind}: {outcome.detail}\nWEFT_PARTITION={partition}\n{small.text()}")


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_the_best_cut(seed: int) -> None:
    run(seed, 30, "best")


@pytest.mark.parametrize("seed", range(GRAPHS, GRAPHS + max(1, GRAPHS // 4)))
def test_a_random_cut(seed: int) -> None:
    run(seed, 16, str(seed))


@pytest.mark.parametrize("seed", range(2 * GRAPHS, 2 * GRAPHS + max(1, GRAPHS // 6)))
def test_a_kernel_per_op(seed: int) -> None:
    run(seed, 8, "single")


def test_a_seed_makes_the_same_graph_again() -> None:
    assert random_graph(5) == random_graph(5)
