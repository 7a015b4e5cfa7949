"""Random small modules through torch.compile(backend="weft"), forward and backward, against eager torch in float64.

    python tests/frontend/fuzz_modules.py 1000               regions evaluated by the interpreter (about a second per module)
    python tests/frontend/fuzz_modules.py 200 --kernels      regions run by kernels in the emulator (about five)
    python tests/frontend/fuzz_modules.py 1000 --device cuda regions run by kernels on a GPU
    python tests/frontend/fuzz_modules.py 1 --seed 17 -v     one of them again, with its text

A module is a chain of 3 to 9 calls drawn from `STEPS`, over one or two inputs of odd sizes and strides, sometimes with sizes left open (dynamic=True).
Owns the generator; `test_fuzz_modules.py` runs a few. Read first: `make_module`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sweep import resumed

from weft.frontend import ahead
from weft.frontend.backend import GRAPHS, backend
from weft.frontend.region_call import RegionCall
from weft.reference.interpreter import evaluate

# name -> text of the step; x is the value so far [rows..., width], y the other input of the same sizes, w and b rows of the width
STEPS: dict[str, str] = {
    "relu": "F.relu(x)", "gelu": "F.gelu(x)", "gelu tanh": "F.gelu(x, approximate='tanh')", "silu": "F.silu(x)", "sigmoid": "torch.sigmoid(x)", "tanh": "torch.tanh(x)",
    "softplus": "F.softplus(x)", "elu": "F.elu(x)", "leaky": "F.leaky_relu(x, 0.1)", "mish": "F.mish(x)", "hardswish": "F.hardswish(x)", "hardtanh": "F.hardtanh(x)",
    "hardsigmoid": "F.hardsigmoid(x)", "logsigmoid": "F.logsigmoid(x)", "selu": "F.selu(x)", "celu": "F.celu(x)", "softsign": "F.softsign(x)", "relu6": "F.relu6(x)",
    "exp": "torch.exp(x.clamp(-3, 3))", "log": "torch.log(x.abs() + 0.5)", "sqrt": "torch.sqrt(x * x + 0.1)", "rsqrt": "torch.rsqrt(x * x + 0.1)", "sin": "torch.sin(x)",
    "cos": "torch.cos(x)", "erf": "torch.erf(x)", "square": "x.pow(2)", "cube": "x.clamp(-2, 2).pow(3)", "abs": "x.abs()", "neg": "-x", "reciprocal": "1 / (x.abs() + 0.5)",
    "clamp": "x.clamp(-1, 2)", "add": "x + y", "mul": "x * y", "sub": "y - x", "div": "x / (y.abs() + 0.5)", "maximum": "torch.maximum(x, y)", "minimum": "torch.minimum(x, y)",
    "lerp": "torch.lerp(x, y, 0.3)", "addcmul": "torch.addcmul(x, x, y, value=0.5)", "where": "torch.where(x > y, x, y * 0.5)", "atan2": "torch.atan2(x, y)",
    "scale": "x * w + b", "bias": "x + b", "sum": "x - x.sum(-1, keepdim=True) * 0.1", "mean": "x - x.mean(0, keepdim=True)", "amax": "x - x.amax(-1, keepdim=True)",
    "var": "x / (x.var(-1, keepdim=True, correction=0) + 0.5)", "std": "x / (x.std(0, keepdim=True, correction=0) + 0.5)", "logsumexp": "x - torch.logsumexp(x, -1, keepdim=True)",
    "softmax": "torch.softmax(x, -1)", "softmax of columns": "torch.softmax(x, 0)", "log_softmax": "torch.log_softmax(x, -1)", "layer_norm": "F.layer_norm(x, x.shape[-1:], w, b)",
    "rms_norm": "F.rms_norm(x, x.shape[-1:], w, 1e-5)", "normalize": "F.normalize(x, dim=-1)", "linear": "x @ m", "cat": "torch.cat([x, y], -1)[..., : x.shape[-1]]",
    "halves": "torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)", "transpose": "(x.transpose(0, -1) * 2).transpose(0, -1)",
    "flatten": "(x.reshape(-1) * 2).view(x.shape)", "masked_fill": "x.masked_fill(x > 1, 0.0)", "roll": "torch.cat([x[1:], x[:1]], 0)", "pad": "F.pad(x, (0, 1))[..., 1:]",
    "cumsum": "x.cumsum(-1) * 0.2", "stack": "torch.stack([x, y]).mean(0)", "expand": "x + w.expand_as(x)", "tril": "x.tril()", "flip": "x.flip(-1)", "gather": "x[..., torch.arange(x.shape[-1] - 1, -1, -1)]",
}  # fmt: skip


def make_module(rng: random.Random) -> tuple[str, tuple[int, ...], bool]:
    """Return (text of a function of x, y, w, b, m), sizes, and whether sizes are left open."""
    sizes = (*(rng.choice((1, 2, 3, 5, 8)) for _ in range(rng.choice((1, 1, 2)))), rng.choice((2, 4, 6, 10, 16, 34)))
    lines, kept = [], ["y"]
    for _ in range(rng.randint(3, 9)):
        step = STEPS[rng.choice(list(STEPS))]
        if rng.random() < 0.3:  # the other operand is an earlier value
            step = step.replace("y", rng.choice(kept)) if step.count("y") == 1 and "y)" in step or step in ("x + y", "x * y") else step
        lines.append(f"    x = {step}")
        if rng.random() < 0.25:
            lines.append(f"    k{len(kept)} = x")
            kept.append(f"k{len(kept)}")
    result = rng.choice(("x", "x", "x.sum(-1)", "x.mean()", "(x, x.sum(0))"))
    return "def f(x, y, w, b, m):\n" + "\n".join(lines) + f"\n    return {result}\n", sizes, rng.random() < 0.3


def _strided(rng: random.Random, t: torch.Tensor) -> torch.Tensor:
    """Return the same values under other strides."""
    kind = rng.randrange(4)
    if kind == 1:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 2:
        wide = torch.zeros(*t.shape[:-1], t.shape[-1] + 3, dtype=t.dtype, device=t.device)
        wide[..., 1 : 1 + t.shape[-1]] = t
        return wide[..., 1 : 1 + t.shape[-1]]
    return t[:1].expand_as(t) if kind == 3 and t.shape[0] > 1 else t


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Let regions be evaluated by the interpreter instead of by kernels."""
    plain = RegionCall.__call__

    def call(self: RegionCall, *inputs: Any) -> Any:
        region = self.region
        results = evaluate(self.translated.definition.fusion, inputs, precision="double", hidden=True)
        made = {n: _placed(n, r) for n, r in zip(region.outputs, results, strict=True)}
        for value, argument in region.updates.items():
            inputs[region.inputs.index(argument)].copy_(made[value])
        return [made[n] for n in region.returned]

    RegionCall.__call__ = call  # type: ignore[method-assign]
    is_wanted, ahead.is_wanted = ahead.is_wanted, lambda: False
    try:
        yield
    finally:
        RegionCall.__call__ = plain  # type: ignore[method-assign]
        ahead.is_wanted = is_wanted


