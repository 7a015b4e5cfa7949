"""Every way to reduce rows and columns in one kernel, on a GPU, again and again: no launch hangs, and all runs give the same bits.

    PYTHONPATH=. python tests/gpu/two_sided_soak.py [--repetitions 200] [--runs 1000] [--seconds 20] [--ways TEXT]

For each way and shape: `repetitions` launches one behind the other while a watchdog waits for the last of them `seconds` long; then `runs` launches whose
results are compared bit by bit with the first one's, and the first one's with float64. Exits with 1 when a result is wrong or differs, with 3 when a launch
hangs (the process ends there: its CUDA context is lost).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "schedulers"))

from two_sided_fusions import WAYS, forced, norm_backward, norm_backward_in_float64, norm_backward_inputs, relative_error  # noqa: E402

from weft import DataType, FusionDefinition  # noqa: E402

SHAPES = ((35, 512), (70, 512), (2049, 512), (5, 496))
AUTOMATIC = ((4096, 4096), (4096, 4097), (333, 16384), (20000, 257), (64, 65536), (7, 3001), (1, 40000), (100000, 128))
TOLERANCE = {DataType.BFloat16: 2.0**-8, DataType.Float: 2.0**-12}  # a column sum of 100,000 terms in float: 2^-24 * sqrt(1e5) of its terms, some 2^-15


def finishes(seconds: float) -> bool:
    """True when what was launched ends in time."""
    end = torch.cuda.Event()
    end.record()
    deadline = time.monotonic() + seconds
    while not end.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def soak(fd: FusionDefinition, inputs: list[torch.Tensor], a: argparse.Namespace, tolerance: float) -> str:
    """Return what is wrong, "" when nothing is. Ends the process when a launch hangs."""
    on_gpu = [t.cuda() for t in inputs]
    first = fd.execute(on_gpu)
    for _ in range(a.repetitions):
        fd.execute(on_gpu)
    if not finishes(a.seconds):
        print(f"HANGS: {fd.fec.kernel_runtimes[-1].proposal.params}", flush=True)
        os._exit(3)
    error = max(relative_error(got.cpu(), wanted) for got, wanted in zip(first, norm_backward_in_float64(inputs), strict=True))
    if not error <= tolerance:
        return f"error {error:.1e}"
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(a.runs):
        for old, new in zip(first, fd.execute(on_gpu)):
            differing += (old.view(torch.uint8) != new.view(torch.uint8)).any()
    return f"{int(differing)} of {a.runs} runs differ" if int(differing) else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the watchdog")
    parser.add_argument("--ways", default="", help="those whose name has this text")
    a = parser.parse_args()
    wrong = 0
    few = min(rows for rows, _ in SHAPES)  # a block has no row then, which second passes behind are never chosen for
    cases = [(way, rows, columns, DataType.BFloat16) for way in WAYS for rows, columns in SHAPES if rows > few or not WAYS[way].get("is_behind")]
    cases += [("", rows, columns, dtype) for dtype in (DataType.BFloat16, DataType.Float) for rows, columns in AUTOMATIC]
    for way, rows, columns, dtype in cases:
        if a.ways not in way:
            continue
        with forced(way):
            said = soak(norm_backward(dtype), norm_backward_inputs(rows, columns, dtype), a, TOLERANCE[dtype])
        wrong += bool(said)
        print(f"{said or 'ok'}: {way or 'as chosen'} {rows}x{columns} {dtype}", flush=True)
    print(f"{wrong} wrong of {len(cases)} cases, {a.repetitions} repetitions under the watchdog and {a.runs} runs compared of each")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
