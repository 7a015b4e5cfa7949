"""The text of a kernel is the same in every process: the disk cache goes by it, and so do comparisons between versions."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import hashlib, random, sys
from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.cli import demo
from weft.compiler import compile_program, prepare, propose
from weft.runtime.binding import InputPlan

ballast = [object() for _ in range(random.Random(sys.argv[1]).randrange(200_000))]  # objects lie elsewhere in memory
ballast = ballast[:: int(sys.argv[2])]
found = {}
for case in demo.CASES[:: int(sys.argv[3])]:
    with FusionDefinition() as fd:
        case.define(fd)
    bound = InputPlan(fd.fusion, prepare(fd.fusion).equalities).bind(demo.make_inputs(case, (96, 2000), "cpu"))
    program = compile_program(fd.fusion, propose(fd.fusion, bound.env, {}, arch_by_name("H100")), DataType.Int32, name=case.name)
    found[case.name] = hashlib.sha256(program.text.encode()).hexdigest()
print(sorted(found.items()))
"""


def test_the_text_does_not_depend_on_the_process_or_on_what_was_compiled_before() -> None:
    runs = [("1", "1", "1"), ("2", "2", "-1"), ("3", "3", "1")]
    started = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, *run], stdout=subprocess.PIPE, text=True, env={**_environment(), "PYTHONHASHSEED": run[0]})
        for run in runs
    ]
    outputs = [process.communicate()[0] for process in started]
    assert outputs[0].count("'") == 12, outputs[0]
    assert outputs == [outputs[0]] * len(runs)


def _environment() -> dict[str, str]:
    import os
    from pathlib import Path

    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
