"""Compiles kernels into the disk cache: a list of [text, name, target, register limit] as JSON on standard input. Needs neither torch nor a GPU."""

from __future__ import annotations

import json
import sys

from weft.runtime.nvrtc import compile_or_load


def main() -> None:
    for text, name, target, max_registers in json.load(sys.stdin):
        compile_or_load(text, name, target, max_registers=max_registers)


if __name__ == "__main__":
    main()
