"""The child process of an isolated launch: reads a request, builds and runs the kernel, writes the outcome. Started by `isolate`.

Read first: `main`.
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

from weft.emulator import jail
from weft.emulator.arguments import Buffer, ChipLimits, Geometry, LaunchOptions, Scalar
from weft.emulator.build import Built, build_kernel, build_runtime
from weft.emulator.native import NativeKernel, Outcome, load_runtime, run
from weft.errors import WeftError


def answer(file: int, request: dict[str, Any], built: Built) -> Outcome:
    """Map the buffers, run, and return what was found. Errors: BadLaunch."""
    memory = mmap.mmap(file, 0)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def argument(a: dict[str, Any]) -> Buffer | Scalar:
        if "ctype" not in a:
            return Buffer(base + a.pop("offset"), **a)
        if a["ctype"] != "tensor_map":
            return Scalar(a["ctype"], a["value"])
        value = bytes.fromhex(a["value"])
        return Scalar("tensor_map", value if a["offset"] is None else struct.pack("<Q", base + a["offset"]) + value[8:])

    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in request["geometry"].items()}
    geometry = Geometry(**fields)
    args = [argument(a) for a in request["args"]]
    extra = [b for b in (argument(a) for a in request["extra"]) if isinstance(b, Buffer)]
    kernel = NativeKernel(built, request["text"]["entry"], request["text"]["check_races"])
    return run(kernel, geometry, args, extra, LaunchOptions(**request["options"]), ChipLimits(**request["limits"]), request["trace"])


def main(file: int, pipe: int) -> None:
    """Build within limits, then load and run under the system call filter; every line of the answer has the request's token."""
    request = json.load(sys.stdin)
    token = request.pop("token")

    def say(**what: Any) -> None:
        data = memoryview(json.dumps({"token": token, **what}).encode() + b"\n")
        while data:
            data = data[os.write(pipe, data) :]

    jail.limit(request["buffer_bytes"], request["cpu_seconds"])
    text = request["text"]
    try:
        runtime = build_runtime()
        built = build_kernel(text["source"], check_races=text["check_races"], raw_net=text["raw_net"], is_foreign=text["is_foreign"])
        load_runtime(runtime)
        say(built=True)
        jail.lock_in()
        say(outcome=dataclasses.asdict(answer(file, request, built)))
    except WeftError as error:
        say(error=type(error).__name__, values={name: str(value) for name, value in error.values.items()})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # skips exit handlers, which the kernel may have registered
