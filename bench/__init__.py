"""Benchmarks. Each prints figures beside a stated baseline, both measured in one run. None is part of the tests."""
