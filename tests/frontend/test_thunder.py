"""lightning-thunder on weft's alias, where it is installed, in a process of its own: it changes torch when it is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("thunder") is None, reason="lightning-thunder is not installed")
def test_programs_of_thunder_run_in_the_emulator():
    """Losses, norms and lookups with gradients: each is one fusion forward and one backward."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "compat"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(ROOT / "tests/frontend/thunder_programs.py"), "cross entropy", "rms norm", "rope"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert "3 of 3 right" in done.stdout, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("fusions 1 and 1") == 3
