"""The sources have no door that nobody means to have: no pickle, no eval, no shell, no predictable temporary name, no lock that a forked child would wait for."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "style"))
from source_tree import PACKAGE, python_files, shown, tree  # noqa: E402

DOCUMENTED = {
    "weft/runtime/warm_path.py": {"exec"}, "weft/runtime/kept_code.py": {"compile", "marshal"}, "weft/check/script.py": {"runpy"}, "weft/check/record_corpus.py": {"runpy"}, "weft/cli/tune.py": {"runpy"},
    "weft/api/definition.py": {"exec"}, "weft/frontend/aten/own.py": {"exec", "compile"}, "weft/frontend/graph_plan.py": {"exec"},
}  # fmt: skip
"""What docs/security.md lists: calls by file."""

FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
FORBIDDEN_METHODS = {("os", "system"), ("os", "popen"), ("torch", "load"), ("tempfile", "mktemp"), ("yaml", "load"), ("numpy", "load"), ("np", "load"), ("os", "getlogin")}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE.parent).as_posix()


def calls(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [(node.lineno, name.partition(".")[0]) for name in names if name.partition(".")[0] in FORBIDDEN_MODULES | {"runpy"}]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append((node.lineno, node.func.id))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            pair = (node.func.value.id, node.func.attr)
            if pair in FORBIDDEN_METHODS:
                found.append((node.lineno, ".".join(pair)))
        if isinstance(node, ast.keyword) and node.arg == "shell":
            found.append((node.value.lineno, "shell="))
    return found


@pytest.mark.parametrize("folder", ["weft", "compat"])
def test_nothing_is_unpickled_evaluated_or_given_to_a_shell(folder: str) -> None:
    wrong = [
        f"{shown(path, line)}: {what}"
        for path in python_files(folder)
        for line, what in calls(path)
        if what not in DOCUMENTED.get(relative(path), set())
    ]
    assert not wrong, "list it with its reason in docs/security.md and here, or do without:\n" + "\n".join(wrong)


def test_what_is_executed_from_memory_is_on_the_page() -> None:
    page = (PACKAGE.parent / "docs" / "security.md").read_text(encoding="utf-8")
    for file, names in DOCUMENTED.items():
        assert f"`{file}`" in page
        assert names <= {what for _, what in calls(PACKAGE.parent / file)}, f"{file} no longer does {names}: shorten the page"


def test_no_temporary_name_is_made_from_what_others_know() -> None:
    """gettempdir() with a fixed name is a victim's folder; tempfile's functions make the names."""
    wrong = [
        f"{shown(path, node.lineno)}: gettempdir"
        for path in python_files("weft")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "gettempdir" and relative(path) != "weft/cache/private.py"
    ]
    assert not wrong, wrong


def test_locks_are_free_in_forked_children() -> None:
    allowed = {"weft/forking.py", "weft/runtime/runtimes.py"}  # the table of what is being made is emptied in the child
    wrong = [
        f"{shown(path, node.lineno)}: use weft.forking.lock()"
        for path in python_files("weft")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Lock", "threading.RLock", "Lock", "RLock") and relative(path) not in allowed
    ]
    assert not wrong, "\n".join(wrong)
