"""Records of the kernels of a corpus, and what differs between two of them: text, parameters, scheduler, and what ptxas says.

Nothing is run, so no GPU is needed; machine code is made where NVRTC is there. Two records of the same code by the same tools are equal byte by byte.
Read first: `make_record`, `compare`.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import arch as chips, compiler
from ..device.library import translation_unit
from ..errors import UserError, WeftError
from ..expr import evaluate_int
from ..ir.values import TensorView
from ..lower.program import KernelProgram
from ..reference.torch_types import torch_dtype
from ..runtime import nvrtc
from ..runtime.fec import FusionExecutorCache
from ..runtime.resources import disassemble, disassembler
from ..runtime.runtimes import alignments_bits, index_type_for, sizes_of
from .record_corpus import Case

FORMAT = 2


class NotDisassembled(UserError):
    code = "W871"
    what = "{tool} cannot disassemble a kernel's machine code"
    fix = "install one as new as NVRTC (pip install nvidia-cuda-nvdisasm), or remove it: records are then written without instructions"


_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")
_CLASSES = (
    ("memory", re.compile(r"LD|ST|ATOM|RED|UBLK|SYNCS|CCTL")), ("conversion", re.compile(r"F2|I2|HADD2")), ("special", re.compile(r"MUFU")),
    ("float", re.compile(r"F|D|H")), ("control", re.compile(r"BRA|BS|CALL|RET|EXIT|BAR|NOP|WARP|BREAK")), ("integer", re.compile(r".")),
)  # fmt: skip


def make_record(cases: Mapping[str, Case], targets: Sequence[str] = (), tell: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """Return the record of a corpus. targets: chips as NVRTC calls them ("sm_90a"), whose machine code is looked at; none: text only."""
    tools = {"NVRTC": nvrtc.load().version_text, "has_sass": disassembler() is not None} if targets else {}
    out: dict[str, Any] = {"format": FORMAT, "targets": list(targets), "tools": tools, "cases": {}}
    for name, case in cases.items():
        tell(name)
        try:
            out["cases"][name] = {"kernels": [_kernel(made, targets) for made in programs(*case)]}
        except WeftError as error:
            out["cases"][name] = {"error": str(error).splitlines()[0], "kernels": []}
    return out


@dataclass(frozen=True)
class Made:
    """A kernel of a definition at given sizes. shared_bytes: dynamic shared memory of its launch."""

    scheduler: str
    params: str
    program: KernelProgram
    shared_bytes: int


def programs(definition: Any, shapes: Sequence[tuple[int, ...] | torch.Tensor], arch: chips.Arch = chips.H200) -> list[Made]:
    """Return each kernel that a definition has at these sizes on a chip. A tensor stands for a shape where its address matters."""
    caller = FusionExecutorCache(definition.fusion)._caller
    values, given = [], iter(shapes)
    for value in definition.fusion.inputs():
        shape = next(given) if isinstance(value, TensorView) else None
        values.append(1 if shape is None else shape if isinstance(shape, torch.Tensor) else torch.empty(shape, dtype=torch_dtype(value.dtype())))
    sizes = sizes_of(caller.shared, caller.bind(values), arch)
    out = []
    for use in sizes.kernels:
        proposal = compiler.propose(use.part.fusion, use.env, alignments_bits(caller.shared, use, sizes), arch)
        program = compiler.compile_program(use.part.fusion, proposal, index_type_for(use, sizes), name="kernel")
        out.append(Made(proposal.scheduler.name, str(proposal.params), program, evaluate_int(program.shared_bytes, use.env)))
    return out


def _kernel(made: Made, targets: Sequence[str]) -> dict[str, Any]:
    program = made.program
    unit = translation_unit(program.text, program.blocks, shortened=True) if targets else ""
    return {
        "scheduler": made.scheduler, "params": made.params, "text": program.text, "max_registers": program.max_registers,
        "dynamic_shared_bytes": made.shared_bytes, "machine": {target: _machine(unit, target, program.max_registers) for target in targets},
    }  # fmt: skip


def _machine(unit: str, target: str, max_registers: int | None) -> dict[str, Any]:
    compiled = nvrtc.compile_cubin(unit, "kernel", target, max_registers=max_registers, use_cache=False)  # whose answers have no report of ptxas
    return {**compiled.resources.to_json(), **_instructions(compiled.cubin)}


def _instructions(cubin: bytes) -> dict[str, int]:
    """Return instructions by class, where nvdisasm is installed. Errors: NotDisassembled."""
    if disassembler() is None:
        return {}
    text = disassemble(cubin)
    if text is None:
        raise NotDisassembled(tool=disassembler())
    counts = Counter(next(name for name, pattern in _CLASSES if pattern.match(op)) for op in _INSTRUCTION.findall(text))
    return {f"sass_{name}": counts[name] for name, _ in _CLASSES}


# ---------------------------------------------------------------- two records
@dataclass(frozen=True)
class Change:
    """A case that differs. lines: of texts that differ; figures: "sm_90a registers: 32 -> 40"; badness: what it is sorted by, worst first."""

    case: str
    what: tuple[str, ...]
    lines: tuple[str, ...]
    figures: tuple[str, ...]
    badness: float


@dataclass(frozen=True)
class Comparison:
    """What differs between two records. notes: what was not compared, since only one of them has it or another compiler made it."""

    new: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[Change, ...]
    same: int
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.new or self.removed or self.changed)

    def to_json(self) -> dict[str, Any]:
        """Return what CI reads."""
        changed = [{"case": c.case, "what": list(c.what), "figures": list(c.figures), "diff": list(c.lines)} for c in self.changed]
        return {"new": list(self.new), "removed": list(self.removed), "changed": changed, "same": self.same, "notes": list(self.notes)}


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Return what differs: new, removed and changed cases, spills and registers first."""
    targets, notes = _comparable(before, after)
    old, new = ({name: _of_targets(case, targets) for name, case in record["cases"].items()} for record in (before, after))
    both = [name for name in old if name in new]
    changed = [_change(name, old[name], new[name]) for name in both if old[name] != new[name]]
    changed.sort(key=lambda c: (-c.badness, c.case))
    return Comparison(tuple(n for n in new if n not in old), tuple(n for n in old if n not in new), tuple(changed), len(both) - len(changed), notes)


