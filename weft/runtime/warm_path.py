"""The warm path: from a call's values to a launch, as Python functions written for one fusion and one signature.

Owns the text of two functions. `execute` finds what was prepared for values like these: first by asking whether they are like those of the
last call, then by one lookup of their signature. `run` allocates the outputs, launches, and returns. Both are straight lines
without loops: at a few microseconds a call, every attribute and every tuple shows.

torch._C's TensorGuards compare shapes, strides, types, devices and dispatch keys of tensors in less time than Python takes to read those of one, and inductor's
empty_strided is the fastest of torch's ways to make an output. Measured: docs/executors.md; tests/runtime/warm_path_cost.py repeats it.
Read first: `write_execute`, `write_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from ..arch import VECTOR_BYTES
from .kept_code import code_of
from .launch import LaunchRecord
from .launch_batch import LaunchBatch

ALIGNED = VECTOR_BYTES - 1
"""Addresses without these bits are aligned for every access."""

TENSOR, COMPLEX_TENSOR, CPU_SCALAR, SCALAR, SHAPE_SCALAR = "tensor", "complex tensor", "CPU scalar", "scalar", "shape scalar"
"""Kinds of inputs. The type of a scalar is part of the signature, the value only where sizes depend on it."""
INTEGER_SCALAR = "integer scalar"
"""Prefix of the kind of a scalar with integers from LOW to HIGH; see `integer_scalar`."""


def integer_scalar(low: int, high: int) -> str:
    """Return the kind of a scalar that must be in a range, because machine words would wrap silently."""
    return f"{INTEGER_SCALAR} {low} {high}"


def is_scalar(kind: str) -> bool:
    """Tell whether inputs of this kind are numbers."""
    return kind in (SCALAR, SHAPE_SCALAR) or kind.startswith(INTEGER_SCALAR)


def _in_range(name: str, kind: str) -> list[str]:
    if not kind.startswith(INTEGER_SCALAR):
        return []
    low, high = kind.split()[-2:]
    return [f"{low} <= {name} <= {high}"]



_FILE = f"{__file__}.written"
"""A file name inside the package's folder, so that errors name the caller's line."""


def _function(name: str, text: str, constants: dict[str, Any]) -> Callable[..., Any]:
    """Return the function `name` that `text` defines, with `constants` as its globals."""
    return written(text, constants)[name]


def written(text: str, constants: dict[str, Any]) -> dict[str, Any]:
    """Return the names that `text`, written by weft, defines, with `constants` as its globals."""
    namespace = dict(constants)
    exec(code_of_written(text), namespace)  # noqa: S102  (text of this package)
    return namespace


def code_of_written(text: str) -> CodeType:
    """Return the code of a text written by weft."""
    return code_of(text, _FILE)


def _names(letter: str, numbers: Sequence[int]) -> list[str]:
    return [f"{letter}{n}" for n in numbers]


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


# ---------------------------------------------------------------- finding what was prepared
def never(*tensors: object) -> bool:
    """A guard that no call passes."""
    return False


def guard_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function that checks whether tensors have the types, sizes, strides, dtypes, devices and dispatch keys of `tensors`."""
    guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    if guards is None or not tensors:
        return never if tensors else lambda: True
    try:
        return guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except (TypeError, RuntimeError, ValueError):  # a different interface in another torch: the lookup works without it
        return never


