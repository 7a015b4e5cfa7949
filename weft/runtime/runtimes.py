"""Kernels of a definition: which one serves given sizes, made when there is none, shared by all definitions that are equal.

Owns the tables from structure to kernel, for the whole process:

    structural key -> SharedDefinition -> zero sizes, answers -> Variant -> sizes that schedulers take -> Plan -> Parts
    Part -> (scheduler, params, index type) -> program -> (engine, settings that change code) -> Runtime

Each step is one lookup. What is missing is made under a lock of its own key, and stored only when it is complete: threads wait for
each other, and an interrupted compilation leaves nothing behind.
Read first: `SharedDefinition`, `Kernels`.
"""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from .. import compiler, forking
from ..analysis.extents import SizeEquality, canonicalize_extents
from ..analysis.layouts import keep_memory_formats
from ..analysis.random_numbers import drawing_ops
from ..arch import VECTOR_BYTES, Arch
from ..dtypes import DataType
from ..errors import WeftError
from ..expr import Number, Sym, evaluate, evaluate_int, variables
from ..graph.concretize import has_views, is_open
from ..graph.few_largest import has_few_largest
from ..graph.normalize import normalize_in_place
from ..graph.questions import Questions
from ..graph.scatters import has_scatters
from ..graph.single_elements import InnerSizes
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp, ScatterStoreOp
from ..ir.structure import known_key
from ..ir.values import Scalar, TensorView, Val, no_reductions
from ..lower.program import KernelProgram
from ..ops.lookups import fixed_places
from ..options import Options, current
from ..segment.plan import KernelStep, Plan, ViewStep
from . import tuned, zero_size
from .binding import Bound, SizesDiffer
from .collector import paused
from .engines import BuiltKernel, Engine
from .outputs import Layout, OutputPlan, joined_parts, layout_of, place_of_part, return_old_values, stride_values
from .steps import KernelUse, Part, PlanTable, uses_of
from .timing import Timings
from .view_outputs import Chain, View, chains, chains_of_results, view_of, views_of_results

Value = TypeVar("Value")

MOST_OVERLAPPED_BYTES = 12 << 20
"""Kernels that move more bytes are launched without overlap: above this size chains in CUDA graphs get slower (docs/dependent_launch.md)."""

LARGEST_INT32_INDEX = (2**31 - 1) // 2
"""A kernel with indices below this computes them in int32; the other half of the range is for intermediate results."""

MOST_KEPT_EXPRS = 50_000
"""Expressions that definitions, or kernels, which nothing uses any more keep in a process, all copies for kernels and plans included: 3 to 4 kB each, counted
for random compositions of torch functions, so some hundred MB."""
LINE = 64
"""Characters of a kernel's text that count as one expression, about a line."""


