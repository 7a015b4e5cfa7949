"""A launch that is prepared once and repeated: the fast path.

Owns the argument buffers and the call into the driver. `LaunchRecord.launch` writes the tensors' addresses into prepared
memory and calls cuLaunchKernelEx; it sets no attribute, synchronises nothing and allocates nothing on the device, so it can
be captured into a CUDA graph (capturing copies the arguments).

Why it looks like this: ctypes spends its time on converting arguments, so all four of cuLaunchKernelEx are converted
beforehand, and the pointers go in by one slice assignment, or, where the launch is written out, by struct.pack_into, which needs
no tuple. The interpreter lock is released during the call: a full launch queue blocks the caller, and another thread may be
needed to empty it. A list of idle buffers costs less than a lock around them. The function of a warm call has the launch written
out (`LaunchRecord.written`), which saves a call and its sequences of arguments. Measured: docs/executors.md.
Read first: `LaunchRecord`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from weft.errors import InternalError

ScalarType: TypeAlias = "str | type[ctypes._SimpleCData[Any]]"
ParamSlot: TypeAlias = "tuple[Literal['pointer'], int] | tuple[Literal['scalar'], ScalarType, int | float | bool] | tuple[Literal['tensor_map'], int, bytes]"
"""One kernel parameter, in the kernel's order:
("pointer", i): the address `pointers[i]` of the launch; several slots may name one i.
("scalar", type, value): by value; `type` is CUDA's name ("int", "long long", "float", ...) or a ctypes type.
("tensor_map", i, encoded): a 128-byte tensor map whose tensor begins at `pointers[i]`."""

CTYPES: dict[str, type[ctypes._SimpleCData[Any]]] = {
    "bool": ctypes.c_bool,
    "signed char": ctypes.c_int8,
    "unsigned char": ctypes.c_uint8,
    "short": ctypes.c_int16,
    "unsigned short": ctypes.c_uint16,
    "int": ctypes.c_int32,
    "unsigned": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32,
    "long long": ctypes.c_int64,
    "unsigned long long": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
"""CUDA's names of the scalar parameter types; weft::bf16 and weft::f16 are passed as "unsigned short" bits."""

TENSOR_MAP_BYTES = 128
_TENSOR_MAP_ALIGNMENT_BYTES = 64  # CUtensorMap is alignas(64)
_WORD_BYTES = 8


