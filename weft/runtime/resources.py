"""What a compiled kernel uses: registers, shared memory, stack, spills. Needs no GPU.

Owns the reading of cubins (ELF) and of ptxas's report. Registers and stack come from the cubin, which is what runs;
spills and barriers are only in the report (`-v`).
Read first: `resources_of`.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace

from weft.errors import InternalError, UserError


class NotACubin(InternalError):
    code = "W730"
    what = "these {size} bytes are not machine code of kernel {entry!r}: {reason}"


class CooperativeGridTooLarge(UserError):
    code = "W761"
    what = "kernel {kernel} synchronises its grid of {blocks} blocks, and {chip} can hold {resident} of them at a time: {why}"
    fix = "launch at most {resident} blocks, or use fewer threads, registers or shared memory per block"


class TooManySpills(UserError):
    code = "W784"
    what = "kernel {kernel} spills {bytes} bytes per thread to local memory, with {registers} registers per thread; at most {limit} bytes are allowed"
    fix = "keep fewer elements per thread, or allow more registers (fewer threads per block)"


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one kernel; None if unknown (spills and barriers need ptxas's report).

    Units: registers per thread; `static_shared_bytes` per block without the 1 KiB that CUDA adds; `stack_bytes`,
    `spill_store_bytes` and `spill_load_bytes` per thread; `code_bytes` is the length of the machine code; `constant_bytes` is the sum over all banks of
    constant memory, launch parameters included.
    """

    registers: int
    static_shared_bytes: int
    stack_bytes: int
    code_bytes: int
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    barriers: int | None = None
    constant_bytes: int | None = None

    @property
    def has_spills(self) -> bool:
        return bool(self.spill_store_bytes or self.spill_load_bytes)

    def to_json(self) -> dict[str, int | None]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, int | None]) -> Resources:
        """Read the result of `to_json`. Errors: ValueError, TypeError."""
        found = {field.name: values.get(field.name) for field in fields(cls)} if isinstance(values, Mapping) else {"": ""}
        if not all(value is None or type(value) is int for value in found.values()):
            raise ValueError(f"{values!r} are no resources of a kernel")
        return cls(**found)  # type: ignore[arg-type]

    def __str__(self) -> str:
        spills = "" if self.spill_store_bytes is None else f", spills {self.spill_store_bytes} B stored {self.spill_load_bytes} B loaded"
        return f"{self.registers} registers, {self.static_shared_bytes} B static shared, {self.stack_bytes} B stack{spills}, {self.code_bytes} B code"


# ELF64 (System V gABI) and what NVIDIA puts into `.nv.info`: records of format byte, attribute byte, 16-bit size or value.
# Attribute numbers as `cuobjdump -elf` names them.
_ELF_SECTION = struct.Struct("<IIQQQQIIQQ")
_ELF_SYMBOL = struct.Struct("<IBBHQQ")
_FORMAT_WITH_PAYLOAD = 4
_ATTRIBUTE_REGISTERS = 0x2F
_ATTRIBUTE_FRAME_BYTES = 0x11
_MACHINE_CUDA = 190
_SHARED_RESERVED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    offset: int
    bytes: int
    kind: int
    link: int


