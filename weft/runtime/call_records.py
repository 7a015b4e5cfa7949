"""Prepared calls on disk: another process runs them without the definition, without schedulers and without lowering.

A record is what the function of one signature was written from (`weft.runtime.warm_path.RunParts`), and of each launch its kernel's text and its plan. Its
key names the definition (by a digest that whoever keeps records chooses), sizes, strides, types, alignments, the chip, the settings, and every file of weft:
a record that is found is right, and what is not found is prepared as ever. Kernels come from the same cache as always. Calls that copy one input into
another, whose settings check or tune, and what holds objects that no file can hold are not recorded. Read first: `RecordedCalls`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from .. import forking
from ..cache import Artefact, artefact_key, default_cache, digest_of_files, files_below
from ..dtypes import DataType
from ..expr import const, var
from ..lower.program import KernelProgram, LineOrigin, Need
from ..options import Options, current, in_block
from . import engines, kept_code, philox_state, profile, warm_path, work_memory
from .arguments import flattened
from .binding import span_elems
from .call_state import settings_and_gradients
from .engines import BuiltKernel, Engine, LaunchPlan, Memory
from .gradient_check import was_written
from .host_scalars import EVALUATORS
from .outputs import Layout
from .record_text import Later, NoRecord, as_text, decoded, encoded
from .storage_check import checker
from .torch_steps import TorchCall

log = logging.getLogger(__name__)

FORMAT = 4
"""Format version of records: increment it if their meaning changes without a change of weft's files."""
MOST_SIGNATURES = 16
"""The most records that one process writes for one definition: a size that changes in every call would fill the disk."""
RECORD, CODE = "record", "code"
"""The key of the record in an entry's metadata, and that of the code of its functions among the byte strings."""

_DATA = re.compile(r"(size|stride|dtype)\w*|number_\d+|torch\d+_\d+")
_MADE = re.compile(r"launch\d+|was_written|zeroed_memory|default_stream|nothing|gpu|empty|place|stream|device")
"""Names of constants: those that are kept unchanged, and those that each process makes itself."""


# ---------------------------------------------------------------- what a record is for
def code_version() -> str:
    """Return a digest of weft's files. They are read once; later the cache identifies them by names, sizes and times."""
    with _version_lock:  # concurrent threads wait for the first
        return _code_version()


_version_lock = forking.lock()


@functools.cache
def _code_version() -> str:
    files = list(files_below(str(Path(sys.modules["weft"].__file__ or "").parent), (".py", ".cuh")))
    return digest_of_files("code", files, lambda: hashlib.sha256(b"\0".join(Path(path).read_bytes() for path, *_ in sorted(files))).hexdigest())


