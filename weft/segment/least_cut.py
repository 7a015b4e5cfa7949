"""The vertices of least weight that separate some vertices of a graph from others.

Read first: `least_cut`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)


def least_cut(
    weights: Mapping[Vertex, float], edges: Iterable[tuple[Vertex, Vertex]], sources: Collection[Vertex], sinks: Collection[Vertex], most: int
) -> set[Vertex] | None:  # fmt: skip
    """Return the vertices, sources and sinks among them, through which all paths from sources to sinks lead: those of least weight, and of several such sets
    the nearest to the sinks. None if more than `most` steps would be needed, about as many as vertices are cut.

    Source: Ford and Fulkerson, Maximal flow through a network, 1956; each vertex is an edge from its front to its back.
    """
    number = {vertex: n for n, vertex in enumerate(weights)}
    begin, end = 2 * len(number), 2 * len(number) + 1
    left: list[dict[int, float]] = [{} for _ in range(end + 1)]  # by what it leads to: how much more can flow

    def connect(a: int, b: int, capacity: float) -> None:
        left[a][b] = left[a].get(b, 0.0) + capacity
        left[b].setdefault(a, 0.0)

    for vertex, n in number.items():
        connect(2 * n, 2 * n + 1, weights[vertex])
    for first, second in edges:
        connect(2 * number[first] + 1, 2 * number[second], float("inf"))
    for vertex in sources:
        connect(begin, 2 * number[vertex], float("inf"))
    for vertex in sinks:
        connect(2 * number[vertex] + 1, end, float("inf"))
    for _ in range(most + 1):
        path = _path(left, begin, end)
        if path is None:
            near = _leading_to(left, end)
            return {vertex for vertex, n in number.items() if 2 * n + 1 in near and 2 * n not in near}
        amount = min(left[a][b] for a, b in path)
        if amount == float("inf"):
            return None  # a vertex that cannot be cut is source and sink
        for a, b in path:
            left[a][b] -= amount
            left[b][a] += amount
    return None


def _path(left: list[dict[int, float]], begin: int, end: int) -> list[tuple[int, int]] | None:
    """Return the edges of a shortest path on which more can flow; None if there is none."""
    came_from, queue = {begin: begin}, deque([begin])
    while queue and end not in came_from:
        at = queue.popleft()
        for to, capacity in left[at].items():
            if capacity > 0 and to not in came_from:
                came_from[to] = at
                queue.append(to)
    if end not in came_from:
        return None
    path = [(came_from[end], end)]
    while path[-1][0] != begin:
        path.append((came_from[path[-1][0]], path[-1][0]))
    return path


def _leading_to(left: list[dict[int, float]], end: int) -> set[int]:
    found, stack = {end}, [end]
    while stack:
        at = stack.pop()
        for other in left[at]:
            if other not in found and left[other].get(at, 0.0) > 0:
                found.add(other)
                stack.append(other)
    return found


__all__ = ["least_cut"]
