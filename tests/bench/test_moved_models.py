"""bench/moved_models.py counts what the regions of a model move, and runs none of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from weft.options import options

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import moved_models  # noqa: E402


def test_the_regions_of_a_block_are_counted_forward_and_backward() -> None:
    with options(chip="H200"), moved_models.torch.device("meta"):
        model = moved_models.DiT(1152, 16)
    with options(chip="H200"):
        rows = list(moved_models.regions_of(model, moved_models._wide((4, 256, 1152), (4, 1152), (4, 256, 1152)), is_autocast=False))
    assert {row["kind"] for row in rows} == {"forward", "backward"}
    assert all(row["kernels"] and not row["why"] for row in rows)
    norms = [row for row in rows if "var_mean" in row["name"]]
    assert norms and all(0.9 < row["ratio"] < moved_models.LEAST_RATIO for row in norms)


class Sorted(moved_models.torch.nn.Linear):
    def forward(self, x: Any) -> Any:
        return (super().forward(x).sort(-1).values * 2).sum()


def test_an_op_that_stays_with_torch_is_named() -> None:
    with moved_models.torch.device("meta"):
        model = Sorted(256, 256)
    with options(chip="H200"):
        rows = list(moved_models.regions_of(model, moved_models._wide((4096, 256)), is_autocast=False))
    assert "aten.sort.default" in {row["name"] for row in rows if row["why"]}, rows
