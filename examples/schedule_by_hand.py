"""From a first schedule by hand to a pipeline with two roles: `python examples/schedule_by_hand.py`.

Each step is the same definition, relu(x + y), with a schedule of its own: threads that load for themselves, vectors, then two warps that only load, each one
input, by bulk copies into a ring of stages, while the others compute. The texts of the kernels show what changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from weft import FusionDefinition, LoadStoreOpType, MemoryType, ParallelType, TensorView

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Schedule = Callable[[FusionDefinition, Sequence[TensorView], TensorView], None]


def defined(schedule: Schedule | None = None) -> FusionDefinition:
    """Return the definition, scheduled by a function inside of its block, or not at all."""
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1], contiguity=True) for _ in range(2)]
        out = fd.ops.relu(inputs[0] + inputs[1])
        fd.add_output(out)
        if schedule is not None:
            schedule(fd, inputs, out)
    return fd


def one_element_per_thread(fd: FusionDefinition, inputs: Sequence[TensorView], out: TensorView) -> None:
    """Blocks of 128 threads, an element each."""
    out.split(0, 128)
    fd.sched.transform_like(out)
    out.axis(0).parallelize(ParallelType.grid_x)
    out.axis(1).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(out)
    fd.sched.inline_most()


def vectors(fd: FusionDefinition, inputs: Sequence[TensorView], out: TensorView) -> None:
    """Four elements per thread: one load of 16 bytes for each input, one store."""
    copies = [x.cache_after() for x in inputs]
    out.cache_before()
    out.split(0, 4)
    out.split(0, 128)
    fd.sched.transform_like(out)
    out.axis(0).parallelize(ParallelType.grid_x)
    out.axis(1).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(out)
    for tensor in (*copies, out):
        tensor.axis(2).parallelize(ParallelType.vectorize)
    fd.sched.inline_most()


def two_roles(fd: FusionDefinition, inputs: Sequence[TensorView], out: TensorView) -> None:
    """Two blocks take tiles of 512 elements in turn; warp 0 loads x, warp 1 loads y, four stages ahead at most."""
    loads = [x.cache_after(LoadStoreOpType.tma) for x in inputs]
    for load in loads:
        load.set_memory_type(MemoryType.shared)
    out.split(0, 512)
    out.split(0, 2)  # [turns, blocks, 512]
    fd.sched.transform_like(out)
    assert fd.fusion is not None
    others = [tensor for tensor in fd.fusion.tensors() if tensor not in loads and tensor not in inputs]
    for tensor in others:
        tensor.split(2, 128)
        tensor.axis(3).parallelize(ParallelType.block_x)
    for tensor in (*loads, *others):
        tensor.axis(1).parallelize(ParallelType.grid_x)
    for load in loads:
        load.axis(2).parallelize(ParallelType.tma)
    fd.sched.inline_at(out, 2, selected_tensors=loads)
    fd.sched.inline_most(selected_tensors=others)
    for role, load in enumerate(loads):
        fd.sched.warp_specialize(load, 4, 3, ParallelType.block_x, async_warp=role)


def main() -> dict[str, str]:
    """Run the steps, compare with torch, and with what a scheduler chooses; return the texts of the kernels."""
    a, b = torch.randn(4096, device=DEVICE), torch.randn(4096, device=DEVICE)
    texts = {}
    for name, schedule in (("an element per thread", one_element_per_thread), ("vectors", vectors), ("two roles", two_roles)):
        fd = defined(schedule)
        torch.testing.assert_close(fd.manual_execute([a, b])[0], (a + b).relu())
        texts[name] = fd.ke.kernel_runtimes[0].program.text
        print(f"by hand, {name}: equal to torch; {len(texts[name].splitlines())} lines")
    automatic = defined()
    torch.testing.assert_close(automatic.execute([a, b])[0], (a + b).relu())
    texts["chosen"] = automatic.fec.get_cuda_kernel([a, b])
    print("\nby hand, two roles, of which each has a branch of its own:\n")
    print(texts["two roles"])
    print("by weft, the scheduler's own kernel for so few elements:\n")
    print(texts["chosen"])
    return texts


if __name__ == "__main__":
    main()
