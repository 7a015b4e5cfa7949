"""The child process of an isolated launch: reads a request, runs the kernel, writes the outcome. Started by `isolate`.

Read first: `answer`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import mmap
import struct
import sys
from pathlib import Path
from typing import Any

from weft.emulator.arguments import Buffer, ChipLimits, Geometry, LaunchOptions, Scalar
from weft.emulator.native import NativeKernel, Outcome, run


def answer(file: int, request: dict[str, Any]) -> Outcome:
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

    kernel = NativeKernel(Path(request["path"]), request["entry"], request["check_races"])
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in request["geometry"].items()}
    geometry = Geometry(**fields)
    args = [argument(a) for a in request["args"]]
    extra = [b for b in (argument(a) for a in request["extra"]) if isinstance(b, Buffer)]
    return run(kernel, geometry, args, extra, LaunchOptions(**request["options"]), ChipLimits(**request["limits"]), request["trace"])


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(answer(int(sys.argv[1]), json.load(sys.stdin)))))
