"""What a user would pick instead, on the same pages, problems, actions and cores.

``browsers`` compares environments, ``trainers`` compares training. Each peer runs in a virtual environment of its own
(``make peers``), as a program that is started by path and knows nothing of this project: ``browsergym_player`` and
``trl_trainer`` import their peer and the standard library only.
"""
