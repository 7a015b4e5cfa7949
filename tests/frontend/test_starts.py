"""What makes a warm start short: keys without Inductor's code generators, digests of code by its files' times, and packs of cache entries."""

from __future__ import annotations

import importlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.cache import Artefact, DiskCache, digest_of_files, files_below
from weft.frontend import packs
from weft.frontend.backend import Decompositions, _decompositions
from weft.frontend.graph_key import keys_without_inductor
from weft.lower.program import LineOrigin
from weft.options import options
from weft.runtime.record_text import Later, NoRecord, as_text


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    with options(cache=True, cache_dir=str(tmp_path / "cache")):
        yield tmp_path


def modules() -> tuple[Any, Any]:
    return importlib.import_module("torch._functorch._aot_autograd.autograd_cache"), importlib.import_module("torch._inductor.codecache")


def test_functions_of_torch_are_as_before_after_a_key_and_after_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    autograd_cache, codecache = modules()
    before = autograd_cache.autograd_cache_key, codecache.init_backend_registration, codecache.torch_key, vars(codecache.CacheBase)["get_system"]
    seen: list[Any] = []

    def key(given: str) -> str:
        seen.append((codecache.init_backend_registration(), codecache.torch_key(), codecache.CacheBase.get_system()))
        if given == "bad":
            raise ValueError(given)
        return given

    monkeypatch.setattr(autograd_cache, "autograd_cache_key", key)
    with keys_without_inductor():
        assert autograd_cache.autograd_cache_key("good") == "good"
        with pytest.raises(ValueError, match="bad"):
            autograd_cache.autograd_cache_key("bad")
        assert codecache.init_backend_registration is before[1]  # outside of a key torch's own
    assert autograd_cache.autograd_cache_key is key
    assert before[1:] == (codecache.init_backend_registration, codecache.torch_key, vars(codecache.CacheBase)["get_system"])
    assert seen[0][0] is None and seen[0][1] == before[2]() and seen[0] == seen[1]
    assert "triton" not in str(seen[0][2])


def test_other_threads_have_the_functions_of_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    autograd_cache, codecache = modules()
    monkeypatch.setattr(codecache, "init_backend_registration", lambda: "torch's")
    found: list[Any] = []

    def key() -> None:
        thread = threading.Thread(target=lambda: found.append(codecache.init_backend_registration()))
        thread.start()
        thread.join()
        found.append(codecache.init_backend_registration())

    monkeypatch.setattr(autograd_cache, "autograd_cache_key", key)
    with keys_without_inductor():
        autograd_cache.autograd_cache_key()
    assert found == ["torch's", None]


def test_a_torch_without_these_functions_makes_its_keys_as_it_likes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    autograd_cache, codecache = modules()
    monkeypatch.delattr(codecache, "init_backend_registration")
    monkeypatch.delattr(codecache, "CacheBase")
    monkeypatch.setattr(autograd_cache, "autograd_cache_key", lambda: "key")
    with keys_without_inductor():
        assert autograd_cache.autograd_cache_key() == "key"
    monkeypatch.delattr(autograd_cache, "autograd_cache_key")
    with keys_without_inductor():
        pass


def test_a_digest_of_code_is_made_again_when_a_file_changes(folder: Path) -> None:
    code = folder / "code"
    (code / "inner" / "__pycache__").mkdir(parents=True)
    (code / "one.py").write_text("1")
    (code / "inner" / "two.py").write_text("2")
    (code / "inner" / "__pycache__" / "two.py").write_text("left out")
    (code / "three.txt").write_text("left out")
    made: list[int] = []

    def digest() -> str:
        made.append(1)
        return f"digest {len(made)}"

    def known() -> str:
        return digest_of_files("code", list(files_below(str(code), (".py",))), digest)

    assert [known(), known()] == ["digest 1", "digest 1"] and len(list(files_below(str(code), (".py",)))) == 2
    (code / "one.py").write_text("10")  # another size
    assert known() == "digest 2"
    status = (code / "one.py").stat()
    (code / "one.py").write_text("11")
    os.utime(code / "one.py", ns=(status.st_atime_ns, status.st_mtime_ns + 1))  # another time
    assert known() == "digest 3"
    with options(cache=False):
        assert known() == "digest 4"


def call(*entries: str, key: str = "key") -> Any:
    return SimpleNamespace(plan=SimpleNamespace(key=key, inputs=(), device=torch.device("cpu")), calls=SimpleNamespace(entries=list(entries)))


def test_a_pack_gives_each_entry_once_and_then_the_folder_does(folder: Path) -> None:
    cache = DiskCache(Path(folder / "cache"))
    cache.put("a" * 64, Artefact({"kind": "call"}, {"code": b"one", "more": b"two"}))
    cache.put("b" * 64, Artefact({"kind": "kernel", "n": 3}))
    calls = [call("a" * 64, "b" * 64), call("b" * 64, "c" * 64)]
    assert not packs.use_pack(calls)
    packs.write_pack(calls)
    assert packs.use_pack(calls) and not packs.use_pack([call(key="another")])
    from weft.cache import default_cache

    found = default_cache()
    assert found is not None
    for key in ("a" * 64, "b" * 64):
        cache.path(key).unlink()
    assert found.get("a" * 64) == Artefact({"kind": "call"}, {"code": b"one", "more": b"two"})
    assert found.get("a" * 64) is None
    packs.drop_pack()
    assert found.get("b" * 64) is None


def test_a_pack_with_something_else_in_it_gives_the_rest() -> None:
    blobs = {"good blob": b"1"}
    entries = {"good": [{"kind": "call"}, ["blob"]], "short": [{}], "foreign": 3, "lost": [{}, ["blob"]], "odd": [{}, 5]}
    assert packs.unpacked(entries, blobs) == {"good": Artefact({"kind": "call"}, {"blob": b"1"})}


def test_origins_of_lines_are_decoded_when_somebody_asks() -> None:
    classes = {"LineOrigin": LineOrigin}
    origins = (LineOrigin(1, 2, "op", ("T0",), "T0 = add(T1, T2)"), LineOrigin(3, 3, "scalar", ("T4",), "float"))
    later = Later(as_text(origins, classes), classes)
    assert tuple(later) == origins and len(later) == 2 and later[1] == origins[1]
    damaged = Later('[{"Unknown": []}]', classes)
    with pytest.raises(NoRecord):
        len(damaged)


def test_decompositions_are_the_table_that_they_stand_for() -> None:
    assert dict(Decompositions()) == _decompositions() and len(Decompositions()) == len(_decompositions())
    assert torch.ops.aten.sin.default not in Decompositions()
