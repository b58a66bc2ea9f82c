"""The project but for its processes, in layers: tests/unit/test_imports.py has their order.

From config, bus, store, telemetry, curation and policy, which the workers import, up to history, views, launch and
cli, which import the workers. Nothing below launch starts a process.
"""
