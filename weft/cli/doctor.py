"""`doctor`: what this machine has and what it lacks, with the remedy for each.

Owns the look at the machine; it changes nothing, needs none of the things it looks for, and never raises. torch is not
imported (that takes seconds), only found.
Read first: `doctor`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TextIO

from weft import arch as chips
from weft.errors import UserError
from weft.options import Options, current, environment_name
from weft.runtime import nvrtc, resources
from weft.cache import DiskCache

OLDEST_PYTHON = (3, 10)

_PROBE = 'extern "C" __global__ void probe(float* p) { p[threadIdx.x] += 1.0f; }'


class Status(Enum):
    """`MISSING` keeps something from working, `OPTIONAL` is missed by some tools only."""

    OK = "ok"
    OPTIONAL = "optional"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `remedy` is empty when nothing needs one."""

    subject: str
    status: Status
    detail: str
    remedy: str = ""


def doctor() -> list[Finding]:
    """Look at everything that weft can use. Never raises: trouble while looking is a finding."""
    findings: list[Finding] = []
    for subject, probe in _PROBES.items():
        try:
            findings += probe()
        except Exception as error:  # noqa: BLE001 - a report that stops half-way helps nobody; the error is in it
            findings.append(Finding(subject, Status.MISSING, f"{type(error).__name__}: {error}", "see the message"))
    return findings


def print_report(findings: list[Finding], file: TextIO | None = None) -> None:
    """Print findings as text, one line each and one more for a remedy."""
    width = max((len(finding.subject) for finding in findings), default=0)
    for finding in findings:
        lines = finding.detail.splitlines() or [""]
        print(f"{finding.status.value:<8}  {finding.subject:<{width}}  {lines[0]}", file=file)
        for line in lines[1:]:
            print(f"{'':<{width + 12}}{line}", file=file)
        if finding.remedy:
            print(f"{'':<{width + 12}}-> {finding.remedy}", file=file)


def main() -> int:
    """Print the report; return 0 when kernels can run here, on a GPU or in the emulator, else 1."""
    findings = doctor()
    print_report(findings)
    usable = can_run(findings)
    print("\nkernels can run: " + (", ".join(usable) or "nowhere; see the lines marked 'missing'"))
    return 0 if usable else 1


def can_run(findings: list[Finding]) -> list[str]:
    """Name where kernels can run: "on the GPU", "in the emulator"."""
    present = {finding.subject for finding in findings if finding.status is Status.OK}
    places = {"on the GPU": {"torch", "NVRTC", "driver"}, "in the emulator": {"host compiler"}}
    usable = [place for place, needs in places.items() if needs <= present]
    if not any(subject.startswith("GPU ") for subject in present):
        usable = [place for place in usable if place != "on the GPU"]
    return usable


def _python() -> Iterator[Finding]:
    detail = f"{platform.python_version()} ({platform.machine()}, {platform.system()}), {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("Python", Status.MISSING, detail, "use Python " + ".".join(map(str, OLDEST_PYTHON)) + " or newer")
    else:
        yield Finding("Python", Status.OK, detail)


def _torch() -> Iterator[Finding]:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        yield Finding("torch", Status.MISSING, "not installed", "pip install torch (https://pytorch.org/get-started has the line for your CUDA)")
        return
    text = Path(spec.origin).with_name("version.py").read_text()
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, re.MULTILINE)
    shown = version[1] if version else "unknown version"
    if cuda is None:
        yield Finding(
            "torch", Status.OPTIONAL, f"{shown}, a build without CUDA", "enough for the emulator; for a GPU install a CUDA build of torch"
        )
    else:
        yield Finding("torch", Status.OK, f"{shown}, built with CUDA {cuda[1]}")


def _driver() -> Iterator[Finding]:
    try:
        chips.driver_library()
    except chips.DriverMissing as error:
        yield Finding("driver", Status.OPTIONAL, str(error).splitlines()[0], "install NVIDIA's driver to run on a GPU; the emulator needs none")
        return
    version = nvrtc.driver_cuda_version()
    kernel_module = _first_match(r"(\d+\.\d+(?:\.\d+)?)", Path("/proc/driver/nvidia/version"))
    yield Finding("driver", Status.OK, f"CUDA {_dotted(version)}" + (f", driver {kernel_module}" if kernel_module else ""))
    for index in range(chips.device_count()):
        chip = chips.arch_of_device(index)
        yield Finding(
            f"GPU {index}",
            Status.OK,
            f"{chip.name}, {chip.nvrtc_target}, {chip.sm_count} multiprocessors, {chip.l2_bytes / 2**20:.0f} MiB L2, "
            f"{chip.dram_bytes_per_s / 1e12:.2f} TB/s",
        )


