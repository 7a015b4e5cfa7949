"""Hand-written CUDA that uses weft's device library: a text, and a launch described in TOML.

A launch names the entry, the parts of the device library, the grid, the block, and each argument in order. docs/checks.md lists the keys.
Read first: `load`.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from weft.check.explore import ALIGNMENT_BYTES, GUARD_BYTES, SEEDS, Exploration, explore
from weft.emulator import Buffer, ChipLimits, EmulatedKernel, Scalar
from weft.errors import UserError

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64, "bool": torch.bool,
    "int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
}  # fmt: skip
VALUES = ("normal", "uniform", "zeros", "ones", "arange")
LAUNCH_KEYS = (
    "entry", "blocks", "grid", "block", "shared_bytes", "cluster", "cooperative", "registers_per_thread", "check", "seeds", "sample_blocks", "timeout_s",
)  # fmt: skip
ARGUMENT_KEYS = ("name", "dtype", "shape", "values", "written", "workspace", "left_zero", "constant", "scalar", "value")


class BadSpec(UserError):
    code = "W440"
    what = "{path}: {problem}"
    fix = "docs/checks.md has the keys of a launch"


@dataclass
class HandWritten:
    """A kernel and its launch. keep: the tensors that the arguments point into, by name."""

    kernel: EmulatedKernel
    geometry: dict[str, Any]
    arguments: list[Buffer | Scalar]
    options: dict[str, Any]
    seeds: int = SEEDS
    keep: dict[str, torch.Tensor] = field(default_factory=dict)

    def explore(self, seeds: int | None = None, **options: Any) -> Exploration:
        """Launch once per seed."""
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
    except (OSError, toml.TOMLDecodeError) as error:
        raise BadSpec(path=path, problem=str(error)) from None


def load(text_path: Path, spec_path: Path, *, text: str | None = None) -> HandWritten:
    """Build a kernel and make its arguments. `text`: instead of the file's.

    Errors: BadSpec, BadLaunch, KernelDoesNotCompile.
    """
    spec = read_toml(spec_path)
    _check_keys(spec_path, spec, (*LAUNCH_KEYS, "argument"), "the launch")
    if text is None:
        try:
            text = text_path.read_text(encoding="utf-8")
        except OSError as error:
            raise BadSpec(path=text_path, problem=str(error)) from None
    for key in ("entry", "grid", "block"):
        if key not in spec:
            raise BadSpec(path=spec_path, problem=f"the launch has no `{key}`")
    kernel = EmulatedKernel.of_text(text, spec.get("blocks", ()), spec["entry"], check=spec.get("check", "races"), limits=ChipLimits())
    geometry: dict[str, Any] = {name: _dim3(spec_path, name, spec[name]) for name in ("grid", "block", "cluster") if name in spec}
    geometry |= {"shared_bytes": spec.get("shared_bytes", 0), "cooperative": spec.get("cooperative", False)}
    options: dict[str, Any] = {name: spec[name] for name in ("registers_per_thread", "sample_blocks", "timeout_s") if name in spec}
    made = HandWritten(kernel, geometry, [], options, spec.get("seeds", SEEDS))
    generator = torch.Generator().manual_seed(0)
    for number, given in enumerate(spec.get("argument", ())):
        _check_keys(spec_path, given, ARGUMENT_KEYS, f"argument {number}")
        made.arguments.append(_argument(spec_path, number, given, generator, made.keep))
    return made


def _check_keys(path: Path, given: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    wrong = [key for key in given if key not in known]
    if wrong:
        raise BadSpec(path=path, problem=f"{what} has no key {wrong[0]!r}; there are {', '.join(known)}")


def _dim3(path: Path, name: str, value: Any) -> tuple[int, int, int]:
    extents = [value] if isinstance(value, int) else list(value)
    if not 1 <= len(extents) <= 3 or not all(isinstance(n, int) for n in extents):
        raise BadSpec(path=path, problem=f"{name} is {value!r}, not one to three whole numbers")
    x, y, z = [*extents, 1, 1][:3]
    return x, y, z


def _argument(path: Path, number: int, given: Mapping[str, Any], generator: torch.Generator, keep: dict[str, torch.Tensor]) -> Buffer | Scalar:
    if "scalar" in given:
        return Scalar(given["scalar"], given.get("value", 0))
    name = given.get("name", f"argument{number}")
    if given.get("dtype") not in DTYPES or "shape" not in given:
        raise BadSpec(path=path, problem=f"argument {name} needs a shape, and a dtype of {', '.join(DTYPES)} (or `scalar` and `value`)")
    values, written = given.get("values"), given.get("written", False)
    if values is None and not written:
        raise BadSpec(path=path, problem=f"argument {name} is neither written nor has it values")
    tensor = keep[name] = _filled(path, name, given["shape"], DTYPES[given["dtype"]], values, generator)
    workspace, left_zero, constant = (bool(given.get(key, False)) for key in ("workspace", "left_zero", "constant"))
    buffer = Buffer.of(tensor, name, written=written, initialised=values is not None, workspace=workspace, constant=constant)
    return replace(buffer, left_zero=left_zero)


def _filled(path: Path, name: str, shape: list[int], dtype: torch.dtype, values: Any, generator: torch.Generator) -> torch.Tensor:
    count = math.prod(shape)
    itemsize = torch.empty((), dtype=dtype).element_size()
    raw = torch.zeros(count * itemsize + ALIGNMENT_BYTES + 2 * GUARD_BYTES, dtype=torch.uint8)
    start = GUARD_BYTES + -raw.data_ptr() % ALIGNMENT_BYTES
    tensor = raw[start : start + count * itemsize].view(dtype).view(shape)
    if values is None:
        ctypes.memset(tensor.data_ptr(), 0x7F, tensor.numel() * itemsize)
    elif isinstance(values, (int, float)):
        tensor.fill_(values)
    elif values == "normal":
        tensor.copy_(torch.randn(shape, generator=generator))
    elif values == "uniform":
        tensor.copy_(torch.rand(shape, generator=generator))
    elif values in VALUES:
        tensor.copy_({"zeros": torch.zeros(count), "ones": torch.ones(count), "arange": torch.arange(count)}[values].view(shape))
    else:
        raise BadSpec(path=path, problem=f"argument {name} has values {values!r}; there are {', '.join(VALUES)}, or a number")
    return tensor
