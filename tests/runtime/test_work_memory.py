"""Zeroed memory as written calls find it: without asking where the default stream has enough, else by `zeroed`."""

from __future__ import annotations

from typing import Any

from weft.runtime import work_memory


def ask(queue: int, size_bytes: int) -> tuple[Any, int, int]:
    """Run the statements of a call; return (memory, address, how often `zeroed` was asked)."""
    asked: list[int] = []

    def zeroed(device: int | None, stream: int, wanted: int) -> Any:
        asked.append(wanted)
        return work_memory.zeroed(device, stream, wanted)

    names = {**work_memory.names(None), "zeroed_memory": zeroed, "queue": queue}
    exec("\n".join(work_memory.statements(size_bytes)), names)
    return names["memory"], names["zeroed"], len(asked)


def test_the_default_stream_is_asked_once_and_again_for_more() -> None:
    work_memory.forget()
    memory, address, asked = ask(0, 256)
    assert asked == 1 and address == memory.data_ptr() + work_memory.SCRATCH_BYTES
    assert ask(0, 256)[1:] == (address, 0)
    larger, at, asked = ask(0, 1 << 20)
    assert asked == 1 and larger.numel() >= work_memory.SCRATCH_BYTES + (1 << 20) and not larger[work_memory.SCRATCH_BYTES :].any()
    assert ask(0, 256)[1:] == (at, 0)


def test_memory_that_a_failed_kernel_left_is_not_found_again() -> None:
    before = ask(0, 256)[0]
    before[work_memory.SCRATCH_BYTES :].fill_(1)
    work_memory.forget()
    memory, _, asked = ask(0, 256)
    assert asked == 1 and memory is not before and not memory[work_memory.SCRATCH_BYTES :].any()


def test_other_streams_are_always_asked_for_a_graph_may_be_captured_there() -> None:
    assert ask(7, 256)[2] == ask(7, 256)[2] == 1
    assert ask(7, 256)[1] != ask(0, 256)[1]