class BadParameter(InternalError):
    code = "W750"
    what = "kernel parameter {slot} is {value!r}: {reason}"


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes that is written as unsigned ints here."""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


STREAM_WORD = LaunchConfig.stream.offset // _WORD_BYTES
_CONFIG_WORDS = ctypes.sizeof(LaunchConfig) // _WORD_BYTES

ATTRIBUTE_COOPERATIVE = 2  # CUlaunchAttributeID
ATTRIBUTE_CLUSTER_DIMENSION = 4
ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6


def make_config(
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    *,
    cluster: Sequence[int] | None = None,
    cooperative: bool = False,
    overlap_previous: bool = False,
) -> LaunchConfig:
    """Fill in CUlaunchConfig, its stream left 0.

    `overlap_previous` lets the kernel start before the previous one of the stream has ended (programmatic dependent
    launch): only for a kernel that calls griddep_wait() before it reads.
    """
    attributes: list[tuple[int, Sequence[int]]] = []
    if cluster is not None:
        attributes.append((ATTRIBUTE_CLUSTER_DIMENSION, _three(cluster)))
    if cooperative:
        attributes.append((ATTRIBUTE_COOPERATIVE, (1,)))
    if overlap_previous:
        attributes.append((ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, (1,)))
    array = (LaunchAttribute * max(1, len(attributes)))()
    for place, (number, values) in zip(array, attributes):
        place.id = number
        place.value[: len(values)] = list(values)
    config = LaunchConfig(grid=_three(grid), block=_three(block), shared_bytes=shared_bytes, attribute_count=len(attributes))
    config.attributes = ctypes.cast(array, ctypes.POINTER(LaunchAttribute))  # keeps the array alive
    return config


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


class _Prepared:
    """The memory of one launch at a time: argument values, their addresses, and the configuration."""

    __slots__ = ("fields", "keep_alive", "scalars")

    def __init__(
        self, params: Sequence[ParamSlot], config: LaunchConfig, function: ctypes.c_void_p, pointer_count: int, places: Sequence[int] | None = None
    ) -> None:
        """places: the addresses of the pointers, if several launches share that memory; otherwise this object has its own."""
        map_offset = -(-pointer_count * _WORD_BYTES // _TENSOR_MAP_ALIGNMENT_BYTES) * _TENSOR_MAP_ALIGNMENT_BYTES
        map_count = sum(slot[0] == "tensor_map" for slot in params)
        scalar_offset = map_offset + map_count * TENSOR_MAP_BYTES
        total_bytes = scalar_offset + sum(slot[0] == "scalar" for slot in params) * _WORD_BYTES
        memory = ctypes.create_string_buffer(total_bytes + _TENSOR_MAP_ALIGNMENT_BYTES)
        base = -(-ctypes.addressof(memory) // _TENSOR_MAP_ALIGNMENT_BYTES) * _TENSOR_MAP_ALIGNMENT_BYTES
        addresses = (ctypes.c_void_p * max(1, len(params)))()
        self.scalars: dict[int, Any] = {}
        maps: list[list[Any]] = []  # [address of the map, index into pointers, the address it holds now]
        for number, slot in enumerate(params):
            if slot[0] == "pointer":
                addresses[number] = base + slot[1] * _WORD_BYTES if places is None else places[slot[1]]
            elif slot[0] == "tensor_map":
                addresses[number] = base + map_offset
                ctypes.memmove(base + map_offset, slot[2], TENSOR_MAP_BYTES)
                maps.append([ctypes.c_void_p(base + map_offset), slot[1], None])
                map_offset += TENSOR_MAP_BYTES
            else:
                addresses[number] = base + scalar_offset
                scalar = _scalar_type(number, slot[1]).from_address(base + scalar_offset)
                scalar.value = slot[2]
                self.scalars[number] = scalar
                scalar_offset += _WORD_BYTES
        own_config = LaunchConfig.from_buffer_copy(config)
        values = (ctypes.c_uint64 * pointer_count).from_address(base)
        config_words = (ctypes.c_uint64 * _CONFIG_WORDS).from_buffer(own_config)
        arguments = (ctypes.byref(own_config), function, ctypes.byref(addresses), None)
        self.fields = (values, config_words, arguments, self.scalars, maps)  # one tuple: unpacked faster than five attributes
        self.keep_alive = (memory, own_config, addresses)


def _scalar_type(number: int, name: ScalarType) -> type[ctypes._SimpleCData[Any]]:
    if not isinstance(name, str):
        return name
    if name not in CTYPES:
        raise BadParameter(slot=number, value=name, reason=f"no scalar type; there are {', '.join(CTYPES)}")
    return CTYPES[name]


class LaunchRecord:
    """One kernel with its grid, block and arguments, to be launched again and again.

    Threads may launch one record at the same time: each launch takes prepared memory from a list of idle ones and makes
    more when the list is empty, so nobody waits and an interrupted launch costs one piece of memory.
    """

    __slots__ = ("_config", "_function", "_idle", "_pack", "_params", "_pointer_words", "_prepared", "_replace_address", "_retry", "call", "device", "name")

    def __init__(
        self,
        name: str,
        call: Callable[..., int],
        function: ctypes.c_void_p,
        config: LaunchConfig,
        params: Sequence[ParamSlot],
        retry: Callable[[int, Callable[[], int]], None],
        replace_address: Callable[..., int] | None = None,
        device: int | None = None,
    ) -> None:
        """`call` is cuLaunchKernelEx without argtypes; `retry(status, again)` launches in the device's context, or raises. device: for CUDA graphs."""
        self.name, self.device = name, device
        self.call = call if all((*config.grid, *config.block)) else _launch_nothing
        self._function = function
        self._config = config
        self._params = list(params)
        self._retry = retry
        self._replace_address = replace_address
        pointer_count = _check(self._params)
        self._pointer_words = slice(0, pointer_count)
        self._pack = struct.Struct(f"{pointer_count}Q").pack_into
        self._prepared: list[_Prepared] = []
        self._idle: list[tuple[Any, ...]] = []  # `fields` of the idle ones
        self._idle.append(self._prepare())

    def __repr__(self) -> str:
        """Describe the launch: kernel, grid, block, shared memory, parameters."""
        config = self._config
        params = ", ".join(str(slot[2]) if slot[0] == "scalar" else f"{slot[0]} {slot[1]}" for slot in self._params)
        attributes = {config.attributes[i].id: tuple(config.attributes[i].value) for i in range(config.attribute_count)}
        cluster = f" cluster {attributes[ATTRIBUTE_CLUSTER_DIMENSION][:3]}" if ATTRIBUTE_CLUSTER_DIMENSION in attributes else ""
        cooperative = " cooperative" if ATTRIBUTE_COOPERATIVE in attributes else ""
        shape = f"grid {tuple(config.grid)} block {tuple(config.block)} shared {config.shared_bytes} B"
        return f"<launch {self.name}: {shape}{cluster}{cooperative}; {params}>"

    @property
    def is_empty(self) -> bool:
        """Whether the grid has no blocks, so that nothing is launched."""
        return self.call is _launch_nothing

    @property
    def has_maps(self) -> bool:
        """Whether a parameter is a tensor map."""
        return any(slot[0] == "tensor_map" for slot in self._params)

    @property
    def pointer_count(self) -> int:
        """Number of addresses that `launch` takes."""
        return int(self._pointer_words.stop)

    def launch(self, pointers: Sequence[int], stream: int, scalars: Sequence[tuple[int, int | float | bool]] = ()) -> None:
        """Launch the kernel on `stream` (0: the default one) with these device addresses.

        `scalars` are (slot, value) pairs for this launch, such as a random seed and offset; a slot whose value is given here must be given at every launch. An
        empty grid launches nothing.
        Errors: ValueError if the number of pointers is wrong; DriverCallFailed.
        """
        try:
            prepared = self._idle.pop()
        except IndexError:
            prepared = self._prepare()
        try:
            values, config, arguments, scalar_slots, maps = prepared
            values[self._pointer_words] = pointers  # accepts any sequence, and checks its length
            config[STREAM_WORD] = stream
            for slot, value in scalars:
                scalar_slots[slot].value = value
            if maps:
                self.move_maps(maps, pointers)
            status = self.call(*arguments)
            if status:
                self.again(status, arguments)
        finally:
            self._idle.append(prepared)

    def written(self, number: int, pointers: Sequence[str], stream: str, scalars: Sequence[tuple[int, str]]) -> tuple[list[str], dict[str, Any]]:
        """Return `launch` without tensor maps as statements, and the constants that they use; `number` distinguishes the launches of one function.

        pointers, stream, scalars: those of `launch`, as expressions.
        """
        names = {
            "take": self._idle.pop, "make": self._prepare, "pack": self._pack, "call": self.call, "again": self.again, "give": self._idle.append,
        }  # fmt: skip
        lines = [
            f"try: prepared = take{number}()",
            f"except IndexError: prepared = make{number}()",
            "try:",
            "    values, config, arguments, slots, _ = prepared",
            *([f"    pack{number}(values, 0, {', '.join(pointers)})"] if pointers else []),
            f"    config[{STREAM_WORD}] = {stream}",
            *(f"    slots[{slot}].value = {text}" for slot, text in scalars),
            f"    status = call{number}(*arguments)",
            f"    if status: again{number}(status, arguments)",
            f"finally: give{number}(prepared)",
        ]
        return lines, {f"{name}{number}": value for name, value in names.items()}

    def prepare_at(self, places: Sequence[int]) -> tuple[Any, ...]:
        """Return the fields of memory for one launch at a time, with the pointers at these addresses: for a `LaunchBatch`."""
        prepared = _Prepared(self._params, self._config, self._function, self.pointer_count, places)
        self._prepared.append(prepared)
        return prepared.fields

    def again(self, status: int, arguments: tuple[Any, ...]) -> None:
        """Launch once more after a failure, in the device's context. Errors: DriverCallFailed."""
        self._retry(status, lambda: self.call(*arguments))

    def set_scalar(self, slot: int, value: int | float | bool) -> None:
        """Change the value of scalar parameter `slot` (its place among all parameters) for all later launches.

        Not for values that change from call to call while other threads launch: those go to `launch`.
        Errors: BadParameter if the slot is no scalar.
        """
        old = self._params[slot] if 0 <= slot < len(self._params) else None
        if old is None or old[0] != "scalar":
            raise BadParameter(slot=slot, value=old, reason="not a scalar")
        self._params[slot] = ("scalar", old[1], value)
        for prepared in self._prepared:
            prepared.scalars[slot].value = value

    def _prepare(self) -> tuple[Any, ...]:
        prepared = _Prepared(self._params, self._config, self._function, self.pointer_count)
        self._prepared.append(prepared)
        return prepared.fields

    def move_maps(self, maps: list[list[Any]], pointers: Sequence[int]) -> None:
        """Update the addresses in the tensor maps where they have changed; encoding them again would cost much more."""
        for entry in maps:
            address, index, held = entry
            if pointers[index] != held:
                if self._replace_address is None:
                    raise BadParameter(slot=index, value="tensor_map", reason="this driver has no cuTensorMapReplaceAddress")
                status = self._replace_address(address, ctypes.c_void_p(pointers[index]))
                if status:
                    reason = f"no address for a tensor map (error {status}); it needs 16 byte alignment"
                    raise BadParameter(slot=index, value=hex(pointers[index]), reason=reason)
                entry[2] = pointers[index]


def _launch_nothing(*arguments: object) -> int:
    """Launch nothing, for an empty grid, which the driver refuses."""
    return 0


def _check(params: Sequence[ParamSlot]) -> int:
    """Return the number of pointers in the slots; raise BadParameter for a malformed slot."""
    count = 0
    for number, slot in enumerate(params):
        if slot[0] in ("pointer", "tensor_map"):
            count = max(count, slot[1] + 1)
        if slot[0] == "tensor_map" and len(slot[2]) != TENSOR_MAP_BYTES:
            raise BadParameter(slot=number, value=slot, reason=f"a tensor map has {TENSOR_MAP_BYTES} bytes")
        if slot[0] not in ("pointer", "scalar", "tensor_map"):
            raise BadParameter(slot=number, value=slot, reason="the first field is pointer, scalar or tensor_map")
    return count


def current_stream_reader() -> Callable[[int], int]:
    """Return a function from device index to the handle of torch's current stream there.

    torch's own raw reader takes a fraction of the time of `torch.cuda.current_stream(device).cuda_stream`, which builds
    an object; it exists in CUDA builds only.
    """
    import torch

    reader: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return reader or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))
