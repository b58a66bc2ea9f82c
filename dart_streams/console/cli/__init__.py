"""The ``dart-streams`` command: one module a command, imported when it is called.

Options, printing and exit codes live here. What a command does lives in history, views and launch.
"""
