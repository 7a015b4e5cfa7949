"""What editors see: strict type checkers take the examples and find the mistakes of a wrong one; completion knows fd., fd.ops. and tensors."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

WRONG = '''
import torch
from weft import FusionDefinition

with FusionDefinition() as fd:
    x = fd.define_tensor([-1], contiguity=True)
    fd.ops.exp("x")
    fd.ops.softmax(x, axis=1)
    fd.ops.uniform(0.0, 1.0)
    x.sum(keepdims=True)
    fd.ops.layernorm(x, [4])
    y: int = x * 2.0
'''


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_the_type_checker_takes_the_package_and_the_examples_and_finds_mistakes(tmp_path: Path) -> None:
    """In one run, most of which is spent on torch: the package as pyproject.toml says, the examples and a wrong one as strictly as the folders named there."""
    wrong, config = tmp_path / "wrong.py", tmp_path / "pyproject.toml"
    wrong.write_text(WRONG)
    modules = json.dumps([path.stem for path in [*EXAMPLES, wrong]])
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    strict = text.replace('module = ["weft.ir.*", ', f'module = {modules[:-1]}, "weft.ir.*", ')
    assert strict != text
    config.write_text(f"{strict}\n[[tool.mypy.overrides]]\nmodule = {modules}\nwarn_unused_ignores = false\n")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", str(config), "--cache-dir", os.devnull, "weft", *map(str, EXAMPLES), str(wrong)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line for line in lines if "wrong.py" not in line] == []
    assert {int(line.split("wrong.py:")[1].split(":")[0]) for line in lines} == {7, 8, 9, 10, 11, 12}, done.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None or shutil.which("node") is None, reason="pyright or node is not installed")
def test_pyright_takes_the_examples_and_finds_mistakes(tmp_path: Path) -> None:
    """What torch leaves without a type in its own files is no mistake of an example."""
    for path in EXAMPLES:
        shutil.copy(path, tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    unknown = ("UnknownVariableType", "UnknownMemberType", "UnknownArgumentType", "UnknownLambdaType", "MissingImports")
    settings = {"include": ["."], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict", **{f"report{rule}": False for rule in unknown}}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    environment = {**os.environ, "PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT": "1", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout)
    found: dict[str, set[int]] = {}
    for diagnostic in report["generalDiagnostics"]:
        if diagnostic["severity"] == "error" and diagnostic.get("rule") != "reportUnusedImport":
            found.setdefault(Path(diagnostic["file"]).name, set()).add(diagnostic["range"]["start"]["line"] + 1)
    assert found == {"wrong.py": {7, 8, 9, 10, 11, 12}}, done.stdout
    assert report["summary"]["filesAnalyzed"] == len(EXAMPLES) + 1


TYPED = """from weft import FusionDefinition
with FusionDefinition() as fd:
    x = fd.define_tensor([-1], contiguity=True)
    fd.
    fd.ops.
    x.
    y = fd.ops.softmax(x, -1)
    y.
    fd.ops.uniform(
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jedi") is None, reason="jedi is not installed")
def test_jedi_completes_definitions_ops_and_tensors() -> None:
    import jedi

    script, lines = jedi.Script(TYPED, project=jedi.Project(ROOT)), TYPED.splitlines()

    def names(line: int) -> set[str]:
        return {completion.name for completion in script.complete(line, len(lines[line - 1]))}

    assert {"define_tensor", "define_scalar", "add_output", "ops", "execute", "autograd", "from_pytorch"} <= names(4)
    assert {"add", "softmax", "rms_norm", "var_mean", "uniform", "layer_norm"} <= names(5)
    for tensor in (6, 8):
        assert {"sum", "to", "axis", "softmax"} <= names(tensor)
    signature: Any = script.get_signatures(9, len(lines[8]))[0]
    assert [p.name for p in signature.params][:3] == ["minval", "maxval", "shape"]
