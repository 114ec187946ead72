"""Benchmarks of the C++ engine: ``python -m bench.engine``."""
