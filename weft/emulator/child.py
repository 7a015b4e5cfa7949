"""The child process of an isolated launch: reads a request, runs the kernel, writes the outcome. Started by `isolate`.

Read first: `answer`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import mmap
import os
import struct
import sys
from typing import Any

from weft.emulator.arguments import Buffer, ChipLimits, Geometry, LaunchOptions, Scalar
from weft.emulator.build import Built
from weft.emulator.native import NativeKernel, Outcome, run


def answer(file: int, code: int, runtime_bytes: int, request: dict[str, Any]) -> Outcome:
    """Map the buffers, run, and return what was found."""
    memory = mmap.mmap(file, 0)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def argument(a: dict[str, Any]) -> Buffer | Scalar:
        if "ctype" not in a:
            return Buffer(base + a.pop("offset"), **a)
        if a["ctype"] != "tensor_map":
            return Scalar(a["ctype"], a["value"])
        value = bytes.fromhex(a["value"])
        return Scalar("tensor_map", value if a["offset"] is None else struct.pack("<Q", base + a["offset"]) + value[8:])

    both = os.pread(code, os.fstat(code).st_size, 0)
    runtime = Built("runtime", both[:runtime_bytes])
    kernel = NativeKernel(Built(request["name"], both[runtime_bytes:]), request["entry"], request["check_races"], runtime)
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in request["geometry"].items()}
    geometry = Geometry(**fields)
    args = [argument(a) for a in request["args"]]
    extra = [b for b in (argument(a) for a in request["extra"]) if isinstance(b, Buffer)]
    return run(kernel, geometry, args, extra, LaunchOptions(**request["options"]), ChipLimits(**request["limits"]), request["trace"])


if __name__ == "__main__":
    buffers, code, runtime_bytes = map(int, sys.argv[1:])
    print(json.dumps(dataclasses.asdict(answer(buffers, code, runtime_bytes, json.load(sys.stdin)))))
