"""The library of every process, and ``console``, which starts and observes processes.

The order of imports is in tests/unit/test_imports.py.
"""
