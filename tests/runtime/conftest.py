"""Fixtures of the runtime's tests: settings that leave no trace, and a driver that drives nothing."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft import arch as chips
from weft import options as options_module
from weft.cache import default_cache
from weft.runtime import driver, nvrtc


@pytest.fixture(autouse=True)
def settings_of_the_test_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Dumps, failures and the cache go below the test's own folder, and the environment is read again."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path / "dump"))
    options_module.refresh_environment()
    yield
    monkeypatch.undo()
    options_module.refresh_environment()


@pytest.fixture(autouse=True)
def emulator_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator's kernels are built once for all tests, not once per folder of `settings_of_the_test_only`."""
    from weft.emulator import build

    monkeypatch.setattr(build, "default_cache", lambda: _EMULATOR_CACHE)


_EMULATOR_CACHE = default_cache()


class Launch(ctypes.Structure):
    """`struct launch` of fake_libcuda.c."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("ids", ctypes.c_uint * 4),
        ("values", (ctypes.c_uint * 3) * 4),
        ("stream", ctypes.c_uint64),
        ("function", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 32),
        ("map", ctypes.c_uint8 * 128),
    ]


class FakeDriver:
    """fake_libcuda.c, loaded, with its variables at hand."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self._launches = (Launch * 64).in_dll(self.library, "fake_launches")

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, f"fake_{name}").value

    def set(self, **values: int) -> None:
        for name, value in values.items():
            ctypes.c_int.in_dll(self.library, f"fake_{name}").value = value

    def function_attribute(self, number: int) -> int:
        return int((ctypes.c_int * 32).in_dll(self.library, "fake_function_attributes")[number])

    @property
    def launch_count(self) -> int:
        return self.get("launch_count")

    def launch(self, back: int = 0) -> Any:
        """The last launch, or the one `back` before it."""
        return self._launches[(self.launch_count - 1 - back) % 64]


@pytest.fixture(scope="session")
def fake_driver_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to build the fake driver with")
    path = tmp_path_factory.mktemp("fake_driver") / "libfake.so"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run([compiler, "-O1", "-w", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return path


@pytest.fixture
def fake_driver(fake_driver_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Replace the CUDA driver in this test; it shows two H200s."""
    path = tmp_path / "libcuda.so.1"
    shutil.copy(fake_driver_source, path)  # another path is another library, with variables of its own
    fake = FakeDriver(path)
    monkeypatch.setattr(chips, "driver_library", lambda: fake.library)
    monkeypatch.setattr(chips, "open_driver", lambda: fake.library)
    monkeypatch.setattr(chips, "_device_archs", {})
    monkeypatch.setattr(driver, "_contexts", {})
    version = nvrtc.driver_cuda_version  # kept, since a test may put something else in its place
    version.cache_clear()
    yield fake
    version.cache_clear()


@pytest.fixture
def real_device() -> int:
    """Index of a real CUDA device; skips without one."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return 0
