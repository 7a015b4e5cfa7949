"""Fusion IR: tensors, their axes, the expressions between them."""