class OnceTable(Generic[Value]):
    """Values by key, each made once. Threads that want the same key wait for the first; a maker that fails leaves the key free.

    exprs_of: how many expressions a value keeps. With it, the table keeps at most as many values as the setting `kept_kernels`, of at most
    `MOST_KEPT_EXPRS` expressions, and drops the least recently used; users keep references to theirs, and find them here as long as they do.
    """

    def __init__(self, exprs_of: Callable[[Value], int] | None = None) -> None:
        self._made: OrderedDict[Hashable, Value] = OrderedDict()
        self._dropped: weakref.WeakValueDictionary[Hashable, Value] = weakref.WeakValueDictionary()
        self._exprs_of = exprs_of
        self._locks: dict[Hashable, threading.Lock] = {}  # of what is being made
        self._lock = forking.lock()
        _tables.add(self)

    def get(self, key: Hashable) -> Value | None:
        """Return the value of `key` if it exists."""
        found = self._made.get(key)
        if self._exprs_of is not None:
            with self._lock:
                found = self._made.get(key) or self._dropped.get(key)
                if found is not None:
                    self._made[key] = found
                    self._made.move_to_end(key)
        return found

    def get_or_make(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of `key`, made by one of the requesting threads."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            found = self._made.get(key)
            if found is None:
                found = make()
                with self._lock:  # nothing is added while another thread walks the table
                    self._made[key] = found
        with self._lock:
            self._locks.pop(key, None)
            self._drop()
        return found

    def _drop(self) -> None:
        """Drop what was not used for longest beyond the limits. What was made last stays."""
        limit = current().kept_kernels
        if self._exprs_of is None or not limit:
            return
        exprs = 0
        for number, (key, value) in enumerate(reversed(list(self._made.items()))):
            exprs += self._exprs_of(value)
            if number and (number >= limit or exprs > MOST_KEPT_EXPRS):
                self._dropped[key] = self._made.pop(key)

    def values(self) -> list[Value]:
        """Return what was made, the least recently used first."""
        with self._lock:
            return list(self._made.values())

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        self._made.clear()
        self._dropped.clear()


_tables: "weakref.WeakSet[OnceTable]" = weakref.WeakSet()


@forking.in_child
def _nothing_is_being_made() -> None:
    """Reset in a forked child: values that threads of the parent were making will not be made there."""
    for table in _tables:
        table._locks.clear()


# ---------------------------------------------------------------- definitions
class Variant:
    """A definition for one set of empty axes, one set of outputs that are views, and one set of answers to its questions about sizes. images: the tensor that
    computes each computed output, None for an empty one. equalities: sizes that must be equal, checked by the host. plans: how it is divided into steps.
    """

    def __init__(self, shared: "SharedDefinition", zero: frozenset[Sym], viewed: frozenset[int], questions: Questions) -> None:
        fusion, outputs = shared.clone()

        def is_zero(sym: Sym) -> bool:
            return sym in zero or (sym.is_const and sym.value == 0)

        if shared.is_scheduled:  # the schedule's loops over an empty axis run 0 times, so its tensors are not replaced
            is_empty = all(any(is_zero(a.logical_extent) for a in no_reductions(t.get_logical_domain())) for t in outputs)
            fusion.set_outputs(outputs)
            steps = () if is_empty else (KernelStep(fusion, tuple(fusion.inputs()), tuple(outputs)),)
            self.images: list[TensorView | None] = [None if is_empty else t for t in outputs]
            self.equalities = canonicalize_extents(fusion.clone()[0])
            self.plans = PlanTable(fusion, Plan(steps))
        else:
            computed = [t for n, t in enumerate(outputs) if n not in viewed]
            images = iter(zero_size.without_empty_tensors(fusion, computed, is_zero))
            self.images = [None if n in viewed else next(images) for n in range(len(outputs))]
            equalities = normalize_in_place(fusion, questions)
            self.equalities = canonicalize_extents(fusion) if equalities is None else equalities
            self.plans = PlanTable(fusion)

    def check(self, env: Mapping[Sym, Number]) -> None:
        """Check the sizes that must be equal in this variant. Errors: SizesDiffer."""
        memo: dict[Sym, Number] = {}
        for equality in self.equalities:
            a, b = (evaluate(sym, env, memo) for sym in (equality.a, equality.b))
            if not equality.holds(a, b):
                raise SizesDiffer(a=f"{equality.a} ({equality.what})", size_a=a, b=equality.b, size_b=b, reason=equality.reason)


class SharedDefinition:
    """The part common to definitions of equal structure. `fusion` is a copy of the first of them, and is never changed."""

    def __init__(self, fusion: Fusion, *, is_scheduled: bool = False) -> None:
        self.fusion, self.is_scheduled = fusion.clone()[0], is_scheduled
        return_old_values(self.fusion)
        drawing = drawing_ops(self.fusion)
        self.random_ops = len(drawing)
        for number, expr in enumerate(drawing):
            expr.attributes["index"] = number
        self.outputs = OutputPlan(self.fusion)
        self.own_outputs = len(self.outputs.computed)
        self.chains: dict[int, Chain] = {}
        self.result_chains: dict[int, Chain] = {}
        if not is_scheduled:
            self.chains = chains(self.fusion, self.outputs.computed, self.outputs.alias)
            self.result_chains = chains_of_results(self.fusion, self.outputs.computed, self.outputs.alias)
            keep_memory_formats(self.fusion, self.outputs.computed)
        self.places = {input_name(value): index for index, value in enumerate(self.fusion.inputs())}
        self.tensors = {t.name: t for t in self.fusion.tensors()}
        self.extents = zero_size.extents(self.fusion)
        self.inner_sizes = None if is_scheduled else InnerSizes(self.fusion)
        sized = {v for sym in self.extents for v in variables(sym)}
        self.shape_scalars = {i for i, v in enumerate(self.fusion.inputs()) if isinstance(v, Scalar) and v.sym in sized}
        self.chosen_places = [
            (e, *place) for e in self.fusion.tensor_exprs() if isinstance(e, LookupOp) for place in fixed_places(e) if not place[1].is_const
        ]
        self._variants: OnceTable[Variant] = OnceTable()
        self._own_exprs = len(self.fusion.tensor_exprs())
        is_rewritten = has_views(self.fusion) or is_open(self.fusion) or has_few_largest(self.fusion)
        asks = not is_scheduled and is_rewritten and not all(sym.is_const for sym in self.extents)
        self.has_scatters = not is_scheduled and has_scatters(self.fusion)
        self.base = None if asks or self.has_scatters else self._made(frozenset(), frozenset(), Questions())

    def clone(self) -> tuple[Fusion, list[TensorView]]:
        """Return a copy of the fusion, and what of its outputs kernels compute: no inputs, each result once."""
        fusion, copies = self.fusion.clone()
        return fusion, [copies[t] for t in self.outputs.computed]  # type: ignore[misc]

    @property
    def equalities(self) -> list[SizeEquality]:
        """Sizes that must be equal in every call; variants with questions about sizes have their own."""
        return [] if self.base is None else self.base.equalities

    @property
    def exprs(self) -> int:
        """How many expressions it keeps, those of its variants and their kernels included."""
        return self._own_exprs + sum(variant.plans.exprs for variant in self._variants.values())

    def _made(self, zero: frozenset[Sym], viewed: frozenset[int], questions: Questions) -> Variant:
        return self._variants.get_or_make((zero, viewed, ()), lambda: Variant(self, zero, viewed, questions))

    def layouts_of_bases(self, env: Mapping[Sym, Number]) -> dict[int, Layout]:
        """Return the layouts of results that others may be views of, as far as the definition determines them."""
        return {chain.source: layout_of(self.outputs.computed[chain.source], env) for chain in self.result_chains.values()}

    def views(self, bound: Bound, layouts: Mapping[int, Layout]) -> tuple[dict[int, View], set[int]]:
        """Return which computed outputs are views at these sizes and strides, and which of the others are not needed. layouts: `layouts_of_bases`."""
        out, left_out = views_of_results(self.result_chains, self.outputs.computed, self.own_outputs, bound.env, layouts)
        for number, chain in self.chains.items():
            tensor = bound.tensors[chain.source]
            view = view_of(chain, tensor.sizes, tensor.strides, bound.env)
            if view is not None:
                out[number] = view
        return out, left_out

    def variant_for(self, env: Mapping[Sym, Number], viewed: frozenset[int] = frozenset()) -> Variant:
        """Return the variant for sizes: by the extents that are 0, by the innermost ones that are 1 (`weft.graph.single_elements`), and by the answers to
        questions about sizes (`weft.graph.questions`). viewed: the computed outputs that are views, or that are not needed.
        Errors: those of open sizes that do not fit (`weft.graph.concretize`).
        """
        memo: dict[Sym, Number] = {}
        zero = frozenset(sym for sym in self.extents if evaluate(sym, env, memo) == 0)
        ones = frozenset[Sym]() if self.inner_sizes is None or zero else self.inner_sizes.ones(lambda sym: evaluate(sym, env, memo) == 1)
        if self.base is not None and not ones:
            return self._made(zero, viewed, Questions()) if zero or viewed else self.base
        questions = Questions(env, ones)
        variant = Variant(self, zero, viewed, questions)  # the answers are known after it is made
        variant.check(env)
        return self._variants.get_or_make((zero, viewed, questions.answers), lambda: variant)


_definitions: OnceTable[SharedDefinition] = OnceTable(lambda shared: shared.exprs)


@paused
def shared_definition(fusion: Fusion) -> SharedDefinition:
    """Return the common part of all definitions of this structure."""
    return _definitions.get_or_make(known_key(fusion), lambda: SharedDefinition(fusion))


# ---------------------------------------------------------------- index type
def index_type_for(use: KernelUse, sizes: "Sizes") -> DataType:
    """Return Int32, unless an index could be too large for it."""
    memo: dict[Sym, Number] = {}
    counts = [evaluate_int(sym, use.env, memo) for sym in use.part.index_extents]
    counts += [sizes.bound.tensors[index].span_elems for index in sizes.inputs_of(use) if index in sizes.bound.tensors]
    return DataType.Int32 if max(counts, default=0) <= LARGEST_INT32_INDEX else DataType.Int


# ---------------------------------------------------------------- kernels
@dataclass(eq=False, repr=False)
class Runtime:
    """One kernel on one engine, with its sources. proposal is None for a fusion scheduled by hand."""

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
        """Return which output of the part a kernel parameter is, or None."""
        names = self.program.outputs or tuple(f"T{t.name}" for t in self.part.fusion.outputs())
        return names.index(name) if name in names else None


@dataclass(frozen=True)
class Sizes:
    """A call's values and what follows from them without a kernel. env: the values of all variables, including strides of outputs. plan: the steps. buffers:
    the tensors that steps write, the computed outputs first;
    layouts: of each. views: the computed outputs that are views of inputs or of other outputs. left_out: outputs that are not needed at these sizes. kernels:
    those of the plan, in order. places: positions of the definition's inputs, by name.
    """

    bound: Bound
    variant: Variant
    env: dict[Sym, Number]
    plan: Plan
    buffers: tuple[TensorView, ...]
    layouts: list[Layout]
    views: Mapping[int, View]
    kernels: tuple[KernelUse, ...]
    places: Mapping[str, int]
    left_out: Set[int] = frozenset()

    def moved_bytes(self, use: KernelUse) -> int:
        """Return the bytes of the tensors that a kernel reads and writes."""
        named = {t.name: layout.storage_bytes for t, layout in zip(self.buffers, self.layouts)}
        moved = sum(self.layouts[place].storage_bytes for place in use.outputs)
        for value in use.inputs:
            bound = self.bound.tensors.get(self.places.get(input_name(value), -1))
            if isinstance(value, TensorView):
                moved += named.get(value.name, 0) if bound is None else bound.span_elems * value.dtype().bits // 8
        return moved

    def inputs_of(self, use: KernelUse) -> list[int]:
        """Return which of the definition's inputs a kernel reads."""
        return [self.places[name] for value in use.inputs if (name := input_name(value)) in self.places]


def input_name(value: Val) -> str:
    """Return a value's name with its kind: T5, S3."""
    return f"T{value.name}" if isinstance(value, TensorView) else f"S{value.name}"


def sizes_of(shared: SharedDefinition, bound: Bound, arch: Arch) -> Sizes:
    """Return what follows from a call's values: the variant, its steps, the layouts of written tensors."""
    computed = shared.outputs.computed
    of_bases = shared.layouts_of_bases(bound.env)
    corrected: dict[int, Layout] = {}
    while True:
        views, left_out = shared.views(bound, of_bases | corrected)
        variant = shared.variant_for(bound.env, frozenset(views) | left_out)
        images = [t if image is None else image for t, image in zip(computed, variant.images)]
        layouts = [layout_of(t, bound.env) for t in images]
        others = {n for n, layout in of_bases.items() if n not in views and not layouts[n].is_like(layout.sizes, layout.strides)}
        if others <= corrected.keys():
            break
        corrected |= {n: layouts[n] for n in others}  # symbolic-type axes of the definition are expanded in the variant, with stride 0
    env = dict(bound.env)
    for tensor, layout in zip(computed, layouts):
        env.update(stride_values(tensor, layout))
    for tensor in joined_parts(variant.plans.fusion):
        env.update(stride_values(tensor, layout_of(tensor, env)))
    plan = variant.plans.plan_for(env, arch)
    for tensor in plan.edges:
        layouts.append(layout_of(tensor, env))
        env.update(stride_values(tensor, layouts[-1]))
    buffers = (*images, *plan.edges)
    return Sizes(bound, variant, env, plan, buffers, layouts, views, uses_of(variant.plans, plan, env, buffers), shared.places, left_out)


def alignments_bits(shared: SharedDefinition, use: KernelUse, sizes: Sizes) -> dict[str, int]:
    """Return the alignment of every tensor that the kernel reads or writes; new buffers are aligned for every access, views like their base. A result that an
    earlier kernel writes into an input has that input's alignment.
    """
    bits: dict[str, int] = {}
    inside = {input_name(value): alias for value, alias in zip(sizes.buffers, shared.outputs.alias) if alias is not None}
    shown: dict[Val, Val] = {step.output: step.source for step in sizes.plan.steps if isinstance(step, ViewStep)}
    for own, value in zip(use.part.fusion.inputs(), use.inputs):
        if not isinstance(own, TensorView):
            continue  # scalars are numbered separately: S0 is not T0
        while value in shown:
            value = shown[value]
        name = input_name(value)
        bound = sizes.bound.tensors.get(sizes.places.get(name, inside.get(name, -1)))
        bits[f"T{own.name}"] = (VECTOR_BYTES if bound is None else bound.alignment_bytes) * 8
    for place, output in zip(use.outputs, use.part.fusion.outputs()):
        alias = shared.outputs.alias[place] if place < len(shared.outputs.alias) else None
        bits[f"T{output.name}"] = VECTOR_BYTES * 8 if alias is None else sizes.bound.tensors[alias].alignment_bytes * 8
        part = place_of_part(sizes.buffers[place], sizes.env)
        if part is not None:
            bits[f"T{output.name}"] = math.gcd(part[1], VECTOR_BYTES) * 8
    return bits


@dataclass
class Request:
    """A request for a kernel: the key of its program, and how to make it. fmad: whether multiplications and additions may be contracted."""

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


def propose(
    shared: SharedDefinition, use: KernelUse, sizes: Sizes, engine: Engine, options: Options, *, fmad: bool = True, is_tuned: bool = False
) -> Request:  # fmt: skip
    """Ask the schedulers, and return their proposal. is_tuned: the fastest one by tuning has priority.

    Errors: NoScheduler with every scheduler's reason.
    """
    alignments = alignments_bits(shared, use, sizes)
    proposal = tuned.winner(use, alignments, engine, options) if is_tuned else None
    proposal = proposal or compiler.propose(use.part.fusion, use.env, alignments, engine.arch, way=options.rows)
    overlaps = overlaps_previous(use, sizes, engine.arch, options)
    return request_for(proposal, use.part, index_type_for(use, sizes), engine, options, fmad=fmad, overlaps=overlaps)


def overlaps_previous(use: KernelUse, sizes: "Sizes", arch: Arch, options: Options) -> bool:
    """Tell whether a kernel uses dependent launch: with `auto`, if it moves so few bytes that its start is a large part of its time."""
    if options.dependent_launch == "off" or not arch.has_tma:
        return False
    if any(isinstance(e, ScatterStoreOp) for e in use.part.fusion.tensor_exprs()):
        return False  # it writes the same memory as the kernel before it, without reading it
    return options.dependent_launch == "on" or sizes.moved_bytes(use) <= MOST_OVERLAPPED_BYTES


def request_for(
    proposal: "compiler.Proposal", part: Part, index_type: DataType, engine: Engine, options: Options, *, fmad: bool = True, overlaps: bool = False
) -> Request:  # fmt: skip
    """Return the request for the kernel that a proposal describes. overlaps: dependent launch."""
    key = (part, proposal.scheduler, proposal.params, proposal.is_last, index_type, overlaps)

    def make() -> KernelProgram:
        try:
            return named(compiler.compile_program(part.fusion, proposal, index_type, name=f"weft_{proposal.scheduler.name}", overlaps=overlaps))
        except WeftError as error:
            raise compiler.ScheduleFailed(part.fusion, proposal.scheduler, error) from error

    return Request(part, proposal, index_type, engine, options, key, make, fmad)


def named(program: KernelProgram) -> KernelProgram:
    """Return the program with a name that distinguishes kernels and is the same in every process."""
    name = f"{program.name}_{hashlib.sha256(program.text.encode()).hexdigest()[:8]}"
    return program.renamed(name)


class Kernels:
    """Programs and kernels by their keys. `SHARED` serves all definitions that the schedulers schedule."""

    def __init__(self) -> None:
        self._programs: OnceTable[KernelProgram] = OnceTable(lambda program: len(program.text) // LINE)
        self._runtimes: OnceTable[Runtime] = OnceTable(lambda runtime: runtime.part.exprs)

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
        """Drop all (for tests and measurements); the disk cache is kept."""
        self._programs.clear()
        self._runtimes.clear()


SHARED = Kernels()


def forget_kernels() -> None:
    """Drop every kernel and definition of this process (for tests and measurements); the disk cache is kept."""
    SHARED.clear()
    _definitions.clear()
    compiler.FAILURES.clear()
