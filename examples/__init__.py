"""Files to run and change, each a whole program: ``.venv/streams/bin/python -m examples.minimal_env``.

Nothing imports them but their tests.
"""
