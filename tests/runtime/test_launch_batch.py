"""Several launches of one call that are written together: addresses, streams, scalars and failures of each, and what threads may do."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from bytecode import instructions_of

from tests.runtime.test_driver import compiled, first_line, kernel  # noqa: F401  (fixtures)
from weft.arch import DriverCallFailed
from weft.options import options
from weft.runtime import launch_batch, launch_graph
from weft.runtime.driver import LoadedKernel
from weft.runtime.launch import LaunchRecord
from weft.runtime.warm_path import LaunchText, RunParts, write_run

STREAMS = [0x55]


@pytest.fixture(autouse=True)
def graphs_of_this_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch_graph, "_streams", {})
    monkeypatch.setattr(launch_batch, "_is_capturing", lambda: False)
    with options(launch_graphs=True):
        yield


def written(records: list[LaunchRecord], pointers: list[list[str]], **of_step: Any) -> Any:
    """The function of a call with addresses p0, p1, p2 and a scalar s that launches `records` one after the other. of_step: other fields of each step."""
    steps = [LaunchText(own, number=n, **{key: values[n] for key, values in of_step.items()}) for n, own in enumerate(pointers)]
    constants: dict[str, Any] = {f"launch{n}": record.launch for n, record in enumerate(records)}
    parts = RunParts(["p0", "p1", "p2", "s"], steps=steps, constants={**constants, "stream": lambda device: STREAMS[0], "device": 0})
    return write_run(parts)


def two(kernel: LoadedKernel) -> list[LaunchRecord]:  # noqa: F811
    first = kernel.record((3, 4, 5), (32, 2, 1), 1000, [("pointer", 1), ("pointer", 0), ("scalar", "int", 0)])
    return [first, kernel.record((7,), (64,), 0, [("pointer", 0), ("scalar", "long long", 9), ("pointer", 1)])]


def test_each_launch_gets_its_own_addresses_scalars_and_stream(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    fake_driver.set(arg_count=3)
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2 + 512"]], scalars=[[(2, "s")], []])
    assert "launch0" not in run.__code__.co_names, "they are written out"
    for call, stream in enumerate((0x55, 0x55, 0x77)):
        STREAMS[0] = stream
        assert run(0x7000 + call, 0x8000, 0x9000, 40 + call) == []
        a, b = fake_driver.launch(1), fake_driver.launch()
        assert (list(a.grid), list(a.block), a.shared, a.stream) == ([3, 4, 5], [32, 2, 1], 1000, stream)
        assert (list(b.grid), list(b.block), b.shared, b.stream) == ([7, 1, 1], [64, 1, 1], 0, stream)
        assert list(a.args)[:2] == [0x8000, 0x7000 + call] and a.args[2] & 0xFFFFFFFF == 40 + call
        assert list(b.args)[:3] == [0x8000, 9, 0x9200]
    STREAMS[0] = 0x55


def test_what_a_function_was_written_from_stays_as_it_was(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    """Records of calls have these constants and no others."""
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2"]])
    alone = written(two(kernel)[:1], [["p0", "p1"]])
    assert set(run.parts.constants) == {"launch0", "launch1", "stream", "device"} and set(alone.parts.constants) == {"launch0", "stream", "device"}


def test_equal_addresses_are_written_once(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    fake_driver.set(arg_count=1)
    record = kernel.record((1,), (32,), 0, [("pointer", 0)])
    run = written([record] * 3, [["p0"], ["p1"], ["p0"]])
    run(5, 6, 7, 0)
    assert [fake_driver.launch(n).args[0] for n in (2, 1, 0)] == [5, 6, 5]


def test_what_stands_between_two_launches_parts_them(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    fake_driver.set(arg_count=3)
    seen: list[int] = []

    def note() -> None:
        seen.append(fake_driver.launch_count)

    records = [*two(kernel), *two(kernel)]
    steps = [LaunchText(["p0", "p1"], number=n) for n in range(4)]
    steps[2].before = ["note()"]
    steps[2].after = ["note()"]
    constants: dict[str, Any] = {f"launch{n}": record.launch for n, record in enumerate(records)}
    parts = RunParts(["p0", "p1", "p2", "s"], steps=steps, constants={**constants, "stream": lambda device: 1, "device": 0, "note": note})
    write_run(parts)(1, 2, 3, 4)
    assert seen == [2, 3] and fake_driver.launch_count == 4


def test_a_failing_launch_says_which_kernel_and_gives_its_memory_back(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2"]])
    fake_driver.set(fail_next=701, current_context=0xC001)
    with pytest.raises(DriverCallFailed) as error:
        run(1, 2, 3, 4)
    assert first_line(error) == "W713: cuLaunchKernelEx of kernel scale on device 1 failed: CUDA_ERROR_FAKE (701), a fake error"
    run(1, 2, 3, 4)
    assert fake_driver.launch_count == 2


def test_threads_do_not_mix_their_addresses(fake_driver: Any, kernel: LoadedKernel, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The interpreter's lock is released during a launch, so another thread may run the same function meanwhile."""
    mixed: list[Any] = []
    barrier = threading.Barrier(4)

    def slow_call(config: Any, function: Any, addresses: Any, extra: Any) -> int:
        def words() -> list[int]:
            return [ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] for address in addresses._obj]

        before = words()
        barrier.wait(60)
        if words() != before or len(set(before)) != 1:
            mixed.append((before, words()))
        barrier.wait(60)
        return 0

    records = [kernel.record((1,), (32,), 0, [("pointer", 0), ("pointer", 1)]) for _ in range(2)]
    for record in records:
        record.call, record.device = slow_call, None
    run = written(records, [["p0", "p1"], ["p1", "p0"]])
    threads = [threading.Thread(target=lambda me=me: [run(me, me, me, 0) for _ in range(10)]) for me in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mixed == []


@pytest.mark.parametrize("launch_graphs, limit", [(False, 30), (True, 0)])
def test_a_further_launch_costs_few_instructions(fake_driver: Any, kernel: LoadedKernel, launch_graphs: bool, limit: int) -> None:  # noqa: F811
    """About 0.2 us were measured on a quiet machine, this driver's own log included; in a CUDA graph nothing."""

    def instructions(launches: int) -> int:
        records = [kernel.record((128,), (256,), 0, [("pointer", 0), ("pointer", 1)]) for _ in range(launches)]
        with options(launch_graphs=launch_graphs):
            run = written(records, [["p0", "p1"]] * launches)
            for _ in range(5):  # the third call makes a CUDA graph
                run(1 << 40, 1 << 41, 0, 0)
            return instructions_of(lambda: run(1 << 40, 1 << 41, 0, 0))

    assert instructions(12) - instructions(2) <= 10 * limit


# -- as a CUDA graph ----------------------------------------------------------------------------------------------------


def last_two(fake_driver: Any) -> list[tuple[int, list[int]]]:
    """(stream, arguments) of the last two launches."""
    return [(launch.stream, list(launch.args)[:3]) for launch in (fake_driver.launch(1), fake_driver.launch())]


def test_from_the_third_call_on_a_graph_launches_all(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    fake_driver.set(arg_count=3)
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2"]])
    for call in range(6):
        run(7, 8, 9, 0)
        assert last_two(fake_driver) == [(0x55, [8, 7, 0]), (0x55, [8, 9, 9])]
        assert fake_driver.get("graph_launches") == max(0, call - 1) and fake_driver.get("node_updates") == 0
    run(7, 8, 10, 0)
    assert last_two(fake_driver) == [(0x55, [8, 7, 0]), (0x55, [8, 9, 10])] and fake_driver.get("node_updates") == 1, "only what has changed"
    run(17, 18, 10, 0)
    assert last_two(fake_driver) == [(0x55, [18, 17, 0]), (0x55, [18, 9, 10])] and fake_driver.get("node_updates") == 1, "all have: one by one"
    run(7, 8, 9, 0)
    assert last_two(fake_driver) == [(0x55, [8, 7, 0]), (0x55, [8, 9, 9])] and fake_driver.get("node_updates") == 2
    assert fake_driver.get("graph_launches") == 6


def test_scalars_of_each_call_reach_the_graph(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    fake_driver.set(arg_count=3)
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2"]], scalars=[[(2, "s")], []])
    for call in range(5):
        run(7, 8, 9, 40 + call)
        assert [args[2] & 0xFFFFFFFF for _, args in last_two(fake_driver)] == [40 + call, 9]
    assert fake_driver.get("graph_launches") == 3 and fake_driver.get("node_updates") == 3


def test_each_stream_has_a_graph_of_its_own(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    fake_driver.set(arg_count=3)
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2"]])
    try:
        for call in range(8):
            STREAMS[0] = 0x55 if call % 2 else 0x77
            run(call, 8, 9, 0)
            assert last_two(fake_driver) == [(STREAMS[0], [8, call, 0]), (STREAMS[0], [8, 9, 9])]
    finally:
        STREAMS[0] = 0x55
    assert fake_driver.get("graph_launches") == 4


def test_while_a_stream_is_captured_kernels_are_launched_one_by_one(fake_driver: Any, kernel: LoadedKernel, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2"]])
    for _ in range(3):
        run(7, 8, 9, 0)
    monkeypatch.setattr(launch_batch, "_is_capturing", lambda: True)
    run(7, 8, 9, 0)
    assert fake_driver.get("graph_launches") == 1 and fake_driver.launch_count == 8


def test_a_graph_that_the_driver_refuses_is_launched_one_by_one(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2"]])
    for _ in range(3):
        run(7, 8, 9, 0)
    fake_driver.set(graph_status=201)
    run(7, 8, 9, 0)
    fake_driver.set(graph_status=0)
    run(7, 8, 9, 0)
    assert fake_driver.get("graph_launches") == 1 and fake_driver.launch_count == 10


def test_empty_grids_make_no_graph(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    empty = kernel.record((0,), (32,), 0, [("pointer", 0), ("pointer", 1)])
    run = written([empty, *two(kernel)], [["p0", "p1"]] * 3)
    for _ in range(5):
        run(7, 8, 9, 0)
    assert fake_driver.get("graph_launches") == 0 and fake_driver.launch_count == 10


def test_a_graph_goes_with_its_function(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    run = written(two(kernel), [["p0", "p1"], ["p1", "p2"]])
    for _ in range(3):
        run(7, 8, 9, 0)
    del run
    gc.collect()
    assert fake_driver.get("graphs_destroyed") == 1


def test_tensor_maps_move_with_their_tensors(fake_driver: Any, kernel: LoadedKernel) -> None:  # noqa: F811
    fake_driver.set(arg_count=1, map_slot=1)
    records = [kernel.record((1,), (32,), 0, [("pointer", 0), ("tensor_map", 0, bytes(128))]), kernel.record((1,), (32,), 0, [("pointer", 0), ("pointer", 1)])]
    run = written(records, [["p0"], ["p1", "p2"]])
    for _ in range(2):
        run(0x1000, 8, 9, 0)
        assert bytes(fake_driver.launch(1).map)[:8] == (0x1000).to_bytes(8, "little")
    run(0x1000, 8, 9, 0)
    run(0x2000, 8, 9, 0)
    assert fake_driver.get("graph_launches") == 2 and fake_driver.get("node_updates") == 1
    moved = [prepared._launches[0][1][2]._obj[1] for idle in run.__globals__["batch0"].__self__._idle.values() for prepared in idle]
    assert [ctypes.string_at(address, 8) for address in moved] == [(0x2000).to_bytes(8, "little")]
