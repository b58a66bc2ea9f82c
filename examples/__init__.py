"""Files to run and change, each a whole program: ``.venv/streams/bin/python -m examples.minimal_env``.

``in_memory_run`` is the run that ``minimal_env`` plays in. Nothing of the product imports them.
"""
