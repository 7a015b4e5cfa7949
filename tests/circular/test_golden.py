"""The text of one kernel with two roles, as it is generated. After a change that is meant: `UPDATE_GOLDEN=1`, and read the difference."""

from __future__ import annotations

import os
from pathlib import Path

from scheduled import Rows, program

GOLDEN = Path(__file__).parent / "golden" / "two_roles.cu"


def test_two_roles_feed_two_groups() -> None:
    """(x + z) / 2 times its sum of squares, by row: warp 0 loads x, warp 1 loads z; two compute groups with three stages each; results leave in bulk."""
    text = program(Rows(own=True, registers=(40, 232), store=True).define(), (128,)).text
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_text_is_the_same_every_time() -> None:
    case = Rows(inputs=3, stages=(2, 3, 4), warps=(0, 1, 2))
    assert program(case.define(), (128,)).text == program(case.define(), (128,)).text