def _sections(cubin: bytes) -> list[_Section]:
    (table_offset,) = struct.unpack_from("<Q", cubin, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    raw = [_ELF_SECTION.unpack_from(cubin, table_offset + i * entry_bytes) for i in range(count)]
    names_offset = raw[names_index][4]
    return [_Section(_c_string(cubin, names_offset + r[0]), offset=r[4], bytes=r[5], kind=r[1], link=r[6]) for r in raw]


def _c_string(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _info_records(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Attribute number and payload of each record of a `.nv.info` section that has a payload."""
    offset = 0
    while offset + 4 <= len(payload):
        kind, attribute, size = struct.unpack_from("<BBH", payload, offset)
        offset += 4
        if kind == _FORMAT_WITH_PAYLOAD:
            yield attribute, payload[offset : offset + size]
            offset += size


def cubin_resources(cubin: bytes, entry: str) -> Resources:
    """Read a kernel's resources off its cubin.

    Errors: NotACubin.
    """

    def refuse(reason: str) -> NotACubin:
        return NotACubin(size=len(cubin), entry=entry, reason=reason)

    if cubin[:5] != b"\x7fELF\x02" or cubin[18:20] != _MACHINE_CUDA.to_bytes(2, "little"):
        raise refuse("not a 64-bit CUDA ELF file")
    try:
        sections = _sections(cubin)
        by_name = {section.name: section for section in sections}
        text = by_name.get(f".text.{entry}")
        if text is None:
            kernels = [name.removeprefix(".text.") for name in by_name if name.startswith(".text.")]
            raise refuse(f"it holds {', '.join(kernels) or 'no kernel'}")
        symbol = _symbol_index(cubin, sections, entry)
        values = dict.fromkeys((_ATTRIBUTE_REGISTERS, _ATTRIBUTE_FRAME_BYTES), 0)
        info = by_name[".nv.info"]
        for attribute, payload in _info_records(cubin[info.offset : info.offset + info.bytes]):
            if attribute in values and len(payload) == 8:
                index, value = struct.unpack("<II", payload)
                if index == symbol:
                    values[attribute] = value
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise refuse(f"the file is damaged ({error!r})") from None
    shared = by_name.get(f".nv.shared.{entry}")
    shared_bytes = shared.bytes if shared else 0
    if any(section.name.startswith(".nv.shared.reserved") for section in sections):  # on 9.0 and later CUDA's own KiB is included
        shared_bytes = max(0, shared_bytes - _SHARED_RESERVED_BYTES)
    return Resources(
        registers=values[_ATTRIBUTE_REGISTERS],
        static_shared_bytes=shared_bytes,
        stack_bytes=values[_ATTRIBUTE_FRAME_BYTES],
        code_bytes=text.bytes,
        constant_bytes=sum(section.bytes for section in sections if _is_constant_bank(section.name, entry)),
    )


def _is_constant_bank(section: str, entry: str) -> bool:
    """True for constants of this kernel, and for those of the whole file, which it may read."""
    bank, _, kernel = section.removeprefix(".nv.constant").partition(".")
    return section.startswith(".nv.constant") and bank.isdigit() and kernel in ("", entry)


def _symbol_index(cubin: bytes, sections: list[_Section], entry: str) -> int:
    table = next(section for section in sections if section.kind == 2)  # SHT_SYMTAB
    names_offset = sections[table.link].offset
    for index in range(table.bytes // _ELF_SYMBOL.size):
        name, kind, *_ = _ELF_SYMBOL.unpack_from(cubin, table.offset + index * _ELF_SYMBOL.size)
        if kind & 15 == 2 and _c_string(cubin, names_offset + name) == entry:  # STT_FUNC
            return index
    raise KeyError(entry)


_PROPERTIES = re.compile(
    r"Function properties for (?P<entry>\S+)\s+.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\s*(?:ptxas info\s*:\s*Used (?P<registers>\d+) registers(?P<used>[^\n]*))?"
)


def resources_of(cubin: bytes, entry: str, report: str = "") -> Resources:
    """Read a kernel's resources: from its cubin, and from ptxas's report (`-v`) the spills of a kernel with a stack, and barriers.

    Errors: NotACubin.
    """
    found = cubin_resources(cubin, entry)
    for match in _PROPERTIES.finditer(report):
        if match["entry"] == entry:
            barriers = re.search(r"used (\d+) barriers", match["used"] or "")
            spills = {"spill_store_bytes": int(match["stores"]), "spill_load_bytes": int(match["loads"])}
            return replace(found, **spills, barriers=int(barriers[1]) if barriers else 0)
    return found if found.stack_bytes else replace(found, spill_store_bytes=0, spill_load_bytes=0)  # spills are on the stack


@functools.cache
def disassembler() -> str | None:
    """Path of nvdisasm: on PATH, in a CUDA toolkit, in NVIDIA's package of it or in Triton's; None when there is none."""
    on_path = shutil.which("nvdisasm")
    if on_path:
        return on_path
    folders = [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    folders += sorted(glob.glob("/usr/local/cuda*/bin"), reverse=True)
    nvidia = importlib.util.find_spec("nvidia")
    for root in (nvidia.submodule_search_locations or []) if nvidia else []:
        folders += sorted(glob.glob(os.path.join(root, "*", "bin")), reverse=True)
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        folders.append(os.path.join(os.path.dirname(triton.origin), "backends", "nvidia", "bin"))
    return next((path for folder in folders if os.access(path := os.path.join(folder, "nvdisasm"), os.X_OK)), None)


def disassemble(cubin: bytes) -> str | None:
    """Return the machine code as text (SASS), or None without a working nvdisasm."""
    tool = disassembler()
    if tool is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
