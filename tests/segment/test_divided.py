"""A kernel that spills, or surely would, is divided into kernels that do not, with few bytes between them."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition, compiler
from weft.analysis.live_values import Pressure, live_values, pressure_of
from weft.arch import MOST_SPILL_BYTES
from weft.options import options
from weft.runtime import steps
from weft.runtime.engines import EmulatorEngine
from weft.runtime.resources import TooManySpills
from weft.runtime.runtimes import forget_kernels
from weft.segment.least_cut import least_cut
from weft.segment.partition import SPILLS

FLOAT, BF16 = DataType.Float, DataType.BFloat16


@pytest.fixture(autouse=True)
def no_known_kernels() -> Iterator[None]:
    forget_kernels()
    yield
    forget_kernels()


def few_registers(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(compiler, "registers_of_a_thread", lambda arch: count)
    monkeypatch.setattr(compiler, "MOST_SPILL_BYTES", 0)


def refuse_long_kernels(monkeypatch: pytest.MonkeyPatch, lines: int) -> list[str]:
    """Let kernels with more lines of text spill 4000 bytes; return the names of those that were refused."""
    build, refused = EmulatorEngine.build, list[str]()

    def refusing(self, program, options, **more):  # noqa: ANN001, ANN003, ANN202
        if program.text.count("\n") > lines:
            refused.append(program.name)
            error = TooManySpills(kernel=program.name, bytes=4000, registers=255, limit=MOST_SPILL_BYTES)
            error.spilled_bytes = 4000
            raise error
        return build(self, program, options, **more)

    monkeypatch.setattr(EmulatorEngine, "build", refusing)
    return refused


def waves_around_their_sum(count: int) -> FusionDefinition:
    """Waves whose sum all of them are multiplied by: each is alive until the sum is known."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=FLOAT)
        waves = [fd.ops.sin(fd.ops.mul(x, 1 + n / 8)) for n in range(count)]
        total, out = waves[0], None
        for wave in waves[1:]:
            total = fd.ops.add(total, wave)
        for wave in reversed(waves):
            term = fd.ops.tanh(fd.ops.mul(wave, total))
            out = term if out is None else fd.ops.add(out, term)
        fd.add_output(out)
    return fd


def reference(x: torch.Tensor, count: int) -> torch.Tensor:
    waves = torch.stack([(x.double() * (1 + n / 8)).sin() for n in range(count)])
    return (waves * waves.sum(0)).tanh().sum(0)


