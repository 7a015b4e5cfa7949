"""Programs with gradients through lightning-thunder, whose nvFuser executor runs on weft's alias (`compat`), against float64 torch.

    PYTHONPATH=.:compat python tests/frontend/thunder_programs.py [NAME ...] [--device cuda]

On the CPU, Thunder is told that there is a GPU and that CPU tensors are on it: weft's emulator then runs the fusions. torch from 2.13 on lacks methods of
`torch.Tensor` that Thunder 0.2.6 asks for when it is imported; they are put back, and none is called. Prints the error of each program and of its gradients,
and how many fusions its forward and backward have. Read first: `PROGRAMS`.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

REMOVED = ("align_as", "align_to", "has_names", "refine_names", "rename")


def pretend_gpu() -> None:
    """Make torch say that there is an H200, as far as Thunder asks."""
    known = types.SimpleNamespace(name="H200", major=9, minor=0, total_memory=1 << 37, multi_processor_count=132)
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": (9, 0), "get_device_name": "H200",
        "get_device_properties": known, "synchronize": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *args, answer=answer, **named: answer)


def thunder_on(device: str) -> tuple[Any, Any]:
    """Return (thunder, its nvFuser executor), which takes tensors of `device`."""

    def removed(*args: Any, **named: Any) -> None:
        raise NotImplementedError

    for name in REMOVED:
        if not hasattr(torch.Tensor, name):
            setattr(torch.Tensor, name, types.FunctionType(removed.__code__, globals(), name))
    if device == "cpu":
        pretend_gpu()
    import thunder
    import thunder.executors.nvfuserex_impl as executor

    if device == "cpu":
        executor.is_supported_tensor = lambda proxy, **named: executor.is_supported_dtype(proxy.dtype, **named) and proxy.ndim <= 8
        executor.is_supported_device = executor.is_supported_devicetype = lambda device: True
        executor.device_supports_fp8 = lambda *args, **named: False
        executor.nvFuserExecutor.has_cuda_input_or_output = lambda self, *args, **named: True
        executor._select_device = lambda *args, **named: None
        executor.cpu = object()
    return thunder, executor.ex


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


Program = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]

PROGRAMS: dict[str, Program] = {
    "gelu times": (lambda a, b: F.gelu(a) * b, ((5, 7), (5, 7))),
    "softmax": (lambda a: torch.softmax(a, -1) * a, ((5, 7),)),
    "silu times": (lambda a, b: F.silu(a) * b, ((5, 7), (5, 7))),
    "var_mean": (lambda a: torch.var_mean(a, -1)[0] + 1, ((5, 7),)),
    "dropout of none": (lambda a: F.dropout(a, 0.0) * 2, ((5, 7),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (7,), w, b) * x, ((5, 7), (7,), (7,))),
    "rms norm": (rms, ((5, 7), (7,))),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), ((4, 9), [1, 0, 8, 2])),
    "cross entropy, one ignored": (lambda x, t: F.cross_entropy(x, t), ((4, 9), [1, -100, 8, 2])),
    "rope": (rope, ((2, 5, 8), (5, 8), (5, 8))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b) * x, ((2, 4, 3, 3), (4,), (4,))),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True) * x, ((2, 4, 3, 3), (4,), (4,))),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, ((5, 8), [[0, 2], [1, 1]])),
    "llama-like": (lambda x, w, m: F.silu(rms(x, w) @ m) * x, ((5, 8), (8,), (8, 8))),
    "attention": (lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 2.8, -1) @ v, ((2, 5, 8), (2, 5, 8), (2, 5, 8))),
    "cat": (lambda a, b: torch.cat((a, b), 0) * 2, ((2, 7), (3, 7))),
    "pad": (lambda a: F.pad(a, (1, 2)) * 3, ((2, 7),)),
}
"""Name -> function, its arguments: shapes of random tensors, or lists of integers."""


def outcome(thunder: Any, executor: Any, name: str, device: str, dtype: torch.dtype) -> tuple[float, int, int]:
    """Return the largest error of result and gradients, relative to the largest value of each, and the fusions of forward and backward."""
    torch.manual_seed(0)
    function, given = PROGRAMS[name]
    args = [torch.tensor(a, device=device) if isinstance(a, list) else torch.randn(a, device=device, dtype=dtype, requires_grad=True) for a in given]
    exact = [a.detach().double().requires_grad_() if a.is_floating_point() else a for a in args]
    compiled = thunder.jit(function, executors=[executor], nv_enable_bookend=False)
    out, want = compiled(*args), function(*exact)
    slope = torch.randn_like(want)
    found = torch.autograd.grad(out, [a for a in args if a.requires_grad], slope.to(dtype))
    wanted = torch.autograd.grad(want, [a for a in exact if a.requires_grad], slope.to(dtype).double())
    error = max(float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip((out.detach(), *found), (want.detach(), *wanted)))
    fusions = [sum(b.sym.is_fusion for b in traces[-1].bound_symbols) for traces in (thunder.last_traces(compiled), thunder.last_backward_traces(compiled))]
    return error, fusions[0], fusions[1]


LIMITS = {torch.float32: 1e-5, torch.bfloat16: 0.03}
"""Of the relative error: float32 has 6e-8 per op, and no program a chain of a hundred; bfloat16 4e-3, and Thunder rounds between products and fusions."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    thunder, executor = thunder_on(a.device)
    right = runs = 0
    for dtype in (torch.float32, torch.bfloat16) if a.device == "cuda" else (torch.float32,):
        for name in a.names or PROGRAMS:
            runs += 1
            try:
                error, forward, backward = outcome(thunder, executor, name, a.device, dtype)
            except Exception as problem:  # noqa: BLE001  (the list goes on)
                print(f"{name}, {dtype}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
                continue
            is_right = error < LIMITS[dtype] and forward > 0
            right += is_right
            print(f"{name}, {dtype}: {'right' if is_right else 'WRONG'}, error {error:.1e}, fusions {forward} and {backward}", flush=True)
    print(f"{right} of {runs} right")


if __name__ == "__main__":
    main()
