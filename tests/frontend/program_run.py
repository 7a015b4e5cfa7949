"""How a program of a user is run and judged: with weft in float32, in eager float32 and in eager float64. Read first: `judged`."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft.frontend.backend import GRAPHS, backend


@dataclass
class Run:
    """One run of a program. dtype: of its floats. is_ours: `compile` compiles; else it gives back what it gets."""

    dtype: torch.dtype
    is_ours: bool = False

    def compile(self, function: Any, **keywords: Any) -> Any:
        """torch.compile with weft's kernels in the emulator."""
        return torch.compile(function, backend=backend, options={"emulate": True}, **keywords) if self.is_ours else function

    def compile_in_place(self, module: nn.Module) -> None:
        """`module.compile()`, after which a call of the module itself is compiled."""
        if self.is_ours:
            module.compile(backend=backend, options={"emulate": True})

    def randn(self, *shape: int) -> Tensor:
        """Equal numbers in all runs: float64 has random numbers of its own."""
        return torch.randn(*shape).to(self.dtype)

    def rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape).to(self.dtype)

    def made(self, module: nn.Module) -> Any:
        """A module with its parameters and buffers in this run's type."""
        return module.to(self.dtype)

    def leaf(self, *shape: int) -> Tensor:
        return self.randn(*shape).requires_grad_()


Program = Callable[[Run], Iterable[Any]]
"""Returns what is compared: losses, results, gradients, buffers. Whole numbers and flags are compared exactly."""


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def state(module: nn.Module) -> list[Tensor]:
    """Copies of parameters and buffers."""
    return [t.detach().clone() for t in module.state_dict().values() if isinstance(t, Tensor)]


def trained(
    run: Run, module: nn.Module, inputs: Iterable[Tensor], *, loss: Callable[[Any], Tensor] = lambda y: y.square().mean(), rate: float = 0.05
) -> list[Any]:
    """Losses of a few steps of gradient descent of a compiled module, and its parameters behind them."""
    fast, optimizer, losses = run.compile(module), torch.optim.SGD(module.parameters(), rate, momentum=0.5), []
    for x in inputs:
        optimizer.zero_grad()
        losses.append(loss(fast(x)))
        losses[-1].backward()
        optimizer.step()
    return [*[x.detach() for x in losses], *state(module)]


@dataclass
class Outcome:
    """problem: what is wrong, or "". torch_ops: op -> (times, why torch runs it). regions, covered, compute: of all graphs. error, eager_error: largest.
    nameless: regions of which a profile would not tell a source line and bytes."""

    problem: str = ""
    graphs: int = 0
    regions: int = 0
    covered: int = 0
    compute: int = 0
    error: float = 0.0
    eager_error: float = 0.0
    torch_ops: dict[str, tuple[int, str]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    nameless: list[str] = field(default_factory=list)


@contextmanager
def _warnings_of_weft(found: list[str]) -> Iterator[None]:
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler, log = Kept(logging.WARNING), logging.getLogger("weft")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def judged(program: Program, tolerance: float = 1e-5) -> Outcome:
    """Run a program three times and compare. An exception of the compiled run where eager has none is a problem, as is a region that torch runs after all."""
    torch._dynamo.reset()
    exact, eager = (_results(program, Run(dtype)) for dtype in (torch.float64, torch.float32))
    out = Outcome()
    with _warnings_of_weft(out.told):
        try:
            ours = _results(program, Run(torch.float32, is_ours=True))
        except Exception as error:  # noqa: BLE001  (told by name)
            out.problem = f"raises {type(error).__name__}: {str(error)[:600]}"
            return out
    for graph in GRAPHS:
        out.graphs, out.regions = out.graphs + 1, out.regions + len(graph.calls)
        out.covered, out.compute = out.covered + graph.covered_nodes, out.compute + graph.compute_nodes
        out.torch_ops.update(graph.torch_ops)
        for call in graph.calls:
            if not re.search(r"\w+\.py:\d+ \S", call.plan.told["origin"]) or not call.plan.told["bytes"] and call.plan.inputs:
                out.nameless.append(f"{graph.kind} {call.plan.name}: {call.plan.told}")
        out.told += [call.fallback_reason for call in graph.calls if call.fallback_reason]
    if len(ours) != len(exact):
        out.problem = f"{len(ours)} results for {len(exact)}"
    for number, (a, e, b) in enumerate(zip(ours, eager, exact)):
        problem, error, plain = _compared(a, e, b, tolerance)
        out.error, out.eager_error = max(out.error, error), max(out.eager_error, plain)
        out.problem = out.problem or (problem and f"result {number}: {problem}")
    if out.told and not out.problem:
        out.problem = f"says: {out.told[0]}"
    if not out.regions and not out.problem:
        out.problem = "no region"
    return out


def _results(program: Program, run: Run) -> list[Any]:
    torch.manual_seed(7)
    return [copy.copy(x) if not isinstance(x, Tensor) else x.detach().clone() for x in program(run)]


def _compared(a: Any, e: Any, b: Any, tolerance: float) -> tuple[str, float, float]:
    """Return (what is wrong or "", our error, eager's) of one result: in parts of its norm, plus 0.001 per element. Allowed are twice eager's and `tolerance`."""
    if not isinstance(b, Tensor):
        return ("" if a == e else f"{a!r} for {e!r}"), 0.0, 0.0
    if not isinstance(a, Tensor) or a.shape != b.shape or a.dtype is not e.dtype:
        return f"{a if a is None else (a.dtype, tuple(a.shape))} for {e.dtype} {tuple(b.shape)}", 0.0, 0.0
    if a.stride() != e.stride() and any(s != t for s, t, n in zip(a.stride(), e.stride(), a.shape) if n > 1):
        return f"strides {a.stride()} for {e.stride()} of {tuple(a.shape)}", 0.0, 0.0
    if not b.dtype.is_floating_point and not b.dtype.is_complex:
        return ("" if torch.equal(a, e) else f"whole numbers differ: {a.flatten()[:8].tolist()} for {e.flatten()[:8].tolist()}"), 0.0, 0.0
    wide = torch.complex128 if b.dtype.is_complex else torch.float64
    if not torch.equal(a.isnan(), b.isnan()):
        return "NaN in other places", 0.0, 0.0
    size = float(b.nan_to_num().norm()) + 1e-3 * max(1, b.numel()) ** 0.5
    error, plain = (float((x.to(wide) - b).nan_to_num().norm()) / size for x in (a, e))
    return ("" if error <= 2 * plain + tolerance else f"differs by {error:.2g}, eager by {plain:.2g}"), error, plain