@pytest.mark.parametrize("shape", [(13, 50), (1, 1), (1, 33), (7, 1), (0, 5)])
def test_one_tensor_between_two_kernels(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    few_registers(monkeypatch, 16)
    fd, x = waves_around_their_sum(24), torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with options(strict_schedules=True):
        (made,) = fd.execute([x])
    assert made.shape == shape and torch.allclose(made.double(), reference(x, 24), rtol=0, atol=1e-4)
    if x.numel():
        plan = fd.fec._caller.last.sizes.plan
        assert len(plan.kernels) == 2 and len(plan.edges) == 1 and "torch" not in str(fd.fec)
        assert f"for step 2: {SPILLS}: 25 registers would hold values at once, and a thread has 16" in str(fd.fec)


def test_with_enough_registers_it_is_one_kernel() -> None:
    fd = waves_around_their_sum(24)
    fd.execute([torch.randn(3, 5)])
    assert len(fd.fec.kernel_runtimes) == 1


def test_a_warm_call_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    few_registers(monkeypatch, 16)
    plans, make = [], steps.make_plan
    monkeypatch.setattr(steps, "make_plan", lambda *args: plans.append(make(*args)) or plans[-1])
    fd = waves_around_their_sum(24)
    for shape in ((5, 6), (5, 6), (9, 31)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        (made,) = fd.execute([x])
        assert torch.allclose(made.double(), reference(x, 24), rtol=0, atol=1e-4)
    assert len(plans) == 1


def test_what_spills_unforeseen_is_divided_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    whole = waves_around_their_sum(24)
    whole.execute([torch.randn(3, 5)])
    lines = whole.fec.kernel_runtimes[0].program.text.count("\n")
    forget_kernels()
    refused = refuse_long_kernels(monkeypatch, lines - 1)
    fd, x = waves_around_their_sum(24), torch.randn(9, 21, generator=torch.Generator().manual_seed(3))
    with options(strict_schedules=False), caplog.at_level(logging.INFO, logger="weft"):
        (made,) = fd.execute([x])
    assert torch.allclose(made.double(), reference(x, 24), rtol=0, atol=1e-4)
    kernels = len(fd.fec._caller.last.kernels)
    assert refused and kernels > 1 and f"{SPILLS}: a thread lacked about 500 registers" in str(fd.fec)
    assert "what it computes is divided into several kernels" in caplog.text and not [r for r in caplog.records if r.levelno > logging.INFO]


def test_a_compiled_function_is_divided_too(monkeypatch: pytest.MonkeyPatch) -> None:
    few_registers(monkeypatch, 8)
    plans, make = [], steps.make_plan
    monkeypatch.setattr(steps, "make_plan", lambda *args: plans.append(make(*args)) or plans[-1])

    def function(x: torch.Tensor) -> torch.Tensor:
        waves = [(x * (1 + n / 8)).sin() for n in range(12)]
        total = sum(waves[1:], waves[0])
        return sum((wave * total).tanh() for wave in reversed(waves))

    torch._dynamo.reset()
    x = torch.randn(6, 11, generator=torch.Generator().manual_seed(4))
    with options(cache=False):  # an earlier run of this test has left its plan on disk
        made = torch.compile(function, backend="weft", options={"emulate": True})(x)
    assert torch.allclose(made.double(), reference(x, 12), rtol=0, atol=1e-4)
    (plan,) = plans
    assert len(plan.kernels) == len(plan.steps) == 2 and all(reason.startswith(SPILLS) for reason in plan.reasons.values())


def random_definition(seed: int, has_sum: bool) -> tuple[FusionDefinition, list[torch.Tensor], list[torch.Tensor]]:
    """Return a definition of pointwise ops with casts, a broadcast row, several results, and a sum of rows if `has_sum`; inputs; results in float64."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    x, y, row = torch.randn(5, 34, generator=generator), torch.randn(5, 34, generator=generator).bfloat16(), torch.randn(34, generator=generator)
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1, -1], contiguity=True, dtype=dtype) for dtype in (FLOAT, BF16))
        c = fd.define_tensor([-1], contiguity=True, dtype=FLOAT)
        values: list[tuple[Any, torch.Tensor]] = [
            (a, x.double()), (fd.ops.cast(b, FLOAT), y.double()), (fd.ops.broadcast_in_dim(c, a.shape(), [1]), row.double().expand(5, 34))
        ]  # fmt: skip
        for _ in range(60):
            (first, of_first), (second, of_second) = rng.choice(values[-40:]), rng.choice(values)
            values.append(
                rng.choice([
                    lambda: (fd.ops.add(first, second), of_first + of_second), lambda: (fd.ops.sin(first), of_first.sin()),
                    lambda: (fd.ops.mul(fd.ops.tanh(first), fd.ops.tanh(second)), of_first.tanh() * of_second.tanh()),
                    lambda: (fd.ops.maximum(first, second), torch.maximum(of_first, of_second)),
                ])()
            )  # fmt: skip
        results = [values[n] for n in (-1, -2, -7, -15)]
        results += [(fd.ops.sum(values[-4][0], [1]), values[-4][1].sum(1))] if has_sum else []
        for result, _ in results:
            fd.add_output(result)
    return fd, [x, y, row], [wanted for _, wanted in results]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_foreseen", [True, False])
def test_random_definitions(monkeypatch: pytest.MonkeyPatch, seed: int, is_foreseen: bool) -> None:
    fd, inputs, wanted = random_definition(seed, has_sum=not is_foreseen)
    refused = [""]
    if is_foreseen:
        few_registers(monkeypatch, 6)
    else:
        refused = refuse_long_kernels(monkeypatch, 110)
    with options(strict_schedules=False):
        results = fd.execute(inputs)
    for got, want in zip(results, wanted):
        assert float((got.double() - want).abs().max() / want.abs().max()) < 1e-4
    assert refused and "torch" not in str(fd.fec)
    assert SPILLS in str(fd.fec)


def test_values_alive() -> None:
    fd = waves_around_their_sum(10)
    exprs = fd.fusion.tensor_exprs()
    assert max(live_values(exprs)) == 11  # all waves and their sum; x is not used any more
    early = fd.fusion.exprs([exprs[-1].tensor_outputs[0]], among=set(map(id, exprs)))
    assert early == exprs
    assert pressure_of(exprs) == Pressure(11, len(exprs))
    assert Pressure(11, 40).excess(Pressure(22, 20)) == 0.5 and Pressure(11, 40).times(0.5) == Pressure(5, 20)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_cut_of_small_graphs(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(3, 8)
    weights = {n: float(rng.randrange(1, 5)) for n in range(count)}
    edges = [(a, b) for a, b in itertools.combinations(range(count), 2) if rng.random() < 0.5]
    sources, sinks = {0, rng.randrange(count)}, {count - 1, rng.randrange(count)}

    def separates(cut: set[int]) -> bool:
        reached = sources - cut
        for a, b in edges:  # in topological order
            if a in reached and b not in cut:
                reached.add(b)
        return not reached & sinks

    every = [set(found) for size in range(count + 1) for found in itertools.combinations(range(count), size)]
    least = min(sum(weights[n] for n in cut) for cut in every if separates(cut))
    found = least_cut(weights, edges, sources, sinks, 100)
    assert found is not None and separates(found) and sum(weights[n] for n in found) == least


def test_the_cut_nearest_to_what_needs_it() -> None:
    weights, edges = {"x": 1.0, "y": 1.0, "z": 1.0}, [("x", "y"), ("y", "z")]
    assert least_cut(weights, edges, {"x"}, {"z"}, 5) == {"z"}
    assert least_cut(weights | {"z": float("inf")}, edges, {"x"}, {"z"}, 5) == {"y"}
    assert least_cut({"x": float("inf")}, [], {"x"}, {"x"}, 5) is None
    assert least_cut({n: 1.0 for n in range(9)}, [], range(9), range(9), 5) is None  # too many
