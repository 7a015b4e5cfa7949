"""Programs as users write them, each run with weft's kernels in the emulator, in eager float32 and in eager float64.

    python tests/frontend/programs.py [NAME ...]

Prints per program: right or what is wrong, the largest error and eager's, graphs, regions, compute nodes inside, seconds, and what torch runs, with the reason.
Read first: `program_run.judged`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
sys.path.insert(0, str(Path(__file__).parent))

from program_run import judged
from programs_features import PROGRAMS as FEATURES
from programs_fields import PROGRAMS as FIELDS
from programs_models import PROGRAMS as MODELS
from programs_state import PROGRAMS as STATE
from programs_training import PROGRAMS as TRAINING

PROGRAMS = {**TRAINING, **FEATURES, **MODELS, **STATE, **FIELDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    a = parser.parse_args()
    bad = 0
    names = [name for name in PROGRAMS if not a.names or any(part in name for part in a.names)]
    for name in names:
        start = time.perf_counter()
        try:
            out = judged(PROGRAMS[name])
        except Exception as error:  # noqa: BLE001  (a program that eager torch refuses)
            bad += 1
            print(f"{name}: eager raises {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        bad += bool(out.problem)
        kept = "; ".join(f"{times} {op} ({why})" for op, (times, why) in out.torch_ops.items())
        print(
            f"{name}: {out.problem or 'right'}; error {out.error:.1e}, eager {out.eager_error:.1e}; {out.graphs} graphs, {out.regions} regions, "
            f"{out.covered} of {out.compute} nodes, {time.perf_counter() - start:.1f} s\n    torch: {kept}{''.join(f'{chr(10)}    no source line: {n}' for n in out.nameless)}", flush=True,
        )  # fmt: skip
    print(f"{len(names) - bad} of {len(names)} programs are right")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
