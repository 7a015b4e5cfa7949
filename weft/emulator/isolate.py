"""Running a kernel in a child process: whatever it does, this process lives on.

Buffers travel through one file in shared memory; a page-relative copy of each keeps its alignment. The child's side is
`child`. Read first: `run_in_child`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.emulator.arguments import Buffer, ChipLimits, Geometry, LaunchOptions, Scalar
from weft.emulator.build import build_runtime
from weft.emulator.native import NativeKernel, Outcome
from weft.emulator.report import FIELD, RECORD
from weft.options import current

PAGE_BYTES = 4096
GUARD_BYTES = 2 * PAGE_BYTES  # between buffers, so that what lies beside one is no other
START_S = 30.0  # for the child to import and load, beside the launch's own time limit


def run_in_child(
    kernel: NativeKernel, geometry: Geometry, args: Sequence[Buffer | Scalar], extra: Sequence[Buffer], options: LaunchOptions, limits: ChipLimits, trace: bool
) -> Outcome:
    """As native.run, in a child process. A child that dies or hangs is a finding."""
    buffers = [a for a in (*args, *extra) if isinstance(a, Buffer)]
    offsets, total_bytes = _layout(buffers)
    with tempfile.TemporaryFile(dir=_shared_memory_folder()) as file:
        file.truncate(max(total_bytes, PAGE_BYTES))
        with mmap.mmap(file.fileno(), 0) as memory:
            for address, offset in offsets.items():
                memory[offset : offset + _bytes_at(buffers, address)] = ctypes.string_at(address, _bytes_at(buffers, address))
            outcome = _run_child(kernel, _request(kernel, geometry, args, extra, options, limits, trace, offsets), file.fileno(), options.timeout_s)
            for b in buffers:
                if b.written:
                    ctypes.memmove(b.address, memory[offsets[b.address] : offsets[b.address] + b.bytes], b.bytes)
    return outcome


def _shared_memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _bytes_at(buffers: Sequence[Buffer], address: int) -> int:
    return max(b.bytes for b in buffers if b.address == address)


def _layout(buffers: Sequence[Buffer]) -> tuple[dict[int, int], int]:
    """Offset in the file of each address, and the size of the file."""
    offsets: dict[int, int] = {}
    end = GUARD_BYTES
    for b in buffers:
        if b.address not in offsets:
            offsets[b.address] = end + b.address % PAGE_BYTES
            end = -(-(offsets[b.address] + _bytes_at(buffers, b.address) + GUARD_BYTES) // PAGE_BYTES) * PAGE_BYTES
    return offsets, end


def _request(kernel, geometry, args, extra, options, limits, trace, offsets) -> dict[str, Any]:
    def described(arg: Buffer | Scalar) -> dict[str, Any]:
        if isinstance(arg, Buffer):
            fields = {name: getattr(arg, name) for name in ("bytes", "name", "written", "initialised", "workspace", "constant")}
            return {"offset": offsets[arg.address], **fields}
        if arg.ctype == "tensor_map":
            return {"ctype": arg.ctype, **_relative_map(bytes(arg.value), offsets, (*args, *extra))}
        return {"ctype": arg.ctype, "value": arg.value}

    return {
        "name": kernel.built.name, "entry": kernel.entry, "check_races": kernel.check_races, "trace": trace,
        "geometry": dataclasses.asdict(geometry), "limits": dataclasses.asdict(limits),
        "options": dataclasses.asdict(dataclasses.replace(options, sample_blocks=_plain(options.sample_blocks))),
        "args": [described(a) for a in args], "extra": [described(b) for b in extra],
    }  # fmt: skip


def _plain(blocks: Sequence[int] | int | None) -> Sequence[int] | int | None:
    return blocks if blocks is None or isinstance(blocks, int) else list(blocks)


def _relative_map(value: bytes, offsets: dict[int, int], args: Sequence[Buffer | Scalar]) -> dict[str, Any]:
    """A tensor map whose base is given as an offset in the file."""
    (base,) = struct.unpack_from("<Q", value)
    for arg in args:
        if isinstance(arg, Buffer) and arg.address <= base < arg.address + arg.bytes:
            return {"value": value.hex(), "offset": offsets[arg.address] + base - arg.address}
    return {"value": value.hex(), "offset": None}


def _run_child(kernel: NativeKernel, request: dict[str, Any], file: int, timeout_s: float) -> Outcome:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "WEFT_CACHE_DIR": str(current().cache_path)}
    with tempfile.TemporaryFile() as code:
        runtime = build_runtime().code
        code.write(runtime + kernel.built.code)
        code.flush()
        files = [file, code.fileno()]
        command = [sys.executable, "-m", "weft.emulator.child", *map(str, files), str(len(runtime))]
        return _outcome(kernel, command, request, files, environment, timeout_s)


def _outcome(kernel: NativeKernel, command: list[str], request: dict[str, Any], files: list[int], environment: dict[str, str], timeout_s: float) -> Outcome:
    try:
        child = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, check=False, pass_fds=files, env=environment, timeout=timeout_s + START_S
        )
    except subprocess.TimeoutExpired:
        return _died("timeout", f"{kernel.entry} did not end within {timeout_s} s, and not even the timer could stop it", "look for a loop that cannot end")
    if child.returncode == 0:
        return Outcome(**json.loads(child.stdout))
    name = signal.Signals(-child.returncode).name if child.returncode < 0 else f"exit code {child.returncode}"
    words = child.stderr.strip().split("\n")[-1]
    message = f"{kernel.entry} ended its process: {name}" + (f" ({words})" if words else "")
    return _died("crash", message, "check accesses that do not go through the primitives")


def _died(kind: str, message: str, hint: str) -> Outcome:
    return Outcome(FIELD.join([kind, "0", "0", "0", "1", "", "", message, hint]) + RECORD, "", 0, 0)
