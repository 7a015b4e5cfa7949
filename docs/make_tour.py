"""Write docs/tour.md: one softmax through every stage, with what each stage really made of it.

    python docs/make_tour.py            write docs/tour.md beside this file
    python docs/make_tour.py --print    print it

Owns the words between the dumps. Nothing is written by hand into the dumps. Needs torch, NVRTC and what the emulator needs; no GPU.
Read first: `tour`.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import torch

from weft import FusionDefinition
from weft.arch import Arch, arch_by_name
from weft.cli import demo
from weft.codegen.cuda import generate
from weft.compiler import Proposal, prepare, propose, schedule_clone
from weft.device.library import translation_unit
from weft.dtypes import DataType
from weft.expr import evaluate
from weft.ir.fusion import Fusion
from weft.ir.values import TensorView
from weft.lower.pipeline import PIPELINE, lower
from weft.lower.program import KernelProgram, ScalarParam
from weft.options import options
from weft.runtime import nvrtc
from weft.runtime.binding import Bound, InputPlan
from weft.schedulers import SCHEDULERS
from weft.schedulers.base import ScheduleResult

TARGET = Path(__file__).with_name("tour.md")
CHIP = "H100"
SHAPE = (4096, 3000)
NAME = "softmax"


@dataclasses.dataclass
class Stop:
    """One stage of the tour: its heading, what to know, and dumps as (language, text)."""

    heading: str
    words: str
    dumps: list[tuple[str, str]]


def tour() -> str:
    """Return the text of the page."""
    lines = [
        "# A tour: one softmax through every stage", "",
        "Made by `python docs/make_tour.py` from the compiler itself; change that script, not this page. Everything runs without a GPU.", "",
    ]  # fmt: skip
    for number, stop in enumerate(stops(), 1):
        lines += [f"## {number}. {stop.heading}", "", textwrap.fill(" ".join(stop.words.split()), 140), ""]
        for language, text in stop.dumps:
            lines += [f"```{language}", text.rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def stops() -> Iterator[Stop]:
    """Yield the stages, each computed from the one before."""
    case, chip = demo.case_by_name(NAME), arch_by_name(CHIP)
    inputs = demo.make_inputs(case, SHAPE, "cpu")
    with FusionDefinition() as fd:
        case.define(fd)
    fusion = fd.fusion
    assert fusion is not None
    yield Stop(
        "The definition",
        """What a user writes. `fd.ops` adds nodes to a graph; nothing is computed. Sizes of -1 are symbolic: one kernel will serve a range of them.
        Arithmetic on 16-bit floats is done in float32, with casts that are nodes like any other.""",
        [("python", inspect.getsource(case.define))],
    )
    yield Stop(
        "The fusion",
        """The graph (`weft/ir`). `T0_g___bfloat` is tensor 0, in global memory; `iS0{i0}` is an axis: i for iteration, r for reduction, b
        for broadcast, S for serial (not bound to threads yet), and its extent. A reduction keeps its reduced axes as `r` axes; `keepdim` is a
        broadcast on top.""",
        [("text", str(fusion))],
    )
    bound = InputPlan(fusion, prepare(fusion).equalities).bind(inputs)
    alignments = {f"T{fusion.inputs()[index].name}": tensor.alignment_bytes * 8 for index, tensor in bound.tensors.items()}
    proposal = propose(fusion, bound.env, alignments, chip)  # type: ignore[arg-type]
    yield from scheduling(fusion, bound, proposal, chip)
    scheduled, result = schedule_clone(fusion, proposal)
    yield Stop(
        "The schedule, applied",
        """A clone of the fusion, transformed in place by the primitives of `weft/schedule`: inputs and outputs get caches in registers, one reference
        tensor is split, merged and bound to blocks and threads, the others replay its transforms, each reduction is cut into a part per thread and a
        rest across threads (`rfactor`), and every tensor is inlined into the loops of its consumers. Below: the loop axes of each tensor; `ca` is
        how many of them it shares with its consumers.""",
        [("text", loops_text(scheduled))],
    )
    yield from lowering(scheduled, result, bound)
    with options(chip=CHIP, emulate="on"):
        (output,) = fd.execute(inputs)
    exact = case.reference(inputs[0].double())
    error, rounding = demo.relative_error(output, exact), demo.relative_error(exact.to(output.dtype), exact)
    yield Stop(
        "The emulator",
        f"""`fd.execute` with tensors on the CPU compiles the same text with the host's C++ compiler and runs it block by block, checking every
        access. For {SHAPE[0]} rows of {SHAPE[1]} bfloat16 numbers the result differs from float64 by {error:.3e} (relative, L2 norm); the exact result,
        rounded to bfloat16, differs by {rounding:.3e}.""",
        [("text", f"input  {list(inputs[0].shape)} {inputs[0].dtype}\noutput {list(output.shape)} {output.dtype}, row sums {row_sums(output)}")],
    )


def scheduling(fusion: Fusion, bound: Bound, proposal: Proposal, chip: Arch) -> Iterator[Stop]:
    """Yield what the schedulers said, and the facts and parameters of the one that took the fusion."""
    chosen = next(scheduler for scheduler in SCHEDULERS if scheduler.name is proposal.scheduler)
    analysis = prepare(fusion).analysis(chosen)
    facts = analysis.facts(bound.env, {})  # type: ignore[union-attr]
    refusals = "\n".join(f"{name:<18} declines: {reason}" for name, reason in proposal.declined)
    yield Stop(
        "Who takes it",
        """Schedulers (`weft/schedulers`) are asked in order; each accepts or declines with a reason, which is a value. The first that accepts
        schedules the fusion.""",
        [("text", f"{refusals}\n{proposal.scheduler.name:<18} accepts")],
    )
    yield Stop(
        "Facts and parameters",
        f"""The scheduler's heuristic is a pure function: facts about the fusion at these sizes and figures of a chip ({CHIP} here) in, frozen
        parameters out. Equal parameters mean the same kernel. The names say the units.""",
        [("text", fields_text(facts)), ("text", fields_text(proposal.params))],
    )


def lowering(scheduled: Fusion, result: ScheduleResult, bound: Bound) -> Iterator[Stop]:
    """Yield the kernel IR after each pass, the text, the launch and the machine code."""
    dumps: list[tuple[str, str]] = []
    kernel = lower(
        scheduled, name=NAME, index_type=DataType.Int32, static_block=dict(result.static_block), cluster_blocks=result.cluster_blocks,
        peel=result.peel, dump=lambda step, text: dumps.append((step, text)),
    )  # fmt: skip
    program = generate(scheduled, kernel, result.max_registers)
    dumps = [(step, with_parameters(text, program)) for step, text in dumps]
    yield Stop(
        "Kernel IR",
        """`weft/lower/build.py` turns loops of axes into nested loops over buffers, with indices and predicates computed by one indexer. Launch
        dimensions stand where loops were; predicates hang on single operations. p0, p1, ... are expressions over the sizes of the inputs that the
        host will evaluate; stage 9 lists them.""",
        [("text", dumps[0][1])],
    )
    contracts = {step.__name__: (inspect.getdoc(step) or "").partition("\n")[0] for step in PIPELINE}
    changes = []
    for (_, before), (step, after) in zip(dumps, dumps[1:]):
        changes.append(f"== {step}{' (unchanged)' if before == after else ''}\n   {contracts[step]}")
        if before != after:
            changes.append(difference(before, after))
    yield Stop(
        "Passes",
        f"""The {len(PIPELINE)} passes of `weft/lower/pipeline.py`, in order, each with the first line of its contract and what it changed.
        `WEFT_DUMP=passes` prints the whole IR after each.""",
        [("diff", "\n".join(changes))],
    )
    yield Stop(
        "The CUDA text",
        f"""What `weft/codegen/cuda.py` prints. Everything named `weft::` is in the device library, from which the text takes the blocks
        {", ".join(program.blocks)}. docs/kernel_text.md is the contract.""",
        [("cpp", program.text)],
    )
    sizes = {"grid": program.grid, "block": program.block, "shared memory, bytes": (program.shared_bytes,)}
    lines = [f"{name}: {', '.join(map(str, value))}  ->  {', '.join(str(evaluate(sym, bound.env)) for sym in value)}" for name, value in sizes.items()]
    lines += [f"{param.name}: {param.sym}  ->  {evaluate(param.sym, bound.env)}" for param in program.params if isinstance(param, ScalarParam)]
    lines += [f"check: {check.divisor} divides {check.extent} ({check.what})" for check in program.checks]
    yield Stop(
        "The launch",
        f"""Launch sizes and scalar parameters are expressions over the sizes of the inputs. The host evaluates them once per new set of sizes; the
        values on the right are for {list(SHAPE)}.""",
        [("text", "\n".join(lines))],
    )
    with tempfile.TemporaryDirectory() as folder, options(cache_dir=folder):
        compiled = nvrtc.compile_or_load(
            translation_unit(program.text, program.blocks), NAME, arch_by_name(CHIP).nvrtc_target, max_registers=program.max_registers
        )
    yield Stop(
        "Machine code",
        f"""NVRTC compiles for {arch_by_name(CHIP).nvrtc_target}, with a GPU or without; the cubin goes to the disk cache. Registers and stack are read from
        it, spills from the assembler's report.""",
        [("text", str(compiled.resources))],
    )


