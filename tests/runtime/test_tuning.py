"""Tuning: the fastest candidate is kept and used, data that a kernel changes are not used, a time limit stops, entries travel in files, foreign ones are misses.

Kernels run in the emulator; what "times" them is a function of the test, which says how fast each launch was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from weft import DataType, FusionDefinition, UserError
from weft.cli.main import main
from weft.ir.structure import digest, structural_key
from weft.options import current, options
from weft.runtime import tuned, tuning
from weft.runtime.runtimes import forget_kernels


@pytest.fixture(autouse=True)
def empty_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, nothing known in the process, few candidates."""
    monkeypatch.setattr(tuning, "AT_MOST", 5)
    forget_kernels()
    tuned.forget()
    with options(cache_dir=str(tmp_path / "cache")):
        yield
    tuned.forget()
    forget_kernels()


class Watch:
    """A measure by script: each new kernel is as fast as the next of `times` says, all others as the last. known: the kernels that were timed; calls: how often."""

    def __init__(self, *times: float) -> None:
        self.times, self.calls = times, 0
        self.known: dict[str, float] = {}

    def __call__(self, launch: Callable[[], None], device: int | None, count: int) -> float:
        launch()
        self.calls += 1
        name = launch.func._built.program.name  # type: ignore[attr-defined]
        return self.known.setdefault(name, self.times[min(len(self.known), len(self.times) - 1)])

    @property
    def fastest(self) -> str:
        return min(self.known, key=lambda name: self.known[name])


def centered(in_place: bool = False) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        y = fd.ops.sub(x, fd.ops.mean(x, [1], True))
        fd.add_output(y, x) if in_place else fd.add_output(y)
    return fd


def scaled(factor: float = 2.0) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.mul(x, factor))
    return fd


def x_of(rows: int = 8, columns: int = 264) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))


def tuned_call(fd: FusionDefinition, x: torch.Tensor, watch: Watch, **session: object) -> tuning.Session:
    with tuning.session(tuning.Session(**{"limit_s": 1e9, "measure": watch, **session})) as chosen:  # type: ignore[arg-type]
        (y,) = fd.execute([x], tune=True)
    torch.testing.assert_close(y, (2 * x.double()).float())
    return chosen


def test_the_fastest_candidate_is_used_from_then_on() -> None:
    fd, x, watch = scaled(), x_of(), Watch(9.0, 8.0, 3.0, 8.0)
    (found,) = tuned_call(fd, x, watch).results
    assert (found.chosen_us, found.best_us) == (9.0, 3.0) and found.timed == found.candidates >= 4
    assert fd.fec.kernel_runtimes[-1].program.name == watch.fastest
    fd.execute([x])
    assert fd.fec._caller._known([x], None).runtimes[0].program.name == watch.fastest


def test_the_choice_stays_where_nothing_is_faster_by_more_than_noise() -> None:
    fd, x, watch = scaled(), x_of(), Watch(9.0, 8.95, 9.5)
    (found,) = tuned_call(fd, x, watch).results
    assert found.best_us == found.chosen_us == 9.0
    assert len(fd.fec.kernel_runtimes) == 1


def test_nothing_is_timed_and_nothing_used_when_tuning_is_off() -> None:
    watch = Watch(9.0, 3.0)
    with tuning.session(tuning.Session(1e9, measure=watch)):
        plain = scaled()
        plain.execute([x_of()])
    assert not watch.calls
    tuned_call(scaled(), x_of(), Watch(9.0, 3.0))
    other = scaled()
    other.execute([x_of()])
    assert other.fec.kernel_runtimes[0].program.name == plain.fec.kernel_runtimes[0].program.name


def assert_found_on_disk(x: torch.Tensor, watch: Watch) -> None:
    """With nothing known in the process, a call times nothing and runs what was the fastest."""
    tuned.forget()
    forget_kernels()
    with options(tune=True), tuning.session(tuning.Session(1e9, measure=Watch(1.0))) as chosen:
        fd = scaled()
        fd.execute([x])
    assert not chosen.results and fd.fec.kernel_runtimes[0].program.name == watch.fastest


