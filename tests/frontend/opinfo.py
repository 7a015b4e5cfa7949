"""torch's own samples (OpInfo) for the ops that the torch.compile backend claims, and for the functions of weft.nn.functional that torch has.

    python tests/frontend/opinfo.py                     every entry of op_db, regions evaluated by the interpreter in float64 (some minutes)
    python tests/frontend/opinfo.py --emulate softmax   entries whose name contains a word, regions run by kernels in the emulator
    python tests/frontend/opinfo.py --emulate --device cuda     regions run by kernels on a GPU
    python tests/frontend/opinfo.py --functions         weft.nn.functional instead
    python tests/frontend/opinfo.py --dtype bfloat16 --workers 16      in another type, on several cores

A sample of the backend is traced to aten as AOTAutograd traces it, cut into regions, translated, run, and compared with eager torch in float64.
It is `claimed` when one of its aten ops has a rule, `declined` when such an op stays with torch, with the reason. Owns the harness; `test_opinfo.py` runs a part.
Read first: `run_sample`.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.util
import itertools
import random
import sys
import time
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from sweep import resumed
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map

from weft.errors import WeftError
from weft.frontend.aten import Declined, lookup
from weft.frontend.backend import _decompositions
from weft.frontend.regions import Region, find_regions, is_cheap, is_getitem
from weft.frontend.translate import translate
from weft.reference.interpreter import evaluate

RANDOM = ("rand", "dropout", "bernoulli", "normal", "multinomial", "empty", "uniform", "exponential", "cauchy", "geometric", "rrelu", "lowrank", "jiterator")
"""Words in names of entries whose values are not determined, or whose memory is not filled, or whose kernel is launched on tensors without memory by a trace
(`torch.cuda.jiterator` is no op: it does not ask what kind of tensor it was given)."""


@dataclass
class Tally:
    """Counts per entry: right, declined (reason -> times), wrong (a line each), foreign (no op has a rule), not_traced."""

    right: int = 0
    declined: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    foreign: int = 0
    not_traced: int = 0

    @property
    def claimed(self) -> int:
        """Samples in which an op has a rule."""
        return self.right + sum(self.declined.values()) + len(self.wrong)


def entries(words: list[str], dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Any]:
    """Return the entries of op_db that know a type and whose values are determined."""
    without_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db

    found = [op for op in op_db if op.supports_dtype(dtype, device) and not any(w in op.name for w in RANDOM)]
    return [op for op in found if not words or any(w in op.name for w in words)]


def without_expecttest() -> None:
    """Let torch's test tools load where that package is not: they derive their TestCase from it, and nothing here runs one."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]


def samples_of(
    op: Any, most: int | None = None, dtype: torch.dtype = torch.float32, part: int = 0, parts: int = 1, device: str = "cpu"
) -> Iterator[Any]:  # fmt: skip
    """Yield samples of an entry: at most `most`, and of these every `parts`-th from `part` on."""
    torch.manual_seed(0)
    samples = op.sample_inputs(device, dtype, requires_grad=False)
    return itertools.islice((s for s in samples if not _draws(op, s)), part, most, parts)


def _draws(op: Any, sample: Any) -> bool:
    """True for attention with dropout."""
    return "attention" in op.name and any(isinstance(v, float) and v == 0.5 for v in (*sample.args, *sample.kwargs.values()))


# ---------------------------------------------------------------- the backend
def traced(op: Any, sample: Any) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Return the aten graph of a call, and its inputs."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        first, args, kwargs = torch.utils._pytree.tree_unflatten(filled, spec)
        return op.op(first, *args, **kwargs)

    tensors = [leaves[i] for i in places]
    for _ in range(2):  # again where a decomposition has written into what it made: AOTAutograd leaves no such op
        functional = torch.func.functionalize(call, remove="mutations_and_views")
        gm = call = make_fx(functional, decomposition_table=_decompositions(), tracing_mode="fake")(*tensors)
        if not any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in gm.graph.nodes):
            break
    return gm, tensors


