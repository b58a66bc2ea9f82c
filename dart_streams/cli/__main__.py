"""``python -m dart_streams.cli`` is the ``dart-streams`` command, where the package is not installed."""

from dart_streams.cli.main import main

main()
