"""What the style tests read: the tracked and untracked (not ignored) files of the checkout, and the package's modules."""

from __future__ import annotations

import ast
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "weft"


@functools.cache
def files() -> list[Path]:
    """Every file that belongs to the project; without git, every file of its folders."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
        environments = {path.parent for path in paths if path.name == "pyvenv.cfg"}  # of any name, in the checkout
        return [path for path in paths if environments.isdisjoint(path.parents)]
    folders = [ROOT / name for name in ("weft", "tests", "docs", "compat", ".ci")]
    return [path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def python_files(*folders: str) -> list[Path]:
    """The project's Python files below the named folders."""
    return [path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path, line: int = 0) -> str:
    """A place as failures name it."""
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    """`weft/ir/values.py` -> `weft.ir.values`; a package's `__init__.py` -> the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
