"""What a region's call pays for the profiler while it is off: nanoseconds, the least of many, with the check and without, taking turns.

PYTHONPATH=. python bench/profiler_check.py
"""

from __future__ import annotations

import timeit
from typing import Any

from weft.frontend.region_call import RegionCall


class Plain(RegionCall):
    """A region's call that never asks for the profiler."""

    def __call__(self, *inputs: Any) -> Any:
        return self._run(inputs)


def main() -> None:
    calls = {kind: kind.__new__(kind) for kind in (RegionCall, Plain)}
    for call in calls.values():
        call._run = lambda inputs: inputs  # type: ignore[method-assign]
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(200):
        for kind, call in calls.items():
            least[kind] = min(least[kind], timeit.timeit(lambda: call(1, 2, 3), number=2000) / 2000 * 1e9)
    print(f"with the check {least[RegionCall]:.0f} ns, without {least[Plain]:.0f} ns: {least[RegionCall] - least[Plain]:.0f} ns a call")


if __name__ == "__main__":
    main()
