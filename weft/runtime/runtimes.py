"""Kernels of a definition: which one serves given sizes, made when there is none, shared by all definitions that are equal.

Owns the tables from structure to kernel, for the whole process:

    structural key -> Template -> zero sizes -> Variant -> Part -> (scheduler, params, index type) -> program -> (engine, settings that change code) -> Runtime

Each step is one lookup. What is missing is made under a lock of its own key, and stored only when it is complete: threads wait for
each other, and an interrupted compilation leaves nothing behind.
Read first: `Template`, `Kernels`.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from .. import compiler
from ..analysis.connected import components
from ..analysis.extents import SizeEquality, canonicalize_extents
from ..dtypes import DataType
from ..expr import Number, Sym, evaluate, evaluate_int, product, variables
from ..ir.fusion import Fusion
from ..ir.structure import structural_key
from ..ir.values import Scalar, TensorView, no_reductions
from ..lower.program import KernelProgram
from ..options import Options
from . import zero_size
from .binding import VECTOR_BYTES, Bound
from .engines import BuiltKernel, Engine
from .outputs import Layout, OutputPlan, hazard, layout_of, sources_of, stride_values
from .timing import Timings

Value = TypeVar("Value")

LARGEST_INT32_INDEX = (2**31 - 1) // 2
"""A kernel whose indices stay below this computes them in int32: the other half is for what arithmetic on the way adds."""


class OnceTable(Generic[Value]):
    """Values by key, each made once. Threads that want the same key wait for the first; a maker that fails leaves the key free."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Value] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        return self._made.get(key)

    def get_or_make(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of `key`, made by one of the threads that ask for it."""
        found = self._made.get(key)
        if found is not None:
            return found
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = make()
        with self._lock:
            self._locks.pop(key, None)
        return found

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        self._made.clear()


# ---------------------------------------------------------------- definitions
class Part:
    """What one kernel computes: a fusion whose outputs are computed, distinct, not empty and connected.

    outputs: for each output of the fusion, its position among the computed outputs of the definition. hazards: positions of outputs that must
    not be written into an input's buffer while the kernel runs, with the reason.
    """

    def __init__(self, fusion: Fusion, outputs: Sequence[int], *, is_scheduled: bool) -> None:
        self.fusion, self.outputs, self._is_scheduled = fusion, tuple(outputs), is_scheduled
        self.index_extents = index_extents(fusion)
        self.hazards: dict[int, str] = {}
        for position, output in zip(self.outputs, fusion.outputs()):
            source = fusion.aliases.get(output)
            reason = None if source is None else hazard(fusion, source, output)  # type: ignore[arg-type]
            if reason is not None:
                self.hazards[position] = reason

    @property
    def equalities(self) -> list[SizeEquality]:
        """Sizes that the definition makes equal."""
        return canonicalize_extents(self.fusion.clone()[0]) if self._is_scheduled else compiler.prepare(self.fusion).equalities


class Variant:
    """A definition for one set of axes that are empty. parts: a kernel each. written: the computed outputs that a kernel writes; the others are empty."""

    def __init__(self, template: "Template", zero: frozenset[Sym]) -> None:
        fusion, copies = template.fusion.clone()
        outputs: list[TensorView] = [copies[t] for t in template.outputs.computed]  # type: ignore[misc]

        def is_zero(sym: Sym) -> bool:
            return sym in zero or (sym.is_const and sym.value == 0)

        if template.is_scheduled:  # the schedule's loops run 0 times over an empty axis, and its tensors are not replaced
            is_empty = all(any(is_zero(a.logical_extent) for a in no_reductions(t.get_logical_domain())) for t in outputs)
            self.parts = [] if is_empty else [Part(fusion, range(len(outputs)), is_scheduled=True)]
        else:
            images = zero_size.without_empty_tensors(fusion, outputs, is_zero)
            self.parts = _connected_parts(fusion, {image: n for n, image in enumerate(images) if image is not None})
        self.written = {n for part in self.parts for n in part.outputs}


def _connected_parts(fusion: Fusion, positions: dict[TensorView, int]) -> list[Part]:
    """Split a fusion whose outputs have nothing in common. Inputs that nothing reads are left out: schedulers fit to every input."""
    parts = []
    for group in components(fusion):
        kept = [t for t in positions if t in group]
        if kept:
            part, copies = fusion.clone()
            part._outputs = [copies[t] for t in kept]
            part.aliases = {out: source for out, source in part.aliases.items() if out in part._outputs}
            needed = {value for output in part._outputs for value in sources_of(output)}  # type: ignore[arg-type]
            part._inputs = [v for v in part._inputs if v in needed or not isinstance(v, TensorView)]
            parts.append(Part(part, [positions[t] for t in kept], is_scheduled=False))
    return parts


class Template:
    """What definitions of equal structure share. `fusion` is a copy of the first of them, and nobody changes it."""

    def __init__(self, fusion: Fusion, *, is_scheduled: bool = False) -> None:
        self.fusion, self.is_scheduled = fusion.clone()[0], is_scheduled
        self.outputs = OutputPlan(self.fusion)
        self.extents = zero_size.extents(self.fusion)
        sized = {v for sym in self.extents for v in variables(sym)}
        self.shape_scalars = {i for i, v in enumerate(self.fusion.inputs()) if isinstance(v, Scalar) and v.sym in sized}
        self._variants: OnceTable[Variant] = OnceTable()
        self.base = self.variant(frozenset())

    def variant(self, zero: frozenset[Sym]) -> Variant:
        return self._variants.get_or_make(zero, lambda: Variant(self, zero))

    def variant_for(self, env: Mapping[Sym, Number]) -> Variant:
        """Return the variant for sizes: by which of the extents are 0."""
        memo: dict[Sym, Number] = {}
        zero = [sym for sym in self.extents if evaluate(sym, env, memo) == 0]
        return self.variant(frozenset(zero)) if zero else self.base


_templates: OnceTable[Template] = OnceTable()


def template_of(fusion: Fusion) -> Template:
    """Return the template of a definition, shared with all of equal structure."""
    return _templates.get_or_make(structural_key(fusion), lambda: Template(fusion))


# ---------------------------------------------------------------- index type
def index_extents(fusion: Fusion) -> list[Sym]:
    """Return the numbers of elements that indices of a kernel run over."""
    counts = {product(axis.logical_extent for axis in domain) for t in fusion.tensors() for domain in (t.get_maybe_root_domain(), t.get_logical_domain())}
    return list(counts)


def index_type_for(part: Part, sizes: "Sizes") -> DataType:
    """Return Int32 unless an index can get too large for it."""
    memo: dict[Sym, Number] = {}
    counts = [evaluate_int(sym, sizes.env, memo) for sym in part.index_extents]
    counts += [tensor.span_elems for tensor in sizes.bound.tensors.values()]
    return DataType.Int32 if max(counts, default=0) <= LARGEST_INT32_INDEX else DataType.Int


# ---------------------------------------------------------------- kernels
@dataclass(eq=False, repr=False)
class Runtime:
    """One kernel on one engine, with what it was made from. proposal is None for a fusion scheduled by hand."""

    part: Part
    proposal: "compiler.Proposal | None"
    program: KernelProgram
    engine: Engine
    built: BuiltKernel

    def __repr__(self) -> str:
        return f"<{self.program.name} on {self.engine.key}, {self.program.index_type.name} indices>"

    @property
    def scheduler(self) -> str:
        """The scheduler's name; "user" for a fusion scheduled by hand."""
        return "user" if self.proposal is None else self.proposal.scheduler.name

    def output_of(self, name: str) -> int | None:
        """Return which computed output of the definition a kernel's parameter is, or None."""
        names = self.program.outputs or tuple(f"T{t.name}" for t in self.part.fusion.outputs())
        return self.part.outputs[names.index(name)] if name in names else None


@dataclass(frozen=True)
class Sizes:
    """A call's values and what follows from them without a kernel: `env` has the strides of outputs too; layouts: per computed output."""

    bound: Bound
    variant: Variant
    env: dict[Sym, Number]
    layouts: list[Layout]


def sizes_of(template: Template, bound: Bound) -> Sizes:
    """Return what follows from a call's values: the variant, the outputs' layouts, the index type."""
    variant = template.variant_for(bound.env)
    layouts = [layout_of(t, bound.env) for t in template.outputs.computed]
    env = dict(bound.env)
    for tensor, layout in zip(template.outputs.computed, layouts):
        env.update(stride_values(tensor, layout))
    return Sizes(bound, variant, env, layouts)


def alignments_bits(template: Template, part: Part, sizes: Sizes) -> dict[str, int]:
    """Return the alignment of every tensor that the kernel reads or writes; fresh outputs are aligned for every access."""
    inputs = template.fusion.inputs()
    bits = {f"T{inputs[i].name}": t.alignment_bytes * 8 for i, t in sizes.bound.tensors.items()}
    for position, output in zip(part.outputs, part.fusion.outputs()):
        alias = template.outputs.alias[position]
        bits[f"T{output.name}"] = VECTOR_BYTES * 8 if alias is None else sizes.bound.tensors[alias].alignment_bytes * 8
    return bits


@dataclass
class Request:
    """A kernel that is wanted: the key of its program, and how to make that. fmad: may multiplications and additions be contracted."""

    part: Part
    proposal: "compiler.Proposal | None"
    index_type: DataType
    engine: Engine
    options: Options
    program_key: Hashable
    make_program: Callable[[], KernelProgram]
    fmad: bool = True

    @property
    def runtime_key(self) -> Hashable:
        return (self.program_key, self.engine.key, self.options.code_key(), self.fmad)


def propose(template: Template, part: Part, sizes: Sizes, engine: Engine, options: Options, *, fmad: bool = True) -> Request:
    """Ask the schedulers, and return what they want compiled. Errors: NoScheduler with every scheduler's reason."""
    proposal = compiler.propose(part.fusion, sizes.env, alignments_bits(template, part, sizes), engine.arch, variant=options.rows)
    return request_for(proposal, part, index_type_for(part, sizes), engine, options, fmad=fmad)


def request_for(proposal: "compiler.Proposal", part: Part, index_type: DataType, engine: Engine, options: Options, *, fmad: bool = True) -> Request:
    """Return the request for the kernel that a proposal describes."""
    key = (part, proposal.scheduler, proposal.params, index_type)

    def make() -> KernelProgram:
        return named(compiler.compile_program(part.fusion, proposal, index_type, name=f"weft_{proposal.scheduler.name}"))

    return Request(part, proposal, index_type, engine, options, key, make, fmad)


def named(program: KernelProgram) -> KernelProgram:
    """Return the program with a name that tells kernels apart and is the same in every process."""
    name = f"{program.name}_{hashlib.sha256(program.text.encode()).hexdigest()[:8]}"
    return replace(program, name=name, text=re.sub(rf"\b{program.name}\b", name, program.text))


class Kernels:
    """Programs and kernels by what they were made from. `SHARED` serves all definitions that the schedulers schedule."""

    def __init__(self) -> None:
        self._programs: OnceTable[KernelProgram] = OnceTable()
        self._runtimes: OnceTable[Runtime] = OnceTable()

    def program(self, request: Request) -> KernelProgram:
        return self._programs.get_or_make(request.program_key, request.make_program)

    def runtime(self, request: Request, program: KernelProgram, timings: Timings) -> Runtime:
        """Return the kernel of a request, built now if it is the first."""

        def make() -> Runtime:
            built = request.engine.build(program, request.options, fmad=request.fmad)
            timings.nvrtc_s, timings.load_s, timings.from_disk = built.report.compile_s, built.report.load_s, built.report.from_disk
            return Runtime(request.part, request.proposal, program, request.engine, built)

        return self._runtimes.get_or_make(request.runtime_key, make)

    def known(self, request: Request) -> Runtime | None:
        return self._runtimes.get(request.runtime_key)

    def clear(self) -> None:
        """Forget all (for tests and measurements); what is on disk stays."""
        self._programs.clear()
        self._runtimes.clear()


SHARED = Kernels()


def forget_kernels() -> None:
    """Forget every kernel and definition of this process (for tests and measurements); what is on disk stays."""
    SHARED.clear()
    _templates.clear()
