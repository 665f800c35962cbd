"""Benchmarks: programs that print figures. None is a test, and none runs with them."""
