"""What can be said of the kernel of a call: its scheduler, parameters, text, launch sizes and resources.

Owns no decision: everything comes from the functions that the runtime calls too, which depend on their arguments only. Resources are those of
machine code for the GPU; without one, NVRTC compiles for the chip that the emulator imitates.
Read first: `card_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft import arch as chips
from weft.api.definition import FusionDefinition
from weft.compiler import compile_program, prepare, propose
from weft.device.library import translation_unit
from weft.dtypes import DataType
from weft.expr import Sym, evaluate
from weft.options import current
from weft.runtime import nvrtc
from weft.runtime.binding import Bound, InputPlan


@dataclass(frozen=True, slots=True)
class KernelCard:
    """One kernel for one set of sizes. declined: (scheduler, reason); path: the file with the text, which has `lines` lines."""

    name: str
    scheduler: str
    params: Any
    declined: tuple[tuple[str, str], ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    path: Path
    lines: int
    resources_text: str


def card_of(fd: FusionDefinition, inputs: Sequence[Any], name: str, folder: Path) -> KernelCard:
    """Return the card of the kernel that serves `inputs`, and write its text to `folder`.

    Errors: those of the compiler. Without NVRTC the resources say so.
    """
    fusion = fd.fusion
    assert fusion is not None
    prepared = prepare(fusion)
    bound = InputPlan(fusion, prepared.equalities).bind(inputs)
    chip = chips.arch_by_name(current().chip) if bound.device is None else chips.arch_of_device(bound.device)
    proposal = propose(fusion, bound.env, alignments(fusion.inputs(), bound), chip)  # type: ignore[arg-type]
    program = compile_program(fusion, proposal, DataType.Int32, name=name)
    text = translation_unit(program.text, program.blocks)
    path = folder / f"{name}.cu"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return KernelCard(
        name=name,
        scheduler=proposal.scheduler.name,
        params=proposal.params,
        declined=proposal.declined,
        grid=numbers(program.grid, bound),
        block=numbers(program.block, bound),
        shared_bytes=int(evaluate(program.shared_bytes, bound.env)),  # type: ignore[arg-type]
        path=path,
        lines=text.count("\n"),
        resources_text=resources_text(text, name, chip.nvrtc_target, program.max_registers),
    )


def alignments(values: Sequence[Any], bound: Bound) -> dict[str, int]:
    """Return the alignment of each tensor of the call in bits, by name."""
    return {f"T{values[index].name}": tensor.alignment_bytes * 8 for index, tensor in bound.tensors.items()}


def numbers(sizes: tuple[Sym, Sym, Sym], bound: Bound) -> tuple[int, int, int]:
    """Return launch sizes as numbers."""
    x, y, z = (int(evaluate(size, bound.env)) for size in sizes)  # type: ignore[arg-type]
    return x, y, z


def resources_text(text: str, entry: str, target: str, max_registers: int | None) -> str:
    """Return registers, stack and spills of the machine code, or that there is no compiler for it."""
    try:
        compiled = nvrtc.compile_or_load(text, entry, target, max_registers=max_registers)
    except nvrtc.NvrtcMissing as error:
        return f"not compiled: NVRTC was not found ({error.values['looked']})"
    return f"{target}: {compiled.resources}"
