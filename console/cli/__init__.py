"""The ``dart-streams`` command: a module for each command, with its options, printing and exit codes."""
