"""What is kept on a GPU: modules are unloaded beyond the limit, memory stays flat, and a forked child is told why it cannot go on."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
import torch

from weft import FusionDefinition
from weft.options import options
from weft.runtime import modules

pytestmark = pytest.mark.gpu


def made(number: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.mul(x, 1.5 + number), 0.25))
    return fd


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="free memory is that of the whole GPU: run without -n")
def test_modules_beyond_the_limit_are_unloaded_and_memory_stays_flat() -> None:
    x = torch.ones(3, 4, device="cuda")
    held = []
    with options(kept_kernels=4):
        for number in range(48):
            (y,) = made(number).execute([x])
            assert y.tolist() == [[1.75 + number] * 4] * 3
            if number % 16 == 15:
                gc.collect()
                torch.cuda.synchronize()
                held.append(torch.cuda.mem_get_info()[0])
    assert len(modules._retired[torch.cuda.current_device()]) <= 5
    assert held[1] - held[2] <= 4 << 20, held  # the driver takes memory in pieces of 2 MiB
    made(0).execute([x])  # what was unloaded is loaded again


def test_a_kernel_that_a_graph_holds_is_not_unloaded() -> None:
    x = torch.ones(3, 4, device="cuda")
    fd = made(1000)
    fd.execute([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = fd.execute([x])
    del fd
    with options(kept_kernels=2):
        for number in range(2000, 2012):
            made(number).execute([x])
    gc.collect()
    x.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [[2.0 * 1001.5 + 0.25] * 4] * 3


CHILD = """
import os, sys, torch
from weft import FusionDefinition
def made():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.relu(x))
    return fd
made().execute([torch.ones(4, device="cuda")])
child = os.fork()
if child == 0:
    try:
        from weft.runtime.driver import load_kernel
        load_kernel(b"", "nothing", 0)
        print("nothing was said", flush=True)
    except BaseException as error:
        print(type(error).__name__, str(error).splitlines()[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_after_the_gpu_was_used_gets_an_error_by_name() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout.splitlines()
    assert said and "forked from one that had used the GPU" in said[-1], done.stdout + done.stderr
