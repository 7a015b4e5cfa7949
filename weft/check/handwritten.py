"""Hand-written CUDA that uses weft's device library: a text, and a launch described in TOML.

A launch names the entry, the parts of the device library, the grid, the block, and each argument in order. docs/checks.md lists the keys.
Read first: `load`.
"""

from __future__ import annotations

import ctypes
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from weft.check.explore import ALIGNMENT_BYTES, GUARD_BYTES, SEEDS, Exploration, explore, search
from weft.device.library import registry
from weft.emulator import Buffer, ChipLimits, EmulatedKernel, Scalar
from weft.emulator.arguments import CTYPES
from weft.errors import UserError, shown

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64, "bool": torch.bool,
    "int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
}  # fmt: skip
CHECKS = ("bounds", "races")
TIMEOUT_S = 60.0
MOST_BYTES, MOST_AXES = 2**36, 64
VALUES = ("normal", "uniform", "zeros", "ones", "arange")
LAUNCH_KEYS = (
    "entry", "blocks", "grid", "block", "shared_bytes", "cluster", "cooperative", "registers_per_thread", "check", "seeds", "sample_blocks", "timeout_s",
)  # fmt: skip
ARGUMENT_KEYS = ("name", "dtype", "shape", "values", "written", "workspace", "left_zero", "constant", "scalar", "value")


class BadSpec(UserError):
    code = "W440"
    what = "{path}: {problem}"
    fix = "see docs/checks.md for the keys of a launch file"


@dataclass
class HandWritten:
    """A kernel and its launch. keep: the tensors that the arguments point into, by name."""

    kernel: EmulatedKernel
    geometry: dict[str, Any]
    arguments: list[Buffer | Scalar]
    options: dict[str, Any]
    seeds: int = SEEDS
    keep: dict[str, torch.Tensor] = field(default_factory=dict)

    def search(self, most: int, **options: Any) -> Exploration:
        """Try at most so many orders systematically. Errors: NoOrders."""
        return search(self.kernel, self.geometry, self.arguments, most, **{**self.options, **options})

    def explore(self, seeds: int | None = None, **options: Any) -> Exploration:
        """Launch once per seed. Errors: NoOrders."""
        return explore(self.kernel, self.geometry, self.arguments, range(self.seeds if seeds is None else seeds), **{**self.options, **options})


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's table. Errors: BadSpec."""
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        try:
            import tomli as toml
        except ImportError:
            raise BadSpec(path=path, problem="Python 3.10 reads TOML with the package tomli, which is not installed") from None
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no TOML, or no UTF-8
        raise BadSpec(path=path, problem=str(error)) from None


def load(text_path: Path, spec_path: Path, *, text: str | None = None, is_foreign: bool = False, raw_net: bool = False) -> HandWritten:
    """Build a kernel and make its arguments. `text`: instead of the file's. `is_foreign`: it is compiled, loaded and run in child processes only.

    raw_net: accesses around the primitives are findings too.

    Errors: BadSpec, BadLaunch, KernelDoesNotCompile.
    """
    spec = Table(spec_path, read_toml(spec_path), "the launch")
    spec.has_only((*LAUNCH_KEYS, "argument"))
    if text is None:
        try:
            text = text_path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadSpec(path=text_path, problem=str(error)) from None
    entry = spec.get("entry", str, "a name in C")
    if not re.fullmatch(r"[A-Za-z_]\w*", entry, re.ASCII):
        raise BadSpec(path=spec_path, problem=f"entry is {entry!r}, which is not a C identifier")
    check = spec.get("check", str, CHECKS, "races")
    if check not in CHECKS:
        raise BadSpec(path=spec_path, problem=f"check is {check!r}; there are {', '.join(CHECKS)}")
    geometry: dict[str, Any] = {name: spec.dim3(name) for name in ("grid", "block")} | ({"cluster": spec.dim3("cluster")} if "cluster" in spec.given else {})
    geometry |= {"shared_bytes": spec.count("shared_bytes", 0), "cooperative": spec.get("cooperative", bool, "true or false", False)}
    blocks = spec.strings("blocks")
    if unknown := [name for name in blocks if name not in registry()]:
        raise BadSpec(path=spec_path, problem=f"there is no device block {shown(unknown[0])}; there are {', '.join(sorted(registry()))}")
    kernel = EmulatedKernel.of_text(text, blocks, entry, check=check, limits=ChipLimits(), is_foreign=is_foreign, raw_net=raw_net)
    options: dict[str, Any] = {"registers_per_thread": spec.count("registers_per_thread", 0)}
    options |= {"sample_blocks": spec.sampled(), "timeout_s": spec.seconds("timeout_s", TIMEOUT_S)}
    made = HandWritten(kernel, geometry, [], options, spec.count("seeds", SEEDS, least=1))
    generator = torch.Generator().manual_seed(0)
    for number, given in enumerate(spec.tables("argument")):
        made.arguments.append(_argument(Table(spec_path, given, f"argument {number}"), number, generator, made.keep))
    return made


