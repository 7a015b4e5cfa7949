"""weft record and weft diff: what is written, what differs, exit statuses."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

from weft.check.record_corpus import suite
from weft.check.record_page import page
from weft.check.records import compare, make_record
from weft.cli.main import main
from weft.runtime import resources

SCRIPT = """
from weft import FusionDefinition
def made(factor):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(x, factor))
    return fd
CASES = {"scaled": (made(%s), [(64, 128)]), "%s": (made(3.0), [(8, 8)])}
"""


def recorded(folder: Path, name: str, factor: str, case: str = "same") -> str:
    script, out = folder / f"{name}.py", folder / f"{name}.json"
    script.write_text(SCRIPT % (factor, case))
    assert main(["record", str(out), "--corpus", str(script)]) == 0
    return str(out)


def test_records_of_the_same_corpus_do_not_differ(tmp_path, capsys):
    before, after = recorded(tmp_path, "a", "2.0"), recorded(tmp_path, "b", "2.0")
    assert main(["diff", before, after]) == 0
    assert "0 cases changed, 0 are new, 0 were removed, 2 are the same." in capsys.readouterr().out


def test_a_changed_kernel_is_shown_and_the_exit_status_is_1(tmp_path, capsys):
    before, after = recorded(tmp_path, "a", "2.0"), recorded(tmp_path, "b", "2.5", "other")
    html, found = tmp_path / "page.html", tmp_path / "diff.json"
    assert main(["diff", before, after, "--html", str(html), "--json", str(found)]) == 1
    text = capsys.readouterr().out
    assert "scaled: text" in text and "2.5f" in text and "new: other" in text and "removed: same" in text
    assert json.loads(found.read_text())["changed"][0]["case"] == "scaled"
    assert "<script>" in html.read_text() and "http" not in html.read_text().replace("http-equiv", "")


def test_spills_come_first_and_errors_before_them():
    kernel = {"scheduler": "pointwise", "params": "p", "text": "t", "max_registers": 32, "machine": {"sm_90a": {"registers": 32, "spill_store_bytes": 0}}}
    before = {"targets": ["sm_90a"], "cases": {name: {"kernels": [copy.deepcopy(kernel)]} for name in ("registers", "spills", "error", "same")}}
    after = copy.deepcopy(before)
    after["cases"]["registers"]["kernels"][0]["machine"]["sm_90a"]["registers"] = 40
    after["cases"]["spills"]["kernels"][0]["machine"]["sm_90a"]["spill_store_bytes"] = 8
    after["cases"]["error"] = {"error": "W400: no scheduler", "kernels": []}
    found = compare(before, after)
    assert [c.case for c in found.changed] == ["error", "spills", "registers"] and found.same == 1
    assert found.changed[2].figures == ("sm_90a registers: 32 -> 40",)
    assert "filter" in page(found, before, after)


def test_the_suite_has_kernels_of_every_kind():
    cases = {name: case for name, case in suite().items() if "37x129" in name or "33x160" in name}
    record = make_record({name: case for name, case in cases.items() if any(kind in name for kind in ("softmax BF", "sums BF", "neg BF", "nvfp4 BF", "columns BF"))})
    assert not any("error" in case for case in record["cases"].values())
    assert {k["scheduler"] for case in record["cases"].values() for k in case["kernels"]} >= {"pointwise", "reduction", "inner_persistent"}


def test_what_is_no_record_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[]")
    assert main(["diff", str(tmp_path / "x.json"), str(tmp_path / "x.json")]) == 1
    assert "is not a record" in capsys.readouterr().err
    (tmp_path / "x.py").write_text("")
    assert main(["record", str(tmp_path / "o.json"), "--corpus", str(tmp_path / "x.py")]) == 1
    assert "has no CASES" in capsys.readouterr().err


def test_two_records_of_the_same_code_are_equal_byte_by_byte(tmp_path):
    """Of this process and of another one with other hashes of strings, machine code and all."""
    script = tmp_path / "corpus.py"
    script.write_text("from weft.check.record_corpus import suite\nCASES = {n: c for n, c in suite().items() if n in ('softmax Half 37x129', 'nvfp4 in tiles BFloat16 33x160')}")
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    arguments = ["--corpus", str(script), "--targets", "sm_90a"]
    assert main(["record", str(here), *arguments]) == 0
    subprocess.run([sys.executable, "-m", "weft", "record", str(there), *arguments], check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert here.read_bytes() == there.read_bytes()
    kernels = [kernel for case in json.loads(here.read_bytes())["cases"].values() for kernel in case["kernels"]]
    assert len(kernels) == 2
    for kernel in kernels:
        machine = kernel["machine"]["sm_90a"]
        assert machine["registers"] > 8 and machine["constant_bytes"] > 500 and machine["spill_store_bytes"] == machine["stack_bytes"] == 0
        if resources.disassembler():
            assert machine["sass_memory"] > 1 and 16 * sum(count for key, count in machine.items() if key.startswith("sass_")) <= machine["code_bytes"]


def test_machine_code_that_cannot_be_compared_is_said(tmp_path, capsys):
    kernel = {"scheduler": "pointwise", "params": "p", "text": "t", "machine": {"sm_90a": {"registers": 32}}}
    before = {"targets": ["sm_90a"], "tools": {"NVRTC": "13.0"}, "cases": {"a": {"kernels": [kernel]}}}
    other_tool, other_chip, text_only = (copy.deepcopy(before) for _ in range(3))
    other_tool["tools"]["NVRTC"], other_tool["cases"]["a"]["kernels"][0]["machine"]["sm_90a"]["registers"] = "13.5", 40
    other_chip["targets"], other_chip["cases"]["a"]["kernels"][0]["machine"] = ["sm_80"], {"sm_80": {"registers": 99}}
    text_only["targets"], text_only["cases"]["a"]["kernels"][0]["machine"] = [], {}
    for after, said in ((other_tool, "made by {'NVRTC': '13.0'} before, by {'NVRTC': '13.5'} after"), (other_chip, "only one record has machine code of sm_80"), (text_only, "only one record has machine code of sm_90a")):
        for name, record in (("a", before), ("b", after)):
            (tmp_path / name).write_text(json.dumps(record))
        assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
        assert said in capsys.readouterr().out
        assert said in page(compare(before, after), before, after).replace("&#x27;", "'")


def test_a_disassembler_that_reads_nothing_is_named(monkeypatch):
    monkeypatch.setattr("weft.check.records.disassembler", lambda: "/bin/false")
    monkeypatch.setattr("weft.check.records.disassemble", lambda cubin: None)
    case = {"neg Float 37x129": suite()["neg Float 37x129"]}
    (found,) = make_record(case, ["sm_90a"])["cases"].values()
    assert "W871: /bin/false cannot disassemble a kernel's machine code" in found["error"]
