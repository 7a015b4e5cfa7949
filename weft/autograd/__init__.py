"""Reverse-mode differentiation of definitions: the gradients, what is saved for them, and the definitions of forward and backward."""
