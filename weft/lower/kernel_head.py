"""The beginning of a kernel (flags of reductions across blocks, barriers of cluster exchanges, carries of scans) and its end (zeros around scales).

Read first: `begin_kernel`.
"""

from __future__ import annotations

from ..errors import InternalError
from ..ir.block_ops import COLUMNS, GROUPED, PADDED, PADDED_COLUMNS, SWIZZLED, sample_of
from .kernel_ir import Kernel, Reduce, Scan, Statement, walk
from .kernel_sync import ClusterArrive, ClusterWait, DeclareFlag, Roles, StartExchanges, StartScan, ZeroPadding
from .state import BuildState
from .contracts import lowering_pass

PADDED_LAYOUTS = (SWIZZLED, COLUMNS, GROUPED, PADDED_COLUMNS, *PADDED)


@lowering_pass(needs=["workspaces", "unswitched"], gives=["kernel head"])
def begin_kernel(kernel: Kernel, state: BuildState) -> Kernel:
    """Insert the declarations and initializations at the kernel's start, and the zeros of the padding between scales at its end.

    Before: the rest of the body is final.   After: every flag, exchange and carry that a statement uses is declared and started at the top; the first reduction
    in a cluster waits until all of its blocks have started.
    Errors: InternalError for an exchange that repeats in a way that no barrier counts.
    Here because: the remaining reductions, and how often each occurs, are known. The zeros are written at the end if all threads get there with their registers
    (async warps do not): at the start, loads would wait for this code.
    """
    reductions = [s for s in walk(kernel.body) if isinstance(s, Reduce)]
    head: list[Statement] = [DeclareFlag(flag) for flag in dict.fromkeys(s.last_flag for s in reductions if s.last_flag)]
    across = [s for s in reductions if s.is_cluster and (s.turn is not None or s in kernel.body)]
    across = list({s.exchange: s for s in across}.values())  # unswitched nests contain each twice
    never_started = next((s for s in reductions if s.is_cluster and s.exchange not in [other.exchange for other in across]), None)
    if never_started is not None:
        raise InternalError(f"{never_started.expr} is exchanged among the blocks of a cluster in nested loops, and no barrier counts its rounds")
    if across:
        head.append(StartExchanges(across))
    if any(s.turn is not None for s in across):
        head += [ClusterArrive(), ClusterWait("every block of the cluster has started")]
    elif across:
        head.append(ClusterArrive("every block of the cluster has started; waited for before the first exchange"))
        next(s for s in reductions if s.is_cluster).awaits_cluster = True
    head += [StartScan(scan) for scan in {s.carry: s for s in walk(kernel.body) if isinstance(s, Scan)}.values()]
    tail: list[Statement] = []
    has_roles = any(isinstance(s, Roles) for s in walk(kernel.body))
    for tensor, buffer in kernel.buffers.items():
        sample = sample_of(tensor)
        if sample is not None and sample.layout in PADDED_LAYOUTS:
            (head if has_roles else tail).append(ZeroPadding(buffer))
    kernel.body = [*head, *kernel.body, *tail]
    return kernel
