"""`demo`: runs softmax, RMSNorm and layer norm on real tensors, and shows the kernel that the compiler made of each.

Owns the three definitions, their float64 references, and the report. A kernel that fails ends the demo with its error;
there is no fallback. Read first: `CASES`, `run_case`.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.api.definition import FusionDefinition
from weft.compiler import NEVER_APPLY
from weft.dtypes import DataType
from weft.errors import UserError
from weft.options import current, nearest

from .kernel_card import KernelCard, card_of

if TYPE_CHECKING:
    import torch

BF16 = DataType.BFloat16
EPSILON = 1e-5
GPU_SHAPE = (8192, 4096)
EMULATOR_SHAPE = (96, 2000)
"""Rows, columns. The emulator runs some ten million elements a second; 2000 is no power of two on purpose."""

ARITHMETIC_ERROR = 2.0**-16
"""What float32 arithmetic may add to the error of rounding the exact result to bfloat16 (relative, L2 norm): a row of a few thousand elements
summed in float32 by many threads, an exponential and a division stay below some 40 units of 2^-24 = 2.4e-6 each; this is six times as much."""


class UnknownCase(UserError):
    code = "W850"
    what = "the demo has no case {name!r}"
    fix = "{nearest}; there are {known}"


class TooInaccurate(UserError):
    code = "W851"
    what = "{case}: the output differs from float64 by {error:.3e} (relative, L2 norm); the exact result rounded to bfloat16 differs by {rounding:.3e}"
    fix = "this is a defect of weft or of this machine; please report it with the text in {path}"


# ---------------------------------------------------------------------------------------------------------------------
# The definitions


def softmax(fd: FusionDefinition) -> None:
    """exp(x - max) / sum, along rows."""
    x = fd.ops.cast(fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=BF16), dtype=DataType.Float)
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True)), dtype=BF16))


def rms_norm(fd: FusionDefinition) -> None:
    """x / sqrt(mean(x^2) + epsilon) * weight, along rows."""
    x = fd.ops.cast(fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=BF16), dtype=DataType.Float)
    weight = fd.ops.cast(fd.define_tensor(shape=[-1], contiguity=True, dtype=BF16), dtype=DataType.Float)
    mean_square = fd.ops.mul(fd.ops.sum(fd.ops.mul(x, x), dims=[1], keepdim=True), fd.ops.reciprocal(x.size(1)))
    fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean_square, EPSILON))), weight), dtype=BF16))


def layer_norm(fd: FusionDefinition) -> None:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, along rows."""
    x = fd.ops.cast(fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=BF16), dtype=DataType.Float)
    weight, bias = (fd.ops.cast(fd.define_tensor(shape=[-1], contiguity=True, dtype=BF16), dtype=DataType.Float) for _ in range(2))
    variance, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    normalized = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, EPSILON)))
    fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(normalized, weight), bias), dtype=BF16))


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """The same in torch, in the type of its arguments."""
    return x.softmax(-1)


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same in torch, in the type of its arguments."""
    return x * (x.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def layer_norm_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same in torch, in the type of its arguments."""
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


@dataclass(frozen=True, slots=True)
class Case:
    """A definition, its reference on float64 tensors, and how many vectors of a row's length (weight, bias) it takes besides x."""

    name: str
    define: Callable[[FusionDefinition], None]
    reference: Callable[..., Any]
    vectors: int


CASES = (
    Case("softmax", softmax, softmax_reference, 0),
    Case("rms_norm", rms_norm, rms_norm_reference, 1),
    Case("layer_norm", layer_norm, layer_norm_reference, 2),
)


