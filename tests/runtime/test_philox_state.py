"""The state of random kernels: torch's generator in a call, a seed in memory while a CUDA graph is captured."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from calls_on_cpu import define

from weft import DataType, FusionDefinition
from weft.emulator import Buffer
from weft.ops.factories import WrongSeed
from weft.runtime import engines, philox_state
from weft.runtime.engines import EmulatedCall

SEED = 2**62 + 12345


def uniform(size: int = 37, **state: int) -> FusionDefinition:
    return define(lambda fd: fd.add_output(fd.ops.uniform(0.0, 1.0, [size], dtype=DataType.Float, **state)))


class Captured:
    """A generator whose stream is being captured."""

    def get_offset(self) -> int:
        raise RuntimeError("Cannot call CUDAGeneratorImpl::get_offset\nmore")


@pytest.fixture
def launches() -> Iterator[list[EmulatedCall]]:
    """The launches of the test."""
    seen: list[EmulatedCall] = []
    engines.watchers.append(seen.append)
    yield seen
    engines.watchers.remove(seen.append)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in the capture of a graph, whose operation has drawn SEED."""
    monkeypatch.setattr(philox_state, "generator_of", lambda device: Captured())
    monkeypatch.setattr(philox_state, "is_capturing", lambda: True)
    monkeypatch.setattr(philox_state, "seed_of_graph", lambda device: torch.tensor([SEED]))
    return monkeypatch


def test_a_call_passes_the_generators_seed_and_no_address() -> None:
    torch.manual_seed(5)
    take = philox_state.taker(None, 2, "k")
    assert [take(), take()] == [(5, 0, 0, None), (5, 8, 0, None)]


def test_under_capture_the_state_is_an_address_and_what_keeps_it(captured: pytest.MonkeyPatch) -> None:
    seed, offset, address, drawn = philox_state.taker(None, 1, "k")()
    assert (seed, offset) == (0, 0) and drawn is not None and address == drawn.data_ptr() and drawn.item() == SEED


def test_a_generator_that_fails_outside_of_a_capture_is_not_hidden(captured: pytest.MonkeyPatch) -> None:
    captured.setattr(philox_state, "is_capturing", lambda: False)
    with pytest.raises(RuntimeError, match="Cannot call"):
        philox_state.taker(None, 1, "k")()


def test_a_capture_that_torch_does_not_know_is_refused(captured: pytest.MonkeyPatch) -> None:
    def fail(device: int | None) -> torch.Tensor:
        raise RuntimeError("Offset increment outside graph capture\nmore")

    captured.setattr(philox_state, "seed_of_graph", fail)
    with pytest.raises(philox_state.RandomInGraph) as error:
        philox_state.taker(None, 1, "weft_pointwise_1")()
    assert str(error.value).splitlines()[0] == (
        "W790: kernel weft_pointwise_1 takes its seed from torch's generator, which cannot provide one during this CUDA graph capture: "
        "Offset increment outside graph capture"
    )


@pytest.mark.parametrize("size", [1, 37, 4096])
def test_a_kernel_reads_the_seed_from_memory_when_it_gets_an_address(launches: list[EmulatedCall], size: int) -> None:
    uniform(size).execute([])
    (call,) = launches
    names = [p.name for p in call.program.params]
    args, plan = list(call.arguments), call.plan
    seed, out = torch.tensor([SEED]), torch.full((size,), float("nan"))
    args[0] = Buffer.of(out, "out", written=True, initialised=False)
    args[names.index("philox_seed_at")] = Buffer.of(seed, "seed")
    for name in ("philox_seed", "philox_offset"):
        args[names.index(name)] = type(args[names.index(name)])("unsigned long long", 0)
    call.kernel.launch(plan.grid, plan.block, plan.shared_bytes, args)
    (expected,) = uniform(size, rng_seed=SEED, rng_offset=0).execute([])
    assert torch.equal(out, expected)


def test_the_seed_of_a_graph_lives_until_its_kernels_are_launched(captured: pytest.MonkeyPatch) -> None:
    """Freed earlier, its memory could be the kernel's output."""
    held: list[weakref.ref[torch.Tensor]] = []

    def draw(device: int | None) -> torch.Tensor:
        tensor = torch.tensor([SEED])
        held.append(weakref.ref(tensor))
        return tensor

    captured.setattr(philox_state, "seed_of_graph", draw)
    alive: list[bool] = []

    def watch(call: EmulatedCall) -> None:
        alive.append(held[0]() is not None)
        for n, param in enumerate(call.program.params):
            if param.name == "philox_seed_at":  # the emulator knows the memory of tensors only
                call.arguments[n] = Buffer.of(held[0](), "seed")

    engines.watchers.append(watch)
    try:
        (out,) = uniform().execute([])
    finally:
        engines.watchers.remove(watch)
    assert alive == [True] and held[0]() is None
    assert torch.equal(out, uniform(rng_seed=SEED, rng_offset=0).execute([])[0])


# -- seeds in tensors ---------------------------------------------------------------------------------------------------
def drawn(shape: tuple[int, ...], kind: str, dtype: DataType, where: str) -> FusionDefinition:
    """x times numbers, normalized, and the numbers. where: what seed and offset are."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        if where == "scalars":
            state = [fd.define_scalar(DataType.Int) for _ in range(2)]
        else:
            one = ([1], [None]) if where == "tensors of one element" else ([], [])
            state = [fd.define_tensor(*one, dtype=DataType.Int32 if where == "of 32 bits" else DataType.Int) for _ in range(2)]
        numbers = getattr(fd.ops, kind)(0.5, 1.5, [x.size(0), x.size(1)], rng_seed=state[0], rng_offset=state[1], dtype=dtype)
        scaled = fd.ops.mul(x, numbers)
        fd.add_output(fd.ops.div(scaled, fd.ops.add(fd.ops.sum(fd.ops.abs(scaled), [1], True), 1.0)))
        fd.add_output(numbers)

    return define(build)


@pytest.mark.parametrize("where", ["tensors", "tensors of one element", "of 32 bits"])
@pytest.mark.parametrize("kind, dtype", [("uniform", DataType.Float), ("normal", DataType.Double), ("uniform", DataType.BFloat16)])
@pytest.mark.parametrize("shape", [(5, 37), (1, 1), (0, 3), (3, 1028)], ids=str)
def test_seed_and_offset_in_tensors_draw_what_scalars_draw(shape: tuple[int, ...], kind: str, dtype: DataType, where: str) -> None:
    x, seed, offset = torch.rand(shape), 123456789, 11
    given = [torch.tensor([n] if where == "tensors of one element" else n, dtype=torch.int32 if where == "of 32 bits" else torch.int64) for n in (seed, offset)]
    fd = drawn(shape, kind, dtype, where)
    for out, want in zip(fd.execute([x, *given]), drawn(shape, kind, dtype, "scalars").execute([x, seed, offset]), strict=True):
        assert torch.equal(out, want)
    fd.validate([x, *given])
    given[0] += 1
    assert 0 in shape or not torch.equal(fd.execute([x, *given])[1], out)


def test_a_seed_is_one_integer() -> None:
    for shape, dtype in (([3], DataType.Int), ([], DataType.Float)):
        with FusionDefinition() as fd, pytest.raises(WrongSeed, match="W341"):
            fd.ops.uniform(0.0, 1.0, [7], rng_seed=fd.define_tensor(shape, contiguity=True, dtype=dtype), rng_offset=0)
