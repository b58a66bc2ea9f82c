"""``python -m console.cli`` is the ``dart-streams`` command, where the package is not installed."""

from console.cli.main import main

main()
