"""A second process neither traces nor compiles: torch's caches hold weft's graphs, weft's cache holds kernels, and a folder of weft.precompile has both."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from processes import forks

from weft.frontend.stored import StoredGraph
from weft.options import options

ROOT = Path(__file__).parents[2]
PROGRAM = """
import functools, json, os, sys
import torch, torch.nn as nn
from torch._dynamo.utils import counters
import weft
from weft.frontend.backend import GRAPHS, backend
from weft.cache.disk import DiskCache

made = []
plain = DiskCache.put
DiskCache.put = lambda self, key, artefact: (made.append({k: str(v)[:80] for k, v in artefact.metadata.items()}), plain(self, key, artefact))[1]
held, plain_hold = [], DiskCache.hold
DiskCache.hold = lambda self, artefacts: (held.extend(artefacts), plain_hold(self, artefacts))[1]
torch.manual_seed(0)
model = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24, bias=False), nn.GELU())
x = torch.randn(5, 24)
device = os.environ.get("DEVICE", "cpu")
model, x = model.to(device), x.to(device)
what, folder = sys.argv[1:3]
found = {}
options = {"emulate": True}
if what == "precompile":
    weft.precompile(model, [(x,)], folder, options=options, train=True)
    print(json.dumps({"kernels": len(made)}))
    sys.exit()
if what == "serve":
    from weft.frontend.precompile import BadBundle
    try:
        weft.load_precompiled(folder)
    except BadBundle as error:
        print(json.dumps({"refused": str(error)}))
        sys.exit()
    made.clear()
other = "aot_eager" if what == "other" else backend
if what == "recorded":
    fast = torch.compile(model, backend=functools.partial(backend, options={"emulate": device == "cpu"}, mode="reduce-overhead"))
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad()
        fast(x).square().sum().backward()
    if device == "cuda":
        from torch._inductor.cudagraph_trees import get_manager
        found["recorded"] = sum(len(nodes) for nodes in get_manager(0).roots.values())
    model.zero_grad(set_to_none=False)
else:
    fast = torch.compile(model, backend=other, **({} if what == "other" else {"options": options}))
out = fast(x)
out.square().sum().backward()
grads = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
want = model(x)
want.square().sum().backward()
close = all(torch.allclose(a, p.grad, atol=1e-4, rtol=1e-4) for a, p in zip(grads, model.parameters())) and torch.allclose(out, want, atol=1e-5)
restored = sum(call.calls.executor is None and bool(call.kernels()) for graph in GRAPHS for call in graph.calls)
found["compiler"] = "weft.compiler" in sys.modules
found["generators"] = "torch._inductor.select_algorithm" in sys.modules
found["held"] = len(held)
print(json.dumps({**found, "right": close, "kernels": len(made), "made": made[:3], "graphs": len(GRAPHS), "restored": restored, "calls": sum(len(graph.calls) for graph in GRAPHS), **{k: v for k, v in counters["aot_autograd"].items()}}))
"""


def run(tmp_path: Path, what: str, folder: str = "", caches: str = "caches", **environment: str) -> dict[str, object]:
    """Run the program in a process of its own, with caches in a folder; return what it printed."""
    private = tmp_path / caches
    private.mkdir(exist_ok=True, mode=0o700)
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(private / "torch"), "WEFT_CACHE_DIR": str(private / "weft"),
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **environment,
    }  # fmt: skip
    if env.get("DEVICE") != "cuda":
        return json.loads(forks().run(PROGRAM, [what, folder], env, tmp_path).strip().splitlines()[-1])
    done = subprocess.run([sys.executable, "-c", PROGRAM, what, folder], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")])


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_second_process_finds_graphs_and_kernels_and_other_backends_do_not(tmp_path: Path, device: str) -> None:
    first, second, other = (run(tmp_path, what, DEVICE=device) for what in ("train", "train", "other"))
    assert first["right"] and first["autograd_cache_saved"] == 1 and first["kernels"]
    assert second["right"] and second["autograd_cache_hit"] == 1 and second["kernels"] == 0 and second["graphs"] == 2, second
    assert second["restored"] == second["calls"] > 2 and first["restored"] == 0  # no definition, no scheduler
    assert first["compiler"] and not second["compiler"]  # which need not even be imported
    assert not second["generators"]  # nor Inductor's
    assert first["held"] == 0 and second["held"] >= 2  # entries came in packs
    assert other["right"] and other["graphs"] == 0 and "autograd_cache_hit" not in other


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_graphs_that_are_recorded_are_kept_and_recorded_again(tmp_path: Path, device: str) -> None:
    first, second, plain = (run(tmp_path, what, DEVICE=device) for what in ("recorded", "recorded", "train"))
    assert first["right"] and first["autograd_cache_saved"] == 1 and first["kernels"]
    assert second["right"] and second["autograd_cache_hit"] == 1 and second["kernels"] == 0 and second["restored"] == second["calls"] > 2
    assert device == "cpu" or first["recorded"] == second["recorded"] > 0
    assert plain["right"] and "autograd_cache_hit" not in plain
    assert plain["kernels"] < first["kernels"]  # another graph, the same kernels but those that overwrite what the forward saved


def test_a_graph_with_large_constants_is_not_cut_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from weft.frontend.backend import BackendOptions, compile_graph

    monkeypatch.setattr("weft.frontend.compiling.GRAPHS", [])
    monkeypatch.setattr(torch._logging, "trace_structured", lambda *_, **__: None)  # pytest listens, and a trace shows the regions
    large, x = torch.randn(300, 500), torch.randn(300, 500)
    want = torch.sigmoid(x * large) + 1
    gm = make_fx(lambda x: torch.sigmoid(x * large) + 1, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    with options(cache_dir=str(tmp_path)):
        stored = StoredGraph("inference", asdict(BackendOptions(emulate=True)), gm, None, compile_graph(gm, kind="inference", options=BackendOptions(emulate=True)))
        torch.testing.assert_close(stored.plain([x]), want)
        stored.prepare_for_serialization()
        assert stored.plan is not None and len(stored.payload) < large.nbytes  # they are there once
        again = pickle.loads(pickle.dumps(stored))
        again.post_compile()
        torch.testing.assert_close(again([x]), want)
        assert again.gm is None, "its graph was read"
        assert torch.equal(again.graph()._tensor_constant0, large)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_precompiled_folder_serves_without_a_compiler(tmp_path: Path, device: str) -> None:
    folder = str(tmp_path / "shipped")
    assert run(tmp_path, "precompile", folder, caches="builder", DEVICE=device)["kernels"]
    served = run(tmp_path, "serve", folder, caches="server", WEFT_REQUIRE_CACHED="1", DEVICE=device)
    assert served["right"] and served["autograd_cache_hit"] == 1 and served["kernels"] == 0 and served["restored"] == served["calls"]


AHEAD = """
import sys, torch, torch._dynamo
torch._dynamo.config.enable_aot_compile = True  # torch 2.11 has it off
def f(x, w):
    return torch.softmax(x * w, -1) + 1
