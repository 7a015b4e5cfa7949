"""Whole models, one training step each through torch.compile(backend="weft"), against eager torch in float64.

    python tests/frontend/whole_models.py                        nine blocks, static and with open sizes, regions evaluated by the interpreter
    python tests/frontend/whole_models.py --kernels              regions run by kernels in the emulator
    python tests/frontend/whole_models.py --device cuda          regions run on the GPU
    python tests/frontend/whole_models.py --hf --workers 8       24 Hugging Face configurations (needs the package transformers)
    python tests/frontend/whole_models.py --timm --workers 8     128 models of images (needs the package timm)
    python tests/frontend/whole_models.py --families             families of language, audio and diffusion models (needs transformers and diffusers)

Prints per model: right or what is wrong, the largest error of a gradient and eager's, the share of compute nodes in weft's regions, how many regions run in torch after all, kernels, and seconds of weft's own work.
Read first: `run`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from family_models import FAMILIES
from fuzz_modules import interpreted
from hf_models import HF_MODELS
from model_blocks import BLOCKS
from sweep import spread
from timm_models import TIMM_MODELS

from weft.frontend import backend as ours
from weft.frontend.record import weight


MODELS = {**{f"timm {name}": made for name, made in TIMM_MODELS.items()}, **FAMILIES, **HF_MODELS, **BLOCKS}


@dataclass
class Outcome:
    """problem: "" when right. reasons: op -> (times, why) of what torch ran. worst: the largest error, in what is allowed. error, eager_error: the largest
    error of a gradient or the loss in parts of its size, and eager's own largest in float32."""

    problem: str = ""
    covered: int = 0
    compute: int = 0
    regions: int = 0
    fallbacks: list[str] = field(default_factory=list)
    kernels: int = 0
    graphs: int = 0
    own_s: float = 0.0
    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)
    worst: float = 0.0
    error: float = 0.0
    eager_error: float = 0.0


def step(model: torch.nn.Module, function: Callable[..., Any], inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the loss and the gradients of a model's parameters, in order; zeros for those without one."""
    model.zero_grad(set_to_none=True)
    loss = function(**inputs)
    loss.backward()
    return [loss.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in model.parameters())]


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


def errors(got: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Return the largest error of a tensor, its norm over that of the tensor plus 0.001 per element."""
    return max(float((a.double() - b).norm()) / (float(b.norm()) + 1e-3 * max(1, b.numel()) ** 0.5) for a, b in zip(got, exact))


def judge(got: list[torch.Tensor], plain: list[torch.Tensor], exact: list[torch.Tensor]) -> tuple[str, float]:
    """Return what is wrong or "", and the worst error as a multiple of what is allowed: twice eager's own in float32, and 1e-5 of the tensor's size."""
    worst, problem = 0.0, ""
    for index, (a, e, b) in enumerate(zip(got, plain, exact)):
        name = "the loss" if index == 0 else f"gradient {index - 1} of sizes {tuple(b.shape)}"
        if a.shape != b.shape or a.dtype is not e.dtype:
            return f"{name} is {a.dtype} {tuple(a.shape)}", 9.0
        size = float(b.norm()) + 1e-3 * b.numel() ** 0.5
        allowed = 2 * float((e.double() - b).norm()) + 1e-5 * size
        error = float((a.double() - b).norm())
        ratio = error / allowed if error == error else float("inf")
        if ratio > worst:
            worst = ratio
            problem = f"{name} is off by {error / size:.2g} of its size, eager by {float((e.double() - b).norm()) / size:.2g}"
    return (problem if worst > 1 else ""), worst


ROUNDING = 1e-9
"""Of a gradient's size: float64 rounds at 1e-16, and a model multiplies that by less than a million."""


def in_float64(name: str, inputs: dict[str, Any], options: dict[str, Any], problem: str, worst: float) -> tuple[str, float]:
    """Judge a model again with weights in float64: where a value is near the kink of a ReLU, or two of a pool are equal, float32 may take the other side, and a
    gradient is far off although each op is right. Return what is wrong or "", and the worst error."""
    kept = list(ours.GRAPHS)
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = MODELS[name]()[0].double()
    values = cast(inputs, torch.float64)
    compiled = torch.compile(model, backend=ours.backend, options=options, dynamic=False)
    error = errors(step(model, compiled, values), step(model, model, values))
    ours.GRAPHS[:] = kept
    return ("", 0.0) if error < ROUNDING else (f"{problem}; in float64 by {error:.2g}", worst)


class _Clock:
    """Sums the CPU seconds of calls of weft's compiler of graphs."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def watching(self) -> Any:
        plain = ours.compile_graph

        def timed(*args: Any, **keywords: Any) -> Any:
            begun = time.thread_time()
            try:
                return plain(*args, **keywords)
            finally:
                self.seconds += time.thread_time() - begun

        ours.compile_graph = timed
        try:
            yield
        finally:
            ours.compile_graph = plain


def run(name: str, dynamic: bool, engine: str, device: str) -> Outcome:
    """One model: a training step, and with open sizes a second one of other sizes. engine: interpreter or kernels."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    out = Outcome()
    try:
        model, make_inputs = MODELS[name]()
    except ImportError as error:
        out.problem = f"cannot be made: {error}"
        return out
    model = model.to(device)
    exact_model = copy.deepcopy(model).double()
    clock = _Clock()
    options = {"emulate": device == "cpu"}
    try:
        with interpreted() if engine == "interpreter" else contextlib.nullcontext(), clock.watching():
            compiled = torch.compile(model, backend=ours.backend, options=options, dynamic=dynamic)
            for batch, length in ((2, 16), (3, 20)) if dynamic else ((2, 16),):
                inputs = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in make_inputs(batch, length).items()}
                plain = step(model, model, inputs)
                try:
                    exact = step(exact_model, exact_model, cast(inputs, torch.float64))
                except RuntimeError:  # torch's grouped products know no float64: eager's own result is the reference
                    exact = [p.double() * (1 + 1e-6) for p in plain]
                got = step(model, compiled, inputs)
                problem, worst = judge(got, plain, exact)
                if problem and engine == "interpreter":
                    problem, worst = in_float64(name, inputs, options, problem, worst)
                out.worst = max(out.worst, worst)
                if not problem:
                    out.error, out.eager_error = max(out.error, errors(got, exact)), max(out.eager_error, errors(plain, exact))
                out.problem = out.problem or problem
    except Exception as error:  # noqa: BLE001
        out.problem = f"raises {type(error).__name__}: {str(error).splitlines()[0][:300]}\n{traceback.format_exc(limit=-5)}"
    _count(out)
    out.own_s = clock.seconds
    return out