def exact(gm: torch.fx.GraphModule, tensors: list[torch.Tensor]) -> Any:
    return gm(*tensors)


class _Run(torch.fx.Interpreter):
    """Runs a graph node by node, regions by their definitions as soon as their last input is there."""

    def __init__(self, gm: torch.fx.GraphModule, made: list[tuple[Region, Any]], emulate: bool) -> None:
        super().__init__(gm)
        self.emulate = emulate
        self.waiting = list(made)
        self.given: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        """A node of a region gets its region's value, once that can run; what only the region needs stays as torch computes it."""
        if n not in self.given:
            for at, (region, definition) in enumerate(self.waiting):
                if n in region.outputs and all(i in self.env for i in region.inputs):
                    del self.waiting[at]
                    self._run_region(region, definition)
                    break
        return self.given[n] if n in self.given else super().run_node(n)

    def _run_region(self, region: Region, definition: Any) -> None:
        values = [self.env[i] for i in region.inputs]
        if self.emulate:
            results = definition.execute(values)
        else:
            results = evaluate(definition.fusion, values, precision="double")
        for node, value in zip(region.outputs, results):
            fake = node.meta["val"]
            assert tuple(value.shape) == tuple(fake.shape), f"{node} has sizes {tuple(value.shape)}, torch's {tuple(fake.shape)}"
            if self.emulate:
                assert value.dtype is fake.dtype, f"{node} has the type {value.dtype}, torch's {fake.dtype}"
            self.given[node] = value.to(fake.dtype)


def run_sample(op: Any, sample: Any, tally: Tally, emulate: bool = False) -> None:
    """Trace, cut, translate, run and compare one sample, and count it."""
    try:
        gm, tensors = traced(op, sample)
        want = op.op(sample.input, *sample.args, **sample.kwargs)
        exact = _in_float64(op, sample)
    except Exception:  # noqa: BLE001  (data-dependent sizes, types that fake tensors do not know: nothing that a backend would see)
        tally.not_traced += 1
        return
    reasons: dict[Node, str] = {}
    regions = find_regions(gm.graph, reasons)
    made, why = [], ""
    for region in regions:
        try:
            made.append((region, translate(region).definition))
        except (Declined, WeftError) as error:
            why = str(error).splitlines()[0]
        except (TypeError, ValueError, LookupError, RuntimeError) as error:  # the backend leaves the region to torch; a rule should say why
            tally.wrong.append(f"a rule raises {type(error).__name__}: {error}  {shown((sample.input, sample.args, sample.kwargs))}")
            return
    refused = next((r for n, r in reasons.items() if lookup(n.target) is not None), "")
    if not regions and not refused:
        tally.foreign += 1
        return
    try:
        got = _Run(gm, made, emulate).run(*tensors)
    except (WeftError, AssertionError) as error:
        text = str(error).splitlines()[0]
        (tally.wrong.append if isinstance(error, AssertionError) or getattr(error, "code", "").startswith("W9") else lambda t: tally.declined.update([t]))(text)
        return
    problem = difference(got, want, exact, None if exact is None else gm(*tensors))
    if problem:
        nodes = " ".join(dict.fromkeys(str(n.target).replace("aten.", "") for r, _ in made for n in r.nodes if not is_getitem(n) and not is_cheap(n)))
        tally.wrong.append(f"{problem}  [{nodes}]  {shown((sample.input, sample.args, sample.kwargs))}")
    elif why or refused:
        tally.declined[why or refused] += 1
    else:
        tally.right += 1


