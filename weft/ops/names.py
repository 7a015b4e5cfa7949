"""Names that users write: nvFuser's ops and the composites beside them.

Owns the lookup; what to write instead of a name that torch has and weft lacks is in `instead.py`. Read first: `function_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from ..options import nearest
from . import activations as _activations, losses as _losses, positions as _positions, step_gradients as _step_gradients  # noqa: F401  (they add to the tables)
from .block_functions import BLOCK_FUNCTIONS
from .calls import finds_ops
from .index_functions import MORE_FUNCTIONS
from .composites import COMPOSITES
from .functions import FUNCTIONS, reduction_function
from .instead import instead_of
from .monoids import MONOIDS, StateMonoid


class UnknownName(UserError, AttributeError):
    code = "W120"
    what = "there is no op {name!r}"
    fix = "{remedy}"


def all_names() -> list[str]:
    """Return every op and composite, sorted."""
    return sorted({*FUNCTIONS, *COMPOSITES, *BLOCK_FUNCTIONS, *MORE_FUNCTIONS})


def unknown(name: str) -> UnknownName:
    """Return the error for a name that is no op."""
    names = {*FUNCTIONS, *COMPOSITES, *BLOCK_FUNCTIONS, *MORE_FUNCTIONS}
    instead = instead_of(name, names.__contains__)
    near = nearest(name, sorted(names))
    remedy = f"write {instead}" if instead else f"{near}; dir(fd.ops) lists all ops"
    return UnknownName(name=name, remedy=remedy)


@finds_ops
def function_of(name: str) -> Callable[..., Any]:
    """Return the function of the op or composite `name`, which takes the fusion first. Errors: UnknownName."""
    function = FUNCTIONS.get(name) or COMPOSITES.get(name) or BLOCK_FUNCTIONS.get(name) or MORE_FUNCTIONS.get(name)
    if function is None and name in MONOIDS and not isinstance(MONOIDS[name], StateMonoid):
        function = reduction_function(name)
    if function is None:
        raise unknown(name)
    return function
