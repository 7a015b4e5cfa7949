"""What a prepared call depends on beside its values: the settings in force, and whether gradients are recorded.

Needs nothing of the compiler, so that a process that runs recorded calls does not import it.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from ..options import in_block

_STATES: dict[Hashable, Hashable] = {}


def one_object(state: Hashable) -> Hashable:
    """Return the same object for equal states, so that calls compare states by identity."""
    return _STATES.setdefault(state, state)


def settings_and_gradients() -> Hashable:
    """Return an object that identifies the current settings and whether gradients are recorded, the same one for the same state."""
    return one_object((in_block(), torch.is_grad_enabled()))


__all__ = ["one_object", "settings_and_gradients"]
