"""The two machines that run the kernels of these tests: the emulator always, the GPU where there is one."""

from __future__ import annotations

import functools

import torch
from pointwise_kernels import STORAGE, THREADS, Case, unit

from weft.dtypes import DataType
from weft.emulator import Buffer, EmulatedKernel, Scalar
from weft.runtime.driver import LoadedKernel, load_kernel
from weft.runtime.nvrtc import compile_cubin


@functools.lru_cache(maxsize=None)
def _emulated(compute: DataType, entry: str) -> EmulatedKernel:
    return EmulatedKernel(unit(compute), entry)


def run_emulated(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Run the kernel of one op over `inputs` in the emulator."""
    count = inputs[0].numel()
    out = torch.zeros(count, dtype=STORAGE[case.out])
    buffers = [Buffer.of(x, f"input {i}") for i, x in enumerate(inputs)]
    _emulated(case.compute, case.entry).launch((1, 1, 1), (THREADS, 1, 1), 0, [*buffers, Buffer.of(out, "out", written=True), Scalar("int", count)])
    return out


@functools.lru_cache(maxsize=None)
def _cubin(compute: DataType, arch: str) -> bytes:
    text = unit(compute)
    return compile_cubin(text, first_entry(text), arch).cubin


@functools.lru_cache(maxsize=None)
def _loaded(compute: DataType, entry: str) -> LoadedKernel:
    major, minor = torch.cuda.get_device_capability()
    return load_kernel(_cubin(compute, f"sm_{major}{minor}" + ("a" if major >= 9 else "")), entry, torch.cuda.current_device())


def run_on_gpu(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Run the kernel of one op over `inputs` on the current GPU; the result comes back to the CPU."""
    count = inputs[0].numel()
    on_device = [x.cuda() for x in inputs]
    out = torch.zeros(count, dtype=STORAGE[case.out], device="cuda")
    tensors = [*on_device, out]
    slots = [("pointer", i) for i in range(len(tensors))] + [("scalar", "int", count)]
    record = _loaded(case.compute, case.entry).record((min(4096, -(-count // THREADS)),), (THREADS,), 0, slots)
    record.launch([t.data_ptr() for t in tensors], torch.cuda.current_stream().cuda_stream)
    return out.cpu()


def first_entry(text: str) -> str:
    """The name of the first kernel of a translation unit."""
    return text.split('extern "C" __global__ void ')[1].split("(")[0]
