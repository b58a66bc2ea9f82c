"""Comparisons with other projects on the same pages, problems, actions and cores.

``browsers`` compares environments, ``trainers`` training. Peers run in their own virtual environments (``make peers``);
``browsergym_player`` and ``trl_trainer`` import only their peer and the standard library.
"""