def loops_text(fusion: Fusion) -> str:
    """Return one line per tensor: its loop axes, how many are shared with its consumers, and the expression that makes it."""
    lines = []
    for tensor in fusion.tensors():
        definition = tensor.definition()
        sources = ", ".join(f"T{value.name}" for value in definition.inputs if isinstance(value, TensorView)) if definition else ""
        made = f"{definition.op_name}({sources})" if definition else "input"
        axes = ", ".join(str(axis) for axis in tensor.get_loop_domain())
        lines.append(f"T{tensor.name:<3} {tensor.memory_type.value:<7} ca {tensor.compute_at}  {made:<18} [{axes}]")
    return "\n".join(lines)


def with_parameters(text: str, program: KernelProgram) -> str:
    """Return a dump of the kernel IR with the names of parameters in place of their expressions, longest first."""
    named = {str(param.sym): param.name for param in program.params if isinstance(param, ScalarParam)}
    for expression in sorted(named, key=len, reverse=True):
        text = text.replace(expression, named[expression])
    return text


def fields_text(record: object) -> str:
    """Return the fields of a dataclass, one per line."""
    fields = dataclasses.fields(record)  # type: ignore[arg-type]
    return f"{type(record).__name__}\n" + "\n".join(f"    {field.name} = {getattr(record, field.name)!r}" for field in fields)


def difference(before: str, after: str) -> str:
    """Return the changed lines with one line around them, without difflib's header."""
    return "\n".join(list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))[2:])


def row_sums(output: torch.Tensor) -> str:
    """Return the range of the sums of a softmax's rows."""
    sums = output.double().sum(-1)
    return f"{sums.min():.4f} .. {sums.max():.4f}"


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(tour())
    else:
        TARGET.write_text(tour(), encoding="utf-8")
