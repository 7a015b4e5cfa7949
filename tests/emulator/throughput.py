"""How fast the emulator is: million elements per second on one core, for a row normalization and a softmax in bf16.

Run: python tests/emulator/throughput.py [rows] [cols]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np
from row_kernels import RMSNORM, SOFTMAX, aligned, kernel, rmsnorm_shared_bytes, unit

from weft.emulator import Buffer, Scalar
from weft.emulator.build import build_kernel
from weft.options import options


def best_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(rows: int, cols: int) -> None:
    x, z, y = (aligned((rows, cols), np.uint16, 0x3F80) for _ in range(3))
    w = aligned((cols,), np.uint16, 0x3F80)
    inputs = Buffer.of(x, "T0"), Buffer.of(z, "T1"), Buffer.of(w, "T2")
    output = Buffer.of(y, "T5", written=True, initialised=False)
    elements = rows * cols / 1e6
    print(f"{rows} x {cols} bf16, M elements/s (best of 5)")
    for check in ("bounds", "races"):
        for seed in (None, 1):
            softmax = kernel(SOFTMAX, "softmax", check, cols)
            s = best_seconds(lambda: softmax.launch((rows, 1, 1), (128, 1, 1), 32, [inputs[0], output], seed=seed))
            rmsnorm = kernel(RMSNORM, "rmsnorm", check, cols)
            arguments = [*inputs, output, Scalar("int", rows), Scalar("float", 1e-5)]
            r = best_seconds(lambda: rmsnorm.launch((16, 1, 1), (128, 3, 1), rmsnorm_shared_bytes(cols), arguments, seed=seed, registers_per_thread=168))
            print(f"  check={check:7s} seed={seed!s:5s} softmax {elements / s:7.1f}   rmsnorm {elements / r:7.1f}")


def measure_builds(cols: int) -> None:
    for name, text in (("softmax", SOFTMAX), ("rmsnorm", RMSNORM)):
        for check_races in (False, True):
            source = unit(text, cols) + f"// {time.time()}\n"  # not in the cache
            start = time.perf_counter()
            with options(cache=False):
                build_kernel(source, check_races=check_races)
            print(f"  build {name:8s} check_races={check_races!s:5s} {1e3 * (time.perf_counter() - start):6.1f} ms")


if __name__ == "__main__":
    sizes = [int(a) for a in sys.argv[1:]] + [1024, 4096][len(sys.argv) - 1 :]
    measure(*sizes)
    print("builds")
    measure_builds(sizes[1])