def _in_float64(op: Any, sample: Any) -> Any:
    """The result of a sample of floats when torch computes in float64; None for other types."""
    narrow = (torch.bfloat16, torch.float16, torch.float32)
    given = (sample.input, sample.args, sample.kwargs)
    if not any(isinstance(v, torch.Tensor) and v.dtype in narrow or v in narrow for v in tree_flatten(given)[0] if isinstance(v, (torch.Tensor, torch.dtype))):
        return None
    wide = tree_map(
        lambda v: v.double() if isinstance(v, torch.Tensor) and v.dtype in narrow else torch.float64 if isinstance(v, torch.dtype) and v in narrow else v, given
    )
    try:
        return op.op(wide[0], *wide[1], **wide[2])
    except Exception:  # noqa: BLE001  (an op that asks for the type it was given)
        return None


def shown(given: Any) -> str:
    def text(v: Any) -> Any:
        return f"{str(v.dtype)[6:]}{list(v.shape)}" if isinstance(v, torch.Tensor) else v

    return str(tree_map(text, given))[:200]


def difference(got: Any, want: Any, exact: Any = None, stepwise: Any = None) -> str:
    """Return what is wrong with a result; torch's own in float32 counts with 2e-5 of its size, since it has rounding errors, too: where it is farther off,
    the result in float64 decides with as much. exact: the result in float64; a 16-bit result may be off by twice torch's own error, of the op or of the aten
    ops that it is traced to (`stepwise`), and by one rounding."""
    a, b = (tree_flatten(v)[0] for v in (got, want))
    references = b if exact is None else tree_flatten(exact)[0]
    steps = b if stepwise is None else tree_flatten(stepwise)[0]
    for x, y, z, step in zip(a, b, references, steps):
        if not isinstance(y, torch.Tensor):
            continue
        if x.dtype is not y.dtype or x.shape != y.shape:
            return f"{x.dtype} {tuple(x.shape)} for {y.dtype} {tuple(y.shape)}"
        if exact is not None and y.dtype in (torch.bfloat16, torch.float16) and isinstance(z, torch.Tensor) and z.shape == y.shape:
            own = torch.maximum((y.double() - z.double()).abs().nan_to_num(0.0), (step.double() - z.double()).abs().nan_to_num(0.0))
            allowed = 2 * own + torch.finfo(y.dtype).eps * (z.double().abs() + torch.finfo(y.dtype).tiny)
            fits = ((x.double() - z.double()).abs() <= allowed) | (x == y) | (x.double() == z) | (x.isnan() & y.isnan())
            if not bool(fits.all()):
                at = int((~fits).flatten().nonzero()[0])
                return f"{x.flatten()[at].item()} for {z.flatten()[at].item()} (torch {y.flatten()[at].item()}), {int((~fits).sum())} of {fits.numel()}"
            continue
        try:
            torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-5, equal_nan=True)
        except AssertionError as error:
            if exact is None or not isinstance(z, torch.Tensor) or z.shape != y.shape or not torch.allclose(x.double(), z.double(), 2e-5, 2e-5, equal_nan=True):
                lines = str(error).splitlines()
                return " ".join(lines[2:4])
    return ""


# ---------------------------------------------------------------- weft.nn.functional
def functions() -> dict[str, Callable[..., Any]]:
    """Return our functions by the name of torch's entry."""
    from weft.nn import functional as W

    names = {"softmax": "softmax", "log_softmax": "log_softmax"}
    for name in ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize", "gelu", "silu", "cross_entropy", "kl_div"):
        names[f"nn.functional.{name}"] = name
    return {entry: getattr(W, name) for entry, name in names.items()}