# ---------------------------------------------------------------------------------------------------------------------
# Running and reporting


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one case gave. Times are None in the emulator, where they mean nothing.

    error: relative, in the L2 norm, against float64; rounding: that of the exact result rounded to bfloat16. first_s: the first call, compilation
    included. kernel_us, copy_us: a warm call, and a copy of as many bytes as the case reads and writes.
    """

    case: Case
    shape: tuple[int, int]
    card: KernelCard
    error: float
    rounding: float
    first_s: float
    kernel_us: float | None
    copy_us: float | None


def main(names: Sequence[str] = (), folder: str = "") -> int:
    """Run the named cases (all by default), print each as it is done; return 0 when all results are right."""
    import torch

    cases = [case_by_name(name) for name in names] or list(CASES)
    device = "cuda" if torch.cuda.is_available() and current().emulate != "on" else "cpu"
    where = f"on {torch.cuda.get_device_name()}" if device == "cuda" else f"in the emulator, on this CPU (kernels for {current().chip})"
    print(f"weft demo: {', '.join(case.name for case in cases)}: each is compiled to one CUDA kernel and run {where}\n")
    texts = Path(folder).expanduser() if folder else current().cache_path / "demo"
    for case in cases:
        print(report(run_case(case, device, texts)), flush=True)
    print("All results agree with float64 up to the rounding of bfloat16.")
    return 0


def case_by_name(name: str) -> Case:
    """Return a case. Errors: UnknownCase."""
    found = {case.name: case for case in CASES}
    if name not in found:
        raise UnknownCase(name=name, nearest=nearest(name, found), known=", ".join(found))
    return found[name]


def run_case(case: Case, device: str, texts: Path, shape: tuple[int, int] | None = None) -> Outcome:
    """Define, execute, compare with float64, and look at the kernel; on a GPU, measure.

    Errors: TooInaccurate, and whatever the compiler and the runtime raise.
    """
    shape = shape or (GPU_SHAPE if device == "cuda" else EMULATOR_SHAPE)
    inputs = make_inputs(case, shape, device)
    with FusionDefinition() as fd:
        case.define(fd)
    start = time.perf_counter()
    outputs = fd.execute(inputs)
    _synchronize(device)
    first_s = time.perf_counter() - start
    card = card_of(fd, inputs, case.name, texts)
    exact = case.reference(*(tensor.double() for tensor in inputs))
    error, rounding = relative_error(outputs[0], exact), relative_error(exact.to(outputs[0].dtype), exact)
    if not error <= rounding + ARITHMETIC_ERROR:  # a NaN must not pass
        raise TooInaccurate(case=case.name, error=error, rounding=rounding, path=card.path)
    kernel_us, copy_us = _measure(fd, inputs, outputs) if device == "cuda" else (None, None)
    return Outcome(case, shape, card, error, rounding, first_s, kernel_us, copy_us)


def make_inputs(case: Case, shape: tuple[int, int], device: str) -> list[torch.Tensor]:
    """Return random inputs, the same ones every time."""
    import torch

    generator = torch.Generator().manual_seed(0)
    sizes = [shape, *[shape[1:]] * case.vectors]
    return [torch.randn(size, generator=generator).to(torch.bfloat16).to(device) for size in sizes]


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return |found - exact| / |exact| in the L2 norm."""
    return ((found.double() - exact).norm() / exact.norm()).item()


def report(outcome: Outcome) -> str:
    """Return what to print of one case."""
    card, shape = outcome.card, outcome.shape
    lines = [f"{outcome.case.name}  bfloat16 [{shape[0]}, {shape[1]}]"]

    def add(label: str, text: str) -> None:
        indent = " " * 15
        lines.extend(textwrap.wrap(text, 140, initial_indent=f"  {label:<13}", subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))

    add("error", f"{outcome.error:.3e} against float64 (relative, L2 norm); rounding the exact result to bfloat16 costs {outcome.rounding:.3e}")
    if outcome.kernel_us is not None and outcome.copy_us is not None:
        speed = outcome.copy_us / outcome.kernel_us
        add("time", f"{outcome.kernel_us:.1f} us; a copy of the same bytes takes {outcome.copy_us:.1f} us: {speed:.0%} of its speed")
        add("first call", f"{outcome.first_s:.2f} s, compilation included")
    else:
        add("first call", f"{outcome.first_s:.2f} s, most of it in the C++ compiler unless the kernel was in the disk cache")
    add("CUDA text", f"{card.path} ({card.lines} lines, device library included)")
    add("launch", card.launch)
    add("machine code", card.resources_text)
    add("scheduler", card.scheduler)
    add("parameters", f"{_chosen(card.params)} (others: default)")
    for name, reason in card.declined:
        if name not in NEVER_APPLY:
            add("declined", f"{name}: {reason}")
    return "\n".join(lines) + "\n"


def _chosen(params: Any) -> str:
    """Return the parameters that have no default, or another value than their default."""
    fields = [(field.name, field.default, getattr(params, field.name)) for field in dataclasses.fields(params)]
    return ", ".join(f"{name} {value}" for name, default, value in fields if value != default)


# ---------------------------------------------------------------------------------------------------------------------
# Measuring on a GPU


def _measure(fd: FusionDefinition, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Return microseconds of a warm call and of a copy that reads and writes as many bytes in total."""
    import torch

    moved_bytes = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))
    source = torch.empty(moved_bytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return median_us(lambda: fd.execute(inputs)), median_us(lambda: target.copy_(source))


def median_us(call: Callable[[], object], repeats: int = 50) -> float:
    """Return the median time of `call` on the GPU in microseconds, each run with an L2 cache that holds none of its data."""
    import torch

    flush = torch.empty(max(64 * 2**20, 2 * torch.cuda.get_device_properties(0).L2_cache_size), dtype=torch.uint8, device="cuda")
    for _ in range(3):
        call()
    events = []
    for _ in range(repeats):
        flush.zero_()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        events.append((start, stop))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(stop) * 1e3 for start, stop in events)
    return times[math.floor(len(times) / 2)]


def _synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
