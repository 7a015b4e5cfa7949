"""Positions out of range on a GPU: with the setting `bounds`, kernels report the first one, and the host raises at the next chance.

A kernel that reads at positions of index tensors takes element 0 for one out of range, so that no access is wild; nobody hears of it. Under the setting it
also writes into memory of the host, one piece per kernel, which is read without waiting for the GPU: before each further call, and by `synchronize`
when the GPU has ended its work. Owns that memory. Read first: `raise_reported`.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING

import torch

from .. import arch as chips, forking
from ..errors import UserError
from ..lower.program import KernelProgram

if TYPE_CHECKING:
    from .driver import LoadedKernel

GLOBAL = "weft_bounds_report"
"""The variable of the device library that points to a kernel's report."""
BLOCK = "lookup"
"""The block of the device library that reports."""
_PORTABLE_AND_MAPPED = 1 | 2  # CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP
_PAGE_BYTES, _REPORT_BYTES = 4096, 32


class PositionOutOfRange(UserError, IndexError):
    code = "W765"
    what = "kernel {kernel} read position {position} of an axis of {extent} elements, and took element 0 instead: {ops}"
    fix = "use positions of at least 0 and below the extent of the axis; in the emulator (WEFT_EMULATE=on) the error names the thread and the line"


class Report:
    """The report of a kernel in host memory: claimed, complete, then position and extent."""

    def __init__(self, program: KernelProgram, address: int) -> None:
        self.address = address
        self.kernel = program.name
        lines = program.text.split("\n")
        told = [o.text for o in program.origins if o.kind == "op" and any("weft::position" in line for line in lines[o.first_line - 1 : o.last_line])]
        self.ops = "; ".join(dict.fromkeys(told))

    def take(self) -> PositionOutOfRange | None:
        """Return the report since the last call, if any."""
        words = (ctypes.c_uint32 * 2).from_address(self.address)
        if not words[1]:
            return None
        position, extent = (ctypes.c_int64 * 2).from_address(self.address + 8)
        words[1] = 0
        words[0] = 0
        return PositionOutOfRange(kernel=self.kernel, position=position, extent=extent, ops=self.ops)


_lock = forking.lock()
_reports: list[Report] = []
_free: list[int] = []


@forking.in_child
def _forget() -> None:
    """Drop the reports in a forked child: they belong to the parent."""
    _reports.clear()
    _free.clear()


def attach(kernel: LoadedKernel, program: KernelProgram) -> None:
    """Connect a kernel that was compiled with bounds reports to a report. Errors: those of the driver."""
    with _lock:
        if not _free:
            _free.extend(_new_page(kernel.device))
        report = Report(program, _free.pop())
        kernel.set_pointer(GLOBAL, report.address)
        _reports.append(report)
    weakref.finalize(kernel, _detach, report).atexit = False


def _detach(report: Report) -> None:
    with _lock:
        if report in _reports and report.take() is None:  # unread reports are kept
            _reports.remove(report)
            _free.append(report.address)


def _new_page(device: int) -> list[int]:
    """Return addresses of reports in memory that every GPU of the process can write. It is never given back: a kernel may be running."""
    from .driver import current_context

    library, address = chips.driver_library(), ctypes.c_void_p()
    with current_context(device):
        chips.check(library, "cuMemHostAlloc", library.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(_PAGE_BYTES), _PORTABLE_AND_MAPPED))
    start = address.value or 0
    ctypes.memset(start, 0, _PAGE_BYTES)
    return list(range(start, start + _PAGE_BYTES, _REPORT_BYTES))


def raise_reported() -> None:
    """Raise the error for a report of a kernel, once. Errors: PositionOutOfRange."""
    for report in list(_reports):
        found = report.take()
        if found is not None:
            raise found


def synchronize(device: int | str | torch.device | None = None) -> None:
    """Wait until a GPU has ended its work, like torch.cuda.synchronize, and raise errors for positions that kernels found out of range. Only kernels made under
    the setting `bounds` check. Errors: PositionOutOfRange.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize(device)
    raise_reported()
