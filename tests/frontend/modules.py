"""torch's own samples (ModuleInfo) of norms, losses and activations, forward and backward through torch.compile(backend="weft"), against eager in float64.

    python tests/frontend/modules.py                    every sample, training and evaluation, kernels in the emulator
    python tests/frontend/modules.py --most 4 Norm      the first four of each module whose name contains a word
    python tests/frontend/modules.py --device cuda      on a GPU

Compared: the result, gradients of inputs and parameters, and buffers (running statistics), by the rule of opinfo.py. A sample is `declined` when an op of its
graphs stays with torch, by the op's name and reason; its results are compared all the same. Read first: `run_module`.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import sys
import time
import warnings
from typing import Any

import opinfo
import torch
from sweep import resumed
from torch.utils._pytree import tree_flatten, tree_map
from whole_models import FOREIGN

from weft.frontend.backend import GRAPHS, backend
from weft.frontend.compiling import ON_CPU

WORDS = ("Norm", "Loss")
ACTIVATIONS = (
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardswish", "Hardtanh", "ReLU", "LeakyReLU", "ReLU6", "PReLU", "Sigmoid", "LogSigmoid", "SiLU", "Softmax",
    "Softmax2d", "LogSoftmax", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold", "Mish", "SELU",
)  # fmt: skip


@functools.cache
def infos() -> dict[str, Any]:
    """Return the norms, losses and activations of torch's list by name."""
    opinfo.without_expecttest()
    from torch.testing._internal.common_modules import module_db

    found = {info.name.removeprefix("nn.").replace(".", "_"): info for info in module_db}
    return {name: info for name, info in found.items() if name in ACTIVATIONS or any(word in name for word in WORDS)}


def samples_of(info: Any, training: bool, device: str) -> list[Any]:
    torch.manual_seed(0)
    return list(info.module_inputs_func(info, device=device, dtype=torch.float32, requires_grad=True, training=training))


def _step(module: torch.nn.Module, function: Any, given: tuple[Any, Any], seed: Any) -> list[Any]:
    """Return the result of a module, the gradients of its inputs and parameters, and its buffers. seed: function of a result's sizes."""
    out = function(*given[0], **given[1])
    results = [o for o in tree_flatten(out)[0] if isinstance(o, torch.Tensor)]
    leaves = [v for v in (*tree_flatten(given)[0], *module.parameters()) if isinstance(v, torch.Tensor) and v.requires_grad]
    ends = [r for r in results if r.requires_grad]
    grads = torch.autograd.grad(ends, leaves, [seed(r) for r in ends], allow_unused=True) if ends and leaves else ()
    zeros = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves)]
    return [r.detach() for r in results] + zeros + [b.detach().clone() for b in module.buffers()]


def run_module(info: Any, sample: Any, training: bool, tally: opinfo.Tally, device: str = "cpu") -> None:
    """Compare one sample, and count it."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    made = sample.constructor_input
    given = (sample.forward_input.args, sample.forward_input.kwargs)

    def leaf(v: Any, wide: bool) -> Any:
        if not isinstance(v, torch.Tensor) or not v.is_floating_point():
            return v
        return (v.detach().double() if wide else v.detach().clone()).requires_grad_(v.requires_grad)

    def seed(result: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
        return drawn.to(result.device, result.dtype)

    try:
        plain = info.module_cls(*made.args, **made.kwargs).to(device, torch.float32).train(training)
        modules = [plain, copy.deepcopy(plain), copy.deepcopy(plain).double()]
        inputs = [tree_map(lambda v, wide=wide: leaf(v, wide), given) for wide in (False, False, True)]
        want, exact = (_step(modules[n], modules[n], inputs[n], seed) for n in (0, 2))
    except Exception:  # noqa: BLE001  (what eager refuses)
        tally.not_traced += 1
        return
    shown = f"training={training} {tree_map(lambda v: str(v)[:30], (made.args, made.kwargs))} {opinfo.shown(given)}"
    try:
        compiled = torch.compile(modules[1], backend=backend, options={"emulate": device == "cpu"})
        problem = opinfo.difference(_step(modules[1], compiled, inputs[1], seed), want, exact)
    except Exception as error:  # noqa: BLE001
        problem = f"raises {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    if problem:
        tally.wrong.append(f"{problem}  {shown}")
        return
    ops = [(op, why) for g in GRAPHS for op, (_, why) in g.torch_ops.items() if why != ON_CPU]
    kept = {f"{op}: {why}" for op, why in ops if not any(w in op for w in FOREIGN)}
    kept |= {f"a region at run time: {call.fallback_reason}" for g in GRAPHS for call in g.calls if call.fallback_reason}
    if kept:
        tally.declined["; ".join(sorted(kept))] += 1
    elif not any(g.covered_nodes for g in GRAPHS):  # no rule, or numbers only
        tally.foreign += 1
    else:
        tally.right += 1


def _work(item: tuple[str, bool, int, str]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    name, training, index, device = item
    tally = opinfo.Tally()
    run_module(infos()[name], samples_of(infos()[name], training, device)[index], training, tally, device)
    return tally.__dict__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=None, help="samples of each module")
    parser.add_argument("--only", choices=["train", "eval"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--ledger", default="", help="a file that keeps what is done, from which a later run goes on")
    a = parser.parse_args()
    start = time.perf_counter()
    names = [name for name in infos() if not a.words or any(w in name for w in a.words)]
    ways = {"train": (True,), "eval": (False,), None: (True, False)}[a.only]
    items = [(name, training, n, a.device) for name in names for training in ways for n in range(len(samples_of(infos()[name], training, "cpu")[: a.most]))]
    items.sort(key=lambda item: (item[2], not item[1]))  # a run that is cut off has seen every module
    totals: dict[str, opinfo.Tally] = collections.defaultdict(opinfo.Tally)
    done = 0
    for item, fields in resumed(_work, items, a.workers, a.seconds, a.ledger):
        one, sums, done = opinfo.Tally(**fields), totals[item[0]], done + 1
        sums.right, sums.foreign, sums.not_traced = sums.right + one.right, sums.foreign + one.foreign, sums.not_traced + one.not_traced
        sums.declined.update(one.declined)
        sums.wrong += one.wrong
        for text in one.wrong:
            print(f"WRONG {item[0]}: {text}", flush=True)
    for name, sums in sorted(totals.items()):
        for why, times in sums.declined.items():
            print(f"declined {times:3d} of {sums.claimed} {name}: {why}")
        if sums.foreign or sums.not_traced:
            print(f"{name}: {sums.foreign} without an op that has a rule, {sums.not_traced} that eager refuses")
    right, declined, wrong = (sum(f(t) for t in totals.values()) for f in (lambda t: t.right, lambda t: sum(t.declined.values()), lambda t: len(t.wrong)))
    whole = sum(t.right > 0 and not t.declined and not t.wrong for t in totals.values())
    print(f"{len(totals)} modules, {whole} wholly in regions; {done} of {len(items)} samples: {right} right, {declined} right with ops in torch, {wrong} wrong; "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
