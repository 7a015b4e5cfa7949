"""Planted mistakes on a GPU: the same mistaken text that the emulator gets, compiled by NVRTC, run plainly and under compute-sanitizer.

    python tests/gpu/planted_on_gpu.py [--all] [--seconds S] [--markdown FILE]

Prints what the emulator, the GPU and each tool say of each mistake, side by side. Each run is a process of its own under a time limit, since a mistaken
kernel may hang or break its CUDA context. `--prepare FOLDER` only writes the cases (on a machine with a C++ compiler), `--run FOLDER` only runs them.
Read first: `prepare`, `work`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
MAIN = (
    ("softmax_registers", "barrier dropped in a block reduction"),
    ("pointwise", "off-by-one predicate of a load"),
    ("column_sum", "fence dropped before the arrival"),
    ("pipeline_rows", "missing proxy fence before a bulk store"),
    ("pipeline_rows", "an arrival too many expected"),
)
MORE = (
    ("transpose", "barrier under divergence"),
    ("softmax_registers", "no identity for lanes beyond the last warp's result"),
    ("row_sums", "loop bound one too small: outputs never written"),
    ("column_sum", "semaphore not reset"),
    ("pipeline_rows", "only lane 0 of a warp hands a stage back"),
    ("softmax_cluster", "two exchanges in one place"),
)
PLAIN_S, TOOL_S = 30.0, 60.0
"""Time limits of a run. A run of a correct kernel takes 3 to 10 seconds, most of it importing torch and starting the tool."""
POISON = 0x7F  # what outputs hold before the launch
TOOL_SAYS = re.compile(r"(?!nothing|no verdict|not run)")
TOOL_WORDS = re.compile(r"=========\s+(Invalid .*|Error: .*|Warning: .*[Rr]ace.*|Barrier error.*|Uninitialized .*|Program hit .*|Misaligned .*|Target application returned an error)")


# ---------------------------------------------------------------- cases, made with the emulator
def prepare(folder: Path, chosen: Sequence[tuple[str, str]]) -> None:
    """Write each case: unit.cu, the launch, what buffers hold before, what is right after it, and the emulator's verdict."""
    from weft.check import planted
    from weft.emulator import Buffer, EmulatedKernel

    for number, (kernel, claim) in enumerate(chosen):
        mistake = next(m for m in planted.MISTAKES if (m.kernel, m.claim) == (kernel, claim))
        at = planted.subject(kernel)
        case = folder / f"{number:02d}"
        case.mkdir(parents=True)
        verdict = planted.run(mistake)
        (case / "unit.cu").write_text(planted.mistaken_unit(at, mistake), encoding="utf-8")
        (case / "correct.cu").write_text(at.unit, encoding="utf-8")
        arguments: list[dict[str, Any]] = []
        before = [_bytes(a) if isinstance(a, Buffer) else b"" for a in at.arguments]
        geometry = {name: value for name, value in at.geometry.items()}
        rest = {k: v for k, v in geometry.items() if k not in ("grid", "block", "shared_bytes")}
        EmulatedKernel(at.unit, at.entry).launch(geometry["grid"], geometry["block"], geometry["shared_bytes"], at.arguments, **rest, **at.options)
        for place, (argument, held) in enumerate(zip(at.arguments, before)):
            if not isinstance(argument, Buffer):
                arguments.append({"scalar": argument.ctype, "value": argument.value})
                continue
            is_output = argument.written and not argument.initialised and not argument.workspace
            (case / f"{place}.before").write_bytes(bytes([POISON]) * argument.bytes if is_output else held)
            (case / f"{place}.right").write_bytes(_bytes(argument))
            arguments.append({"name": argument.name, "bytes": argument.bytes, "is_output": is_output, "left_zero": argument.left_zero})
            _put(argument, held)
        launch = {**geometry, **mistake.geometry}
        found = verdict.naming[0].finding.kind if verdict.is_found else "missed"
        line = verdict.line if len(verdict.line) < 60 else verdict.line[:57] + "..."
        says = f"{found}, line `{line}`, {len(verdict.seeds)} of {len(verdict.exploration.reports)} orders"
        (case / "case.json").write_text(
            json.dumps({"kernel": kernel, "claim": claim, "entry": at.entry, "launch": launch, "arguments": arguments, "emulator": says})
        )