x, w = torch.randn(5, 24), torch.randn(24)
if sys.argv[1] == "save":
    from weft.frontend.backend import backend
    torch.compile(f, fullgraph=True, backend=backend, options={"emulate": True}).aot_compile(((x, w), {})).save_compiled_function(sys.argv[2])
else:
    with open(sys.argv[2], "rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    torch.testing.assert_close(loaded(x, w), f(x, w))
    from weft.frontend.backend import GRAPHS
    assert [call.fallback_reason for graph in GRAPHS for _, call in graph.regions] == [""] and GRAPHS[0].regions[0][1].kernels()
"""


def test_a_file_of_aot_compile_runs_in_another_process(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
    for what in ("save", "load"):
        forks().run(AHEAD, [what, str(tmp_path / "f.bin")], env, tmp_path)


@pytest.mark.parametrize(("damage", "said"), [("graphs.bin", "damaged"), ("manifest.json", "arch is"), ("mode", "others may write it"), ("link", "BadBundle|OSError")])
def test_a_damaged_or_foreign_folder_is_refused(tmp_path: Path, damage: str, said: str) -> None:
    from weft.frontend.precompile import BadBundle, _here, load_precompiled

    folder = tmp_path / "shipped"
    folder.mkdir()
    graphs = folder / "graphs.bin"
    if damage == "link":  # to a file that somebody else may exchange
        (tmp_path / "elsewhere").write_bytes(b"x")
        graphs.symlink_to(tmp_path / "elsewhere")
    else:
        graphs.write_bytes(b"x")
        graphs.chmod(0o666 if damage == "mode" else 0o600)
    manifest = _here() | {"kernels": [], "graphs": "0"}
    (folder / "manifest.json").write_text(json.dumps(manifest | ({"arch": [7, 5]} if damage == "manifest.json" else {})))
    with pytest.raises(BadBundle, match=said):
        load_precompiled(folder)


def test_a_kernel_that_is_not_there_is_an_error_where_that_is_asked_for(tmp_path: Path) -> None:
    import torch

    from weft import FusionDefinition

    with FusionDefinition() as fd:
        x = fd.from_pytorch(torch.ones(7, 3))
        fd.add_output(fd.ops.add(fd.ops.sin(x), 0.625))
    with options(cache_dir=str(tmp_path), require_cached=True), pytest.raises(Exception, match="W722.*weft.precompile|not in the disk cache"):
        fd.execute([torch.ones(7, 3)])