def signature_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the properties of its values that a prepared call depends on. Errors: NoRecord for values of unusual kinds."""
    out: list[Any] = []
    devices: set[torch.device] = set()
    for value in values:
        if isinstance(value, (bool, int)):
            out.append((type(value).__name__, value))
        elif isinstance(value, float):
            out.append("float")
        elif type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_neg() and not value.is_conj():
            if value.requires_grad and torch.is_grad_enabled():
                raise NoRecord("gradients are recorded")
            is_number = value.is_cpu and not value.dim()
            devices.update(() if is_number else [value.device])
            low = 0 if is_number else value.data_ptr() & warm_path.ALIGNED
            out.append((tuple(value.shape), value.stride(), str(value.dtype), value.device.type, low))
        else:
            raise NoRecord(f"a {type(value).__name__}")
    if len(devices) > 1:
        raise NoRecord("tensors of several devices")
    return tuple(out)


_WITHOUT_MEANING = ("cache", "cache_dir", "require_cached", "cache_limit_mib", "kept_kernels", "preload", "strict_schedules", "dump_dir")


def _settings(options: Options) -> str:
    return repr([(f.name, getattr(options, f.name)) for f in dataclasses.fields(options) if f.name not in _WITHOUT_MEANING])


def _chip(engine: Engine) -> str:
    from .nvrtc import driver_cuda_version

    arch = engine.arch
    kind = "emulator" if engine.device is None else f"gpu {driver_cuda_version()}"
    return f"{kind} {arch.name} {arch.compute_capability} {arch.sm_count}"


def _key(definition: str, signature: tuple[Any, ...], device: Any, engine: Engine, options: Options) -> str:
    asked = "" if device is None else str(torch.device(device).type)
    return artefact_key("call", FORMAT, surroundings(engine, options), definition, asked, repr(signature))


def surroundings(engine: Engine, options: Options) -> str:
    """A digest of what all calls of one process depend on."""
    return _surroundings(_chip(engine), options)


@functools.lru_cache(maxsize=64)
def _surroundings(chip: str, options: Options) -> str:
    return artefact_key(code_version(), torch.__version__, sys.version, chip, _settings(options))


def _is_recorded(options: Options) -> bool:
    """False if calls do more than run kernels."""
    return options.cache and not (options.tune or options.dump or getattr(options, "bounds", False))


def _engine(values: Sequence[Any], device: Any, options: Options) -> Engine:
    tensors = [v for v in values if isinstance(v, torch.Tensor) and (v.dim() or v.is_cuda)]
    index = next((t.device.index for t in tensors if t.is_cuda), None)
    return engines.choose(options, device=index, has_cpu_tensors=any(t.is_cpu for t in tensors), asked=device)


# ---------------------------------------------------------------- records
@dataclass
class _Kernel:
    """A kernel, its build and its launch. needs: by name. block: threads along each axis, None if sizes decide. kept: see `BuiltKernel`."""

    scheduler: str
    fields: dict[str, Any]
    needs: tuple[str, ...]
    block: tuple[int | None, ...]
    shared_names: tuple[str, ...]
    index_type: str
    plan: LaunchPlan
    kept: str

    def program(self) -> KernelProgram:
        block = tuple(var("threads") if n is None else const(n) for n in self.block)
        shared = tuple((name, const(0)) for name in self.shared_names)
        one = const(1)
        origins = self.fields["origins"]
        if not isinstance(origins, str):
            raise NoRecord("origins without a text")
        fields = {**self.fields, "origins": Later(origins, _CLASSES)}
        return KernelProgram(
            params=(), grid=(one, one, one), block=block, shared_bytes=one, index_type=DataType[self.index_type], shared_tensors=shared,  # type: ignore[arg-type]
            needs=frozenset(Need[name] for name in self.needs), **fields,
        )  # fmt: skip


@dataclass
class _Record:
    """See the module. ops: name -> scalar op. torch_calls: name -> (op, attributes, layouts). random_ops: 0 for none. writes: it writes into inputs. careful:
    the function for inputs that overlap a written one."""

    kinds: tuple[str, ...]
    parts: dict[str, Any]
    data: dict[str, Any]
    ops: dict[str, str]
    torch_calls: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]]
    kernels: list[_Kernel]
    random_ops: int
    writes: bool = False
    careful: "_Record | None" = None


@dataclass(eq=False)
class RecordedKernel:
    """A kernel that came from a record."""

    scheduler: str
    program: KernelProgram
    built: BuiltKernel


_KEPT_FIELDS = ("name", "text", "blocks", "random_ops", "max_registers", "cluster")
_PARTS = ("arguments", "allocations", "before", "steps", "after", "returned")


def _record_of(caller: Any, prepared: Any) -> _Record:
    """Return the record of a prepared call. Errors: NoRecord."""
    shared = caller.shared
    if shared.outputs.copies:
        raise NoRecord("it copies an input into another")
    if shared.has_scatters:
        raise NoRecord("torch's setting decides how it scatters, and a record knows weft's settings only")
    return _record_of_run(caller, prepared.run, prepared.runtimes, prepared.plans)


def _record_of_run(caller: Any, run: Any, runtimes: Sequence[Any], plans: Sequence[LaunchPlan]) -> _Record:
    parts = getattr(run, "parts", None)
    if parts is None:
        raise NoRecord("its function is wrapped")
    record = _Record(tuple(caller._kinds), {name: getattr(parts, name) for name in _PARTS}, {}, {}, {}, [], 0)
    record.writes = bool(caller.shared.outputs.written)
    for name, value in parts.constants.items():
        if name == "take":
            record.random_ops = caller.shared.random_ops
        elif name == "careful":
            record.careful = _record_of_run(caller, value, runtimes, value.plans)
        elif name.startswith("op_"):
            record.ops[name] = next(op for op, function in EVALUATORS.items() if function is value)
        elif isinstance(value, TorchCall):
            record.torch_calls[name] = (value.name, value.attributes, value.layouts)
        elif _DATA.fullmatch(name):
            record.data[name] = value
        elif not _MADE.fullmatch(name):
            raise NoRecord(f"the constant {name}")
    for runtime, plan in zip(runtimes, plans, strict=True):
        program = runtime.program
        block = tuple(int(n.value) if n.is_const else None for n in program.block)
        fields = {name: getattr(program, name) for name in _KEPT_FIELDS} | {"origins": as_text(program.origins, _CLASSES)}
        names = tuple(name for name, _ in program.shared_tensors)
        needs = tuple(sorted(need.name for need in program.needs))
        record.kernels.append(_Kernel(runtime.scheduler, fields, needs, block, names, program.index_type.name, plan, runtime.built.kept))
    return record


def _rebuilt(record: _Record, engine: Engine, options: Options) -> tuple[Callable[..., Any], list[RecordedKernel]]:
    """Return the function of a record, and its kernels. Errors: those of the compiler, if a kernel is no longer in the cache."""
    constants: dict[str, Any] = dict(record.data)
    constants.update(warm_path.allocator(engine.device)[1])
    constants.update({name: EVALUATORS[op] for name, op in record.ops.items()})
    constants.update({name: TorchCall(*call) for name, call in record.torch_calls.items()})
    kernels: list[RecordedKernel] = []
    built: dict[str, RecordedKernel] = {}
    for number, one in enumerate(record.kernels):
        found = built.get(one.fields["text"])
        if found is None:
            program = one.program()
            found = built[one.fields["text"]] = RecordedKernel(one.scheduler, program, engine.build(program, options, kept=one.kept))
        kernels.append(found)
        constants[f"launch{number}"] = found.built.launcher(one.plan)
    if any("zeroed_memory" in line for line in record.parts["before"]):
        constants.update(work_memory.names(engine.device))
    if record.random_ops:
        constants["take"] = philox_state.taker(engine.device, record.random_ops, kernels[0].program.name)
    if engine.device is not None:
        constants.update(stream=engines.stream_reader(engine.device), device=engine.device)
    if record.writes:
        constants["was_written"] = was_written
    if record.careful is not None:
        constants["careful"], _ = _rebuilt(record.careful, engine, options)
    return warm_path.write_run(warm_path.RunParts(**record.parts, constants=constants)), list(dict.fromkeys(kernels))


def _entries_of(key: str, record: _Record) -> list[str]:
    """Return the keys in the cache of a record and of its kernels."""
    return [key, *(kernel.kept.partition(" ")[0] for kernel in record.kernels if kernel.kept)]


_KINDS = {k: k for k in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR, warm_path.CPU_SCALAR, warm_path.SCALAR, warm_path.SHAPE_SCALAR)}
"""Kinds of inputs, which the writer compares by identity."""
_CLASSES = {c.__name__: c for c in (_Record, _Kernel, LaunchPlan, Memory, warm_path.LaunchText, Layout, LineOrigin)}


def _read(found: object) -> _Record:
    """Return the record in an entry's metadata. Errors: NoRecord."""
    record = decoded(found, _CLASSES)
    if not isinstance(record, _Record):
        raise NoRecord(f"a {type(record).__name__}")
    record.kinds = tuple(_KINDS.get(kind, kind) for kind in record.kinds)
    return record