class Table:
    """A table of the TOML file, whose values are checked as they are taken. Errors: BadSpec."""

    def __init__(self, path: Path, given: Mapping[str, Any], name: str) -> None:
        self.path, self.given, self.name = path, given, name

    def wrong(self, problem: str) -> BadSpec:
        """Return the error for this table."""
        return BadSpec(path=self.path, problem=f"{self.name}: {problem}")

    def has_only(self, known: tuple[str, ...]) -> None:
        """Errors: BadSpec for a key that has no meaning."""
        wrong = [key for key in self.given if key not in known]
        if wrong:
            raise BadSpec(path=self.path, problem=f"{self.name} has no key {wrong[0]!r}; there are {', '.join(known)}")

    def get(self, key: str, kind: type, what: object, default: Any = None) -> Any:
        """Return the value of a key that must be of a Python type; without a default it must be there."""
        if key not in self.given:
            if default is None:
                raise BadSpec(path=self.path, problem=f"{self.name} has no `{key}`")
            return default
        value = self.given[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(f"{key} is {shown(value)}, not {what}")
        return value

    def count(self, key: str, default: int, *, least: int = 0) -> int:
        """Return a whole number from `least` to the largest that a launch can have."""
        value = int(self.get(key, int, "a whole number", default))
        if not least <= value < 2**31:
            raise self.wrong(f"{key} is {value}, not a whole number from {least} to {2**31 - 1}")
        return value

    def seconds(self, key: str, default: float) -> float:
        """Return a time from a millisecond to a day."""
        value = self.given.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.001 <= value <= 86400:
            raise self.wrong(f"{key} is {shown(value)}, not a number of seconds from 0.001 to 86400")
        return float(value)

    def whole_numbers(self, key: str, value: Any, least: int) -> list[int]:
        """Return a list of whole numbers."""
        if not isinstance(value, list) or not all(type(n) is int and least <= n < 2**63 for n in value):
            raise self.wrong(f"{key} is {shown(value)}, not a list of whole numbers of {least} or more")
        return value

    def dim3(self, key: str) -> tuple[int, int, int]:
        """Return one to three positive numbers, filled up with 1."""
        value = self.get(key, object, "")
        extents = [value] if type(value) is int else value
        if not isinstance(extents, list) or not 1 <= len(extents) <= 3 or not all(type(n) is int and 0 < n < 2**31 for n in extents):
            raise self.wrong(f"{key} is {shown(value)}, not one to three whole numbers from 1 to {2**31 - 1}")
        x, y, z = [*extents, 1, 1][:3]
        return x, y, z

    def strings(self, key: str) -> list[str]:
        """Return a list of strings, [] when the key is missing."""
        value = self.given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(f"{key} is {shown(value)}, not a list of names")
        return value

    def tables(self, key: str) -> list[dict[str, Any]]:
        """Return an array of tables, [] when the key is missing."""
        value = self.given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(f"{key} is {shown(value)}, not an array of tables: write [[{key}]]")
        return value

    def sampled(self) -> list[int] | int | None:
        """Return which blocks run: how many, or their numbers; None for all."""
        value = self.given.get("sample_blocks")
        if value is None:
            return None
        if isinstance(value, list):
            return self.whole_numbers("sample_blocks", value, 0)
        return self.count("sample_blocks", 1, least=1)



def _argument(table: Table, number: int, generator: torch.Generator, keep: dict[str, torch.Tensor]) -> Buffer | Scalar:
    table.has_only(ARGUMENT_KEYS)
    given = table.given
    if "scalar" in given:
        return _scalar(table)
    name = table.get("name", str, "a name", f"argument{number}")
    if name in keep:
        raise table.wrong(f"there is another argument {name!r}")
    dtype = given.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPES or "shape" not in given:
        raise BadSpec(path=table.path, problem=f"argument {name} needs a shape, and a dtype of {', '.join(DTYPES)} (or `scalar` and `value`)")
    table = Table(table.path, given, f"argument {name}")
    flags = {key: bool(table.get(key, bool, "true or false", False)) for key in ("written", "workspace", "left_zero", "constant")}
    values = given.get("values")
    if values is None and not flags["written"]:
        raise BadSpec(path=table.path, problem=f"argument {name} is neither written nor has it values")
    shape = table.whole_numbers("shape", given["shape"], 0)
    tensor = keep[name] = _filled(table, shape, DTYPES[dtype], values, generator)
    left_zero = flags.pop("left_zero")
    return replace(Buffer.of(tensor, name, initialised=values is not None, **flags), left_zero=left_zero)


def _scalar(table: Table) -> Scalar:
    kind, value = table.get("scalar", str, "a C type"), table.given.get("value", 0)
    if kind not in CTYPES or kind == "tensor_map":
        raise table.wrong(f"scalar is {kind!r}; there are {', '.join(name for name in CTYPES if name != 'tensor_map')}")
    try:
        held = CTYPES[kind](value)
    except TypeError:
        raise table.wrong(f"value is {shown(value)}, which is not a value of type {kind}") from None
    if isinstance(value, int) and not isinstance(value, bool) and int(held.value) != value and kind not in ("float", "double"):
        raise table.wrong(f"value is {value}, which does not fit into {kind}")
    return Scalar(kind, value)


def _filled(table: Table, shape: list[int], dtype: torch.dtype, values: Any, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor with the values that the table names, with guards around it."""
    count, itemsize = math.prod(shape), torch.empty((), dtype=dtype).element_size()
    if len(shape) > MOST_AXES or count * itemsize > MOST_BYTES or max(shape, default=0) > MOST_BYTES:
        raise table.wrong(f"shape is {shown(shape)}; at most {MOST_AXES} axes and {MOST_BYTES} bytes are possible")
    if not isinstance(values, (int, float)) and values not in (None, *VALUES):
        raise BadSpec(path=table.path, problem=f"{table.name} has values {shown(values)}; there are {', '.join(VALUES)}, or a number")
    try:
        raw = torch.zeros(count * itemsize + ALIGNMENT_BYTES + 2 * GUARD_BYTES, dtype=torch.uint8)
        start = GUARD_BYTES + -raw.data_ptr() % ALIGNMENT_BYTES
        tensor = raw[start : start + count * itemsize].view(dtype).view(shape)
        if values is None:
            ctypes.memset(tensor.data_ptr(), 0x7F, tensor.numel() * itemsize)
        elif isinstance(values, (int, float)):
            tensor.fill_(values)
        else:
            tensor.copy_(_made(values, shape, generator))
    except (RuntimeError, MemoryError, OverflowError, ValueError, TypeError) as error:  # what torch says of numbers and sizes
        raise table.wrong(f"cannot be filled: {str(error).splitlines()[0]}") from None
    return tensor


def _made(values: str, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    if values in ("normal", "uniform"):
        return (torch.randn if values == "normal" else torch.rand)(shape, generator=generator)
    count = math.prod(shape)
    return {"zeros": torch.zeros(count), "ones": torch.ones(count), "arange": torch.arange(count)}[values].view(shape)
