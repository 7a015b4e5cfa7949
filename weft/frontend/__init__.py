"""From PyTorch programs to definitions: the backend of `torch.compile` (docs/torch_compile.md)."""