def _count(out: Outcome) -> None:
    for graph in ours.GRAPHS:
        out.graphs += 1
        out.compute += graph.compute_nodes
        out.regions += len(graph.regions)
        out.covered += graph.covered_nodes
        for region, call in graph.regions:
            if call.fallback_reason:
                out.covered -= weight(region)
                out.fallbacks.append(f"{call.__name__}: {call.fallback_reason}")
            elif call.kernels():
                out.kernels += len(call.kernels())
        for op, (times, why) in graph.torch_ops.items():
            out.reasons[op] = (out.reasons.get(op, (0, ""))[0] + times, why)


FOREIGN = ("mm.default", "bmm", "convolution", "attention", "einsum", "addmm", "grouped_mm", "baddbmm")
"""Words of ops that are products, convolutions or attention: no compute node of weft's."""


def own_share(out: Outcome) -> float:
    """The share of compute nodes, without products, convolutions and attention, that weft's regions compute."""
    foreign = sum(times for op, (times, _) in out.reasons.items() if any(w in op for w in FOREIGN))
    return out.covered / max(1, out.compute - foreign)


def _work(item: tuple[str, bool, str, str]) -> tuple[Outcome, float]:
    begun = time.perf_counter()
    return run(*item), time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--hf", action="store_true")
    parser.add_argument("--timm", action="store_true")
    parser.add_argument("--families", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--only", choices=["static", "dynamic"])
    a = parser.parse_args()
    known = FAMILIES if a.families else HF_MODELS if a.hf else [name for name in MODELS if name.startswith("timm ")] if a.timm else BLOCKS
    names = [n for n in known if not a.words or any(w == n.removeprefix("timm ") or w in n and w not in (*MODELS, *TIMM_MODELS) for w in a.words)]
    engine = "kernels" if a.kernels or a.device == "cuda" else "interpreter"
    items = [(n, d, engine, a.device) for d in (False, True) if a.only in (None, "dynamic" if d else "static") for n in names]
    totals = [0, 0, 0, 0]
    for (name, dynamic, _, _), (out, seconds) in spread(_work, items, a.workers, a.seconds):
        state = "right" if not out.problem else "WRONG " + out.problem
        print(f"{name} {'dynamic' if dynamic else 'static'}: {state}; worst {out.error:.1e} of a gradient's size, eager's {out.eager_error:.1e}; {out.covered} of {out.compute} nodes, {own_share(out):.1%} without products, {out.regions} regions, "
              f"{len(out.fallbacks)} in torch, {out.kernels} kernels, {out.graphs} graphs, own {out.own_s:.2f} s, {seconds:.0f} s", flush=True)  # fmt: skip
        for text in sorted(set(out.fallbacks)):
            print(f"    fallback {text[:240]}")
        for op, (times, why) in sorted(out.reasons.items()):
            if not any(w in op for w in FOREIGN):
                print(f"    torch runs {op} ({times}x): {why[:160]}")
        foreign = sum(times for op, (times, _) in out.reasons.items() if any(w in op for w in FOREIGN))
        totals = [x + y for x, y in zip(totals, (1, bool(out.problem), out.covered, out.compute - foreign))]
    print(f"{totals[0]} of {len(items)} runs, {totals[1]} wrong; {totals[2]} of {totals[3]} compute nodes ({totals[2] / max(1, totals[3]):.1%}) in regions")


if __name__ == "__main__":
    main()