def guard_with_mode(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a guard that also checks whether gradients are recorded as now, which matters if a tensor requires one."""
    check = guard_of(tensors)
    if not any([t.requires_grad for t in tensors]):
        return check
    records = torch.is_grad_enabled
    if records():
        return lambda *given: records() and check(*given)
    return lambda *given: not records() and check(*given)


def write_execute(kinds: Sequence[str], constants: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return (execute, signature) for inputs of these kinds.

    execute(inputs, *, device, _enable_options, _disable_options, check, seed, tune) is FusionExecutorCache.execute, in two forms: a call without keywords uses
    one without keyword parameters (the default of a keyword costs 10 ns). signature(values, device) returns (key, low bits of the addresses, pointers).
    `constants`: last (a list of one entry), find (key -> entry or None), cold, checked, settings, profiling. An entry is (guard, run,
    settings, device, then for each scalar its type, and for each shape scalar its value too, then fits, then the addresses of the tensors of the last call with
    it, all aligned). fits(tensors..., their addresses, those of the last call) raises if a storage is too small; it checks tensors whose address has changed,
    because resizing changes it.
    """
    inputs = _named(kinds)
    arguments = ", ".join([*inputs.values, *inputs.pointers])
    with_keywords = f"""
def execute(inputs, *, device=None, _enable_options=(), _disable_options=(), check=None, seed=None, tune=None):
    if not check is seed is tune is None: return checked(inputs, device, _enable_options, _disable_options, check, seed, tune){_find(inputs, "device")}
    if not (run is None or profiling or _enable_options or _disable_options):
        try: return run({arguments})
        except OverflowError: pass  # an integer that no double holds: the cold call names it
    return cold(inputs, device, _enable_options, _disable_options)
"""
    body = f"""
def execute(inputs, **keywords):
    if keywords: return with_keywords(inputs, **keywords){_find(inputs, "None")}
    if not (run is None or profiling):
        try: return run({arguments})
        except OverflowError: pass
    return cold(inputs, None, (), ())

def signature(inputs, device):
    {'; '.join(inputs.unpack)}
    low = {inputs.low_bits}
    return {_tuple(_key(inputs, "device"))}, low, {_tuple(inputs.pointers)}
"""

    def first_with_keywords(inputs: Any, **keywords: Any) -> Any:
        """Make the form with keywords on first use, because many definitions never need it."""
        namespace["with_keywords"] = execute = written(with_keywords, constants)["execute"]
        return execute(inputs, **keywords)

    constants = constants | {"tangents": torch.autograd.forward_ad}
    namespace = written(body, constants | {"with_keywords": first_with_keywords})
    return namespace["execute"], namespace["signature"]


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a fusion as names in the text. values: of all inputs. tensors: of those on the device, and pointers and seen of their addresses, now and in
    the last call. guarded: of all tensors. low_bits: an expression that is 0 if all addresses are aligned. unpack: statements that define the names."""

    kinds: Sequence[str]
    values: list[str]
    tensors: list[str]
    guarded: list[str]

    @property
    def pointers(self) -> list[str]:
        return [f"p{name[1:]}" for name in self.tensors]

    @property
    def seen(self) -> list[str]:
        return [f"q{name[1:]}" for name in self.tensors]

    @property
    def low_bits(self) -> str:
        return f"({' | '.join(self.pointers)}) & {ALIGNED}" if self.tensors else "0"

    @property
    def unpack(self) -> list[str]:
        return [f"[{', '.join(self.values)}] = inputs", *(f"{p} = a{p[1:]}.data_ptr()" for p in self.pointers)]


def _named(kinds: Sequence[str]) -> _Inputs:
    tensors = [f"a{n}" for n, kind in enumerate(kinds) if kind in (TENSOR, COMPLEX_TENSOR)]
    guarded = [f"a{n}" for n, kind in enumerate(kinds) if kind in (TENSOR, COMPLEX_TENSOR, CPU_SCALAR)]
    return _Inputs(kinds, _names("a", range(len(kinds))), tensors, guarded)


def _key(inputs: _Inputs, device: str) -> list[str]:
    """Return the expressions that make the key of a call."""
    key = [part for n, kind in enumerate(inputs.kinds) for part in _key_parts(f"a{n}", kind)]
    return [*key, "settings()", device, "tangents._current_level < 0", f"low and {_tuple([f'{p} & {ALIGNED}' for p in inputs.pointers])}"]


def _entry(inputs: _Inputs, device: str) -> tuple[list[str], list[str]]:
    """Return the names of an entry's parts, and the conditions under which the entry is for a call."""
    entry, same = ["guard", "run", "options", "where"], [f"guard({', '.join(inputs.guarded)})", "settings() is options", f"{device} is where"]
    same.append("tangents._current_level < 0")  # guards do not check forward-mode tangents
    for n, kind in enumerate(inputs.kinds):
        if is_scalar(kind):
            entry.append(f"t{n}")
            same += [f"type(a{n}) is t{n}", *_in_range(f"a{n}", kind)]
        if kind is SHAPE_SCALAR:
            entry.append(f"v{n}")
            same.append(f"a{n} == v{n}")
    return [*entry, "fits", *inputs.seen], same


def _find(inputs: _Inputs, device: str) -> str:
    """Return the statements that find `run` for a call with this device: that of the last call, or that of an entry with its key; None for a cold call."""
    entry, same = _entry(inputs, device)
    fits = entry.index("fits")
    moved = " or ".join([*(f"{p} != {q}" for p, q in zip(inputs.pointers, inputs.seen)), ""])
    # TensorGuards ask a nested tensor for its sizes, which ends the process (torch 2.13)
    strange = [f"{name}.is_nested" for name in inputs.guarded] + [f"not {name}.data_ptr()" for name in inputs.guarded if name not in inputs.tensors]
    nested = f"if {' or '.join(strange)}: raise TypeError" if strange else "pass"
    is_list = "inputs[0]" if inputs.values else "pass"  # an error for an iterator, a set or a dict, which the cold call refuses
    return f"""
    try:
        {is_list}; {'; '.join(inputs.unpack)}
        {nested}
        {', '.join(entry)} = last[0]
        if {moved}not ({' and '.join(same)}):
            low = {inputs.low_bits}
            if low or not ({' and '.join(same)}):
                entry = find({_tuple(_key(inputs, device))})
            else:
                entry = last[0]
            run = None
            if entry is not None:
                entry[{fits}]({', '.join([*inputs.tensors, *inputs.pointers, f"*entry[{fits + 1}:]"])})
                run = entry[1]
                if not low:
                    last[0] = (*entry[:{fits + 1}], {', '.join([*inputs.pointers, ""])})
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        run = None"""


def _key_parts(name: str, kind: str) -> list[str]:
    if kind is SCALAR or kind.startswith(INTEGER_SCALAR):
        return [f"type({name})", *_in_range(name, kind)]
    if kind is SHAPE_SCALAR:
        return [f"type({name})", name]
    if kind is CPU_SCALAR:
        return [f"{name}.shape", f"{name}.dtype", f"{name}.device"]
    parts = [f"{name}.shape", f"{name}.is_contiguous() or {name}.stride()", f"{name}.dtype", f"{name}.device", f"type({name})", f"{name}.is_neg()"]
    parts.append(f"{name}.requires_grad and records_gradients()")
    return [*parts, f"{name}.is_conj()"] if kind is COMPLEX_TENSOR else parts


@dataclass(frozen=True)
class Warm:
    """The prepared call of one signature, for a function that calls it without `execute`, and so makes the checks of `execute` itself.

    guard(tensors...), fits(tensors..., addresses, seen...): as in `write_execute`. run(values..., addresses...). settings(): must return `options`.
    """

    guard: Callable[..., bool]
    run: Callable[..., Any]
    settings: Callable[[], Any]
    fits: Callable[..., None]
    seen: tuple[int, ...]


# ---------------------------------------------------------------- running what was prepared
@dataclass
class LaunchText:
    """One step: a launch, or the statement `call`, which calls the constant `torch_name` if torch runs it.

    number: which launch. pointers: expressions of addresses. scalars: (slot, expression) of parameters that change from call to call. before, after:
    statements around it.
    """

    pointers: list[str] = field(default_factory=list)
    scalars: list[tuple[int, str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    number: int = 0
    call: str = ""
    torch_name: str = ""


@dataclass
class RunParts:
    """The parts of the text of `run`. arguments: names of the values and pointers that it takes. allocations, before, after: statements. steps: in order.
    returned: expressions. constants: names used by the text, including launch0, launch1, ... and, on a GPU, stream and device.
    """

    arguments: list[str]
    allocations: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    steps: list[LaunchText] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)


def write_run(parts: RunParts) -> Callable[..., Any]:
    """Return run(values..., pointers...), which allocates, launches and returns the outputs; `run.parts`: its parts, `run.lines`: its statements except the
    last, for functions that inline them (`inlined`), `run.text`: its text."""
    lines, constants = [*parts.allocations], dict(parts.constants)
    stream = "stream(device)" if "stream" in constants else "0"
    if sum(not step.call for step in parts.steps) > 1 or any("queue" in line for line in parts.before):
        lines.append(f"queue = {stream}")
        stream = "queue"
    lines += parts.before
    for number, steps in enumerate(_batches(parts)):
        if len(steps) > 1:
            lines += [*steps[0].before, *_batch_lines(number, steps, stream, constants), *steps[-1].after]
            continue
        (step,) = steps
        lines += [*step.before, *([step.call] if step.call else _launch_lines(step.number, step, stream, constants)), *step.after]
    lines += parts.after
    returned = f"return [{', '.join(parts.returned)}]"
    text = f"def run({', '.join(parts.arguments)}):\n    " + "\n    ".join([*lines, returned]) + "\n"
    run = _function("run", text, constants)
    run.parts, run.lines, run.names, run.text = parts, lines, constants, text  # type: ignore[attr-defined]
    return run


def inlined(run: Callable[..., Any], results: Sequence[str], indent: str, taken: Iterable[str]) -> tuple[str, dict[str, Any]] | None:
    """Return (statements equal to [results] = run(...) with variables of the same names as arguments, the constants that they use); None if that is not
    possible. taken: names with another meaning there. This saves a call and its list.
    """
    parts: RunParts | None = getattr(run, "parts", None)
    names: dict[str, Any] = getattr(run, "names", {})
    if parts is None or len(parts.returned) != len(results) or set(names) & set(taken):
        return None
    named = [(name, value) for name, value in zip(results, parts.returned) if name != value]
    lines = [*getattr(run, "lines"), *([f"{', '.join(name for name, _ in named)} = {', '.join(value for _, value in named)}"] if named else [])]
    return "\n".join([indent + line for line in lines]).lstrip(), names


def _record(step: LaunchText, constants: dict[str, Any]) -> LaunchRecord | None:
    """Return the record that a step launches, if it is one."""
    record = None if step.call else getattr(constants[f"launch{step.number}"], "__self__", None)
    return record if isinstance(record, LaunchRecord) else None


def _batches(parts: RunParts) -> list[list[LaunchText]]:
    """Return the steps in order, with adjacent launches grouped."""
    out: list[list[LaunchText]] = []
    is_open = False
    for step in parts.steps:
        is_launch = _record(step, parts.constants) is not None
        if is_open and is_launch and not step.before:
            out[-1].append(step)
        else:
            out.append([step])
        is_open = is_launch and not step.after
    return out


def _batch_lines(number: int, steps: Sequence[LaunchText], stream: str, constants: dict[str, Any]) -> list[str]:
    """The statements of several launches, whose addresses are written together."""
    records = [record for step in steps if (record := _record(step, constants)) is not None]
    batch = LaunchBatch(records, [step.pointers for step in steps])
    scalars = [(place, slot, text) for place, step in enumerate(steps) for slot, text in step.scalars]
    lines, names = batch.written(number, stream, scalars)
    constants.update(names)
    return lines


def _launch_lines(number: int, launch: LaunchText, stream: str, constants: dict[str, Any]) -> list[str]:
    """The statements of one launch: a call, or the inlined statements of a LaunchRecord, which saves the call itself."""
    record = _record(launch, constants)
    if record is None or record.has_maps:
        scalars = f", {_tuple([f'({slot}, {text})' for slot, text in launch.scalars])}" if launch.scalars else ""
        return [f"launch{number}({_tuple(launch.pointers)}, {stream}{scalars})"]
    lines, names = record.written(number, launch.pointers, stream, launch.scalars)
    constants.update(names)
    return lines


def allocator(device: int | None) -> tuple[str, dict[str, Any]]:
    """Return the text of an allocation, with {n} for the number of the output, and the names that it uses besides size{n}, stride{n} and dtype{n}. inductor's
    functions allocate on the current device, so they are used only if there is one device.
    """
    guards = torch._C._dynamo.guards
    if device is None and hasattr(guards, "_empty_strided_cpu"):
        return "empty(size{n}, stride{n}, dtype{n})", {"empty": guards._empty_strided_cpu}
    if device is not None and hasattr(guards, "_empty_strided_cuda") and torch.cuda.device_count() == 1:
        return "empty(size{n}, stride{n}, dtype{n})", {"empty": guards._empty_strided_cuda}
    where = torch.device("cpu") if device is None else torch.device("cuda", device)
    return "empty(size{n}, stride{n}, dtype=dtype{n}, device=place)", {"empty": torch.empty_strided, "place": where}
