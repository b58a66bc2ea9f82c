"""Benchmarks: they print JSON, and ratios rather than seconds. Not part of the wheel.

Run one from a checkout with ``dart-streams bench NAME``. Nothing in the product imports this package.
"""