def _comparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[set[str], tuple[str, ...]]:
    """Return the chips whose machine code both records have from the same tools, and what is left out."""
    targets = [set(record.get("targets", ())) for record in (before, after)]
    tools = [record.get("tools", {}) for record in (before, after)]
    if all(targets) and tools[0] != tools[1]:
        return set(), (f"machine code was not compared: made by {tools[0]} before, by {tools[1]} after",)
    notes = [f"only one record has machine code of {target}" for target in sorted(targets[0] ^ targets[1])]
    return targets[0] & targets[1], tuple(notes)


def _of_targets(case: Mapping[str, Any], targets: set[str]) -> dict[str, Any]:
    """Return a case without the machine code of other chips."""
    kernels = [{**kernel, "machine": {t: m for t, m in kernel["machine"].items() if t in targets}} for kernel in case["kernels"]]
    return {**case, "kernels": kernels}


def _change(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    what: dict[str, None] = {}
    lines: list[str] = []
    figures: list[str] = []
    badness = 0.0
    if old.get("error") != new.get("error"):
        what["error"] = None
        figures.append(f"{old.get('error', 'no error')} -> {new.get('error', 'no error')}")
        badness += 1e6 * ("error" in new)
    if len(old["kernels"]) != len(new["kernels"]):
        what[f"{len(old['kernels'])} -> {len(new['kernels'])} kernels"] = None
        badness += 1e5 * (len(new["kernels"]) - len(old["kernels"]))
    for number, (a, b) in enumerate(zip(old["kernels"], new["kernels"])):
        differing = [key for key in {**a, **b} if key != "machine" and a.get(key) != b.get(key)]
        what.update(dict.fromkeys(key.replace("_", " ") for key in differing))
        figures += [f"{key.replace('_', ' ')}: {a.get(key)} -> {b.get(key)}" for key in differing if key != "text"]
        lines += difflib.unified_diff(a["text"].splitlines(), b["text"].splitlines(), f"kernel {number} before", f"kernel {number} after", lineterm="", n=3)
        for target in a["machine"]:
            for key, value in b["machine"][target].items():
                was = a["machine"][target].get(key)
                if value != was:
                    what["machine code"] = None
                    figures.append(f"{target} {key}: {was} -> {value}")
                    badness += _WEIGHTS.get(key, 0.01) * ((value or 0) - (was or 0))
    return Change(name, tuple(what), tuple(lines), tuple(figures), badness)


_WEIGHTS = {"spill_store_bytes": 100.0, "spill_load_bytes": 100.0, "stack_bytes": 100.0, "registers": 10.0}
