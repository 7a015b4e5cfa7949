"""Executions on a GPU: streams, graphs, random numbers, memory that the caller shares, and the time of a warm call."""

from __future__ import annotations

import timeit
from typing import Any

import pytest
import torch
from calls_on_cpu import add, assert_same, define, relu, tensor

from weft import DataType, FusionDefinition
from weft.options import options
from weft.runtime import profile, runtimes

pytestmark = pytest.mark.gpu


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, device="cuda")


def test_gpu_a_call_runs_on_the_tensors_device() -> None:
    fd, x, y = add(), randn(100, 1000), randn(100, 1000)
    for _ in range(3):
        (out,) = fd.execute([x, y])
        assert out.device == x.device
        assert_same([out], [x + y])
    (kernel,) = fd.fec.kernel_runtimes
    assert kernel.engine.key == ("gpu", 0) and kernel.built.report.resources is not None


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (128, 4096), (4099, 33)])
def test_gpu_reductions(shape: tuple[int, int]) -> None:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        fd.add_output(fd.ops.sub(x, fd.ops.broadcast(fd.ops.max(x, [1]), [False, True])))

    x = randn(*shape)
    assert_same(define(build).execute([x]), [x - x.amax(1, keepdim=True)])


def test_gpu_kernels_come_from_disk() -> None:
    fd, x = relu(), randn(7, 9)
    fd.execute([x])
    runtimes.forget_kernels()
    again = relu()
    assert_same(again.execute([x]), [x.relu()])
    assert again.fec.timings.from_disk and again.fec.timings.load_s > 0


def test_gpu_calls_run_on_the_current_stream() -> None:
    fd, x = relu(), torch.zeros(1 << 20, device="cuda").view(1024, 1024)
    fd.execute([x])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        (out,) = fd.execute([x])
    side.synchronize()
    assert out.min().item() == out.max().item() == 3.0


def test_gpu_calls_are_captured_and_replayed() -> None:
    fd, x = relu(), randn(64, 64)
    fd.execute([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = fd.execute([x])
    for _ in range(3):
        x.copy_(randn(64, 64))
        graph.replay()
        assert_same([out], [x.relu()])


def test_gpu_a_first_call_can_be_captured() -> None:
    fd, x = define(lambda fd: fd.add_output(fd.ops.tanh(tensor(fd, 2)))), randn(64, 64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = fd.execute([x])
    graph.replay()
    torch.testing.assert_close(out, x.tanh(), rtol=1e-5, atol=1e-6)


def test_gpu_a_sum_over_the_whole_grid_is_captured_with_memory_of_its_own() -> None:
    fd, x = define(lambda fd: fd.add_output(fd.ops.sum(tensor(fd, 1), [0]))), torch.ones(10_000_000, device="cuda")
    assert fd.execute([x])[0].item() == 10_000_000
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = fd.execute([x])
    for _ in range(3):
        graph.replay()
        assert out.item() == fd.execute([x])[0].item() == 10_000_000


def uniform(shape: list[int]) -> FusionDefinition:
    return define(lambda fd: fd.add_output(fd.ops.uniform(0.0, 1.0, shape, dtype=DataType.Float)))


def test_gpu_random_numbers_follow_torchs_generator() -> None:
    torch.cuda.init()  # there are no generators before
    fd, generator = uniform([1000]), torch.cuda.default_generators[0]
    torch.manual_seed(11)
    first, second = fd.execute([])[0], fd.execute([])[0]
    assert first.is_cuda and generator.get_offset() == 8 and not torch.equal(first, second)
    torch.manual_seed(11)
    assert torch.equal(fd.execute([])[0], first) and torch.equal(fd.execute([])[0], second)


def test_gpu_random_numbers_are_drawn_anew_at_each_replay() -> None:
    fd = uniform([4096])
    fd.execute([])
    torch.randint(0, 2, (1,), device="cuda")  # loads what the capture needs
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [fd.execute([])[0] for _ in range(2)]

    def replayed() -> list[torch.Tensor]:
        for out in outputs:
            out.fill_(float("nan"))
        graph.replay()
        return [out.clone() for out in outputs]

    torch.manual_seed(11)
    drawn = [*replayed(), *replayed()]
    for n, one in enumerate(drawn):
        assert bool(((one >= 0) & (one < 1)).all()) and abs(one.mean().item() - 0.5) < 0.03  # 6 standard deviations of a mean of 4096
        assert not any(torch.equal(one, other) for other in drawn[:n])
    torch.manual_seed(11)
    assert all(torch.equal(a, b) for a, b in zip(drawn, [*replayed(), *replayed()]))
    torch.manual_seed(12)
    assert not torch.equal(replayed()[0], drawn[0])


def test_gpu_a_call_after_a_capture_goes_on_with_the_generator() -> None:
    fd = uniform([8])
    torch.manual_seed(3)
    expected = fd.execute([])[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fd.execute([])
    torch.manual_seed(3)
    assert torch.equal(fd.execute([])[0], expected)


def test_gpu_tensors_can_be_emulated() -> None:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 1)
        fd.add_output(fd.ops.add(x, 1.0), x)
        fd.add_output(fd.ops.mul(x, 2.0))

    fd, x = define(build), randn(33)
    old = x.clone()
    with options(emulate="on"):
        (out,) = fd.execute([x])
    assert out.is_cuda
    assert_same([out, x], [old * 2, old + 1])
    assert fd.fec.kernel_runtimes[0].engine.device is None


def test_gpu_an_update_in_place() -> None:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        fd.add_output(fd.ops.mul(x, fd.ops.sigmoid(x)), x)

    fd, x = define(build), randn(512, 1024)
    expected = x * x.sigmoid()
    assert fd.execute([x]) == []
    assert_same([x], [expected])


def test_gpu_cpu_scalars_and_wrong_devices() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.mul(tensor(fd, 1), fd.define_tensor(shape=[], contiguity=[], is_cpu=True))))
    x = randn(5)
    assert_same(fd.execute([x, torch.tensor(2.0)]), [x * 2])
    with pytest.raises(RuntimeError, match="to be bound to a CPU or meta scalar tensor"):
        fd.execute([x, torch.tensor(2.0, device="cuda")])
    with pytest.raises(RuntimeError, match="to be on device cuda:0 as input 0 is .*, but got a tensor on device cpu"):
        add(1).execute([x, x.cpu()])


def test_gpu_sizes_beyond_int32() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.neg(tensor(fd, 1, DataType.BFloat16))))
    x = torch.ones(2**31 + 5, dtype=torch.bfloat16, device="cuda")
    (out,) = fd.execute([x])
    assert fd.fec.kernel_runtimes[0].program.index_type is DataType.Int
    assert out[-5:].tolist() == [-1.0] * 5 and out[:5].tolist() == [-1.0] * 5


def test_gpu_profiles_have_the_kernels_time() -> None:
    fd, x = relu(), randn(4096, 4096)
    with profile.recording():
        fd.execute([x])
        fd.execute([x])
    (launch,) = fd.fec.launch_report()["kernel_profiles"]
    assert 0.01 < launch.time_ms < 5 and launch.registers > 0 and launch.device == 0


def test_gpu_a_warm_call_costs_at_most_12_us() -> None:
    fd, x = relu(), randn(4, 32)
    fd.execute([x])
    values: list[Any] = [x]
    seconds = []
    for _ in range(20):
        torch.cuda.synchronize()
        seconds.append(timeit.timeit(lambda: fd.execute(values), number=200) / 200)
    assert min(seconds) * 1e6 <= 12
