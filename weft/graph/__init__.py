"""Passes over a whole definition, before it is cut into segments: see "Graphs" in docs/architecture.md."""
