"""The embedded backend: the SDK's clients in process, on PyTorch, offline."""
