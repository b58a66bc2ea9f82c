"""``python -m dart_streams.console.cli`` is the ``dart-streams`` command, where the package is not installed."""

from dart_streams.console.cli.main import main

main()
