"""From a first schedule by hand to one that reads by vectors: `python examples/schedule_by_hand.py`.

Each step is the same definition, relu(x + y), with a schedule of its own; the texts of the kernels show what changes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft import FusionDefinition, ParallelType, TensorView

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def defined(schedule: Callable[[FusionDefinition, TensorView], None] | None = None) -> FusionDefinition:
    """Return the definition, scheduled by a function inside of its block, or not at all."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        out = fd.ops.relu(x + y)
        fd.add_output(out)
        if schedule is not None:
            schedule(fd, out)
    return fd


def one_thread_per_element(fd: FusionDefinition, out: TensorView) -> None:
    """Blocks of 128 threads, an element each."""
    out.split(0, 128)  # type: ignore[attr-defined]
    fd.sched.transform_like(out)
    out.axis(0).parallelize(ParallelType.grid_x)
    out.axis(1).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(out)
    fd.sched.inline_most()


def main() -> None:
    """Run the steps, compare with torch, and with what a scheduler chooses."""
    a, b = torch.randn(1000, device=DEVICE), torch.randn(1000, device=DEVICE)
    by_hand = defined(one_thread_per_element)
    torch.testing.assert_close(by_hand.manual_execute([a, b])[0], (a + b).relu())
    print("by hand:  blocks of 128 threads, one element each: equal to torch")
    automatic = defined()
    torch.testing.assert_close(automatic.execute([a, b])[0], (a + b).relu())
    text = automatic.fec.get_cuda_kernel([a, b])
    print("by weft:  the scheduler's own kernel, which reads by vectors:\n")
    print("\n".join(text.splitlines()[:25]))


if __name__ == "__main__":
    main()