def test_another_process_finds_the_winner_on_disk(tmp_path: Path) -> None:
    x, watch = x_of(), Watch(9.0, 8.0, 3.0, 8.0)
    tuned_call(scaled(), x, watch)
    assert_found_on_disk(x, watch)
    script = "import sys, weft; from weft.ir.structure import digest, structural_key; sys.path.insert(0, sys.argv[1]); " + (
        "from test_tuning import centered, scaled; print(digest(structural_key(scaled().fusion)), digest(structural_key(centered().fusion)))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent)], capture_output=True, text=True, env={"PYTHONHASHSEED": "77", **_environment()}, check=True)
    assert done.stdout.split() == [digest(structural_key(fd.fusion)) for fd in (scaled(), centered())]


def _environment() -> dict[str, str]:
    import os

    return {**{k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_data_that_a_kernel_changes_are_not_used() -> None:
    x, seen = x_of(), []
    before = x.clone()

    class Spy(Watch):
        def __call__(self, launch: Callable[[], None], device: int | None, count: int) -> float:
            us = super().__call__(launch, device, count)
            seen.append(bool((x == before).all()))
            return us

    fd = centered(in_place=True)
    with tuning.session(tuning.Session(1e9, measure=Spy(9.0, 3.0))):
        fd.execute([x], tune=True)
    assert seen and all(seen), "a timed launch wrote into the caller's tensor"
    torch.testing.assert_close(x, (before.double() - before.double().mean(1, keepdim=True)).float())


def test_the_random_generator_is_where_it_would_be_without_tuning() -> None:
    def dropped(tune: bool) -> tuple[torch.Tensor, torch.Tensor]:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
            fd.add_output(fd.ops.where(fd.ops.lt(fd.ops.rand_like(x), 0.5), x, 0.0))
        torch.manual_seed(11)
        with tuning.session(tuning.Session(1e9, measure=Watch(9.0, 3.0))):
            return fd.execute([x_of()], tune=tune)[0], fd.execute([x_of()], tune=tune)[0]

    for plain, timed in zip(dropped(False), dropped(True)):
        assert torch.equal(plain, timed)


def test_a_time_limit_stops() -> None:
    seconds = iter([0.0, 0.0, 1.0, 2.0, 3.0, *([100.0] * 1000)])
    watch = Watch(9.0, 8.0, 3.0, 1.0)
    (found,) = tuned_call(scaled(), x_of(), watch, limit_s=3, clock=lambda: next(seconds)).results
    assert 1 < found.timed < found.candidates and found.best_us < 9.0
    late = Watch(9.0, 3.0)
    assert not tuned_call(scaled(3.0 - 1.0), x_of(8, 520), late, limit_s=0, clock=lambda: 0.0).results and not late.calls


def test_progress_is_told_for_each_kernel() -> None:
    lines: list[str] = []
    tuned_call(scaled(), x_of(), Watch(9.0, 3.0), tell=lines.append)
    assert len(lines) == 1 and "8x264" in lines[0] and "9.0 us -> 3.0 us" in lines[0] and "3.00 times faster" in lines[0]


def test_export_and_import_round_trip(tmp_path: Path) -> None:
    x, watch, path = x_of(), Watch(9.0, 8.0, 3.0, 8.0), tmp_path / "tuned.json"
    tuned_call(scaled(), x, watch)
    assert tuned.export_file(path, current()) == 1
    kept = list(tuned.entries(current()))
    assert tuned.clear(current()) == 1 and not list(tuned.entries(current()))
    assert tuned.import_file(path, current()) == 1 and list(tuned.entries(current())) == kept
    assert_found_on_disk(x, watch)


@pytest.mark.parametrize("change", ["params", "chip", "version", "format"])
def test_a_stale_or_foreign_entry_is_a_miss(change: str, tmp_path: Path) -> None:
    x, path = x_of(), tmp_path / "tuned.json"
    tuned_call(scaled(), x, Watch(9.0, 8.0, 3.0, 8.0))
    tuned.export_file(path, current())
    content = json.loads(path.read_text())
    entry = content["entries"][0]
    if change == "params":
        entry["found"]["params"] = entry["found"]["params"].replace("vector_elems=", "vector_elems=1")
    elif change == "format":
        entry["format"] = 99
    else:
        entry["place"][change] += "x"
    path.write_text(json.dumps(content))
    tuned.clear(current())
    if change == "format":
        with pytest.raises(tuned.NotTuned, match="entry 0 is not a tuning result"):
            tuned.import_file(path, current())
    else:
        assert tuned.import_file(path, current()) == 1
    plain, fd = scaled(), scaled()
    plain.execute([x])
    with options(tune=True), tuning.session(tuning.Session(0, measure=Watch(1.0))):
        fd.execute([x])
    assert fd.fec.kernel_runtimes[0].program.name == plain.fec.kernel_runtimes[0].program.name


@pytest.mark.parametrize("text", ["", "[]", '{"weft tuned": 1}', '{"weft tuned": 1, "entries": [3]}', '{"weft tuned": 1, "entries": [{"format": 1, "place": {}, "found": {}}]}'])
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(tuned.NotTuned):
        tuned.import_file(path, current())
    assert not list(tuned.entries(current()))


def test_sizes_of_one_class_share_an_entry_and_others_do_not() -> None:
    same, other = tuned.size_class(4105), tuned.size_class(4107)
    assert same == other != tuned.size_class(4096)
    assert tuned.size_class(4096) != tuned.size_class(8192) and tuned.size_class(63) != tuned.size_class(64)
    watch = Watch(9.0, 3.0)
    tuned_call(scaled(), x_of(8, 272), watch)
    before = watch.calls
    assert not tuned_call(scaled(), x_of(8, 272), watch).results and watch.calls == before
    assert tuned_call(scaled(), x_of(8, 1264), watch).results


def test_a_script_is_tuned_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, out = tmp_path / "job.py", tmp_path / "out.json"
    script.write_text(
        "import sys, torch\nfrom weft import DataType, FusionDefinition\nwith FusionDefinition() as fd:\n    x = fd.define_tensor([-1, -1], contiguity=True)\n"
        "    fd.add_output(fd.ops.mul(x, 2.0))\n(y,) = fd.execute([torch.ones(8, 264)])\nassert float(y.sum()) == 16 * 264\nsys.exit(int(sys.argv[1]))\n"
    )
    assert main(["tune", str(script), "4", "--export", str(out), "--limit", "500"]) == 4
    said = capsys.readouterr()
    assert "candidates" in said.err and "1 kernel(s) tuned" in said.err and "1 entries in" in said.out
    assert main(["tune", "--list"]) == 0 and "pointwise" in capsys.readouterr().out
    assert main(["tune", "--clear"]) == 0 and main(["tune", "--import", str(out)]) == 0
    assert main(["tune"]) == 1 and "W789" in capsys.readouterr().err


def test_candidates_that_cannot_be_made_or_launched_are_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A defect in a candidate is told, and fails no call."""
    build, built = tuning.Kernels.program, []

    def odd(self: object, request: object) -> object:
        built.append(request)
        if len(built) == 2:  # the first is the choice, which the call itself makes
            raise ValueError("a planted defect")
        return build(self, request)  # type: ignore[arg-type]

    class Refuses(Watch):
        def __call__(self, launch: Callable[[], None], device: int | None, count: int) -> float:
            us = super().__call__(launch, device, count)
            if len(self.known) == 2:
                raise UserError("not launched")
            return us

    monkeypatch.setattr(tuning.Kernels, "program", odd)
    monkeypatch.setattr(tuning, "MOST_COMPILERS", 1)
    (found,) = tuned_call(scaled(), x_of(), Refuses(9.0, 8.0, 3.0)).results
    assert found.candidates == 5 and found.timed == 3 and found.best_us == 3.0
    assert "left out by a defect of weft" in caplog.text and "a planted defect" in caplog.text
