"""How fast the emulator is: rows of elements per second on one core, and the time to build a kernel.

    python bench/emulator.py [OUT.json] [--shape 4096,4096]

What the automatic schedule gives is run as `execute` runs it without a GPU, with bounds and alignment of every access checked (`check="bounds"`), by one
thread. A figure of speed is that of a whole call: checks of the inputs, outputs, the launch. A build is the host's compiler on a kernel
that is in no cache. Fastest and median: other work on a core only ever slows a call down.
Rows of other processors that the file has stay in it, so that it can hold several machines.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cases import BY_NAME
from measure import RESULTS, parser, request_for, table, write

from weft import FusionDefinition
from weft.emulator.build import build_kernel, build_runtime
from weft.emulator.source_map import unit_for_emulator
from weft.options import options

NAMES = ("rms_norm", "layer_norm", "softmax", "add_rms_norm")
DTYPES = (torch.bfloat16, torch.float32)
CALLS, BUILDS = 9, 7


def processor() -> str:
    """Return the name of the processor and how many cores this machine has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"


def seconds_of(call: Callable[[], object], times: int) -> list[float]:
    """Return how long each of some calls took."""
    out = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        out.append(time.perf_counter() - start)
    return out


def build_seconds(fd: FusionDefinition, inputs: list[torch.Tensor], builds: int) -> list[float]:
    """Return the times of building the kernel for such inputs: each text differs in a comment, so that no cache has it."""
    _, program = request_for(fd, inputs)
    unit, _ = unit_for_emulator(program.text, program.blocks, program.origins, check_scalars=False)
    with options(cache=False):
        return seconds_of(lambda: build_kernel(f"{unit}// {time.time_ns()}\n", check_races=False), builds)


def measured(name: str, dtype: torch.dtype, shape: tuple[int, int], calls: int, builds: int) -> dict[str, Any]:
    """Return the figures of one fusion."""
    inputs, fd = BY_NAME[name].inputs(*shape, dtype, "cpu"), BY_NAME[name].definition(dtype)
    with options(check="bounds"):
        fd.execute(inputs)
        spent = seconds_of(lambda: fd.execute(inputs), calls)
        built = build_seconds(fd, inputs, builds)
    millions = shape[0] * shape[1] / 1e6
    return {
        "cpu": processor(), "case": name, "dtype": str(dtype).removeprefix("torch."), "rows": shape[0], "columns": shape[1],
        "fastest": round(millions / min(spent), 1), "median": round(millions / statistics.median(spent), 1),
        "build_s": round(min(built), 3), "build_median_s": round(statistics.median(built), 3),
    }  # fmt: skip


def of_other_processors(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that other processors gave."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return [row for row in rows if row["cpu"] != processor()]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--shape", default="4096,4096", help="rows,columns")
    a = arguments.parse_args()
    rows, columns = (16, 256) if a.cpu_smoke else map(int, a.shape.split(","))
    torch.set_num_threads(1)
    build_runtime()
    calls, builds = (2, 1) if a.cpu_smoke else (CALLS, BUILDS)
    found = [measured(name, dtype, (rows, columns), calls, builds) for dtype in DTYPES for name in (NAMES[:1] if a.cpu_smoke else NAMES)]
    print(processor())
    keys = ("fastest", "median", "build_s", "build_median_s")
    print(table(("M elements/s", *keys), [(f"{r['case']} {r['dtype']} {r['rows']}x{r['columns']}", *(r[k] for k in keys)) for r in found]))
    kept = [] if a.cpu_smoke else of_other_processors(Path(a.out) if a.out else RESULTS / "emulator.json")
    write(a, __file__, "cpu", [*kept, *found], is_row_a_line=True)


if __name__ == "__main__":
    main()