def _nvrtc() -> Iterator[Finding]:
    try:
        found = nvrtc.load()
    except nvrtc.NvrtcMissing as error:
        remedy = "pip install nvidia-cuda-nvrtc, or set WEFT_NVRTC to the path of libnvrtc.so"
        yield Finding("NVRTC", Status.MISSING, str(error.values["looked"]), remedy)
        return
    detail = f"{found.version_text} from {found.origin}: {found.path}"
    driver = nvrtc.driver_cuda_version()
    if driver and found.version[0] > driver[0]:
        remedy = f"the driver is CUDA {_dotted(driver)}: pip install 'nvidia-cuda-nvrtc=={driver[0]}.*', or install a newer driver"
        yield Finding("NVRTC", Status.MISSING, detail, remedy)
        return
    if driver and found.version > driver:
        detail += f"\nnewer than the driver's CUDA {_dotted(driver)}, of the same major version: its machine code loads"
    target = chips.arch_of_device(0).nvrtc_target if chips.device_count() else chips.arch_by_name(current().chip).nvrtc_target
    compiled = nvrtc.compile_cubin(_PROBE, "probe", target)
    yield Finding("NVRTC", Status.OK, f"{detail}\ncompiled a small kernel for {target} in {compiled.seconds * 1e3:.0f} ms")


def _bindings() -> Iterator[Finding]:
    for package in ("cuda-bindings", "cuda-core"):
        try:
            yield Finding(package, Status.OK, f"{importlib.metadata.version(package)} (not needed: the driver and NVRTC are called directly)")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, Status.OPTIONAL, "not installed, and not needed")


def _host_compiler() -> Iterator[Finding]:
    found = []
    for name in ("g++", "clang++"):
        path = shutil.which(name)
        if path:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20)
            found.append(f"{name}: {(done.stdout.splitlines() or ['does not start'])[0]} ({path})")
    if importlib.util.find_spec("ziglang"):
        found.append(f"zig: {importlib.metadata.version('ziglang')} (the ziglang package)")
    if found:
        yield Finding("host compiler", Status.OK, "\n".join(found))
    else:
        yield Finding("host compiler", Status.OPTIONAL, "no g++, clang++ or ziglang", "pip install ziglang, to run kernels in the emulator")


def _disassembler() -> Iterator[Finding]:
    path = resources.disassembler()
    if path:
        yield Finding("nvdisasm", Status.OK, path)
    else:
        yield Finding("nvdisasm", Status.OPTIONAL, "not found", "pip install nvidia-cuda-nvdisasm, or a CUDA toolkit, to dump SASS")


def _cache() -> Iterator[Finding]:
    options = _valid_options()
    if not options.cache:
        yield Finding("disk cache", Status.OPTIONAL, "switched off", "unset WEFT_CACHE to keep compiled kernels")
        return
    folder = options.cache_path
    use = DiskCache(folder).use()
    detail = f"{folder}: {use.entries} entries, {use.bytes / 2**20:.1f} of {options.cache_limit_mib} MiB"
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".weft_doctor"):
            pass
    except OSError as error:
        yield Finding("disk cache", Status.MISSING, f"{detail}\nnot writable: {error}", "set WEFT_CACHE_DIR to a folder that you may write")
        return
    yield Finding("disk cache", Status.OK, detail)


def _settings() -> Iterator[Finding]:
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(environment_name(""))]
    yield Finding("settings", Status.OK, " ".join(variables) or "no WEFT_* variable is set")
    current()  # an unknown name or a value that is not allowed becomes the finding


def _valid_options() -> Options:
    """The settings in force, or the defaults when a variable is wrong (which `settings` reports)."""
    try:
        return current()
    except UserError:
        return Options()


def _dotted(version: tuple[int, int] | None) -> str:
    return ".".join(map(str, version)) if version else "unknown"


def _first_match(pattern: str, path: Path) -> str:
    try:
        match = re.search(pattern, path.read_text())
    except OSError:
        return ""
    return match[1] if match else ""


_PROBES: dict[str, Callable[[], Iterator[Finding]]] = {
    "Python": _python,
    "settings": _settings,
    "torch": _torch,
    "driver": _driver,
    "NVRTC": _nvrtc,
    "cuda-bindings": _bindings,
    "host compiler": _host_compiler,
    "nvdisasm": _disassembler,
    "disk cache": _cache,
}


if __name__ == "__main__":
    sys.exit(main())
