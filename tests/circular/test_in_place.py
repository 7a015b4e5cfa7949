"""Outputs written into inputs that are loaded ahead: each element is loaded once, by its own iteration, so that a later store cannot overtake it."""

from __future__ import annotations

import pytest
import torch
from scheduled import L, flat

from weft import FusionDefinition, KernelExecutor, LaunchParams
from weft.options import options

LOADS = {"tma": L.tma, "cp_async": L.cp_async, "plain": L.set}


def run_in_place(fd: FusionDefinition, inputs: list[torch.Tensor], block: int = 0) -> bool:
    """Run with the first output written into the first input, races checked; return whether it was copied back."""
    fusion = fd.fusion
    assert fusion is not None
    fusion.aliases[fusion.outputs()[0]] = fusion.inputs()[0]
    with options(check="races"):
        executor = KernelExecutor()
        executor.compile(fusion, inputs, LaunchParams(bdimx=block) if block else LaunchParams())
        executor.run(inputs)
    (prepared,) = executor._current._prepared.values()
    return "copy_" in prepared.run.__code__.co_names


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("stages, prefetch", [(1, 1), (3, 2), (4, 1)])
def test_a_ring_that_loads_ahead_is_updated_in_place(load: str, stages: int, prefetch: int, store: bool) -> None:
    for elems in (4, 128, 132, 128 * 2 * (2 * stages + 1) - 108):
        x = torch.randn(elems)
        expected = x + 1.0
        assert not run_in_place(flat(LOADS[load], stages=stages, prefetch=prefetch, store=store), [x])
        assert torch.equal(x, expected)


@pytest.mark.parametrize("load", LOADS)
def test_of_two_rings_one_is_updated_in_place(load: str) -> None:
    x, y = torch.randn(1300), torch.randn(1300)
    expected = x + 1.0 + y
    assert not run_in_place(flat(LOADS[load], stages=3, prefetch=2, inputs=2), [x, y])
    assert torch.equal(x, expected)
