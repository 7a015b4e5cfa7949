"""Dropout + layer norm with rows that TMA loads: random numbers, a mask among the results, two inputs; right in the emulator with races checked, no spills."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from weft.arch import arch_by_name
from weft.device.library import translation_unit
from weft.options import options
from weft.runtime.nvrtc import compile_or_load
from weft.schedulers.async_rows_heuristic import AsyncRowsParams, choose_async_rows

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from cases import BY_NAME, KEEP  # noqa: E402
from forced import Forced  # noqa: E402

CASE = BY_NAME["dropout_layer_norm"]
H200 = arch_by_name("H200")
TOLERANCE = {torch.bfloat16: 4e-3, torch.float32: 1e-6}
"""Relative error (L2 norm): rounding to bfloat16 is 1.7e-3; float32: sums of some hundred."""


@pytest.mark.parametrize("shape", [(17, 512), (1, 1024), (5, 1008), (3, 16)], ids=str)
@pytest.mark.parametrize("is_stored_in_bulk", [False, True], ids=["stores", "bulk"])
@pytest.mark.parametrize("kind", ["tma", "specialized"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
def test_dropout_and_layer_norm(dtype: torch.dtype, kind: str, is_stored_in_bulk: bool, shape: tuple[int, int]) -> None:
    """The mask tells which elements were kept: the results follow from it, and it keeps about the part that it should."""
    torch.manual_seed(0)
    forced = Forced(CASE.definition(dtype))
    inputs = CASE.inputs(*shape, dtype, "cpu")
    found = choose_async_rows(forced.seen(inputs).facts, H200, kind, is_stored_in_bulk=is_stored_in_bulk)
    assert isinstance(found, AsyncRowsParams), found
    forced.choose(inputs, replace(found, blocks=2, stages=min(found.stages, 3)) if kind == "specialized" else found)
    with options(check="races", chip="H200"):
        outputs = forced(inputs)
        request, program, _ = forced.wanted(inputs)
    assert CASE.error(inputs, outputs) < TOLERANCE[dtype]
    assert abs(float(outputs[-1].double().mean()) - KEEP) < 5 * (KEEP * (1 - KEEP) / outputs[-1].numel()) ** 0.5
    made = compile_or_load(translation_unit(program.text, program.blocks), program.name, "sm_90a", max_registers=program.max_registers)
    assert not made.resources.has_spills, made.resources


def test_a_mask_narrower_than_a_bulk_copy_has_one_group_per_block() -> None:
    """A byte per element and two rows side by side in shared memory: the second would start at a multiple of 8 bytes only."""
    facts = Forced(CASE.definition(torch.bfloat16)).seen(CASE.inputs(4096, 1024, torch.bfloat16, "cpu")).facts
    loaded, stored = (choose_async_rows(facts, H200, "specialized", is_stored_in_bulk=bulk) for bulk in (False, True))
    assert isinstance(loaded, AsyncRowsParams) and isinstance(stored, AsyncRowsParams)
    assert (loaded.groups, stored.groups) == (2, 1)
