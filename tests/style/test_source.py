"""The text of the sources: no path of one machine, no swallowed exception, no giant file, documented functions, a clean linter and type checker."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT, files, module_name, python_files, shown, tree

MOST_LINES = 700
TEXT_SUFFIXES = {".py", ".md", ".toml", ".cuh", ".h", ".c", ".cpp", ".cu", ".txt", ".json", ".yml", ".yaml", ".sh", ""}

# Absolute paths below a home folder, a work folder or a temporary folder of somebody. /usr, /proc and their like are the same everywhere.
MACHINE_PATH = re.compile(r"(?<![\w.$}/~-])/(?:home|root|Users|work|workspace|mnt|data|scratch|tmp)/[\w.-]+")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_no_file_names_a_place_on_one_machine() -> None:
    found = [
        f"{shown(path, number)}: {match[0]}"
        for path in files()
        if path.suffix in TEXT_SUFFIXES and path != Path(__file__)
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if (match := MACHINE_PATH.search(line))
    ]
    assert not found, "\n".join(found)


def is_silent(handler: ast.ExceptHandler) -> bool:
    """True for a handler of everything that neither raises again nor looks at the error."""
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else {"BaseException"}
    if not names & {"Exception", "BaseException"}:
        return False
    inside = [node for statement in handler.body for node in ast.walk(statement)]
    looks = handler.name is not None and any(isinstance(node, ast.Name) and node.id == handler.name for node in inside)
    return not looks and not any(isinstance(node, ast.Raise) for node in inside)


def test_no_exception_is_swallowed() -> None:
    """A handler of every exception either raises or reports the error it caught; cleaning up is for `finally`."""
    silent = [
        f"{shown(path, node.lineno)}: catches everything and drops it"
        for path in python_files("weft", "compat")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and is_silent(node)
    ]
    assert not silent, "\n".join(silent)


def test_no_file_is_too_long() -> None:
    long = [
        f"{shown(path)}: {count} lines, more than {MOST_LINES}"
        for path in files()
        if path.suffix in {".py", ".cuh", ".h", ".cpp"} and (count := text_of(path).count("\n")) > MOST_LINES
    ]
    assert not long, "\n".join(long)


def test_no_file_is_named_after_its_age_or_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    found = [shown(path) for path in python_files("weft") if path.stem in vague or path.stem.startswith("new_")]
    assert not found, found


@functools.cache
def documented_methods() -> set[tuple[str, str]]:
    """(class, method) of every method of the package that has a docstring."""
    return {
        (node.name, member.name)
        for path in python_files("weft")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.FunctionDef) and ast.get_docstring(member)
    }


def undocumented(path: Path) -> list[str]:
    """Public functions of a module and public methods of its public classes without a docstring, their own or that of a base class."""
    found = []
    for node in tree(path).body:
        bases: set[str] = set()
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            members = [(f"{node.name}.{member.name}", member) for member in node.body if isinstance(member, ast.FunctionDef)]
        elif isinstance(node, ast.FunctionDef):
            members = [(node.name, node)]
        else:
            continue
        for name, function in members:
            is_inherited = any((base, function.name) in documented_methods() for base in bases)
            if not (function.name.startswith("_") or ast.get_docstring(function) or is_inherited or is_plain(function)):
                found.append(f"{shown(path, function.lineno)}: {name}")
    return found


def is_plain(function: ast.FunctionDef) -> bool:
    """True where name and types say all: a body of up to three statements, or an overload."""
    decorators = {ast.unparse(decorator).split("(")[0] for decorator in function.decorator_list}
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
    return statements <= 3 or bool(decorators & {"overload", "typing.overload"})


def test_every_module_says_what_it_owns() -> None:
    bare = [shown(path) for path in python_files("weft", "compat") if path.name != "__init__.py" and not ast.get_docstring(tree(path))]
    assert not bare, "modules without a docstring:\n" + "\n".join(bare)


def test_public_functions_have_docstrings() -> None:
    missing = [line for path in python_files("weft") for line in undocumented(path)]
    assert not missing, "public functions without a docstring:\n" + "\n".join(missing)


def test_environment_variables_are_read_in_one_place() -> None:
    """`weft.options` holds the table of settings; the folders of other tools (CUDA_HOME, CXX, ...) may be read where they are used."""
    pattern = re.compile(r"environ(?:\.get)?[\[(]\s*['\"](WEFT_\w+)|getenv\(\s*['\"](WEFT_\w+)")
    found = [
        f"{shown(path, number)}: {match[0]}"
        for path in python_files("weft")
        if module_name(path) != "weft.options"
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert not found, "\n".join(found)


def test_every_error_has_a_code_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path in python_files("weft"):
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if match := re.match(r'\s+code = "(W\d+)"', line):
                places.setdefault(match[1], []).append(shown(path, number))
    shared = {code: found for code, found in places.items() if len(found) > 1}
    assert not shared, shared


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff is not installed")
def test_the_linter_finds_nothing() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


STRICT = ("ir", "ops", "analysis", "schedule", "schedulers", "lower")


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None or sys.version_info < (3, 11), reason="mypy is not installed, or there is no tomllib")
def test_the_type_checker_is_strict_where_the_compiler_is() -> None:
    """Of these folders the type checker, which tests/examples/test_typing.py runs, asks all that `mypy --strict` asks for."""
    import tomllib

    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    override = next(o for o in table["overrides"] if "weft.ir.*" in o["module"])
    assert set(override["module"]) == {f"weft.{folder}.*" for folder in STRICT}
    shown_flags = subprocess.run([sys.executable, "-m", "mypy", "--help"], capture_output=True, text=True, check=True).stdout
    strict = re.search(r"--strict +Strict mode; enables the following flags:\s+(.*?)\n  --", shown_flags, re.DOTALL)
    assert strict, "mypy describes --strict in other words"
    wanted = {flag.removeprefix("--").replace("-", "_") for flag in re.sub(r"-\n\s+", "-", strict[1]).replace(",", " ").split()}
    on = {name for name, value in {**table, **override}.items() if value is True}
    assert wanted <= on, f"set these for {override['module']}, or for all: {sorted(wanted - on)}"
