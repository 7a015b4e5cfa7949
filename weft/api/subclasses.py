"""Definitions as methods: nvFuser's older form, a subclass of FusionDefinition with `definition`, and perhaps `schedule`.

Owns when these methods are called: both before the first execution; with `schedule` the definition is executed as that method scheduled it.
Read first: `define_by_method`.
"""

from __future__ import annotations

from typing import Any


def define_by_method(fd: Any) -> bool:
    """Define `fd` by the methods of its class, if it has them and nothing was defined; return whether it was scheduled by one.

    Example:
        class Relu(FusionDefinition):
            def definition(self):
                x = self.define_tensor([-1])
                self.add_output(self.ops.relu(x))
    """
    kind = type(fd)
    if fd.fusion is not None or not callable(getattr(kind, "definition", None)):
        return bool(fd.__dict__.get("_is_scheduled_by_method"))
    with fd:
        fd.definition()
        fd._is_scheduled_by_method = callable(getattr(kind, "schedule", None))
        if fd._is_scheduled_by_method:
            fd.schedule()
    return bool(fd._is_scheduled_by_method)
