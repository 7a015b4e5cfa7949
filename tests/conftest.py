"""All tests: helpers beside a test can be imported by name, tests of the GPU are skipped where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their folders are not on sys.path by themselves.
sys.path.extend(str(folder) for folder in sorted(Path(__file__).parent.iterdir()) if folder.is_dir() and not folder.name.startswith(("_", ".")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` on a machine without a CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def has_gpu() -> bool:
    """Tell whether torch can use a CUDA device."""
    import torch

    return torch.cuda.is_available()