def _storage_check(kinds: Sequence[str], values: Sequence[Any]) -> tuple[list[tuple[int, Any]], Callable[..., None]]:
    """Return the tensors among values, with their positions, and the check that the storages of such tensors are large enough."""
    tensors = [(n, v) for n, (v, kind) in enumerate(zip(values, kinds)) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR)]
    wanted: list[Any] = [(n, SimpleNamespace(name=n), span_elems(v.shape, v.stride()) * v.element_size(), v.element_size()) for n, v in tensors]
    return tensors, checker(wanted)


def _code_for(record: _Record, values: Sequence[Any], text: str) -> bytes:
    """Return the code of the functions that another process needs for a record: to find the call, check its storages, and run it. text: of `run`."""
    with kept_code.noting() as codes:
        warm_path.write_execute(record.kinds, {})
        _storage_check(record.kinds, values)
        warm_path.code_of_written(text)
    return kept_code.packed(codes)


# ---------------------------------------------------------------- calls
class RecordedCalls:
    """Calls of one definition, from records where there are any.

    definition: a digest of what is computed; "" for no records. make: returns the FusionExecutorCache that computes it; called at the first call without a
    record, after which it serves all calls. kernels: those that calls have used. entries: cache keys of the records written or read, and of their kernels.
    """

    def __init__(self, definition: str, make: Callable[[], Any]) -> None:
        self.definition, self._make = definition, make
        self.executor: Any = None
        self.entries: list[str] = []
        self._recorded: list[RecordedKernel] = []
        self._written = 0
        self._runs: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {}
        self._table: dict[Any, tuple[Any, ...]] = {}
        self._last: list[tuple[Any, ...]] = [()]
        self._kinds: tuple[str, ...] = ()
        self._settings: Callable[[], Any] = in_block  # the settings that calls depend on besides their values
        self._signature: Callable[..., Any] | None = None
        self.execute: Callable[..., Any] = self._first

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The kernels that calls have used, in order of first use."""
        return tuple(self._recorded) if self.executor is None else self.executor.kernel_runtimes

    def prepare(self, values: Sequence[Any], device: Any = None) -> None:
        """Prepare calls with values like these, without reading them. Errors: those of a call."""
        if self.executor is not None or not self._restore(values, device):
            self._real().prepare(values, device)

    def warm(self, values: Sequence[Any]) -> warm_path.Warm | None:
        """Return the prepared call for values like these, like `Caller.warm`."""
        if self.executor is not None:
            found: warm_path.Warm | None = self.executor.warm(values)
            return found
        if self._signature is None:
            return None
        key, low, _ = self._signature(values, None)
        entry = None if low else self._table.get(key)
        if entry is None or any(kind != warm_path.TENSOR and not warm_path.is_scalar(kind) for kind in self._kinds):
            return None
        tensors, fits = _storage_check(self._kinds, values)
        return warm_path.Warm(warm_path.guard_of([v for _, v in tensors]), entry[1], self._settings, fits, tuple(v.data_ptr() for _, v in tensors))

    def _first(self, inputs: Sequence[Any], *, device: Any = None) -> Any:
        return self._cold(inputs, device, (), ())

    def _cold(self, inputs: Sequence[Any], device: Any, enable: Sequence[str], disable: Sequence[str]) -> Any:
        values = flattened(inputs)
        if enable or disable or profile.active or not self._restore(values, device):
            return self._real().execute(inputs, device=device, _enable_options=enable, _disable_options=disable)
        key = self._signature(values, device)[0]  # type: ignore[misc]
        pointers = [v.data_ptr() for v, kind in zip(values, self._kinds) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR)]
        return self._table[key][1](*values, *pointers)

    def _checked(self, inputs: Sequence[Any], device: Any, enable: Sequence[str], disable: Sequence[str], check: Any, seed: Any, tune: Any) -> Any:
        return self._real().execute(inputs, device=device, _enable_options=enable, _disable_options=disable, check=check, seed=seed, tune=tune)

    def _real(self) -> Any:
        """Serve all calls from the definition from now on, and record what it prepares."""
        if self.executor is None:
            executor = self._make()
            executor.watch(self._keep)
            self.executor, self.execute = executor, executor.execute
        return self.executor

    # -- reading
    def _restore(self, values: Sequence[Any], device: Any) -> bool:
        """Restore a record for values like these into the table; return whether there is one."""
        options = current()
        if not (self.definition and _is_recorded(options)) or self.executor is not None:
            return False
        try:
            signature = signature_of(values)
            engine = _engine(values, device, options)
            key = _key(self.definition, signature, device, engine, options)
            if key not in self._runs and not self._read_record(key, engine, options):
                return False
            self._remember(*self._runs[key], values, device)  # the table distinguishes parameters from other tensors; a record serves both
        except Exception as error:  # noqa: BLE001  (a record is an offer: without it the definition serves the call, and says what is wrong)
            log.debug("no call from a record: %s: %s", type(error).__name__, error)
            return False
        return True

    def _read_record(self, key: str, engine: Engine, options: Options) -> bool:
        """Read a record and make its function; return whether there is one. Errors: NoRecord, and any error for a damaged one."""
        cache = default_cache(options)
        artefact = None if cache is None else cache.get(key)
        if artefact is None:
            return False
        kept_code.unpack(artefact.blobs.get(CODE, b""))
        record = _read(artefact.metadata.get(RECORD))
        if self._kinds not in ((), record.kinds):
            return False
        run, kernels = _rebuilt(record, engine, options)
        if record.writes:
            self._settings = settings_and_gradients
        self._runs[key] = record.kinds, run
        self._recorded += [k for k in kernels if k not in self._recorded]
        self.entries += _entries_of(key, record)
        return True

    def _remember(self, kinds: tuple[str, ...], run: Callable[..., Any], values: Sequence[Any], device: Any) -> None:
        """Put a function into the table, like `weft.runtime.calls.Caller`."""
        tensors, fits = _storage_check(kinds, values)
        fits(*(v for _, v in tensors), *(v.data_ptr() for _, v in tensors), *(None for _ in tensors))
        if not self._kinds:
            constants = {
                "last": self._last, "find": self._table.get, "cold": self._cold, "checked": self._checked, "settings": self._settings,
                "profiling": profile.active, "records_gradients": torch.is_grad_enabled,
            }  # fmt: skip
            execute, self._signature = warm_path.write_execute(kinds, constants)
            self._kinds, self.execute = kinds, execute
        guarded = [v for v, kind in zip(values, kinds) if not warm_path.is_scalar(kind)]
        scalars: list[Any] = []
        for value, kind in zip(values, kinds):
            scalars += [type(value)] if warm_path.is_scalar(kind) else []
            scalars += [value] if kind == warm_path.SHAPE_SCALAR else []
        key, low, _ = self._signature(values, device)  # type: ignore[misc]
        entry = (warm_path.guard_with_mode(guarded), run, self._settings(), device, *scalars, fits, *(v.data_ptr() for _, v in tensors))
        self._table[key] = entry
        if not low:
            self._last[0] = entry

    # -- writing
    def _keep(self, caller: Any, values: Sequence[Any], device: Any, prepared: Any, engine: Engine, options: Options) -> None:
        """Write the record of a call that was just prepared."""
        if self._written >= MOST_SIGNATURES or not (self.definition and _is_recorded(options)):
            return
        try:
            key = _key(self.definition, signature_of(values), device, engine, options)
            found = _record_of(caller, prepared)
            record, code = encoded(found, _CLASSES), _code_for(found, values, prepared.run.text)
        except NoRecord as error:
            log.debug("a call is not recorded: %s", error)
            return
        cache = default_cache(options)
        if cache is not None and cache.put(key, Artefact({"kind": "call", RECORD: record}, {CODE: code})):
            self._written += 1
            self.entries += _entries_of(key, found)


__all__ = ["RecordedCalls", "RecordedKernel", "code_version", "signature_of", "surroundings"]
