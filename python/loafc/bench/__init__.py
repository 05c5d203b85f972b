"""Benchmarks against TorchInductor: ``python -m loafc.bench NAME``."""
