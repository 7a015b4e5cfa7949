"""bench/moved.py counts what kernels move; functions that were mended move each tensor once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from weft.options import options

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import moved  # noqa: E402

SMALL = {moved.interleaved_rotary: ((2, 16, 128, 64), (128, 32), (128, 32)), moved.distillation: ((64, 1000), (64, 1000))}
"""The plan does not depend on these sizes."""


@pytest.mark.parametrize("function", SMALL, ids=lambda f: f.__name__)
def test_each_tensor_moves_once(function: moved.Function) -> None:
    with options(chip="H200"):
        forward, backward = moved.moved(function, SMALL[function])
    assert forward["ratio"] < 1.1 and backward["ratio"] < 1.8
    assert forward["moved"] > 0 and backward["kernels"]


@pytest.mark.parametrize("function", [moved.shifted_windows, moved.joined_windows, moved.merged_patches, moved.shared_keys], ids=lambda f: f.__name__)
def test_windows_patches_and_shared_keys_move_once(function: moved.Function) -> None:
    with options(chip="H200"):
        rows = moved.moved(function, moved.FUNCTIONS[function])
    assert all(row["ratio"] < 1.02 for row in rows), rows


def test_the_place_of_the_largest_of_all_is_found_in_one_reading() -> None:
    with options(chip="H200"), moved.counting() as counted, moved.torch.no_grad():
        x = moved.torch.zeros(4096, 4096, dtype=moved.BF16)
        moved.torch.compile(lambda x: x.argmax(), backend="weft", options={"emulate": True})(x)
    assert len(counted) == 1 and counted[0][1] < 1.01 * x.nbytes


def test_a_second_reading_counts() -> None:
    """Rows of samples that nothing keeps are read twice."""
    with options(chip="H200"):
        forward, _ = moved.moved(moved.norm_of_samples, ((2, 64, 256, 512),))
    assert 1.4 < forward["ratio"] < 1.6