def run_function(function: Callable[..., Any], op: Any, sample: Any, tally: Tally, gradients: bool = True) -> None:
    """Compare a function with torch's on a sample in float64, gradients too; an error of weft with a code is a refusal."""

    def wide(v: Any) -> Any:
        return v.detach().double().requires_grad_(gradients) if isinstance(v, torch.Tensor) and v.is_floating_point() else v

    ours, theirs = (tree_map(wide, (sample.input, sample.args, sample.kwargs)) for _ in range(2))
    try:
        want = op.op(theirs[0], *theirs[1], **theirs[2])
    except Exception:  # noqa: BLE001
        tally.not_traced += 1
        return
    try:
        got = function(ours[0], *ours[1], **ours[2])
        problem = difference(got, want)
        if not problem and gradients and want.requires_grad:
            seed = torch.randn_like(want)
            pairs = []
            for result, given in ((got, ours), (want, theirs)):
                leaves = [v for v in tree_flatten(given)[0] if isinstance(v, torch.Tensor) and v.requires_grad]
                pairs.append(torch.autograd.grad(result, leaves, seed, allow_unused=True))
            for a, b in zip(*pairs):
                problem = problem or (
                    "" if a is None and b is None else difference(torch.zeros_like(b) if a is None else a, torch.zeros_like(a) if b is None else b)
                )
    except WeftError as error:
        tally.declined[str(error).splitlines()[0]] += 1
        return
    except Exception as error:  # noqa: BLE001
        problem = f"raises {type(error).__name__}: {str(error).splitlines()[0]}"
    if problem:
        tally.wrong.append(f"{problem}  {shown((sample.input, sample.args, sample.kwargs))}")
    else:
        tally.right += 1


# ---------------------------------------------------------------- the command
PARTS = 4
"""Into which the samples of an entry are divided for several cores."""


@functools.cache
def _known(dtype: torch.dtype, device: str) -> list[Any]:
    return entries([], dtype, device)


def _work(item: tuple[int, str, int, int | None, bool, bool, str]) -> dict[str, Any]:
    """The tally of one part of one entry's samples, as fields."""
    warnings.simplefilter("ignore")
    index, dtype, part, most, emulate, of_functions, device = item
    given = getattr(torch, dtype)
    op, tally = _known(given, device)[index], Tally()
    for sample in samples_of(op, most, given, part, PARTS, device):
        if of_functions:
            run_function(functions()[op.name], op, sample, tally)
        else:
            run_sample(op, sample, tally, emulate)
    return dict(vars(tally))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--functions", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=None, help="samples per entry")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2 * 3600)
    parser.add_argument("--seed", type=int, default=None, help="parts in a random order, for runs that are cut off")
    parser.add_argument("--ledger", default="", help="a file that keeps what is done, from which a later run goes on")
    a = parser.parse_args()
    total = Tally()
    reasons: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    ours = functions()
    chosen = {
        index: op for index, op in enumerate(_known(getattr(torch, a.dtype), a.device))
        if (not a.words or any(w in op.name for w in a.words)) and (not a.functions or op.name in ours and not op.variant_test_name)
    }  # fmt: skip
    items = [(index, a.dtype, part, a.most, a.emulate, a.functions, a.device) for part in range(PARTS) for index in chosen]
    if a.seed is not None:
        random.Random(a.seed).shuffle(items)
    done = 0
    for item, fields in resumed(_work, items, a.workers, a.seconds, a.ledger):
        done, tally = done + 1, Tally(**fields)
        name = chosen[item[0]].name
        total.right, total.foreign, total.not_traced = total.right + tally.right, total.foreign + tally.foreign, total.not_traced + tally.not_traced
        total.declined.update(tally.declined)
        total.wrong += tally.wrong
        reasons.update({f"{name}: {why}": n for why, n in tally.declined.items()})
        for text in tally.wrong[:4]:
            print(f"WRONG {name}: {text}", flush=True)
    for text, times in reasons.most_common():
        print(f"declined {times:4d}  {text}")
    share = sum(total.declined.values()) / max(1, total.claimed)
    print(f"{a.dtype}, {done} of {len(items)} parts: {total.claimed} claimed: {total.right} right, {sum(total.declined.values())} declined ({share:.1%}), "
          f"{len(total.wrong)} wrong; {total.foreign} without an op that has a rule, {total.not_traced} not traced; {time.perf_counter() - start:.0f} s")  # fmt: skip
    sys.exit(bool(total.wrong))


if __name__ == "__main__":
    main()
