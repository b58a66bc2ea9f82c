"""Benchmarks: they print JSON, and ratios rather than seconds."""
