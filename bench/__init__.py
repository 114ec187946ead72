"""Benchmarks. Each prints figures with a stated baseline, both measured in one run; none is part of the tests."""