def _placed(node: Any, result: torch.Tensor) -> torch.Tensor:
    """Return a result in the type and the order of axes in memory that were traced."""
    fake = node.meta["val"]
    order = sorted(range(fake.dim()), key=lambda d: -int(fake.stride(d).node.hint if isinstance(fake.stride(d), torch.SymInt) else fake.stride(d)))
    back = [order.index(d) for d in range(fake.dim())]
    return result.to(fake.dtype).permute(order).contiguous().permute(back) if fake.dim() else result.to(fake.dtype)


def _moved_gradients(function: Callable[..., Any], exact: list[torch.Tensor], reference: Any) -> list[Any]:
    """How far each gradient moves in float64 when the inputs move by a rounding of float32: much only where the module has no derivative (a variance of equal
    values, a tie of a maximum), or one that no float32 computation can find."""
    out: list[Any] = [0.0] * len(exact)
    for number in range(3):
        torch.manual_seed(number)
        near = [(t.detach() * (1 + 1e-7 * torch.randn_like(t)) + 1e-7 * torch.randn_like(t)).requires_grad_() for t in exact]
        results = function(*near)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        found = torch.autograd.grad(results, near, [torch.ones_like(r) for r in results], allow_unused=True)
        out = [o if a is None or b is None else torch.maximum((a - b).abs(), torch.as_tensor(o)) for o, a, b in zip(out, found, reference)]
    return out


