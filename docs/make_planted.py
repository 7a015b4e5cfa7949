"""Write docs/planted.md: the planted mistakes, and how the emulator reports each. It takes a few seconds, and a C++ compiler.

    python docs/make_planted.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from weft.check.planted import MISTAKES, PIPELINE, Verdict, run, table

TARGET = Path(__file__).with_name("planted.md")

PAGE = """# Planted mistakes: what the emulator's checks find

Each row is a correct kernel with one mistake planted in it, and what the emulator reports. "Orders": in how many of {orders} orders of threads and copies the
mistake is reported at the right line. `weft check --planted` runs them all, prints the same table, and fails if a mistake is missed.

{generated} of the {all} mistakes are in kernels that lowering generated (or in the part of the device library that they call), the rest in a hand-written
pipeline, `weft/check/examples/rmsnorm.cu`. This page is made by `python docs/make_planted.py`. [planted_on_gpu.md](planted_on_gpu.md) has what a GPU and
compute-sanitizer make of five of them.

{table}
"""


def page(verdicts: Sequence[Verdict]) -> str:
    """Return the text of the page."""
    generated = sum(v.mistake.kernel != PIPELINE for v in verdicts)
    return PAGE.format(table=table(verdicts), generated=generated, all=len(verdicts), orders=len(verdicts[0].exploration.reports))


if __name__ == "__main__":
    found = [run(mistake) for mistake in MISTAKES]
    TARGET.write_text(page(found), encoding="utf-8")
    sys.exit(not all(v.is_found for v in found))
