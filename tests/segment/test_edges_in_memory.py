"""What lies between the kernels of one call: small tensors share memory, and every result is right whatever the sizes and whatever stands between."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch

from weft import FusionDefinition
from weft.reference.interpreter import evaluate
from weft.options import options
from weft.runtime import edge_memory


def chain(*, matmul: bool = False, outputs: bool = False) -> FusionDefinition:
    """Five kernels: rows and columns in turn, so that edges of several sizes are alive at a time; a product of torch's between them if asked for."""
    with FusionDefinition() as fd:
        x = first = fd.define_tensor(shape=[-1, -1], contiguity=True)
        for number in range(3):
            row_sum = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
            x = fd.ops.segment_set(fd.ops.sub(x, fd.ops.mul(row_sum, 0.01)))
            if matmul and number == 1:
                x = fd.ops.matmul(x, fd.define_tensor(shape=[-1, -1], contiguity=True))
            x = fd.ops.add(x, fd.ops.broadcast(fd.ops.max(x, [0]), [True, False]))
            if outputs:
                fd.add_output(x)
        fd.add_output(fd.ops.add(x, first))
    return fd


def text_of(fd: FusionDefinition) -> tuple[list[str], list[list[str]]]:
    """The statements that allocate before the first kernel, and those before each step."""
    (prepared,) = fd.fec._caller._prepared.values()
    return prepared.run.parts.allocations, [step.before for step in prepared.run.parts.steps]


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (5, 129)])
@pytest.mark.parametrize("matmul", [False, True])
@pytest.mark.parametrize("outputs", [False, True])
def test_results_are_those_of_float64(shape: tuple[int, int], matmul: bool, outputs: bool) -> None:
    inputs = [torch.randn(shape), *([torch.randn(shape[1], shape[1])] if matmul else [])]
    fd = chain(matmul=matmul, outputs=outputs)
    for _ in range(2):
        for given, wanted in zip(fd.execute(inputs), evaluate(fd.fusion, inputs), strict=True):
            torch.testing.assert_close(given.to(wanted.dtype), wanted, rtol=1e-4, atol=1e-4)
    assert len(fd.fec.kernel_runtimes) >= 3
    assert any("edge_memory" in line for line in text_of(fd)[0])


def test_kernels_take_no_memory_of_their_own() -> None:
    fd = chain()
    fd.execute([torch.randn(33, 70)])
    allocations, before = text_of(fd)
    assert not any(before) and sum("empty" in line for line in allocations) == 2, "one output and one piece for all edges"


def test_what_torch_reads_is_a_tensor() -> None:
    fd = chain(matmul=True)
    fd.execute([torch.randn(33, 70), torch.randn(70, 70)])
    assert sum(line.count("empty") for lines in text_of(fd)[1] for line in lines) == 1, "the left operand"


def test_large_edges_have_memory_of_their_own_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_memory, "LARGEST_BYTES", 512)
    fd, x = chain(), torch.randn(33, 70)
    for given, wanted in zip(fd.execute([x]), evaluate(fd.fusion, [x]), strict=True):
        torch.testing.assert_close(given.to(wanted.dtype), wanted, rtol=1e-4, atol=1e-4)
    (prepared,) = fd.fec._caller._prepared.values()
    assert any("empty" in line for step in prepared.run.parts.steps for line in step.before)
    assert any(line.startswith("del o") for step in prepared.run.parts.steps for line in step.after)


@pytest.mark.gpu
@pytest.mark.parametrize("matmul", [False, True])
def test_gpu_results_are_those_of_float64_on_any_stream(matmul: bool) -> None:
    shape = (333, 1070)
    inputs = [torch.randn(shape, device="cuda"), *([torch.randn(shape[1], shape[1], device="cuda") / 33] if matmul else [])]
    fd: Any = chain(matmul=matmul, outputs=True)
    wanted = evaluate(fd.fusion, inputs)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.current_stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            given = fd.execute(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        for one, other in zip(given, wanted, strict=True):
            torch.testing.assert_close(one.to(other.dtype), other, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_gpu_calls_that_launch_a_graph_see_every_new_value_and_address() -> None:
    fd, kept = chain(outputs=True), []
    same = torch.randn(65, 300, device="cuda")
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for call in range(12):
        x = torch.randn(65, 300, device="cuda") if call % 3 == 1 else same
        stream = streams[call // 3 % 2]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            with options(launch_graphs=True):
                results = fd.execute([x])
        torch.cuda.current_stream().wait_stream(stream)
        kept.append((x, results))  # so that the next results lie elsewhere
    for x, results in kept:
        for given, wanted in zip(results, evaluate(fd.fusion, [x]), strict=True):
            torch.testing.assert_close(given.to(wanted.dtype), wanted, rtol=1e-3, atol=1e-3)
    batches = [v for v in _functions(fd) if getattr(v, "__self__", None).__class__.__name__ == "LaunchBatch"]
    assert batches and any(prepared.start is not None for batch in batches for idle in batch.__self__._idle.values() for prepared in idle)


def _functions(fd: Any) -> list[Any]:
    (prepared,) = fd.fec._caller._prepared.values()
    return list(prepared.run.__globals__.values())


@pytest.mark.gpu
def test_gpu_calls_that_launch_a_graph_are_captured_and_run_in_threads() -> None:
    fd, x = chain(), torch.randn(65, 300, device="cuda")
    with options(launch_graphs=True):
        for _ in range(4):
            fd.execute([x])
        _in_a_graph_and_in_threads(fd, x)


def _in_a_graph_and_in_threads(fd: Any, x: torch.Tensor) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (held,) = fd.execute([x])
    fd.execute([torch.randn_like(x)])
    x.copy_(torch.randn_like(x))
    graph.replay()
    (wanted,) = evaluate(fd.fusion, [x])
    torch.testing.assert_close(held.to(wanted.dtype), wanted, rtol=1e-3, atol=1e-3)
    errors: list[float] = []

    def work(seed: int) -> None:
        draw = torch.Generator("cuda").manual_seed(seed)
        for _ in range(50):
            y = torch.randn(65, 300, device="cuda", generator=draw)
            (out,), (right,) = fd.execute([y]), evaluate(fd.fusion, [y])
            errors.append(float((out - right).abs().max() / right.abs().max()))

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 200 and max(errors) < 1e-4