def run(seed: int, kernels: bool = False, device: str = "cpu") -> tuple[str, str]:
    """Return (what is wrong or "", the text) of one module. kernels: of the emulator; on another device there are always kernels."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    text, sizes, is_open = make_module(rng)
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(text, scope)  # noqa: S102
    function: Callable[..., Any] = scope["f"]
    width = sizes[-1]
    shapes = [sizes, sizes, (width,), (width,), (width, width)]
    exact = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    exact[4] /= width**0.5
    strided = [_strided(rng, t.float().to(device)) if n < 2 else t.float().to(device) for n, t in enumerate(exact)]
    ours = [t.requires_grad_() for t in strided]
    exact = [t.detach().double().requires_grad_() for t in strided]
    torch._dynamo.reset()
    try:
        want = function(*exact)
        eager = function(*ours)
    except Exception:  # noqa: BLE001  (a chain that torch itself refuses)
        return "", text
    options = {"emulate": device == "cpu", "strict": False}
    try:
        with contextlib.nullcontext() if kernels or device != "cpu" else interpreted():
            got = torch.compile(function, backend=backend, options=options, dynamic=is_open)(*ours)
            pairs = [(got, want, eager)] if isinstance(got, torch.Tensor) else list(zip(got, want, eager))
            grads = torch.autograd.grad([g for g, _, _ in pairs], ours, [torch.ones_like(g) for g, _, _ in pairs], allow_unused=True)
    except Exception as error:  # noqa: BLE001
        return f"raises {type(error).__name__}: {str(error).splitlines()[0][:200]}\n{traceback.format_exc(limit=-4)}", text
    reference = torch.autograd.grad([w for _, w, _ in pairs], exact, [torch.ones_like(w) for _, w, _ in pairs], allow_unused=True)
    plain = torch.autograd.grad([e for _, _, e in pairs], ours, [torch.ones_like(e) for _, _, e in pairs], allow_unused=True)
    moved = _moved_gradients(function, exact, reference)
    for name, results in (("a result", [(*p, 0.0) for p in pairs]), ("a gradient", list(zip(grads, reference, plain, moved)))):
        for a, b, e, kink in results:
            if a is None or b is None:
                if a is not b and (b if a is None else a).abs().max() > 0:
                    return f"{name} is missing", text
                continue
            if a.shape != b.shape or a.dtype is not e.dtype:
                return f"{name} is {a.dtype} {tuple(a.shape)} for {tuple(b.shape)}", text
            # eager's own float32 error, doubled, and a bit: kinks (relu, amax, where) may flip where float32 and float64 differ, in eager as well
            allowed = 2 * (e.double() - b).abs() + 1e-4 * (1 + b.abs()) + 2 * kink
            if not bool((((a.double() - b).abs() <= allowed) | (a.isnan() & b.isnan()) | (a.double() == b)).all()):
                return f"{name} differs by {(a.double() - b).abs().max():.3g} (eager's by {(e.double() - b).abs().max():.3g})", text
    return "", text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ledger", default="", help="a file that keeps what is done, from which a later run goes on")
    parser.add_argument("-v", action="store_true")
    a = parser.parse_args()
    bad = ran = covered = nodes = left = 0
    start = time.perf_counter()
    items = [(seed, a.kernels, a.device) for seed in range(a.seed, a.seed + a.count)]
    for (seed, *_), (problem, text, held, of, in_torch) in resumed(_work, items, a.workers, a.seconds, a.ledger):
        ran, covered, nodes, left = ran + 1, covered + held, nodes + of, left + in_torch
        if problem or a.v:
            print(f"seed {seed}: {problem or 'right'}\n{text}", flush=True)
        bad += bool(problem)
    print(f"{ran} of {a.count} modules, {bad} wrong; {covered} of {nodes} compute nodes in regions, {left} regions fell back to torch; {time.perf_counter() - start:.0f} s")
    sys.exit(bool(bad))


def _work(item: tuple[int, bool, str]) -> tuple[str, str, int, int, int]:
    problem, text = run(*item)
    in_torch = sum(bool(call.fallback_reason) for g in GRAPHS for call in g.calls)
    return problem, text, sum(g.covered_nodes for g in GRAPHS), sum(g.compute_nodes for g in GRAPHS), in_torch


if __name__ == "__main__":
    main()
