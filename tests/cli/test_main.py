"""The command line: each command is listed, runs, and nothing heavy is imported before it has to be."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.cli.main import COMMANDS, main
from weft.options import describe


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for command in COMMANDS:
        assert f"{command.name} {command.help}" in shown


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["demo", "--unknown"]])
def test_a_wrong_command_line_ends_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_settings_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    assert capsys.readouterr().out == describe() + "\n"


def test_python_m_weft_is_the_command_and_imports_no_torch_for_help() -> None:
    script = """
import runpy, sys
sys.argv = ["weft", "settings"]
try:
    runpy.run_module("weft", run_name="__main__")
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("WEFT_DUMP"), done.stderr
