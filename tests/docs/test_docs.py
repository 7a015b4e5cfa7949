"""The pages of docs/ and the README: their Python blocks run, generated pages are what their scripts make, links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXECUTED = ("README.md", "adding_an_op.md", "adding_a_pass.md", "adding_a_scheduler.md", "adding_a_chip.md", "settings.md")
"""Pages whose Python blocks are one program; the others show parts of programs."""

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in EXECUTED], ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    program = tmp_path / f"{page.stem}.py"
    program.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_page_of_settings_is_the_table_of_settings() -> None:
    made = script("make_settings")
    assert made.TARGET.read_text(encoding="utf-8") == made.page(), "run: python docs/make_settings.py"


def test_the_tour_shows_what_the_compiler_makes() -> None:
    """All but the machine code, which depends on NVRTC's version, and what torch says of the error."""
    made = script("make_tour")
    shown, now = (re.split(r"^## \d+\. Machine code", text, flags=re.MULTILINE) for text in (made.TARGET.read_text(encoding="utf-8"), made.tour()))
    assert len(shown) == len(now) == 2 and shown[0] == now[0], "run: python docs/make_tour.py"


def test_links_between_pages_lead_to_files() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken, broken


def test_the_readme_starts_with_the_command_that_runs_and_the_one_that_tests() -> None:
    first, second = (text.strip() for _, text in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))[:2])
    assert first.endswith("&& weft demo") and "\n" not in first
    assert second in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines(), "CI runs the command of the README"


def test_the_page_of_constants_names_those_of_the_schedulers() -> None:
    text = (ROOT / "docs" / "constants.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## ([\w/]+\.py(?:, [\w/]+\.py)*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(sections) > 10
    for files, rows in sections:
        source = "".join((ROOT / "weft" / "schedulers" / name).read_text(encoding="utf-8") for name in files.split(", "))
        named = {name for row in re.findall(r"^\| (`[^|]+) \|", rows, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
        unknown = named - set(re.findall(r"\b\w+\b", source))
        assert named and not unknown, f"{files} has no {sorted(unknown)}: take it out of docs/constants.md"
