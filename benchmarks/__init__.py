"""Benchmarks, run from a checkout with ``dart-streams bench NAME``; they print ratios as JSON. Not in the wheel."""
