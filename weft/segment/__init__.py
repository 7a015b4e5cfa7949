"""A definition cut into kernels, torch ops and views: see "Graphs" in docs/architecture.md."""
