"""How the scripts of this folder measure, and what they write.

Times on a GPU are medians with an L2 cache that holds none of the data (triton's `do_bench`, as most libraries of this field report them). A fraction is
that of a device-to-device copy of the same bytes: inputs once and outputs once. Without a GPU (`--cpu-smoke`) everything runs in the emulator on small
tensors, which shows that a script works; its times mean nothing.
Read first: `fraction_of_copy`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft import FusionDefinition
from weft.device.library import translation_unit
from weft.lower.program import KernelProgram
from weft.options import current
from weft.runtime.runtimes import Request

FLUSHED_BYTES = 256 << 20
"""More than any L2 holds, as `do_bench` writes."""
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


# ---------------------------------------------------------------- a script
def parser(what: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all scripts share."""
    out = argparse.ArgumentParser(description=what)
    out.add_argument("out", nargs="?", help="JSON file to write; default: bench/results/<script>.json")
    out.add_argument("--cpu-smoke", action="store_true", help="tiny sizes in the emulator, to see that the script works; writes nothing unless `out` is given")
    return out


def sized_parser(what: str) -> argparse.ArgumentParser:
    """Return a parser of a script whose cases are all of one shape."""
    out = parser(what)
    out.add_argument("--rows", type=int, default=16384)
    out.add_argument("--columns", type=int, default=4096)
    out.add_argument("--only", default="", help="cases whose name has this in it")
    return out


def device_of(arguments: argparse.Namespace) -> str:
    """Return where to run. Exits when there is no GPU and no --cpu-smoke."""
    if arguments.cpu_smoke:
        return "cpu"
    if not torch.cuda.is_available():
        raise SystemExit("no GPU; --cpu-smoke runs tiny sizes in the emulator")
    return "cuda"


def about(device: str) -> dict[str, str]:
    """Return what a reader of the figures must know of the machine."""
    out = {"date": datetime.date.today().isoformat(), "python": sys.version.split()[0], "torch": torch.__version__}
    if device == "cpu":
        return {**out, "chip": f"emulator of {current().chip}"}
    out |= {"chip": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        out["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        out["driver"] = "unknown"
    return out


def write(arguments: argparse.Namespace, script: str, device: str, rows: list[dict[str, Any]], *, is_row_a_line: bool = False, **more: Any) -> None:
    """Write the rows as JSON, with the command and what `about` says. is_row_a_line: for rows that hold much."""
    path = Path(arguments.out) if arguments.out else None if arguments.cpu_smoke else RESULTS / f"{Path(script).stem}.json"
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"command": f"python bench/{Path(script).name}", **about(device), **more, "rows": rows}
    path.write_text((line_per_row(data) if is_row_a_line else json.dumps(data, indent=1)) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def line_per_row(data: dict[str, Any]) -> str:
    """Return JSON with a line for each of its rows."""
    lines = ",\n".join(f"  {json.dumps(row)}" for row in data["rows"])
    return json.dumps({**data, "rows": []}, indent=1).replace('"rows": []', f'"rows": [\n{lines}\n ]')


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as text in columns, numbers to the right."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(str(h)), *(len(row[i]) for row in cells)) if cells else len(str(h)) for i, h in enumerate(head)]

    def place(index: int, cell: object, row: Sequence[object]) -> str:
        to_the_right = index > 0 and (row is head or _is_number(str(cell)))
        return str(cell).rjust(widths[index]) if to_the_right else str(cell).ljust(widths[index])

    def line(row: Sequence[object]) -> str:
        return "  ".join(place(index, cell, row) for index, cell in enumerate(row)).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *(line(row) for row in cells)])


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "-+."


