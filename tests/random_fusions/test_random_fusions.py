"""A part of the random fusions that is the same every time: `python -m tests.random_fusions` runs as many as one likes."""

from __future__ import annotations

from typing import Any

import nvrtc_watch
import pytest
from fusion_case import Case, Node, Ref, TensorInput
from fusion_check import Outcome, check, check_shapes, difference
from fusion_generator import GRAPHS, LONG_ROWS, MIXED, NARROW, SIZED, TWO_SIDES, VIEWS, WIDE, WIDE_SIZED, random_case
from fusion_runner import run_seed, shrunk
from fusion_shrink import shrink
from wide_generator import Wide

from weft import DataType
from weft.device.library import translation_unit
from weft.runtime import engines, nvrtc

SEEDS = range(45)
LARGEST_ELEMS = 2000
VIEWS_SEEDS, VIEWS_ELEMS = range(24), 400
TWO_SIDES_SEEDS = range(16)
NARROW_SEEDS = range(20)
GRAPHS_SEEDS, GRAPHS_ELEMS = range(16), 1500
MIXED_SEEDS, WIDE_SEEDS, SIZED_SEEDS = range(6), range(8), range(3, 7)
LONG_ROWS_SEEDS, LONG_ROWS_ELEMS = range(5), 2_500_000


@pytest.mark.parametrize("seed", SEEDS)
def test_the_kernel_computes_what_the_reference_does(seed: int) -> None:
    """Nothing wrong, and nothing declined."""
    _, _, outcome = run_seed(seed, "cpu", LARGEST_ELEMS)
    if outcome.kind not in ("ok", "ill-conditioned"):
        pytest.fail(shrunk(seed, outcome, "cpu", LARGEST_ELEMS))


@pytest.mark.parametrize("seed", VIEWS_SEEDS)
def test_graphs_over_views(seed: int) -> None:
    """Nothing wrong, and nothing declined."""
    _, _, outcome = run_seed(seed, "cpu", VIEWS_ELEMS, VIEWS)
    if outcome.kind not in ("ok", "ill-conditioned"):
        pytest.fail(shrunk(seed, outcome, "cpu", VIEWS_ELEMS, VIEWS))


@pytest.mark.parametrize("seed", GRAPHS_SEEDS)
def test_graphs_of_everything(seed: int) -> None:
    """All types, views, lookups, scans, orders, reductions: nothing wrong, and nothing declined."""
    outcome = check(random_case(seed, GRAPHS_ELEMS, GRAPHS))
    if outcome.kind not in ("ok", "ill-conditioned"):
        pytest.fail(shrunk(seed, outcome, "cpu", GRAPHS_ELEMS, GRAPHS))


@pytest.mark.parametrize("seed", MIXED_SEEDS)
def test_graphs_of_mixed_arguments(seed: int) -> None:
    """Scalar inputs, CPU scalars, sizes as shapes, empty tensors, integers of 8 bits: nothing wrong, and nothing declined."""
    outcome = check(random_case(seed, GRAPHS_ELEMS, MIXED))
    if outcome.kind not in ("ok", "ill-conditioned"):
        pytest.fail(shrunk(seed, outcome, "cpu", GRAPHS_ELEMS, MIXED))


@pytest.mark.parametrize("seed", WIDE_SEEDS)
def test_graphs_of_what_the_others_leave_out(seed: int) -> None:
    """Narrow floats, reshapes of any sizes, parts of axes in another order, computed positions, batched products: nothing wrong, and nothing declined."""
    outcome = check(random_case(seed, GRAPHS_ELEMS, WIDE))
    if outcome.kind not in ("ok", "ill-conditioned"):
        pytest.fail(shrunk(seed, outcome, "cpu", GRAPHS_ELEMS, WIDE))


