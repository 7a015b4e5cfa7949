"""Settings: one table, and three ways to set each of them.

Owns every setting of the package and the option names of nvFuser. A setting is an environment variable (`WEFT_DUMP=cuda`),
a keyword (`current(dump="cuda")`) and a `with options(dump="cuda"):` block; the keyword wins over the block, the block over
the environment. No other module reads `os.environ` for a setting.
Read first: `Options`, which is the table.
"""

from __future__ import annotations

import contextvars
import dataclasses
import difflib
import fnmatch
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.errors import UserError

DUMP_KINDS = (
    "fusion",
    "segments",
    "scheduler",
    "passes",
    "kernel_ir",
    "cuda",
    "ptx",
    "cubin",
    "sass",
    "resources",
    "launch",
    "python",
)
"""What `dump` can name; `kind:pattern@pattern` limits a kind to a step and a kernel."""

CHECK_KINDS = ("bounds", "races")

ENABLE_NAMES = (
    "fuse_matmul",
    "fuse_multiple_matmuls",
    "id_model_extra_validation",
    "io_to_lower_precision",
    "kernel_db",
    "kernel_debug",
    "kernel_lineinfo",
    "kernel_profile",
    "memory_promotion",
    "reuse_zeroed_memory",
    "static_fusion_count",
    "wait_debugger",
    "warn_register_spill",
    "tma_pointwise",
    "tma_inner_persistent",
    "tma_reduction",
    "ws_normalization",
    "host_ir_lowering",
    "host_ir_jit",
    "insert_resharding_after",
    "fast_math",
    "cutlass_scheduler",
    "p2p_protocol",
    "p2p_transport",
    "multicast_protocol",
)
"""nvFuser's enable options; all are accepted, those without a meaning here are ignored."""

DISABLE_NAMES = (
    "compile_to_sass",
    "contig_indexing",
    "expr_simplify",
    "fallback",
    "fma",
    "greedy_scheduler",
    "grouped_grid_welford_outer_opt",
    "index_hoist",
    "magic_zero",
    "matmul_expr_eval",
    "nvrtc_caching",
    "nvtx",
    "parallel_compile",
    "predicate_elimination",
    "python_inline_definitions",
    "kernel_reuse",
    "var_name_remapping",
    "welford_vectorization",
    "resize_scheduler",
    "reuse_mismatched_type_registers",
    "multidevice",
    "infer_contiguity",
)
"""nvFuser's disable options; all are accepted, those without a meaning here are ignored."""


class UnknownOption(UserError):
    code = "W700"
    what = "there is no option {name!r}"
    fix = "{nearest}; all options: {known}"


class InvalidOptionValue(UserError):
    code = "W701"
    what = "option {name} ({source}) is {value!r}; allowed: {allowed}"
    fix = "set it to one of the allowed values{unset}"


class UnrecognizedEnableOption(UserError):
    code = "W702"
    what = "Unrecognized enable_option: {name}"
    fix = "{nearest}; all enable options: {known}"


class UnrecognizedDisableOption(UserError):
    code = "W703"
    what = "Unrecognized disable_option: {name}"
    fix = "{nearest}; all disable options: {known}"


# ---------------------------------------------------------------------------------------------------------------------
# Parsers: text or a Python value -> the value that is stored. They raise ValueError with the allowed values.


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "on", "true", "yes"):
        return True
    if text in ("0", "off", "false", "no", ""):
        return False
    raise ValueError("on, off")


def _text(value: object) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value).strip()


def _folder(value: object) -> str:
    if not _text(value):
        raise ValueError("a folder; cache=off keeps nothing on disk")
    return _text(value)


def _count(value: object) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        number = -1
    if number < 0 or isinstance(value, bool):
        raise ValueError("a whole number of 0 or more")
    return number


def _optional_count(value: object) -> int | None:
    return None if value is None or str(value).strip() == "" else _count(value)


