"""Enumerations of the IR, with nvFuser's names and values' names."""

from __future__ import annotations

from enum import Enum


class ParallelType(Enum):
    """What executes the iterations of a loop axis."""

    mesh_x = "deviceIdx.x"
    mesh_y = "deviceIdx.y"
    mesh_z = "deviceIdx.z"
    grid_x = "blockIdx.x"
    grid_y = "blockIdx.y"
    grid_z = "blockIdx.z"
    block_x = "threadIdx.x"
    block_y = "threadIdx.y"
    block_z = "threadIdx.z"
    mma = "MMA"
    serial = "S"
    tma = "B"
    unroll = "UR"
    unswitch = "US"
    vectorize = "V"
    group = "G"
    stream = "Stream"

    __hash__ = object.__hash__  # Enum's own hashes the name in Python, at each look into a set

    @property
    def is_block(self) -> bool:
        """True for an axis spread over the blocks of the grid."""
        return self in GRID_TYPES

    @property
    def is_thread(self) -> bool:
        """True for an axis spread over the threads of a block."""
        return self in BLOCK_TYPES

    @property
    def is_bound(self) -> bool:
        """True if the axis is not a loop: its index is a block or thread index."""
        return self in GRID_TYPES or self in BLOCK_TYPES


GRID_TYPES = (ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z)
BLOCK_TYPES = (ParallelType.block_x, ParallelType.block_y, ParallelType.block_z)


class IterType(Enum):
    """The type of an axis. symbolic: iteration or broadcast, decided per call (`weft.graph.concretize`); no kernel has such an axis."""

    iteration = "i"
    reduction = "r"
    broadcast = "b"
    symbolic = "?"


class MemoryType(Enum):
    tensor = "tensor"
    local = "local"
    shared = "shared"
    global_ = "global"
    symmetric = "symmetric"


# `global` is a keyword; the API's name is reachable by attribute access through getattr and by `MemoryType["global"]`.
setattr(MemoryType, "global", MemoryType.global_)


class LoadStoreOpType(Enum):
    set = "set"
    load_matrix = "load_matrix"
    cp_async = "cp_async"
    tma = "tma"


class CacheOp(Enum):
    unspecified = "unspecified"
    all_levels = "all_levels"
    streaming = "streaming"
    global_ = "global"


setattr(CacheOp, "global", CacheOp.global_)


class IdMappingMode(Enum):
    exact = "exact"
    almost_exact = "almost_exact"
    broadcast = "broadcast"
    permissive = "permissive"
    loop = "loop"


class SchedulerType(Enum):
    """Schedulers by nvFuser's names, in the order in which they are asked."""

    none = "none"
    expr_eval = "expr_eval"
    no_op = "no_op"
    matmul = "matmul"
    reduction = "reduction"
    resize = "resize"
    transpose = "transpose"
    pointwise = "pointwise"
    inner_persistent = "inner_persistent"
    outer_persistent = "outer_persistent"
    inner_outer_persistent = "inner_outer_persistent"
    greedy = "greedy"


setattr(SchedulerType, "__entries", {e.name: (e, None) for e in SchedulerType})
