"""What an installation without the checkout would lack: files that the package reads and that pyproject.toml does not name."""

from __future__ import annotations

import fnmatch
import sys

import pytest
from source_tree import PACKAGE, ROOT, files, shown

if sys.version_info < (3, 11):
    pytest.skip("tomllib is new in Python 3.11", allow_module_level=True)

import tomllib


def test_every_file_of_the_package_that_is_no_python_is_package_data() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = [f"{package.replace('.', '/')}/{pattern}" for package, found in data.items() for pattern in found]
    left_out = [
        shown(path)
        for path in files()
        if PACKAGE in path.parents and path.suffix != ".py" and not any(fnmatch.fnmatch(path.relative_to(ROOT).as_posix(), p) for p in patterns)
    ]
    assert not left_out, left_out


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {path.parent for path in files() if PACKAGE in path.parents and path.suffix == ".py" and not (path.parent / "__init__.py").exists()}
    assert not bare, "setuptools leaves out folders without __init__.py: " + ", ".join(map(shown, bare))