# ---------------------------------------------------------------- times
def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def median_us(call: Callable[[], object], device: str, rep_ms: int = 60) -> float:
    """Return the median time of a call on the GPU, L2 flushed before each; in the emulator, of three calls on the host's clock."""
    if device == "cuda":
        from triton.testing import do_bench

        return do_bench(call, warmup=max(5, rep_ms // 4), rep=rep_ms, return_mode="median") * 1e3
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def medians_in_turn(calls: Sequence[Callable[[], object]], device: str, samples: int) -> list[list[float]]:
    """Return the times of each call in us, `samples` of them, all calls in turn and each time another one first, L2 flushed before each.

    What changes with time (clocks, neighbours) or with the call before then changes all alike, which medians of one call after the other do not say.
    """
    if device != "cuda":
        return [[median_us(call, device)] for call in calls]
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device)
    events = [[(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls] for _ in range(samples)]
    for call in calls:
        call()
    for sample, row in enumerate(events):
        for turn in range(len(calls)):
            which = (sample + turn) % len(calls)
            flushed.zero_()
            row[which][0].record()
            calls[which]()
            row[which][1].record()
    synchronize(device)
    return [[row[n][0].elapsed_time(row[n][1]) * 1e3 for row in events] for n in range(len(calls))]


def host_us(call: Callable[[], object], device: str, calls: int = 200) -> float:
    """Return the host's time of one of `calls` calls in a row: launches do not wait for kernels as long as the GPU's queue has room."""
    calls = calls if device == "cuda" else 5
    call()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    spent = time.perf_counter() - start
    synchronize(device)
    return spent / calls * 1e6


@dataclass(frozen=True)
class KernelTime:
    """What the profiler says of the kernels of one name in a call. us: of all of them, median over calls."""

    name: str
    count: int
    us: float


def kernel_times(call: Callable[[], object], calls: int = 1, *, flushed_bytes: int = 0) -> list[KernelTime]:
    """Return the kernels of a call on the GPU, the longest first: the profiler's times, so the host does not count. flushed_bytes: written before each call,
    outside of what is profiled."""
    flushed = torch.empty(flushed_bytes, dtype=torch.uint8, device="cuda")
    seen: dict[str, list[tuple[int, float]]] = {}
    for _ in range(calls):
        flushed.zero_()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        for event in profile.key_averages():
            if event.self_device_time_total > 0:
                seen.setdefault(event.key, []).append((event.count, event.self_device_time_total))
    found = [KernelTime(name, round(statistics.median(c for c, _ in runs)), statistics.median(us for _, us in runs)) for name, runs in seen.items()]
    return sorted(found, key=lambda kernel: -kernel.us)


def moved_bytes(*groups: Sequence[torch.Tensor]) -> int:
    """Return the bytes of all tensors: what a kernel must at least read and write."""
    return sum(t.numel() * t.element_size() for group in groups for t in group)


_copies: dict[tuple[str, int], float] = {}
COPY_STEP = 1 << 20


def copy_us(count: int, device: str) -> float:
    """Return the time of a copy that reads and writes `count` bytes in total (to 1 MiB; measured once per size)."""
    half = max(1, round(count / 2 / COPY_STEP)) * COPY_STEP
    if (device, half) not in _copies:
        source = torch.empty(half, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        _copies[device, half] = median_us(lambda: target.copy_(source), device, 100)
    return _copies[device, half] * count / 2 / half


def fraction_of_copy(call: Callable[[], object], count: int, device: str, rep_ms: int = 60) -> float:
    """Return the time of a copy of the same bytes over the time of the call: 1 is as fast as a copy."""
    return copy_us(count, device) / median_us(call, device, rep_ms)


def measured(call: Callable[[], Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], device: str) -> dict[str, float]:
    """Return the time of a call, the bytes of its inputs and results, and the fraction of a copy of these."""
    moved = moved_bytes(inputs, tuple(call()))
    us = median_us(call, device)
    return {"us": round(us, 2), "bytes": moved, "of_copy": round(copy_us(moved, device) / us, 4)}


# ---------------------------------------------------------------- kernels, compiled before they are needed
def requests_for(fd: FusionDefinition, inputs: Sequence[torch.Tensor]) -> list[tuple[Request, KernelProgram]]:
    """Return what a call would ask the compiler for, with the lowered programs, which stay with the definition's kernels."""
    caller = fd._executor_cache()._caller
    sizes, engine = caller.sizes(inputs, None, current())
    requests = [caller.request(use, sizes, engine, current()) for use in sizes.kernels]
    return [(request, caller.kernels.program(request)) for request in requests]


def request_for(fd: FusionDefinition, inputs: Sequence[torch.Tensor]) -> tuple[Request, KernelProgram]:
    """The same for a call of one kernel."""
    (found,) = requests_for(fd, inputs)
    return found


def compile_ahead(requests: Iterable[tuple[Request, KernelProgram]], processes: int) -> int:
    """Fill the disk cache with the kernels of these requests, by NVRTC in several processes; return how many there were.

    Each compilation takes 0.1 to 0.3 s on one core, and the calls that follow find their kernels on disk.
    """
    wanted: dict[tuple[str, int | None], list[object]] = {}
    for request, program in requests:
        unit = translation_unit(program.text, program.blocks)
        wanted[program.name, program.max_registers] = [unit, program.name, request.engine.arch.nvrtc_target, program.max_registers]
    jobs = list(wanted.values())
    shares = [jobs[n::processes] for n in range(min(processes, len(jobs)))]
    paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "WEFT_CACHE_DIR": str(current().cache_path)}
    command = [sys.executable, str(HERE / "compile_worker.py")]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, text=True) for _ in shares]
    for worker, share in zip(workers, shares):
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(share))
        worker.stdin.close()
    failed = sum(worker.wait() != 0 for worker in workers)
    if failed:
        print(f"{failed} of {len(workers)} compiling processes failed; the kernels they lack are compiled when they are needed")
    return len(jobs)