def _bytes(buffer: Any) -> bytes:
    import ctypes

    return ctypes.string_at(buffer.address, buffer.bytes)


def _put(buffer: Any, data: bytes) -> None:
    import ctypes

    ctypes.memmove(buffer.address, data, len(data))


# ---------------------------------------------------------------- one run, in a process of its own
def work(case: Path, text: str) -> None:
    """Compile, launch once, compare; print one line of JSON."""
    import numpy as np
    import torch

    from weft.arch import arch_of_device
    from weft.runtime.driver import load_kernel
    from weft.runtime.nvrtc import compile_cubin

    given = json.loads((case / "case.json").read_text())
    torch.cuda.init()
    compiled = compile_cubin((case / text).read_text(encoding="utf-8"), given["entry"], arch_of_device(0).nvrtc_target, line_info=True)
    kernel = load_kernel(compiled.cubin, given["entry"], 0, compiled.resources)
    slots: list[Any] = []
    tensors: list[tuple[int, Any]] = []
    for place, argument in enumerate(given["arguments"]):
        if "scalar" in argument:
            slots.append(("scalar", argument["scalar"], argument["value"]))
            continue
        data = np.frombuffer((case / f"{place}.before").read_bytes(), np.uint8)
        slots.append(("pointer", len(tensors)))
        tensors.append((place, torch.from_numpy(data.copy()).cuda()))
    launch = given["launch"]
    cluster = tuple(launch.get("cluster", (1, 1, 1)))
    record = kernel.record(
        launch["grid"], launch["block"], launch["shared_bytes"], slots, cluster=None if cluster == (1, 1, 1) else cluster, cooperative=launch["cooperative"]
    )
    record.launch([t.data_ptr() for _, t in tensors], torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    wrong = total = not_zero = 0
    for place, tensor in tensors:
        argument = given["arguments"][place]
        after = tensor.cpu().numpy().tobytes()
        if argument["is_output"]:
            right = (case / f"{place}.right").read_bytes()
            different, elements = _differences(after, right, argument["name"], given)
            wrong, total = wrong + different, total + elements
        not_zero += argument["left_zero"] and any(after)
    print(json.dumps({"wrong": wrong, "total": total, "not_zero": bool(not_zero)}), flush=True)


def _differences(after: bytes, right: bytes, name: str, given: dict[str, Any]) -> tuple[int, int]:
    """Return (elements that differ by more than rounding, elements)."""
    import numpy as np
    import torch

    is_narrow = re.search(rf"weft::bf16\* __restrict__ {name}\b", (Path(given["folder"]) / "unit.cu").read_text() if "folder" in given else "") is not None
    dtype = torch.bfloat16 if is_narrow else torch.float32
    a, b = (torch.from_numpy(np.frombuffer(x, np.uint8).copy()).view(dtype).double() for x in (after, right))
    close = torch.isclose(a, b, rtol=2e-2 if is_narrow else 1e-4, atol=1e-5)
    return int((~close).sum()), a.numel()


# ---------------------------------------------------------------- many runs
@dataclass(frozen=True)
class Run:
    """How one process ended. text: what it printed, with the tool's lines."""

    seconds: float
    timed_out: bool
    status: int
    text: str


def run(command: Sequence[str], limit_s: float) -> Run:
    """Run a process in a session of its own, and end all of it when its time is up."""
    start = time.perf_counter()
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor an allocation, so that memcheck sees its end
    process = subprocess.Popen(list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True)
    try:
        text, _ = process.communicate(timeout=limit_s)
        return Run(time.perf_counter() - start, False, process.returncode, text)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return Run(time.perf_counter() - start, True, -signal.SIGKILL, text or "")


def said_plainly(done: Run) -> str:
    """What a plain run shows."""
    if done.timed_out:
        return f"hangs (stopped after {done.seconds:.0f} s)"
    result = _result(done.text)
    if result is None:
        lines = [line for line in done.text.strip().splitlines() if "rror" in line]
        return f"error: {lines[-1][:90]}" if lines else f"ended with status {done.status}"
    if result["wrong"]:
        return f"wrong: {result['wrong']} of {result['total']} elements"
    return "right result" + (", semaphores not zero" if result["not_zero"] else "")


def said_by_tool(done: Run) -> str:
    """What a tool of compute-sanitizer reports."""
    found = [match[1].strip() for match in map(TOOL_WORDS.search, done.text.splitlines()) if match]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return f"{found[0][:90]}{more}" + (", hangs" if done.timed_out else "")
    if done.timed_out:
        return "nothing; hangs"
    if "ERROR SUMMARY: 0 errors" in done.text or "RACECHECK SUMMARY: 0 hazards" in done.text:
        return "nothing"
    return f"no verdict (status {done.status}): {done.text.strip().splitlines()[-1][:70] if done.text.strip() else 'no output'}"


def _result(text: str) -> dict[str, Any] | None:
    for line in reversed(text.splitlines()):
        if line.startswith('{"wrong"'):
            return json.loads(line)  # type: ignore[no-any-return]
    return None


def compare(folder: Path, worker: Sequence[str], sanitizer: str | None, seconds: float) -> list[dict[str, str]]:
    """Run every case, plainly and under each tool; return a row per case. Cases that the time does not suffice for are left out, and it says so."""
    end = time.perf_counter() + seconds
    rows = []
    for case in sorted(p for p in folder.iterdir() if (p / "case.json").exists()):
        given = json.loads((case / "case.json").read_text())
        given["folder"] = str(case)
        (case / "case.json").write_text(json.dumps(given))
        row = {"kernel": given["kernel"], "mistake": given["claim"], "emulator": given["emulator"]}
        correct = run([*worker, "--worker", str(case), "--text", "correct.cu"], min(PLAIN_S, max(1.0, end - time.perf_counter())))
        row["correct text"] = said_plainly(correct)
        row["GPU"] = _limited(end, PLAIN_S, lambda limit, case=case: said_plainly(run([*worker, "--worker", str(case)], limit)))
        for tool in TOOLS:
            if sanitizer is None:
                row[tool] = "compute-sanitizer not found"
                continue
            command = [sanitizer, "--tool", tool, "--target-processes", "all", "--print-limit", "5", *worker, "--worker", str(case)]
            row[tool] = _limited(end, TOOL_S, lambda limit, command=command: said_by_tool(run(command, limit)))
            if TOOL_SAYS.match(row[tool]):  # does the tool say so of the mistake, or of any kernel like it?
                same = _limited(end, TOOL_S, lambda limit, command=command: said_by_tool(run([*command, "--text", "correct.cu"], limit)))
                row[tool] += " — of the correct text too" if TOOL_SAYS.match(same) else "" if same.startswith("nothing") else f" — correct text: {same}"
        rows.append(row)
        print(f"{row['kernel']}: {row['mistake']}", *(f"  {name:12s} {text}" for name, text in list(row.items())[2:]), sep="\n", flush=True)
    return rows


def _limited(end: float, limit_s: float, call: Any) -> str:
    left = end - time.perf_counter()
    return call(min(limit_s, left)) if left > 2 else "not run: time is up"


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """Return the comparison as a table."""
    if not rows:
        return "no cases"
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row[name].replace("|", "\\|") for name in names) + " |" for row in rows]
    return "\n".join(lines)


def find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer, or None."""
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/compute-sanitizer", Path("/usr/local/cuda/compute-sanitizer/compute-sanitizer")]
    return shutil.which("compute-sanitizer") or next((str(p) for p in places if p.exists()), None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="more mistakes than the five")
    parser.add_argument("--seconds", type=float, default=540.0, help="stop after this long (default: 540)")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="only write the cases")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="only run cases that were written before")
    parser.add_argument("--worker", type=Path, metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("--text", default="unit.cu", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        work(given.worker, given.text)
        return 0
    chosen = (*MAIN, *MORE) if given.all else MAIN
    if given.prepare:
        prepare(given.prepare, chosen)
        return 0
    with tempfile.TemporaryDirectory(prefix="planted-") as temporary:
        folder = given.run or Path(temporary)
        if not given.run:
            prepare(folder, chosen)
        rows = compare(folder, [sys.executable, os.path.abspath(__file__)], find_sanitizer(), given.seconds)
    print("\n" + markdown(rows))
    if given.markdown:
        given.markdown.write_text(markdown(rows) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