def test_wide_graphs_draw_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose operands never fit would test nothing."""
    made: set[str] = set()
    draw = Wide.draw

    def counted(graph: Wide, kind: Any) -> None:
        draw(graph, kind)
        made.add(kind.__name__)

    monkeypatch.setattr(Wide, "draw", counted)
    wanted = {kind.__name__ for kind, _ in Wide.STEPS}
    for seed in range(1000):
        random_case(seed, GRAPHS_ELEMS, WIDE)
        if made == wanted:
            return
    pytest.fail(f"never drawn: {sorted(wanted - made)}")


@pytest.mark.parametrize("seed", SIZED_SEEDS)
def test_graphs_at_several_sizes(seed: int) -> None:
    """One definition of several kernels, without any size in it, at four shapes: nothing wrong, and nothing declined."""
    outcome = check_shapes(random_case(seed, GRAPHS_ELEMS, SIZED), "cpu", 4, GRAPHS_ELEMS)
    if outcome.kind not in ("ok", "ill-conditioned"):
        pytest.fail(f"{outcome.kind}: {outcome.detail}")


@pytest.mark.parametrize("seed", WIDE_SEEDS[:4])
def test_graphs_of_what_the_others_leave_out_at_several_sizes(seed: int) -> None:
    """Turned, repeated and sorted axes, computed positions, scatters, random numbers, without any size in the definition: nothing wrong at three shapes."""
    outcome = check_shapes(random_case(seed, 600, WIDE_SIZED), "cpu", 3, 600)
    if outcome.kind not in ("ok", "ill-conditioned"):
        pytest.fail(f"{outcome.kind}: {outcome.detail}")


@pytest.mark.parametrize("seed", LONG_ROWS_SEEDS)
def test_long_rows(seed: int) -> None:
    """Rows of thousands of elements: in clusters, with weights that come early, by bulk copies."""
    outcome = check(random_case(seed, LONG_ROWS_ELEMS, LONG_ROWS))
    if outcome.is_failure:
        pytest.fail(shrunk(seed, outcome, "cpu", LONG_ROWS_ELEMS, LONG_ROWS))


@pytest.mark.parametrize("seed", TWO_SIDES_SEEDS)
def test_rows_and_columns(seed: int) -> None:
    """Normalizations of rows whose columns are reduced, too."""
    outcome = check(random_case(seed, LARGEST_ELEMS, TWO_SIDES))
    if outcome.is_failure:
        pytest.fail(shrunk(seed, outcome, "cpu", LARGEST_ELEMS, TWO_SIDES))


@pytest.mark.parametrize("seed", NARROW_SEEDS)
def test_narrow_types(seed: int) -> None:
    """Inputs and outputs of 8 and 4 bits."""
    outcome = check(random_case(seed, LARGEST_ELEMS, NARROW))
    if outcome.is_failure:
        pytest.fail(shrunk(seed, outcome, "cpu", LARGEST_ELEMS, NARROW))


def test_a_seed_makes_the_same_fusion_again() -> None:
    assert random_case(7) == random_case(7)


def test_a_wrong_element_is_found() -> None:
    import torch

    wanted = torch.zeros(2, 3, dtype=torch.float64)
    output = wanted.to(torch.float32)
    output[1, 2] = 1.0
    assert difference(output, wanted, torch.full_like(wanted, 0.5), DataType.Float) == "1 of 6 elements differ; at [1, 2]: 1.0 instead of 0.0"
    output[1, 2] = float("nan")
    assert difference(output, wanted, torch.full_like(wanted, 0.5), DataType.Float)


def test_a_failing_fusion_shrinks_to_the_op_that_fails() -> None:
    """Say that every fusion with a sine fails: one op on one element is left."""

    def fails(case: Case) -> bool:
        return any(node.op == "sin" for node in case.nodes) and check(case).kind == "ok"

    nodes = (
        Node(("v0",), "neg", (Ref("x0"),), labels=("a", "b")),
        Node(("v1",), "sin", (Ref("v0"),), labels=("a", "b")),
        Node(("v2",), "add", (Ref("v1"), Ref("x1")), labels=("a", "b")),
    )
    case = Case((TensorInput("x0", ("a", "b")), TensorInput("x1", ("b",), gapped=frozenset({0}))), nodes, ("v2", "v0"), {"a": 3, "b": 5})
    small = shrink(case, fails)
    assert [node.op for node in small.nodes] == ["sin"] and dict(small.sizes) == {"a": 1, "b": 1}
    assert "v1 = fd.ops.sin(x0)" in small.text()


@pytest.mark.skipif(not nvrtc.candidates(), reason="no NVRTC")
def test_what_nvrtc_refuses_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --nvrtc the text of each kernel is compiled, before the emulator runs it, as a GPU's is."""
    monkeypatch.setattr(engines, "watchers", [])
    monkeypatch.setattr(nvrtc_watch, "_compiled", set())
    nvrtc_watch.compile_by_nvrtc()
    assert check(random_case(3, 200)).kind == "ok"
    assert nvrtc_watch._compiled
    monkeypatch.setattr(nvrtc_watch, "_compiled", set())
    monkeypatch.setattr(engines, "translation_unit", lambda text, blocks, shortened=False: translation_unit(text.replace("{", "{ no_such_function();", 1), blocks))
    assert check(random_case(3, 200)).kind == "CompilationFailed"


def test_a_printed_fusion_runs() -> None:
    exec(compile(random_case(3, 200).text(), "<printed>", "exec"), {})


def test_outcomes_that_are_no_failures() -> None:
    assert [Outcome(kind).is_failure for kind in ("ok", "declined", "ill-conditioned", "mismatch", "KernelFault")] == [False, False, False, True, True]


@pytest.mark.parametrize("seed, elems", [(5685, 4000)])
def test_rows_and_columns_that_failed_once(seed: int, elems: int) -> None:
    """5685: an input that rows read only before what columns need was taken out of their part."""
    assert check(random_case(seed, elems, TWO_SIDES)).kind == "ok"
