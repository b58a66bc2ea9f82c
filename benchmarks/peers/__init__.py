"""What a user would pick instead, on the same pages, problems, actions and cores.

``browsers`` compares environments. A peer runs in a virtual environment of its own (``make peers``), as a program that
is started by path and knows nothing of this project: ``browsergym_player`` imports its peer and the standard library.
"""
