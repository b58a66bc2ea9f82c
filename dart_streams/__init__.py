"""The library that every process shares, and ``console``, which starts processes and looks on.

Imports go up from the loose modules: config, connection, telemetry, bus, store, episodes, curation, policy, console.
The order is in tests/unit/test_imports.py.
"""
