"""The ``dart-streams`` command: thin, lazily imported; what it does lives elsewhere."""
