"""Rows and columns of samples, each of which one block reduces alone, so that no blocks meet."""

from __future__ import annotations

import pytest
import torch
from test_columns_of_samples import adaptive_norm_backward, adaptive_norm_in_float64, adaptive_norm_inputs, run
from two_sided_fusions import WAYS, forced

from weft.options import options

ALONE = {"blocks": 1, "has_samples": True, "is_alone": True}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_right_and_gives_the_same_bits_in_every_run(way):
    """11 rows of 5 samples: the last steps of a block have rows of some groups only."""
    inputs = adaptive_norm_inputs(5, 11, 512, torch.bfloat16)
    fd = adaptive_norm_backward(torch.bfloat16)
    with forced(way, **ALONE), options(check="races"):
        first = run(fd, inputs, adaptive_norm_in_float64(inputs), torch.bfloat16)
        assert all(torch.equal(a, b) for a, b in zip(first, fd.execute(inputs)))
