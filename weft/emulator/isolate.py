"""Running a kernel in a child process: whatever it does, this process lives on, and says what happened.

The child compiles the text, loads it and runs it (`child`), within limits (`jail`) and in a process group of its own, which is killed as a whole.
Buffers travel through one file in memory that cannot be cut; a page-relative copy of each keeps its alignment. The outcome comes back through a pipe
of its own, with a token; a child that sends none is a finding, whatever its exit status. Read first: `run_in_child`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import secrets
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from weft.cache import default_cache
from weft.emulator import build
from weft.emulator.arguments import Arg, BadLaunch, Buffer, ChipLimits, Geometry, LaunchOptions, Scalar
from weft.emulator.native import Outcome
from weft.emulator.report import FIELD, RECORD
from weft.emulator.toolchain import TIME_LIMIT_S, CompilerUnusable, NoCompiler
from weft.errors import WeftError
from weft.options import current

PAGE_BYTES = 4096
GUARD_BYTES = 2 * PAGE_BYTES  # between buffers, so that an out-of-bounds access does not reach the next one
START_S = 30.0  # for the child to start, in addition to the launch's own time limit
MOST_ANSWER_BYTES = 64 * 2**20
KEPT_WORDS = 2000

_ERRORS: dict[str, type[WeftError]] = {
    error.__name__: error
    for error in (BadLaunch, NoCompiler, CompilerUnusable, build.KernelDoesNotCompile, build.TextDoesNotCompile, build.RuntimeDoesNotCompile)
}
"""Errors that a child may report; they are raised here again."""


@dataclass(frozen=True)
class Text:
    """A kernel to be built in the child."""

    source: str
    entry: str
    check_races: bool
    raw_net: bool = False
    is_foreign: bool = False


def run_in_child(
    text: Text, geometry: Geometry, args: Sequence[Arg], extra: Sequence[Buffer], options: LaunchOptions, limits: ChipLimits, trace: bool
) -> Outcome:
    """As native.run, in a child process. A child that dies, hangs or says nothing is a finding.

    Errors: BadLaunch, those of building the kernel.
    """
    buffers = [a for a in (*args, *extra) if isinstance(a, Buffer)]
    offsets, total_bytes = _layout(buffers)
    with _memory(max(total_bytes, PAGE_BYTES)) as file:
        for address, offset in offsets.items():
            _write_at(file, ctypes.string_at(address, _bytes_at(buffers, address)), offset)
        request = _request(text, geometry, args, extra, options, limits, trace, offsets)
        outcome = _Child(text.entry, request, file, total_bytes, options.timeout_s).outcome()
        for b in buffers:
            if b.written:
                data = os.pread(file, b.bytes, offsets[b.address])
                ctypes.memmove(b.address, data, len(data))
    return outcome


@contextlib.contextmanager
def _memory(size_bytes: int) -> Iterator[int]:
    """Yield the descriptor of a file in memory whose size the child cannot change."""
    if hasattr(os, "memfd_create"):
        import fcntl

        file = os.memfd_create("weft-buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, size_bytes)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            yield file
        finally:
            os.close(file)
        return
    with tempfile.TemporaryFile() as other:
        other.truncate(size_bytes)
        yield other.fileno()


def _write_at(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done


def _bytes_at(buffers: Sequence[Buffer], address: int) -> int:
    return max(b.bytes for b in buffers if b.address == address)


def _layout(buffers: Sequence[Buffer]) -> tuple[dict[int, int], int]:
    """Offset in the file of each address, and the size of the file."""
    offsets: dict[int, int] = {}
    end = GUARD_BYTES
    for b in buffers:
        if b.address not in offsets:
            offsets[b.address] = end + b.address % PAGE_BYTES
            end = -(-(offsets[b.address] + _bytes_at(buffers, b.address) + GUARD_BYTES) // PAGE_BYTES) * PAGE_BYTES
    return offsets, end


def _request(
    text: Text, geometry: Geometry, args: Sequence[Arg], extra: Sequence[Buffer], options: LaunchOptions, limits: ChipLimits, trace: bool,
    offsets: dict[int, int],
) -> dict[str, Any]:  # fmt: skip
    def described(arg: Buffer | Scalar) -> dict[str, Any]:
        if isinstance(arg, Buffer):
            fields = {name: getattr(arg, name) for name in ("bytes", "name", "written", "initialised", "workspace", "constant")}
            return {"offset": offsets[arg.address], **fields}
        if arg.ctype == "tensor_map":
            return {"ctype": arg.ctype, **_relative_map(bytes(arg.value), offsets, (*args, *extra))}
        return {"ctype": arg.ctype, "value": arg.value}

    return {
        "text": dataclasses.asdict(text), "trace": trace, "geometry": dataclasses.asdict(geometry), "limits": dataclasses.asdict(limits),
        "options": dataclasses.asdict(dataclasses.replace(options, sample_blocks=_plain(options.sample_blocks))),
        "args": [described(a) for a in args], "extra": [described(b) for b in extra],
    }  # fmt: skip


def _plain(blocks: Sequence[int] | int | None) -> Sequence[int] | int | None:
    return blocks if blocks is None or isinstance(blocks, int) else list(blocks)


def _relative_map(value: bytes, offsets: dict[int, int], args: Sequence[Buffer | Scalar]) -> dict[str, Any]:
    """A tensor map whose base is given as an offset in the file."""
    (base,) = struct.unpack_from("<Q", value)
    for arg in args:
        if isinstance(arg, Buffer) and arg.address <= base < arg.address + arg.bytes:
            return {"value": value.hex(), "offset": offsets[arg.address] + base - arg.address}
    return {"value": value.hex(), "offset": None}


@functools.lru_cache(maxsize=None)
def _own_folder(process: int) -> str:
    """A cache folder for the children of this process if there is no other; without one each child would build the emulator's runtime."""
    folder = tempfile.TemporaryDirectory(prefix="weft-children-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return folder.name


def _environment() -> dict[str, str]:
    cache = default_cache()
    folder = str(cache.folder.absolute()) if cache is not None and cache.is_usable() else _own_folder(os.getpid())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    paths = os.pathsep.join(os.path.abspath(p) for p in sys.path if p)
    kept |= {"WEFT_DUMP_DIR": current().dump_dir} if current().dump_dir else {}
    return {**kept, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "WEFT_CACHE_DIR": folder}


class _Child:
    """One child process, from its start until its process group has ended."""

    def __init__(self, entry: str, request: dict[str, Any], file: int, buffer_bytes: int, timeout_s: float) -> None:
        self.entry, self.timeout_s = entry, timeout_s
        self.token = secrets.token_hex(16)
        self.request = json.dumps({**request, "token": self.token, "buffer_bytes": buffer_bytes, "cpu_seconds": TIME_LIMIT_S + timeout_s + START_S})
        self.file = file
        self.answer, self.words = bytearray(), bytearray()
        self.error: WeftError | None = None

    def outcome(self) -> Outcome:
        """Run the child to its end and say what came of it. Errors: those that it reports."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", buffering=0) as pipe, tempfile.TemporaryFile() as request:
            request.write(self.request.encode())
            request.seek(0)
            command = [sys.executable, "-m", "weft.emulator.child", str(self.file), str(writing)]
            try:
                child = subprocess.Popen(
                    command, stdin=request, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[self.file, writing], env=_environment(), cwd="/",
                    start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(writing)
            try:
                found = self._listen(child, pipe)
            finally:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)  # its children too, in any case
                child.wait()
                assert child.stderr is not None
                child.stderr.close()
        if self.error is not None:
            raise self.error
        return found if found is not None else self._ended(child.returncode)

    def _listen(self, child: subprocess.Popen[bytes], pipe: Any) -> Outcome | None:
        """Read until the outcome arrives, the time limit is reached or the child has ended; None: no outcome arrived."""
        assert child.stderr is not None
        end = time.monotonic() + TIME_LIMIT_S
        with selectors.DefaultSelector() as ready:
            for stream in (pipe, child.stderr):
                os.set_blocking(stream.fileno(), False)
                ready.register(stream, selectors.EVENT_READ)
            while ready.get_map():
                events = ready.select(max(0.0, end - time.monotonic()))
                if not events:
                    hint = "look for a loop that cannot end"
                    return _died("timeout", f"{self.entry} did not end within {self.timeout_s} s, and not even the timer could stop it", hint)
                for key, _ in events:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        ready.unregister(key.fileobj)
                        if key.fileobj is pipe:
                            return None
                    elif key.fileobj is pipe:
                        found, is_built = self._heard(data)
                        if found is not None or self.error is not None:
                            return found
                        if is_built:
                            end = time.monotonic() + self.timeout_s + START_S
                    else:
                        self.words = (self.words + data)[-KEPT_WORDS:]
        return None

    def _heard(self, data: bytes) -> tuple[Outcome | None, bool]:
        """Parse a part of the answer: lines of JSON with the token. Return the outcome, and whether the kernel is built."""
        self.answer += data
        if len(self.answer) > MOST_ANSWER_BYTES:
            return _died("crash", f"{self.entry} sent more than {MOST_ANSWER_BYTES} bytes as its result", "run fewer blocks"), False
        is_built = False
        while b"\n" in self.answer:
            line, _, self.answer = self.answer.partition(b"\n")
            try:
                said = json.loads(line)
                if not secrets.compare_digest(str(said["token"]), self.token):
                    raise ValueError("another token")
                if "built" in said:
                    is_built = True
                elif "error" in said:
                    self.error = _ERRORS[said["error"]](**said["values"])
                    return None, False
                else:
                    return Outcome(**said["outcome"]), False
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return _died("crash", f"{self.entry} wrote into the pipe of its result", "what it says of itself is not believed"), False
        return None, is_built

    def _ended(self, status: int) -> Outcome:
        try:
            name = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        except ValueError:
            name = f"signal {-status}"
        words = self.words.decode(errors="replace").strip().split("\n")[-1]
        message = f"{self.entry} ended its process before it had a result: {name}" + (f" ({words})" if words else "")
        return _died("crash", message, "check accesses that do not go through the primitives")


def _died(kind: str, message: str, hint: str) -> Outcome:
    plain = message.replace(FIELD, " ").replace(RECORD, " ")
    return Outcome(FIELD.join([kind, "0", "0", "0", "1", "0", "0", "", "", plain, hint]) + RECORD, "", 0, 0)


__all__ = ["Text", "run_in_child"]
