"""Checking kernels in the emulator: many orders of one launch, planted mistakes, hand-written kernels, scripts.

Owns what `weft check` does. The checks themselves are the emulator's. Read first: `explore.explore`.
"""
