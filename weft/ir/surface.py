"""What users write on values: operators and methods of TensorView and Scalar.

Owns the two classes that they inherit from. The methods themselves belong to the layer of ops, which puts them in (`weft.ops.operators`); the file
surface.pyi beside this one tells editors and type checkers what there is.
"""

from __future__ import annotations


class TensorSurface:
    """Operators and methods of a TensorView."""


class ScalarSurface:
    """Operators of a Scalar."""
