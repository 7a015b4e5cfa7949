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


def test_gradients_of_positions_cost_no_second_reading() -> None:
    """Partial results of each position are of 4 bytes: many beside 8 samples of 2 bytes, few beside 64. Then ViT's sizes, and odd ones."""
    with options(chip="H200"):
        _, words = moved.moved(moved.norm_of_words, moved.FUNCTIONS[moved.norm_of_words])
        _, patches = moved.moved(moved.norm_of_patches, moved.FUNCTIONS[moved.norm_of_patches])
        _, odd = moved.moved(moved.norm_of_patches, ((64, 143, 764), (1, 1, 764), (1, 144, 764), (764,), (764,)))
        _, few = moved.moved(moved.norm_of_words, ((2, 1024, 1024), (1024, 1024), (1024,), (1024,)))
    assert len(words["kernels"]) == 2 and words["ratio"] < 1.35, words
    assert all(len(row["kernels"]) == 3 and row["ratio"] < 1.1 for row in (patches, odd)), (patches, odd)
    assert few["ratio"] < 2.3, few


def test_columns_that_a_reader_looks_up_are_no_kernels() -> None:
    """A lookup of one column in eight shares few bytes with a sum of all columns, so it belongs to its reader: the gradient of a router is two kernels, not ten."""

    def router(x: moved.torch.Tensor) -> moved.torch.Tensor:
        share = x.float().softmax(-1).topk(8, -1).values
        return share / share.sum(-1, keepdim=True)

    with options(chip="H200"):
        _, backward = moved.moved(router, ((4096, 64),))
    assert len(backward["kernels"]) == 2, backward


def test_a_bias_per_head_of_short_odd_rows_moves_once() -> None:
    """Swin: windows of 49 pixels, 32 heads."""
    with options(chip="H200"):
        _, backward = moved.moved(moved.biased_softmax, ((64, 32, 49, 49), (32, 49, 49)))
    assert len(backward["kernels"]) == 1 and backward["ratio"] < 1.02, backward


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
