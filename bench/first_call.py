"""Where the time of a first call goes, and what a warm call costs on the host; the same math through torch.compile beside it.

    python bench/first_call.py [OUT.json] [--shape 16384,4096] [--only NAME]

weft: the disk cache and NVRTC's own cache are off, and every kernel of the process is forgotten before each case. The first row is the first kernel of the
process, which also reads the chip's figures, and loads and imports what a thread has not by then (with WEFT_PRELOAD=off: all of it). definition: building the
graph; binding: checks of the inputs and output shapes; schedule: choice and application; lowering: kernel IR and text; NVRTC; load: the machine code into the
context; rest: arguments, launch, waiting for the kernel. first: all but the definition, as a caller sees it. torch.compile: default mode, static shapes,
dynamo reset and empty caches before each case.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

FOLDER = tempfile.TemporaryDirectory()  # caches that start empty; inductor reads these variables when it is imported
os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{FOLDER.name}/inductor", "TRITON_CACHE_DIR": f"{FOLDER.name}/triton"}
os.environ["CUDA_CACHE_DISABLE"] = "1"  # NVRTC keeps what it compiled in the driver's cache, and finds it there in 20 ms

import torch  # noqa: E402
from cases import BY_NAME, Case  # noqa: E402
from measure import device_of, host_us, parser, synchronize, table, write  # noqa: E402

from weft.options import options  # noqa: E402
from weft.runtime.runtimes import forget_kernels  # noqa: E402

NAMES = ("softmax", "rms_norm", "layer_norm", "add_rms_norm", "dropout_layer_norm", "silu_mul", "gelu_bias", "row_sum", "col_sum")
SMOKE_NAMES = ("softmax", "dropout_layer_norm", "col_sum")
STAGES = ("definition", "binding", "schedule", "lowering", "nvrtc", "load", "rest")


def first_call(case: Case, inputs: list[torch.Tensor], device: str) -> dict[str, Any]:
    """Return the stages of a definition's first call in milliseconds, and a warm call in microseconds."""
    forget_kernels()
    start = time.perf_counter()
    fd = case.definition(inputs[0].dtype)
    defined = time.perf_counter()
    outputs = fd.execute(inputs)
    synchronize(device)
    first_s = time.perf_counter() - defined
    timings = fd.fec.timings
    spent = {name: getattr(timings, f"{name}_s") for name in ("binding", "schedule", "lowering", "nvrtc", "load")}
    stages = {"definition": defined - start, **spent, "rest": first_s - sum(spent.values())}
    row: dict[str, Any] = {"case": case.name, **{f"{name}_ms": round(s * 1e3, 2) for name, s in stages.items()}, "first_s": round(first_s, 4)}
    row["error"] = case.error(inputs, outputs)
    del outputs
    row["warm_us"] = round(host_us(lambda: fd.execute(inputs), device), 2)
    return row


def torch_compile(case: Case, inputs: list[torch.Tensor], device: str, backend: str) -> dict[str, Any]:
    """Return seconds of torch.compile's first call, and microseconds of a warm one."""
    torch._dynamo.reset()
    compiled = torch.compile(case.math, dynamic=False, backend=backend)
    start = time.perf_counter()
    compiled(*inputs)
    synchronize(device)
    first_s = time.perf_counter() - start
    return {"compile_first_s": round(first_s, 4), "compile_warm_us": round(host_us(lambda: compiled(*inputs), device), 2)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--shape", default="16384,4096", help="rows,columns")
    arguments.add_argument("--only", default="", help="one case")
    a = arguments.parse_args()
    device = device_of(a)
    rows, columns = (8, 256) if a.cpu_smoke else map(int, a.shape.split(","))
    backend = "eager" if a.cpu_smoke else "inductor"
    names = [a.only] if a.only else list(SMOKE_NAMES if a.cpu_smoke else NAMES)
    found: list[dict[str, Any]] = []
    with options(cache=False):
        inputs = BY_NAME[names[0]].inputs(rows, columns, torch.bfloat16, device)
        synchronize(device)
        found.append({**first_call(BY_NAME[names[0]], inputs, device), "case": f"{names[0]}, first of the process"})
        for name in names:
            case = BY_NAME[name]
            inputs = case.inputs(rows, columns, torch.bfloat16, device)
            synchronize(device)
            found.append(first_call(case, inputs, device))
    with torch.no_grad():
        for row, name in zip(found[1:], names):
            row |= torch_compile(BY_NAME[name], BY_NAME[name].inputs(rows, columns, torch.bfloat16, device), device, backend)
            print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    head = ["case", *(f"{name} ms" for name in STAGES), "first s", "warm us", "error", "compile first s", "compile warm us"]
    columns_of = [*(f"{name}_ms" for name in STAGES), "first_s", "warm_us", "error", "compile_first_s", "compile_warm_us"]
    shown = [[row["case"], *(f"{row[c]:.1e}" if c == "error" else row.get(c, "") for c in columns_of)] for row in found]
    print(table(head, shown))
    write(a, __file__, device, found, shape=[rows, columns], dtype="bfloat16")


if __name__ == "__main__":
    main()
