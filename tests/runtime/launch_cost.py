"""Python's cost of one kernel launch, for the ways that there are. Run it: it needs a C compiler and no GPU.

The driver is a library whose functions return at once, so the figures are Python's part alone.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import tempfile
import threading
import timeit
from collections.abc import Callable
from pathlib import Path

from weft.runtime.launch import LaunchRecord, make_config

STUB = """
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, void *q, void **p, void **x) { return 0; }
int cuLaunchKernelEx(const void *c, void *f, void **p, void **x) { return 0; }
"""


def show(name: str, call: Callable[[], object], number: int = 100_000) -> None:
    best_s = min(timeit.repeat(call, number=number, repeat=7)) / number
    print(f"{name:<64} {best_s * 1e9:6.0f} ns")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder) / "stub.c", Path(folder) / "libstub.so"
        source.write_text(STUB)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
        measure(ctypes.CDLL(str(path)))


def measure(library: ctypes.CDLL) -> None:
    values, config = (ctypes.c_uint64 * 16)(), (ctypes.c_uint64 * 7)()
    addresses = (ctypes.c_void_p * 16)(*[ctypes.addressof(values) + 8 * i for i in range(16)])
    pointers = [(1 << 40) + 512 * i for i in range(4)]
    function, config_ref, addresses_ref, stream = ctypes.c_void_p(1), ctypes.byref(config), ctypes.byref(addresses), ctypes.c_void_p(0)
    numbers = [ctypes.c_uint(1)] * 7

    print("-- the call")
    extended, plain = library["cuLaunchKernelEx"], library["cuLaunchKernel"]
    show("cuLaunchKernelEx, arguments converted beforehand", lambda: extended(config_ref, function, addresses_ref, None))
    show("cuLaunchKernel, arguments converted beforehand", lambda: plain(function, *numbers, stream, addresses_ref, None))
    extended_typed, plain_typed = library["cuLaunchKernelEx"], library["cuLaunchKernel"]
    extended_typed.argtypes = [ctypes.c_void_p] * 4
    plain_typed.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    config_address, values_address = ctypes.addressof(config), ctypes.addressof(addresses)
    show("cuLaunchKernelEx, argtypes and ints", lambda: extended_typed(config_address, 1, values_address, None))
    show("cuLaunchKernel, argtypes and ints", lambda: plain_typed(1, 128, 1, 1, 256, 1, 1, 0, 0, values_address, None))

    print("-- writing 4 pointers")
    pack = struct.Struct("4Q").pack_into

    def one_by_one() -> None:
        for i, pointer in enumerate(pointers):
            values[i] = pointer

    def slice_assignment() -> None:
        values[0:4] = pointers

    show("slice assignment", slice_assignment)
    show("struct.pack_into", lambda: pack(values, 0, *pointers))
    show("one by one", one_by_one)

    print("-- keeping threads apart")
    lock, idle = threading.Lock(), [object()]

    def locked() -> None:
        with lock:
            pass

    show("a lock", locked)
    show("a list of idle buffers", lambda: idle.append(idle.pop()))

    print("-- all of it")
    for count in (1, 2, 4, 8):
        params = [("pointer", i) for i in range(count)] + [("scalar", "int", 5)] * 3
        record = LaunchRecord("k", extended, function, make_config((128,), (256,), 0), params, lambda *arguments: None)  # type: ignore[arg-type]
        some = [(1 << 40) + 512 * i for i in range(count)]
        show(f"LaunchRecord.launch, {count} pointers", lambda record=record, some=some: record.launch(some, 77))  # type: ignore[misc]
    show("LaunchRecord.launch, 8 pointers and a scalar", lambda: record.launch(some, 77, ((8, 4),)))


if __name__ == "__main__":
    main()