def _one_of(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if isinstance(value, bool):
            value = "on" if value else "off"
        text = str(value).strip().lower()
        if text not in choices:
            raise ValueError(", ".join(choices))
        return text

    return parse


def _items(value: object) -> list[str]:
    """Split a comma list (or take an iterable of strings) into stripped, non-empty items."""
    parts = value.split(",") if isinstance(value, str) else list(value)  # type: ignore[call-overload]
    return [text for part in parts if (text := str(part).strip())]


def _dump_list(value: object) -> tuple[str, ...]:
    items = _items(value)
    for item in items:
        if item.partition(":")[0] not in DUMP_KINDS:
            raise ValueError("a comma list of KIND or KIND:step_pattern@kernel_pattern, KIND in " + ", ".join(DUMP_KINDS))
    return tuple(items)


def _check_list(value: object) -> tuple[str, ...]:
    items = _items(value)
    if set(items) - set(CHECK_KINDS):
        raise ValueError("a comma list of " + ", ".join(CHECK_KINDS))
    return tuple(kind for kind in CHECK_KINDS if kind in items)


def _setting(parse: Callable[[object], Any], default: object, doc: str, *, changes_code: bool = False) -> Any:  # noqa: ANN401 - as dataclasses.field
    return dataclasses.field(default=parse(default), metadata={"parse": parse, "doc": doc, "changes_code": changes_code})


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """One value for every setting. Field `name` is the environment variable `WEFT_NAME`.

    A setting with `changes_code` can change the text or the machine code of a kernel, so it is part of every cache key
    (`code_key`).
    """

    dump: tuple[str, ...] = _setting(
        _dump_list, "", "what to dump: a comma list of " + ", ".join(DUMP_KINDS) + "; kind:step_pattern@kernel_pattern restricts a kind"
    )
    dump_dir: str = _setting(_text, "", "folder for dumps and files of a failed compilation; empty: dumps are printed, files go to a temporary folder")
    cache: bool = _setting(_switch, True, "keep compiled kernels on disk")
    cache_dir: str = _setting(_folder, "~/.cache/weft", "folder of the disk cache")
    require_cached: bool = _setting(
        _switch, False, "raise an error for a kernel that is not in the disk cache, instead of compiling it: for servers that start from weft.precompile"
    )
    cache_limit_mib: int = _setting(_count, 2048, "size limit of the disk cache in MiB; the least recently used entries are removed first; 0: no limit")
    kept_kernels: int = _setting(
        _count, 2048,
        "how many kernels a process keeps loaded: on a GPU, of those that no definition uses any more; in the emulator, of all;"
        " the least recently used go first; 0: no limit",
    )  # fmt: skip
    emulate: str = _setting(_one_of("auto", "on", "off"), "auto", "run kernels in the emulator; auto: when the tensors are not on a GPU")
    chip: str = _setting(_text, "H100", "the chip that the emulator imitates, by its name in weft.arch.CHIPS")
    check: tuple[str, ...] = _setting(
        _check_list, "",
        "checks of the emulator: a comma list of " + ", ".join(CHECK_KINDS) + "; tensors on a GPU are copied to the CPU and run in the emulator",
        changes_code=True,
    )  # fmt: skip
    verify: bool = _setting(_switch, False, "check the kernel IR after every lowering pass, for developers of passes; tests have it on")
    seed: int | None = _setting(_optional_count, "", "seed of the emulator's thread and copy order; the same seed repeats the run; empty: program order")
    isolate: bool = _setting(_switch, False, "run emulated kernels in a child process with a time limit, which protects this process from crashes and hangs")
    bounds: bool = _setting(
        _switch, False, "kernels on a GPU report out-of-range positions in index tensors; the next call, or weft.synchronize(), raises the error",
        changes_code=True,
    )  # fmt: skip
    deterministic: bool = _setting(
        _switch, False,
        "scatters, and sums into rows that an index names, return the same bits in every run: sums are added in a fixed order, and of equal"
        " positions the last one wins; torch.use_deterministic_algorithms has the same effect",
    )  # fmt: skip
    row_sums: str = _setting(
        _one_of("auto", "sort", "atomic"), "auto",
        "how torch.compile adds rows that an index sends to the same row; auto: what is predicted to be faster; sort: behind a sort of the index,"
        " the same bits in every run; atomic: by atomic additions, unless `deterministic` forbids them",
    )  # fmt: skip
    device_line_info: bool = _setting(_switch, False, "put line numbers into the machine code, for profilers", changes_code=True)
    ptxas_verbose: bool = _setting(_switch, False, "print registers, shared memory and spills of every kernel that is compiled")
    fast_math: bool = _setting(_switch, False, "use approximate division, square root and exponentials, and flush denormals to zero", changes_code=True)
    rows: str = _setting(
        _one_of("auto", "register", "tma", "specialized"), "auto",
        "how normalizations keep their rows; auto: what is predicted to be fastest; register: in registers; tma: in shared memory,"
        " loaded by TMA; specialized: loaded by warps of their own (warp specialization)",
        changes_code=True,
    )  # fmt: skip
    dependent_launch: str = _setting(
        _one_of("auto", "on", "off"), "auto",
        "programmatic dependent launch (sm_90 and later): a kernel may start before the previous one has ended, and waits"
        " for its results inside; auto: where measurements showed a gain",
        changes_code=True,
    )  # fmt: skip
    launch_graphs: bool = _setting(
        _switch, False, "launch several kernels of a call as one CUDA graph from the third call on; changed arguments are updated in the graph"
    )
    tune: bool = _setting(
        _switch, False, "time the best candidates for each kernel on its device and keep the fastest (docs/tuning.md); off: choose by prediction"
    )
    tune_limit_s: int = _setting(_count, 60, "seconds that one call may spend on tuning; kernels not timed by then use the best choice so far")
    strict_schedules: bool = _setting(
        _switch, False, "raise the error of a scheduler that accepted a fusion and then failed; off: log a warning and use the next scheduler"
    )
    partition: str = _setting(
        _text, "best", "how definitions are cut into kernels; best: for the fewest bytes and launches; single: one per op; a number: random with this seed"
    )
    nvrtc: str = _setting(_text, "", "path of the NVRTC library to use; empty: find one")
    preload: bool = _setting(_switch, True, "import the runtime together with FusionDefinition, and load NVRTC in the background if there is a GPU driver")

    @property
    def cache_path(self) -> Path:
        """`cache_dir` with `~` expanded."""
        return Path(self.cache_dir).expanduser()

    def is_dumped(self, kind: str, step: str = "", kernel: str = "") -> bool:
        """Tell whether `dump` asks for `kind` at this step (a pass, a stage) of this kernel.

        Example: with dump="passes:insert_*@softmax*", is_dumped("passes", "insert_syncs", "softmax_1") is True
        """
        for item in self.dump:
            name, _, patterns = item.partition(":")
            if name != kind:
                continue
            step_pattern, _, kernel_pattern = patterns.partition("@")
            if fnmatch.fnmatchcase(step, step_pattern or "*") and fnmatch.fnmatchcase(kernel, kernel_pattern or "*"):
                return True
        return False

    def code_key(self) -> tuple[tuple[str, object], ...]:
        """Return the settings that change code, for cache keys."""
        return tuple((name, getattr(self, name)) for name in _CODE_NAMES)

    def with_values(self, values: Mapping[str, object], source: str = "keyword") -> Options:
        """Return a copy with some settings replaced. `source` is named when a value is not allowed.

        Errors: UnknownOption, InvalidOptionValue.
        """
        return dataclasses.replace(self, **{name: _parsed(name, value, source) for name, value in values.items()})


_FIELDS = {field.name: field for field in dataclasses.fields(Options)}
_CODE_NAMES = tuple(name for name, field in _FIELDS.items() if field.metadata["changes_code"])


def must_be_in_order() -> bool:
    """True if equal calls must return equal bits, by the setting `deterministic` or by torch's own: atomic additions have no fixed order."""
    torch = sys.modules.get("torch")
    return current().deterministic or torch is not None and torch.are_deterministic_algorithms_enabled()


def environment_name(name: str) -> str:
    """Return the environment variable of a setting: `dump_dir` -> `WEFT_DUMP_DIR`."""
    return f"WEFT_{name.upper()}"


def describe() -> str:
    """Return the table of settings as text: variable, default, whether it changes code, meaning."""
    lines = []
    for name, field in _FIELDS.items():
        suffix = ", changes code" if field.metadata["changes_code"] else ""
        lines.append(f"{environment_name(name)} (default {_as_text(field.default)!r}{suffix})\n    {field.metadata['doc']}")
    return "\n".join(lines)


def _as_text(value: object) -> str:
    """Spell a setting's value as one would in the environment."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return ""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the known words closest to `name`."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return "did you mean " + " or ".join(close) + "?" if close else "no known name is similar"


def _unset(default: object) -> str:
    """Return the meaning of an unset setting, for the end of a sentence."""
    shown = _as_text(default)
    return f"; without it, it is {shown}" if shown else "; without it, it is off"


def _parsed(name: str, value: object, source: str) -> Any:
    if name not in _FIELDS:
        raise UnknownOption(name=name, nearest=nearest(name, _FIELDS), known=", ".join(_FIELDS))
    field = _FIELDS[name]
    try:
        return field.metadata["parse"](value)
    except (ValueError, TypeError) as error:
        raise InvalidOptionValue(name=name, source=source, value=value, allowed=str(error), unset=_unset(field.default)) from None


def _read_environment() -> Options:
    values: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if variable.startswith("WEFT_"):
            name = variable.removeprefix("WEFT_").lower()
            values[name] = _parsed(name, text, variable)
    return dataclasses.replace(Options(), **values)


_environment: Options | None = None
_block: contextvars.ContextVar[Options | None] = contextvars.ContextVar("weft_options", default=None)
in_block = _block.get
"""The settings of the innermost `with options(...)` block here, None outside of all: for keys of tables, in 15 ns."""


def refresh_environment() -> None:
    """Read the `WEFT_*` variables again; they are otherwise read once, when the first setting is needed."""
    global _environment, _disabled_everywhere
    _environment, _disabled_everywhere = None, frozenset()


_disabled_everywhere: frozenset[str] = frozenset()


def add_to_environment(values: Mapping[str, object], source: str, disabled: Iterable[str] = ()) -> None:
    """Set settings as variables of the environment would, with lower priority than `WEFT_*` variables. disabled: nvFuser's disable options for every call.

    Errors: UnknownOption, InvalidOptionValue, which name `source`.
    """
    global _environment, _disabled_everywhere
    new = {name: value for name, value in values.items() if environment_name(name) not in os.environ}
    _environment = (_environment or _read_environment()).with_values(new, source)
    _disabled_everywhere = frozenset(disabled)


def is_disabled(name: str, names: Iterable[str] = ()) -> bool:
    """Tell whether one of nvFuser's disable options is among those of a call, `names`, or among those for every call."""
    return name in names or name in _disabled_everywhere


def settings_of_enabled(names: Iterable[str]) -> dict[str, object]:
    """Return the settings for nvFuser's enable options; most have no meaning here."""
    names = set(names)
    found: dict[str, object] = {}
    if "fast_math" in names:
        found["fast_math"] = True
    if "kernel_lineinfo" in names:
        found["device_line_info"] = True
    if names & {"ws_normalization", "tma_inner_persistent"}:
        found["rows"] = "specialized" if "ws_normalization" in names else "tma"
    return found


def current(**keywords: object) -> Options:
    """Return the settings in force here: the innermost `with options(...)` block or the environment, then `keywords`.

    A new thread starts outside every block: hand it `contextvars.copy_context().run` to take the block along.
    Errors: UnknownOption, InvalidOptionValue.
    """
    global _environment
    chosen = _block.get()
    if chosen is None:
        if _environment is None:
            _environment = _read_environment()
        chosen = _environment
    return chosen.with_values(keywords) if keywords else chosen


class options:
    """Change settings within a `with` block, in this thread (or asynchronous task) only.

    Example: with options(dump="cuda,scheduler", cache=False): ...
    """

    def __init__(self, **values: object) -> None:
        self._values = {name: _parsed(name, value, "keyword") for name, value in values.items()}
        self._tokens: list[contextvars.Token[Options | None]] = []

    def __enter__(self) -> Options:
        chosen = dataclasses.replace(current(), **self._values)
        self._tokens.append(_block.set(chosen))
        return chosen

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _block.reset(self._tokens.pop())


def split_option_list(text: str) -> dict[str, tuple[str, ...]]:
    """Split nvFuser's option syntax into names and arguments.

    Example: split_option_list("fuse_matmul, static_fusion_count(1,2)") == {"fuse_matmul": (), "static_fusion_count": ("1", "2")}
    """
    found: dict[str, tuple[str, ...]] = {}
    rest = text
    while rest.strip(" ,"):
        rest = rest.lstrip(" ,")
        stop = next((i for i, letter in enumerate(rest) if letter in ",("), len(rest))
        name, rest = rest[:stop].strip(), rest[stop:]
        arguments: tuple[str, ...] = ()
        if rest.startswith("("):
            inside, _, rest = rest[1:].partition(")")
            arguments = tuple(_items(inside))
        found[name] = arguments
    return found


def check_option_names(enable: Iterable[str] = (), disable: Iterable[str] = ()) -> None:
    """Check names given as nvFuser's enable and disable options.

    Errors: UnrecognizedEnableOption, UnrecognizedDisableOption (both are RuntimeErrors).
    """
    for name in enable:
        if name not in ENABLE_NAMES:
            raise UnrecognizedEnableOption(name=name, nearest=nearest(name, ENABLE_NAMES), known=", ".join(ENABLE_NAMES))
    for name in disable:
        if name not in DISABLE_NAMES:
            raise UnrecognizedDisableOption(name=name, nearest=nearest(name, DISABLE_NAMES), known=", ".join(DISABLE_NAMES))


class _Callable(types.ModuleType):
    """This module: weft.options(check="races") is weft.options.options(check="races")."""

    def __call__(self, **values: object) -> options:
        return options(**values)


sys.modules[__name__].__class__ = _Callable
