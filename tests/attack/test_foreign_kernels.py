"""Hostile CUDA texts under `weft check`: whatever one does, the tool lives, ends, and does not call it clean."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.emulator import isolate, jail

KERNEL = """
extern "C" int open(const char*, int, ...); extern "C" long write(int, const void*, unsigned long); extern "C" int fork(); extern "C" int socket(int, int, int);
extern "C" void _exit(int); extern "C" void exit(int); extern "C" int kill(int, int); extern "C" int getppid(); extern "C" unsigned sleep(unsigned);
extern "C" int setsid(); extern "C" int unlink(const char*); extern "C" int ftruncate(int, long); extern "C" void* malloc(unsigned long);
extern "C" int system(const char*); extern "C" int* __errno_location();
static void evil() { @evil }
@outside
extern "C" __global__ void __launch_bounds__(32) kernel(float* T0) {
  @inside
  weft::store_global(T0 + threadIdx.x, 1.f);
}
"""

LAUNCH = """
entry = "kernel"
grid = [1]
block = [32]
timeout_s = @limit
[[argument]]
name = "T0"
dtype = "float32"
shape = [32]
written = true
"""

AT_LOAD = "struct AtLoad { AtLoad() { evil(); } }; static AtLoad at_load;"
RUN = "evil();"
CLEAN = r'{\"outcome\": {\"findings\": \"\", \"trace\": \"\", \"switches\": 0, \"joins\": 0}}\n'

ATTACKS = {
    "crashes when it is loaded": (AT_LOAD, "", "*(volatile int*)8 = 1;", "ended its process"),
    "never ends when it is loaded": (AT_LOAD, "", "for (volatile int i = 0;; i++) {}", "did not end"),
    "never ends": ("", RUN, "for (volatile int i = 0;; i++) {}", "timeout|did not end"),
    "ends the process when it is loaded": (AT_LOAD, "", "_exit(0);", "before it had a result: exit code 0"),
    "ends the process": ("", RUN, "exit(0);", "before it had a result: exit code 0"),
    "stops itself by a signal": ("", RUN, "__builtin_trap();", "SIGILL|SIGTRAP|crash"),
    "takes all memory": ("", RUN, "for (;;) { char* p = (char*)malloc(1 << 28); for (long i = 0; i < 1 << 28; i += 4096) p[i] = 1; }", "timeout|segmentation|ended|crash|fault"),
    "cuts the buffers' file": ("", RUN, "for (int f = 3; f < 60; f++) ftruncate(f, 0);", None),
}


SHORT_S, PATIENT_S = 0.3, 60.0
"""Time limits of a launch: where the limit is what ends it, and where it ends by itself, on a busy machine, too."""


def check(tmp_path: Path, outside: str, inside: str, evil: str, *arguments: str, limit_s: float = PATIENT_S) -> int:
    text = KERNEL.replace("@outside", outside).replace("@inside", inside).replace("@evil", evil)
    (tmp_path / "kernel.cu").write_text(text)
    (tmp_path / "launch.toml").write_text(LAUNCH.replace("@limit", str(limit_s)))
    return main(["check", str(tmp_path / "kernel.cu"), "--launch", str(tmp_path / "launch.toml"), "--seeds", "1", *arguments])


def test_a_kernel_that_does_nothing_wrong_is_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, "", "", "") == 0, capsys.readouterr()


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_tool_lives_and_says_what_happened(attack: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    outside, inside, evil, says = ATTACKS[attack]
    is_endless = attack.startswith(("never ends", "takes all"))
    if is_endless:
        monkeypatch.setattr(isolate, "START_S", 2.0)
    status = check(tmp_path, outside, inside, evil, limit_s=SHORT_S if is_endless else PATIENT_S)
    said = capfd.readouterr()
    if says is None:
        assert status in (0, 1)
    else:
        assert status == 1 and re.search(says, said.out, re.IGNORECASE), said


def test_a_result_that_the_kernel_writes_itself_is_not_believed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It writes "nothing found" to every open file, standard output and the result's pipe included, and ends with status 0."""
    evil = f'static const char text[] = "{CLEAN}"; for (int f = 1; f < 60; f++) write(f, text, sizeof text - 1); _exit(0);'
    assert check(tmp_path, "", RUN, evil) == 1
    said = capfd.readouterr().out
    assert "pipe of its result" in said or "before it had a result" in said, said


DOORS = {
    "a process": "if (fork() < 0 && *__errno_location() == 1) return;",
    "a command": 'if (system("true") != 0) return;',
    "a connection": "if (socket(2, 1, 0) < 0 && *__errno_location() == 1) return;",
    "a signal to its parent": "if (kill(getppid(), 9) < 0 && *__errno_location() == 1) return;",
    "a file": 'if (open("@folder/made", 0101, 0600) < 0 && *__errno_location() == 1) return;',
    "a file removed": 'if (unlink("@folder/victim") < 0 && *__errno_location() == 1) return;',
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the filter is Linux's")
@pytest.mark.parametrize("door", DOORS)
def test_what_the_system_refuses_a_foreign_kernel(door: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The kernel traps unless the call is refused with EPERM."""
    (tmp_path / "victim").write_text("untouched")
    assert check(tmp_path, AT_LOAD, "", DOORS[door].replace("@folder", str(tmp_path)) + " __builtin_trap();") == 0, capfd.readouterr()
    assert (tmp_path / "victim").read_text() == "untouched" and not (tmp_path / "made").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_that_outlives_the_child_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was forked before the doors were closed goes with the child's group."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, time\nchild = os.fork()\nif not child:\n    time.sleep(60)\n    os._exit(0)\nopen({str(tmp_path / 'forked')!r}, 'w').write(str(child))\n"
    )
    environment = isolate._environment
    monkeypatch.setattr(isolate, "_environment", lambda: {**environment(), "PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])})
    assert check(tmp_path, "", "", "") == 0
    forked = int((tmp_path / "forked").read_text())
    end = time.monotonic() + 60
    while is_alive(forked) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_alive(forked)


def is_alive(process: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_modules_of_the_working_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a hostile kernel may also hold a hostile json.py."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert check(tmp_path, "", "", "") == 0


@pytest.mark.parametrize("arguments", [("--seeds", "-1"), ("--seeds", "0"), ("--blocks", "0"), ("--blocks", "-3")], ids=" ".join)
def test_no_orders_and_no_blocks_are_errors(arguments: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, "", "", "", *arguments) == 1
    said = capsys.readouterr()
    assert "clean" not in said.out and ("W443" in said.err or "W442" in said.err), said


def test_a_text_that_does_not_compile_is_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, "quaternion x;", "", "") == 1
    said = capsys.readouterr().err
    assert "W414" in said and "quaternion" in said and "defect of weft" not in said, said


def test_the_filter_names_each_call_once() -> None:
    for machine in jail._MACHINES:
        program = jail._program(machine, 1)
        assert len(program) % 8 == 0 and len(program) // 8 < 4096
