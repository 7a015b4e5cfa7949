"""What a kernel costs: what it does (`work`), and the time that a chip needs for it (`model`)."""
