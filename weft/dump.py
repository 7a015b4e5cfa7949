"""Debug output: what the setting `dump` asks for, written to the standard output or to files.

    WEFT_DUMP=python                 each definition that gets an executor, as Python
    WEFT_DUMP=fusion                 what each kernel computes, and its schedule
    WEFT_DUMP=scheduler              properties, candidates, choice, and why each scheduler declined
    WEFT_DUMP=segments               the steps of each definition, with the bytes and the reason of each edge between them
    WEFT_DUMP=cuda                   the text of each kernel
    WEFT_DUMP=kernel_ir              the statements of each kernel after all passes
    WEFT_DUMP=sass                   its machine code as text, where nvdisasm is installed; ptx, cubin, resources: what else the compiler gives
    WEFT_DUMP=launch                 grid, block and arguments of each launch that is prepared
    WEFT_DUMP=passes                 what each pass of the lowering made of each kernel (an unchanged one says so)
    WEFT_DUMP=passes:group*@softmax* passes and kernels by shell patterns
    WEFT_DUMP_DIR                    files here instead of the standard output
Read first: `Dump`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from .options import current


def _write(file_name: str, text: str) -> None:
    folder = current().dump_dir
    if folder:
        os.makedirs(os.path.expanduser(folder), exist_ok=True)
        with open(os.path.join(os.path.expanduser(folder), file_name), "a", encoding="utf-8") as f:
            f.write(text + "\n")
    else:
        print(text, file=sys.stdout)


class Dump:
    """The dumps, one function each; cheap when off."""

    @staticmethod
    def python(text: Callable[[], str]) -> None:
        """Write a definition as Python."""
        if current().is_dumped("python"):
            _write("definitions.py", text())

    @staticmethod
    def fusion(kernel: str, text: Callable[[], str]) -> None:
        """Write the fusion of a kernel, before and after scheduling."""
        if current().is_dumped("fusion", kernel=kernel):
            _write(f"{kernel}.fusion.txt", text())

    @staticmethod
    def kernel_ir(kernel: str, text: Callable[[], str]) -> None:
        """Write the statements of a kernel."""
        if current().is_dumped("kernel_ir", kernel=kernel):
            _write(f"{kernel}.kernel_ir.txt", text())

    @staticmethod
    def scheduler(proposal: Any) -> None:
        """Write which schedulers declined and why, the candidates, and the choice."""
        if not current().is_dumped("scheduler"):
            return
        declined = [f"  {name} declined: {reason}" for name, reason in proposal.declined]
        _write("scheduler.txt", "\n".join([f"scheduler: {proposal.scheduler.name}", *declined, proposal.trace, f"  chosen: {proposal.params}"]))

    @staticmethod
    def segments(text: Callable[[], str]) -> None:
        """Write the segments of a definition."""
        if current().is_dumped("segments"):
            _write("segments.txt", text())

    @staticmethod
    def passes(kernel: str) -> Callable[[str, str], None] | None:
        """Return a function that records a pass's result, or None if the dump of passes is off."""
        if not any(item.startswith("passes") for item in current().dump):
            return None
        state = {"step": 0, "text": ""}

        def record(name: str, text: str) -> None:
            state["step"] += 1  # type: ignore[operator]
            if current().is_dumped("passes", name, kernel):
                changed = text != state["text"]
                _write(f"{kernel}.passes.txt", f"== {state['step']:02d} {name}{'' if changed else ' (unchanged)'}\n{text if changed else ''}")
            state["text"] = text

        return record

    @staticmethod
    def text(kernel: str, text: str) -> None:
        if current().is_dumped("cuda", kernel=kernel):
            _write(f"{kernel}.cu", text)

    @staticmethod
    def machine_code(kernel: str, resources: str, cubin: bytes, ptx: str, disassembled: Callable[[bytes], str | None]) -> None:
        """Write the resources of a kernel, and its PTX and machine code if requested. disassembled: returns machine code as text, None without a tool."""
        settings = current()
        if settings.ptxas_verbose or settings.is_dumped("resources", kernel=kernel):
            _write(f"{kernel}.resources.txt", f"{kernel}: {resources}")
        if settings.is_dumped("ptx", kernel=kernel) and ptx:
            _write(f"{kernel}.ptx", ptx)
        if settings.is_dumped("sass", kernel=kernel):
            _write(f"{kernel}.sass", disassembled(cubin) or f"{kernel}: no nvdisasm was found; `weft doctor` says how to get one")
        if settings.is_dumped("cubin", kernel=kernel):
            folder = os.path.expanduser(settings.dump_dir) or os.getcwd()
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"{kernel}.cubin"), "wb") as f:
                f.write(cubin)

    @staticmethod
    def launch(kernel: str, plan: Any) -> None:
        if current().is_dumped("launch", kernel=kernel):
            _write(f"{kernel}.launch.txt", f"{kernel}: {plan}")
