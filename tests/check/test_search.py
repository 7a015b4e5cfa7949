"""The systematic search over orders: pipelines with roles and named barriers are clean in it, and it finds what random orders do not."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from weft.check import planted
from weft.check.explore import NoOrders, explore, search
from weft.check.handwritten import load
from weft.check.captured_launches import captured
from weft.check.script import checked_kernel
from weft.emulator import Buffer, EmulatedKernel

# Two warps take numbers twelve times; in the plain order they are first in turn. One barrier is wrong when a warp was first twice in a row exactly once: of
# random orders, 11 in 2,048 are so.
ONE_LATE = """extern "C" __global__ void one_late(int* T0, float* T1) {
  int* last = reinterpret_cast<int*>(weft::dynamic_shared());
  WEFT_NAME(last, 4, "last");
  const int warp = threadIdx.x / 32;
  int repeated = 0, before = 0;
  for (int i = 0; i < 12; i++) {
    if (weft::lane() == 0) {
      const int number = weft::atomic_add(T0, 1);
      const int first = number % 2 == 0 ? 1 : 2;
      if (warp == 1 && first == before) repeated++;
      before = first;
    }
    weft::named_sync(1, 64);
  }
  if (threadIdx.x == 32) weft::store_shared(last, repeated);
  if (threadIdx.x >= 32) weft::warp_sync();
  const int id = warp == 1 && weft::load_shared(last) == 1 ? 3 : 2;
  weft::named_sync(id, 64);
  weft::store_global(T1 + threadIdx.x, 1.f);
}
"""
SIZES = {"grid": (1, 1, 1), "block": (64, 1, 1), "shared_bytes": 64}


@functools.lru_cache(maxsize=1)
def one_late() -> tuple[EmulatedKernel, list[Buffer], list[np.ndarray]]:
    arrays = [np.zeros(1, np.int32), np.zeros(64, np.float32)]
    arguments = [Buffer.of(a, f"T{n}", written=True) for n, a in enumerate(arrays)]
    return EmulatedKernel.of_text(ONE_LATE, [], "one_late", check="races"), arguments, arrays


def test_the_search_finds_what_random_orders_do_not() -> None:
    kernel, arguments, _ = one_late()
    assert explore(kernel, SIZES, arguments, [None, *range(8)]).is_clean
    found = search(kernel, SIZES, arguments, 60)
    assert {f.finding.kind for f in found.found} == {"deadlock"}
    shown = [points for points, report in found.reports.items() if report.findings]
    assert all(len(points) == 1 for points in shown[:1]) and len(shown) < len(found.reports)  # type: ignore[arg-type]
    assert f"preempt={shown[0]} replays it" in found.found[0].text()
    again = kernel.launch(*SIZES.values(), arguments, preempt=shown[0], raise_findings=False)  # type: ignore[arg-type]
    assert again.kinds() == {"deadlock"}


def test_points_that_change_no_order_are_not_combined() -> None:
    kernel, arguments, _ = one_late()
    found = search(kernel, SIZES, arguments, 400)
    orders = {report.order for report in found.reports.values()}
    once = [report for points, report in found.reports.items() if len(points) == 1]  # type: ignore[arg-type]
    assert 12 <= len({report.order for report in once}) < len(once) == found.reports[()].sync_points
    assert len(orders) > len(once) // 2
    with pytest.raises(NoOrders):
        search(kernel, SIZES, arguments, 0)


@pytest.mark.parametrize("name", ["pipeline_rows", "two_sides", "two_sides_cluster"])
def test_generated_pipelines_are_clean_in_a_search(name: str) -> None:
    found = captured(name)
    kernel = checked_kernel(found.call.program, found.call.kernel.limits)
    result = search(kernel, found.geometry, found.arguments, 16)
    assert result.is_clean and len(result.reports) == 16 and len({r.order for r in result.reports.values()}) > 4


def test_a_pipeline_written_by_hand_is_clean_in_a_search_and_has_no_raw_access() -> None:
    folder = Path(planted.__file__).parent / "examples"
    made = load(folder / "rmsnorm.cu", folder / "rmsnorm.toml", raw_net=True)
    assert made.search(8).is_clean
