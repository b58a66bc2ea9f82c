"""Learning from a person's corrections in a real run: ``dart-streams bench feedback``."""
