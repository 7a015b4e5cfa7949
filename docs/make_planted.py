"""Write docs/planted.md: the planted mistakes, and how the emulator reports each. It takes a few seconds, and a C++ compiler.

    python docs/make_planted.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from weft.check.planted import MISTAKES, PIPELINE, Verdict, run, table

TARGET = Path(__file__).with_name("planted.md")

PAGE = """# Planted mistakes

Made by `python docs/make_planted.py`; `weft check --planted` prints the same table, and fails when a mistake is missed. {generated} of the {all} mistakes
are planted in kernels that lowering generated (or in the part of the device library that they call), the rest in a pipeline written by hand,
`weft/check/examples/rmsnorm.cu`. "Orders" says how many of {orders} orders of threads and copies show a mistake with the right line.

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
