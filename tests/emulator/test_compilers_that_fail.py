"""A C++ compiler that is not there, dies, writes nothing or hangs: the error names it and what to do, and says nothing of a defect of weft."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.emulator.build import find_toolchain
from weft.emulator.toolchain import Build, Toolchain
from weft.errors import UserError, WeftError
from weft.options import options

SCRIPTS = {
    "refuses every option": "echo 'no such option' >&2; exit 2",
    "is killed": "kill -9 $$",
    "writes nothing": "exit 0",
    "writes rubbish": 'while [ "$1" ]; do if [ "$1" = -o ]; then echo rubbish > "$2"; fi; shift; done',
}


def added(term: float) -> tuple[FusionDefinition, torch.Tensor]:
    """sin(x) + term: another kernel for each term."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.add(fd.ops.sin(x), term))
    return fd, torch.ones(9)


ALL = [*SCRIPTS, "is not there", "may not be run"]


@pytest.mark.parametrize("what", ALL)
def test_the_error_names_the_compiler_and_a_remedy(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    if what != "is not there":
        compiler.write_text(f"#!/bin/sh\n{SCRIPTS.get(what, 'exit 0')}\n")
        compiler.chmod(0o600 if what == "may not be run" else 0o700)
    monkeypatch.setenv("CXX", os.fspath(compiler))
    find_toolchain.cache_clear()  # a process asks once
    term = 0.5 + ALL.index(what) / 64
    fd, x = added(term)
    with options(cache_dir=os.fspath(tmp_path / "cache")), pytest.raises(WeftError) as caught:
        fd.execute([x])
    assert isinstance(caught.value, UserError), caught.value
    text = str(caught.value)
    assert os.fspath(compiler) in text and "defect of weft" not in text
    monkeypatch.delenv("CXX")
    find_toolchain.cache_clear()
    with options(cache_dir=os.fspath(tmp_path / "cache")):
        torch.testing.assert_close(fd.execute([x])[0], torch.sin(x) + term)  # nothing broken was kept


@pytest.mark.parametrize("output", ["", "fatal error: No space left on device"], ids=["no folder", "no space for the output"])
def test_a_full_disk_of_the_cache_is_no_error(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is built in the system's folder for temporary files, and kept in memory. The disk of the cache is full for a folder, or for what a compiler writes."""
    cache, build = tmp_path / "cache", Toolchain._build
    folder = tempfile.TemporaryDirectory

    def folder_of(*given: Any, dir: str, **named: Any) -> Any:
        if not output and dir.startswith(os.fspath(cache)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return folder(*given, dir=dir, **named)

    def build_there(self: Toolchain, place: Path, *given: Any) -> Build:
        return Build(None, output) if cache in place.parents else build(self, place, *given)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", folder_of)
    monkeypatch.setattr(Toolchain, "_build", build_there)
    term = 0.75 + len(output) / 1024
    fd, x = added(term)
    with options(cache_dir=os.fspath(cache)):
        torch.testing.assert_close(fd.execute([x])[0], torch.sin(x) + term)
