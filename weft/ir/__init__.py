"""Fusion IR: tensors, their axes, the expressions between them."""

from . import printing, structure  # they give fusions their text and their equality

__all__ = ["printing", "structure"]
